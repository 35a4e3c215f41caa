"""A database of another schema version: an older one is made anew, a newer one is not touched.

`tests/fixtures/databases/version-N.sql` is the schema as version N shipped it. Each is filled with
a lie that fits the ledger's head, so that whoever misread it would believe it.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from qualify.evidence.ledger import Ledger, open_ledger
from qualify.results.database import (
    SCHEMA_VERSION,
    DatabaseNewer,
    database_path,
    follow,
    rebuild,
    snapshot,
    state,
)
from qualify.results.queries import ask
from support.evidence import SettableClock, run

FIXTURES = Path(__file__).parents[2] / "fixtures" / "databases"
OLDER = range(1, SCHEMA_VERSION)
COUNTS = "SELECT count(*), count(*) FILTER (state = 'passed') FROM trials"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    clock = SettableClock()
    made = open_ledger(tmp_path, clock.clock())
    run(made, clock)
    return made


def make(version: int, results: Path, ledger: Ledger) -> None:
    """A database as that version left it, and a refusal in it that never happened."""
    head = ledger.head()
    with duckdb.connect(str(database_path(results))) as connection:
        connection.execute((FIXTURES / f"version-{version}.sql").read_text("utf-8"))
        if version < 3:
            values = [version, head.count, f"sha256:{head.digest}"]
            connection.execute("INSERT INTO meta VALUES (?, ?, ?)", values)
        else:
            connection.execute("INSERT INTO meta VALUES (?, NULL)", [version])
            values = [ledger.site(), head.count, f"sha256:{head.digest}"]
            connection.execute("INSERT INTO sites VALUES (0, ?, ?, ?)", values)
        columns = connection.execute("DESCRIBE refusals").fetchall()
        lie = {
            "seq": "7", "time": "now()::TIMESTAMP", "row": "'a lie'", "configuration": "'x'",
            "reasons": "['x']", "reason": "'x'", "site": "0",
        }  # fmt: skip
        given = ", ".join(lie[name] for name, *_ in columns if name in lie)
        names = ", ".join(name for name, *_ in columns if name in lie)
        connection.execute(f"INSERT INTO refusals ({names}) VALUES ({given})")


def test_every_older_version_has_its_fixture() -> None:
    assert sorted(FIXTURES.glob("*.sql")) == [FIXTURES / f"version-{n}.sql" for n in OLDER]


@pytest.mark.parametrize("version", OLDER)
def test_an_older_database_is_never_misread(version: int, ledger: Ledger, tmp_path: Path) -> None:
    make(version, tmp_path, ledger)
    before = database_path(tmp_path).read_bytes()
    assert state(tmp_path, ledger).state == "older"
    with snapshot(tmp_path, ledger, None) as (connection, note):
        assert note is None
        assert ask(connection, COUNTS).rows == ((1, 1),)
        assert ask(connection, "SELECT count(*) FROM refusals").rows == ((0,),)
    assert database_path(tmp_path).read_bytes() == before


@pytest.mark.parametrize("version", OLDER)
@pytest.mark.parametrize("write", [follow, rebuild], ids=lambda write: write.__name__)
def test_an_older_database_is_made_anew_from_the_ledger(
    version: int, write, ledger: Ledger, tmp_path: Path
) -> None:
    make(version, tmp_path, ledger)
    assert write(tmp_path, ledger, {}).rebuilt
    assert state(tmp_path, ledger).state == "current"
    with duckdb.connect(str(database_path(tmp_path)), read_only=True) as connection:
        assert connection.execute("SELECT schema_version FROM meta").fetchall() == [
            (SCHEMA_VERSION,)
        ]
        assert connection.execute(COUNTS).fetchall() == [(1, 1)]
        assert connection.execute("SELECT count(*) FROM refusals").fetchall() == [(0,)]
    assert not follow(tmp_path, ledger, {}).rebuilt


@pytest.mark.parametrize("ahead", [1, 95])
def test_a_newer_database_is_refused_and_not_one_byte_changes(
    ahead: int, ledger: Ledger, tmp_path: Path
) -> None:
    follow(tmp_path, ledger, {})
    with duckdb.connect(str(database_path(tmp_path))) as connection:
        connection.execute("UPDATE meta SET schema_version = ?", [SCHEMA_VERSION + ahead])
        connection.execute("CREATE TABLE what_only_they_know (a INTEGER)")
    before = database_path(tmp_path).read_bytes()
    for write in (follow, rebuild):
        with pytest.raises(DatabaseNewer, match=f"version {SCHEMA_VERSION + ahead}"):
            write(tmp_path, ledger, {})
    with pytest.raises(DatabaseNewer), snapshot(tmp_path, ledger, None):
        pass
    assert state(tmp_path, ledger).state == "newer"
    assert database_path(tmp_path).read_bytes() == before
