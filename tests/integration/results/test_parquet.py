"""Every evidence table as Parquet: whole, in parts that say what is in them, and reproducible."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest

from qualify.core.errors import EnvironmentFault, UsageError
from qualify.evidence.ledger import Ledger, open_ledger
from qualify.results import parquet
from qualify.results.database import snapshot
from qualify.results.merging import merge_site
from qualify.results.parquet import export_tables
from qualify.results.projection import EVIDENCE_TABLES
from qualify.results.queries import ask
from support import evidence
from support.evidence import DAY, NOW, SettableClock, reserve, run
from support.sites import site


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Trials of two months, one without an end, a refusal and an engine that did not start; and
    another site's trials.
    """
    clock = SettableClock()
    made = open_ledger(tmp_path / "here", clock.clock())
    run(made, clock)
    made.append(evidence.refusal())
    made.append(evidence.start_failure())
    clock.moment += 10 * DAY
    run(made, clock)
    reserve(made)
    merge_site(tmp_path / "here", site(tmp_path / "there").folder.parent, NOW + 20 * DAY)
    return made


@pytest.fixture
def here(tmp_path: Path, ledger: Ledger) -> Path:
    return tmp_path / "here"


def read(folder: Path, table: str) -> list[tuple[Any, ...]]:
    pattern = str(folder / table / "**" / "*.parquet")
    sql = (
        "SELECT * EXCLUDE (site, month) FROM read_parquet(?, hive_partitioning = true) ORDER BY ALL"
    )
    if table in ("cases", "judgements"):
        sql = "SELECT * FROM read_parquet(?) ORDER BY ALL"
    with duckdb.connect() as connection:
        return connection.execute(sql, [pattern]).fetchall()


def listed(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())
    return document


def test_every_line_of_every_evidence_table_is_there(
    here: Path, ledger: Ledger, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    done = export_tables(here, ledger, target, ())
    lines = 0
    with snapshot(here, ledger, None) as (connection, _):
        for table in EVIDENCE_TABLES:
            left_out = "" if table in ("cases", "judgements") else " EXCLUDE (site)"
            sql = f"SELECT *{left_out} FROM {table} ORDER BY ALL"
            expected = connection.execute(sql).fetchall()
            lines += len(expected)
            if expected:
                assert read(target, table) == expected, table
    assert (done.lines, done.files) == (lines, len(listed(target)["files"]))


def test_parts_are_by_site_and_month(here: Path, ledger: Ledger, tmp_path: Path) -> None:
    target = tmp_path / "out"
    export_tables(here, ledger, target, ())
    there = next((here / "sites").glob("[0-9a-f]*")).name
    found = {path.relative_to(target).as_posix() for path in target.glob("finished/*/*")}
    assert found == {
        f"finished/site={ledger.site()}/month=2026-11",
        f"finished/site={ledger.site()}/month=2026-12",
        f"finished/site={there}/month=2026-11",
    }


def test_the_manifest_lists_every_file_with_its_digest(
    here: Path, ledger: Ledger, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    export_tables(here, ledger, target, ())
    document = listed(target)
    files = {
        path.relative_to(target).as_posix(): path
        for path in target.rglob("*")
        if path.is_file() and path.name != "manifest.json"
    }
    assert {each["path"] for each in document["files"]} == set(files)
    for each in document["files"]:
        data = files[each["path"]].read_bytes()
        assert (each["size"], each["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    head = ledger.head()
    assert document["sites"][0] == {
        "site": ledger.site(), "entries": head.count, "head": f"sha256:{head.digest}",
    }  # fmt: skip


def test_one_ledger_gives_the_same_bytes_again(here: Path, ledger: Ledger, tmp_path: Path) -> None:
    for name in ("one", "two"):
        export_tables(here, ledger, tmp_path / name, ())
    assert listed(tmp_path / "one") == listed(tmp_path / "two")


def test_one_site_is_exported_by_the_first_digits_of_its_id(
    here: Path, ledger: Ledger, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    own = str(ledger.site())
    export_tables(here, ledger, target, (own[:8],))
    assert {path.name for path in target.glob("*/site=*")} == {f"site={own}"}
    with snapshot(here, ledger, None) as (connection, _):
        (count,) = ask(connection, "SELECT count(*) FROM finished WHERE site = 0").rows[0]
    assert len(read(target, "finished")) == count
    for wrong in (own[:5], "zzzzzz", "0" * 32):
        with pytest.raises(UsageError, match="no site here begins"):
            export_tables(here, ledger, tmp_path / "none", (wrong,))
    assert not (tmp_path / "none").exists()


def test_a_folder_with_something_in_it_is_refused(
    here: Path, ledger: Ledger, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    target.mkdir()
    export_tables(here, ledger, target, ())
    before = sorted(target.rglob("*"))
    with pytest.raises(UsageError, match="is there already"):
        export_tables(here, ledger, target, ())
    assert sorted(target.rglob("*")) == before


def test_an_export_that_fails_leaves_nothing(
    here: Path, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.setattr(parquet, "FORMATS", {"parquet": "FORMAT nothing"})
    with pytest.raises(EnvironmentFault, match="cannot be written"):
        export_tables(here, ledger, out / "new", ())
    assert list(out.iterdir()) == []


def test_a_ledger_without_entries_is_an_export_without_lines(tmp_path: Path) -> None:
    done = export_tables(tmp_path / "none", open_ledger(tmp_path / "none"), tmp_path / "out", ())
    assert done.lines == 0
    assert listed(tmp_path / "out")["sites"] == []
    shutil.rmtree(tmp_path / "out")
