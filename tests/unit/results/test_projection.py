"""Records become lines of tables, with no field forgotten and nothing mixed up."""

from __future__ import annotations

from pathlib import Path

import pytest

from qualify.core.digests import digest_bytes
from qualify.core.status import CheckOutcome
from qualify.evidence.ledger import Ledger, open_ledger
from qualify.evidence.records import BudgetUse
from qualify.results.database import rebuild, snapshot
from qualify.results.projection import DECLARED_TABLES, EVIDENCE_TABLES, flatten, project
from qualify.results.queries import ask, named_queries
from support import evidence
from support.evidence import SettableClock, reserve, run


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return open_ledger(tmp_path, SettableClock().clock())


def lines(ledger: Ledger):
    return project(ledger.entries(), {})


def test_every_field_of_a_record_has_its_column(ledger: Ledger, tmp_path: Path) -> None:
    run(ledger, SettableClock())
    found = lines(ledger)
    with snapshot(tmp_path, ledger, None) as (connection, _):
        tables = connection.execute("SELECT table_name, column_name FROM duckdb_columns()")
        columns: dict[str, set[str]] = {}
        for table, column in tables.fetchall():
            columns.setdefault(table, set()).add(column)
    end = flatten(evidence.trial(digest_bytes(b"x")).model_dump(mode="json"))
    left_out = {"kind", "schema_version"}
    assert set(end) - left_out <= columns["endings"]
    assert columns["endings"] - {"seq"} == set(end) - left_out | {
        "model_id", "model_revision", "model_files",
    }  # fmt: skip
    held = flatten(evidence.reservation().model_dump(mode="json"))
    assert set(held) - left_out == columns["reservations"] - {"seq", "trial"}
    for table, rows in found.items():
        for row in rows:
            assert set(row) - left_out - {"model"} <= columns[table]


def test_a_required_check_that_the_end_does_not_name_is_a_line_without_outcome(
    ledger: Ledger,
) -> None:
    run(
        ledger,
        SettableClock(),
        checks={"replay": CheckOutcome.PASSED, "extra": CheckOutcome.FAILED},
    )
    assert {(c["check_id"], c["required"], c["outcome"]) for c in lines(ledger)["checks"]} == {
        ("replay", True, "passed"), ("extra", False, "failed"), ("exact-bytes", True, None),
    }  # fmt: skip


def test_a_refusal_gives_a_line_for_each_reason(ledger: Ledger) -> None:
    ledger.append(evidence.refusal(reasons=("a", "b")))
    ledger.append(evidence.start_failure())
    found = lines(ledger)
    assert [line["reason"] for line in found["refusals"]] == ["a", "b"]
    assert [line["elapsed_ms"] for line in found["start_failures"]] == [9]


def test_tables_of_evidence_and_of_declarations_are_apart() -> None:
    assert not set(EVIDENCE_TABLES) & set(DECLARED_TABLES)


DECLARED = {
    "declared_rows": [
        {
            "row": evidence.ROW, "configuration": evidence.CONFIGURATION, "runtime": "r",
            "engine": "llama-cpp", "model": "m", "platform": "p", "provider": "local",
            "agent": "a", "precision": "q4", "context_tokens": 4096, "tensor_parallel": 1,
            "tool_mode": "prompt", "graph_mode": "eager", "placement": "host",
            "evidence_class": "real-model",
        }
    ],
    "imported": [
        {"row": evidence.ROW, "outcome": "qualified", "date": "2026-10-01", "driver": None,
         "reason": "it's \"quoted\"; DROP TABLE x", "evidence": "somewhere"},
        {"row": evidence.ROW, "outcome": "inconclusive", "date": None, "driver": "550.1",
         "reason": None, "evidence": "elsewhere"},
    ],
}  # fmt: skip


@pytest.fixture
def full(ledger: Ledger) -> Ledger:
    clock = SettableClock()
    for _ in range(3):
        run(ledger, clock)
    run(
        ledger,
        clock,
        checks={"exact-bytes": CheckOutcome.FAILED},
        exceeded=(BudgetUse(budget="actions", limit=8, used=9),),
    )
    reserve(ledger)
    reserve(ledger, experimental=True)
    ledger.append(evidence.refusal())
    ledger.append(evidence.start_failure())
    return ledger


@pytest.mark.parametrize("name", named_queries())
def test_each_named_query_answers(name: str, full: Ledger, tmp_path: Path) -> None:
    query = named_queries()[name]
    assert query.description.endswith(".")
    with snapshot(tmp_path, full, DECLARED) as (connection, _):
        answer = ask(connection, query.sql)
    if name != "clock":
        assert answer.rows, "the sample has something for every question"
    assert answer.as_json()["columns"] == list(answer.columns)


def value(full: Ledger, tmp_path: Path, sql: str):
    with snapshot(tmp_path, full, DECLARED) as (connection, _):
        return ask(connection, sql).rows


def test_the_numbers_are_those_of_the_ledger(full: Ledger, tmp_path: Path) -> None:
    rates = named_queries()["pass-rates"].sql
    ((_, _, _, _, _, _, passed, total, failed, unknown, incomplete, _),) = value(
        full, tmp_path, rates
    )
    assert (passed, total, failed, unknown, incomplete) == (4, 5, 0, 0, 1)
    speed = value(full, tmp_path, named_queries()["speed"].sql)
    assert speed[0][5] == 21.5
    assert value(full, tmp_path, "SELECT count(*) FROM trials WHERE state = 'incomplete'") == (
        (2,),
    )


def test_an_incomplete_trial_ends_at_its_reservation(full: Ledger, tmp_path: Path) -> None:
    assert value(
        full, tmp_path, "SELECT bool_and(ended = reserved) FROM trials WHERE state = 'incomplete'"
    ) == ((True,),)


def test_unknown_is_null_and_not_zero(full: Ledger, tmp_path: Path) -> None:
    sql = "SELECT count(*), count(usage_cost_microusd) FROM endings"
    assert value(full, tmp_path, sql) == ((4, 0),)


def test_an_imported_outcome_stays_beside_local_trials(full: Ledger, tmp_path: Path) -> None:
    answer = value(full, tmp_path, named_queries()["imported"].sql)
    assert [(row[3], row[7], row[8]) for row in answer] == [
        ("qualified", 5, 4), ("inconclusive", 5, 4),
    ]  # fmt: skip
    assert value(
        full, tmp_path, "SELECT count(*) FROM trials WHERE evidence_class = 'imported'"
    ) == ((0,),)


def test_the_file_and_a_copy_made_from_the_ledger_say_the_same(
    full: Ledger, tmp_path: Path
) -> None:
    fresh = value(full, tmp_path, "FROM trials ORDER BY seq")
    rebuild(tmp_path, full, DECLARED)
    assert value(full, tmp_path, "FROM trials ORDER BY seq") == fresh
    assert len(fresh) == 6
