"""An analyst's SQL reads evidence and nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qualify.core.errors import UsageError
from qualify.evidence.ledger import open_ledger
from qualify.results.database import rebuild, snapshot
from qualify.results.queries import ask, named_query
from support.evidence import SettableClock, run


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    ledger = open_ledger(folder, SettableClock().clock())
    run(ledger, SettableClock())
    rebuild(folder, ledger, {})
    return folder


@pytest.fixture(scope="module")
def connection(results: Path) -> Iterator[Any]:
    with snapshot(results, open_ledger(results), None) as (opened, note):
        assert note is None
        yield opened


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM trials", "FROM trials", "WITH t AS (FROM trials) SELECT * FROM t",
        "DESCRIBE trials", "SHOW TABLES", "SUMMARIZE trials", "EXPLAIN SELECT 1", "VALUES (1)",
    ],
)  # fmt: skip
def test_reading_statements_are_answered(connection: Any, sql: str) -> None:
    assert ask(connection, sql).rows


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM checks", "INSERT INTO meta VALUES (9, 9, '')", "CREATE TABLE x (a INTEGER)",
        "DROP VIEW trials", "UPDATE meta SET ledger_count = 0", "COPY trials TO 'x.csv'",
        "ATTACH 'x.duckdb'", "SET threads = 1", "PRAGMA database_list", "INSTALL httpfs",
        "LOAD httpfs", "CALL pragma_version()", "EXPORT DATABASE 'x'", "BEGIN", "CHECKPOINT",
        "SELECT 1; SELECT 2", "", "-- nothing",
    ],
)  # fmt: skip
def test_anything_else_is_refused(connection: Any, sql: str, results: Path) -> None:
    before = sorted(results.rglob("*"))
    with pytest.raises(UsageError) as caught:
        ask(connection, sql)
    assert caught.value.exit_code == 2
    assert sorted(results.rglob("*")) == before
    assert ask(connection, "SELECT count(*) FROM checks").rows == ((2,),)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_blob('{file}')", "SELECT * FROM read_text('{file}')",
        "SELECT * FROM read_csv('{file}')", "FROM '{file}'", "SELECT * FROM glob('/*')",
        "SELECT * FROM read_json('{file}')", "SELECT * FROM read_parquet('{file}')",
        "SELECT getenv('HOME')", "SELECT * FROM read_text('/proc/self/environ')",
        "SELECT * FROM read_csv('http://localhost/x')", "SELECT * FROM sniff_csv('{file}')",
    ],
)  # fmt: skip
def test_no_file_no_network_and_no_environment_can_be_reached(
    connection: Any, sql: str, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("planted-secret\n")
    with pytest.raises(UsageError) as caught:
        ask(connection, sql.format(file=secret))
    assert "planted-secret" not in str(caught.value)


def test_no_path_of_this_machine_shows(connection: Any, results: Path) -> None:
    places = "SELECT path FROM duckdb_databases() UNION ALL SELECT value FROM duckdb_settings()"
    shown = " ".join(str(row[0]) for row in ask(connection, places).rows)
    assert str(results) not in shown
    assert f"{Path.home()}/" not in shown


def test_faulty_sql_is_one_line_that_says_what_is_wrong(connection: Any) -> None:
    with pytest.raises(UsageError, match="trialz") as caught:
        ask(connection, "SELECT *\nFROM trialz")
    assert "\n" not in str(caught.value)


def test_values_are_plain_and_columns_distinct(connection: Any) -> None:
    answer = ask(
        connection,
        "SELECT 1 AS a, 2 AS a, time, time::DATE AS day, 1.5::DECIMAL(4, 2) AS d, NULL AS n, "
        "'x'::BLOB AS b, [1, 2] AS l, true AS t FROM entries LIMIT 1",
    )
    (row,) = answer.as_json()["rows"]
    assert row == {
        "a": 1, "a_2": 2, "time": "2026-11-30T12:00:00Z", "day": "2026-11-30", "d": 1.5, "n": None,
        "b": "78", "l": [1, 2], "t": True,
    }  # fmt: skip


def test_an_unknown_name_gets_a_hint() -> None:
    assert named_query("pass-rates").name == "pass-rates"
    with pytest.raises(UsageError, match="did you mean 'pass-rates'"):
        named_query("pass-rate")


def test_asking_loads_no_model_of_records_or_manifests() -> None:
    """Their import takes as long as most answers."""
    script = (
        "import sys, qualify.cli.query, qualify.evidence.ledger, qualify.results.database, "
        "qualify.results.queries; print([m for m in ('pydantic', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
