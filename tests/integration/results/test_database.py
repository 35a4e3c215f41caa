"""The database follows the ledger; locked, missing, corrupt, older or newer, it loses nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from qualify.core.errors import EnvironmentFault
from qualify.evidence.ledger import Ledger, open_ledger
from qualify.results import database
from qualify.results.database import (
    DatabaseCorrupt,
    DatabaseLocked,
    DatabaseNewer,
    database_path,
    follow,
    rebuild,
    snapshot,
    state,
)
from qualify.results.queries import ask
from qualify.storage.appendlog import ChainBroken
from support import evidence
from support.evidence import SettableClock, reserve, run, trial

COUNT = "SELECT count(*) FROM trials"


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def ledger(tmp_path: Path, clock: SettableClock) -> Ledger:
    made = open_ledger(tmp_path, clock.clock())
    run(made, clock)
    return made


def trials_in_file(results: Path) -> int:
    with duckdb.connect(str(database_path(results)), read_only=True) as connection:
        found = connection.execute(COUNT).fetchone()
    assert found is not None
    return found[0]


def leftovers(results: Path) -> list[str]:
    return sorted(p.name for p in results.iterdir() if p.name.endswith((".tmp", ".wal")))


def test_following_adds_what_is_new_and_only_that(
    ledger: Ledger, clock: SettableClock, tmp_path: Path
) -> None:
    assert state(tmp_path, ledger).state == "missing"
    assert follow(tmp_path, ledger, {}) == database.Projected(3, 3, rebuilt=True)
    assert state(tmp_path, ledger).state == "current"
    run(ledger, clock)
    assert state(tmp_path, ledger).state == "behind"
    assert follow(tmp_path, ledger, {}) == database.Projected(5, 2, rebuilt=False)
    assert follow(tmp_path, ledger, {}) == database.Projected(5, 0, rebuilt=False)
    assert trials_in_file(tmp_path) == 2
    assert leftovers(tmp_path) == []


def test_the_end_of_a_trial_follows_its_reservation(ledger: Ledger, tmp_path: Path) -> None:
    reserved = reserve(ledger)
    follow(tmp_path, ledger, {})
    with snapshot(tmp_path, ledger, None) as (connection, _):
        states = "SELECT state FROM trials ORDER BY seq"
        assert ask(connection, states).rows == (("passed",), ("incomplete",))
    ledger.finish(trial(reserved.trial, checks={}))
    assert not follow(tmp_path, ledger, {}).rebuilt
    with snapshot(tmp_path, ledger, None) as (connection, _):
        assert ask(connection, states).rows == (("passed",), ("passed",))
        missing = "SELECT count(*) FROM checks WHERE required AND outcome IS NULL"
        assert ask(connection, missing).rows == ((2,),)


def test_following_and_rebuilding_give_one_content(
    ledger: Ledger, clock: SettableClock, tmp_path: Path
) -> None:
    follow(tmp_path, ledger, {})
    run(ledger, clock)
    ledger.append(evidence.refusal(clock.moment))
    follow(tmp_path, ledger, {})

    def content() -> list[object]:
        with duckdb.connect(str(database_path(tmp_path)), read_only=True) as connection:
            tables = connection.execute("SELECT table_name FROM duckdb_tables() ORDER BY 1")
            names = [name for (name,) in tables.fetchall()]
            return [connection.execute(f"FROM {name} ORDER BY ALL").fetchall() for name in names]

    followed = content()
    rebuild(tmp_path, ledger, {})
    assert content() == followed


def test_a_database_of_another_ledger_is_made_anew(
    ledger: Ledger, tmp_path: Path, clock: SettableClock
) -> None:
    other = open_ledger(tmp_path / "other", clock.clock())
    for _ in range(3):
        run(other, clock)
    follow(tmp_path / "other", other, {})
    database_path(tmp_path / "other").rename(database_path(tmp_path))
    assert state(tmp_path, ledger).state == "behind"
    assert follow(tmp_path, ledger, {}).rebuilt
    assert trials_in_file(tmp_path) == 1


def test_an_empty_ledger_gives_an_empty_database(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    assert follow(tmp_path, ledger, {}) == database.Projected(0, 0, rebuilt=True)
    assert state(tmp_path, ledger).state == "current"
    assert trials_in_file(tmp_path) == 0


HOLD = """
import duckdb, sys
connection = duckdb.connect(sys.argv[1])
connection.execute("CREATE TABLE IF NOT EXISTS theirs (a INTEGER)")
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def held(ledger: Ledger, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another program that has the database open for writing."""
    follow(tmp_path, ledger, {})
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(database_path(tmp_path))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n"
        yield child
        child.kill()


def test_a_locked_database_names_the_process_and_loses_nothing(
    held: subprocess.Popen[bytes], ledger: Ledger, clock: SettableClock, tmp_path: Path
) -> None:
    for write in (follow, rebuild):
        with pytest.raises(DatabaseLocked, match=rf"in use by .*\(process {held.pid}\)"):
            write(tmp_path, ledger, {})
    assert state(tmp_path, ledger).state == "locked"
    run(ledger, clock)
    assert len(list(ledger.entries())) == 5
    held.kill()
    held.wait()
    follow(tmp_path, ledger, {})
    assert trials_in_file(tmp_path) == 2


def test_questions_are_answered_from_the_ledger_while_the_database_is_locked(
    held: subprocess.Popen[bytes], ledger: Ledger, tmp_path: Path
) -> None:
    with snapshot(tmp_path, ledger, None) as (connection, note):
        assert isinstance(note, DatabaseLocked)
        assert str(held.pid) in str(note)
        assert ask(connection, COUNT).rows == ((1,),)


def test_questions_see_what_the_database_has_not_got_yet(
    ledger: Ledger, clock: SettableClock, tmp_path: Path
) -> None:
    follow(tmp_path, ledger, {})
    run(ledger, clock)
    before = database_path(tmp_path).read_bytes()
    with snapshot(tmp_path, ledger, None) as (connection, note):
        assert note is None
        assert ask(connection, COUNT).rows == ((2,),)
    assert database_path(tmp_path).read_bytes() == before


def garbage(path: Path) -> None:
    path.write_bytes(b"garbage" * 2000)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20_000])


def header_changed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:4160] = b"\xff" * 64
    data[8192:8256] = b"\xff" * 64
    path.write_bytes(bytes(data))


def foreign(path: Path) -> None:
    path.unlink()
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE theirs (a INTEGER)")


@pytest.mark.parametrize(
    "damage", [garbage, empty, cut, header_changed, foreign], ids=lambda damage: damage.__name__
)
def test_a_corrupt_database_is_one_clear_error_and_made_anew_on_request(
    ledger: Ledger, tmp_path: Path, damage
) -> None:
    follow(tmp_path, ledger, {})
    path = database_path(tmp_path)
    damage(path)
    evidence_before = ledger.path.read_bytes()
    with pytest.raises(DatabaseCorrupt, match="results rebuild") as caught:
        follow(tmp_path, ledger, {})
    assert "\n" not in str(caught.value)
    with pytest.raises(DatabaseCorrupt), snapshot(tmp_path, ledger, None):
        pass
    assert state(tmp_path, ledger).state == "corrupt"
    assert ledger.path.read_bytes() == evidence_before
    assert rebuild(tmp_path, ledger, {}).entries == 3
    assert state(tmp_path, ledger).state == "current"
    assert leftovers(tmp_path) == []


def test_a_newer_database_is_refused_untouched(ledger: Ledger, tmp_path: Path) -> None:
    follow(tmp_path, ledger, {})
    path = database_path(tmp_path)
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE meta SET schema_version = 99")
    before = path.read_bytes()
    for use in (follow, rebuild):
        with pytest.raises(DatabaseNewer, match="schema version 99"):
            use(tmp_path, ledger, {})
    with pytest.raises(DatabaseNewer), snapshot(tmp_path, ledger, None):
        pass
    assert state(tmp_path, ledger).state == "newer"
    assert path.read_bytes() == before
    path.rename(tmp_path / "aside")
    assert rebuild(tmp_path, ledger, {}).entries == 3


def test_an_older_database_is_made_anew(ledger: Ledger, tmp_path: Path) -> None:
    follow(tmp_path, ledger, {})
    with duckdb.connect(str(database_path(tmp_path))) as connection:
        connection.execute("UPDATE meta SET schema_version = 0")
    assert state(tmp_path, ledger).state == "older"
    with snapshot(tmp_path, ledger, None) as (connection, _):
        assert ask(connection, COUNT).rows == ((1,),)
    assert follow(tmp_path, ledger, {}).rebuilt
    assert state(tmp_path, ledger).state == "current"


def test_a_damaged_ledger_makes_no_database_and_keeps_the_old_one(
    ledger: Ledger, tmp_path: Path
) -> None:
    follow(tmp_path, ledger, {})
    before = database_path(tmp_path).read_bytes()
    raw = ledger.path.read_bytes()
    ledger.path.write_bytes(raw.replace(b'"outcome":"passed"', b'"outcome":"failed"', 1))
    for use in (follow, rebuild):
        with pytest.raises(ChainBroken):
            use(tmp_path, ledger, {})
    assert database_path(tmp_path).read_bytes() == before
    assert leftovers(tmp_path) == []


def test_a_place_that_cannot_be_written_is_one_clear_error(ledger: Ledger, tmp_path: Path) -> None:
    database_path(tmp_path).mkdir()
    for use in (follow, rebuild):
        with pytest.raises(EnvironmentFault) as caught:
            use(tmp_path, ledger, {})
        assert str(database_path(tmp_path)) in str(caught.value)
        assert "\n" not in str(caught.value)
    assert len(list(ledger.entries())) == 3


def test_a_journal_of_an_old_file_is_not_replayed_into_a_new_one(
    ledger: Ledger, tmp_path: Path
) -> None:
    follow(tmp_path, ledger, {})
    path = database_path(tmp_path)
    path.with_name(path.name + ".wal").write_bytes(b"left by a crash of something else")
    rebuild(tmp_path, ledger, {})
    assert leftovers(tmp_path) == []
    assert state(tmp_path, ledger).state == "current"
