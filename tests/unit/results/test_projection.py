"""Records become lines of tables, with no field forgotten and nothing mixed up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """A ledger with something of everything."""
    ledger = open_ledger(tmp_path_factory.mktemp("full"), SettableClock().clock())
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


@pytest.fixture(scope="module")
def sample(full: Ledger, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A connection that answers from `full`."""
    with snapshot(tmp_path_factory.mktemp("none"), full, DECLARED) as (connection, _):
        yield connection


@pytest.mark.parametrize("name", named_queries())
def test_each_named_query_answers(name: str, sample: Any) -> None:
    query = named_queries()[name]
    assert query.description.endswith(".")
    answer = ask(sample, query.sql)
    if name != "clock":
        assert answer.rows, "the sample has something for every question"
    assert answer.as_json()["columns"] == list(answer.columns)


def test_the_numbers_are_those_of_the_ledger(sample: Any) -> None:
    ((*_, passed, total, failed, unknown, incomplete, _),) = ask(
        sample, named_queries()["pass-rates"].sql
    ).rows
    assert (passed, total, failed, unknown, incomplete) == (4, 5, 0, 0, 1)
    (speed,) = ask(sample, named_queries()["speed"].sql).as_json()["rows"]
    assert speed["completion_tokens_per_s"] == 21.5
    (overhead,) = ask(sample, named_queries()["overhead"].sql).as_json()["rows"]
    assert overhead["ours_percent"] == pytest.approx(100 * (20_400 - 19_000) / 20_400, abs=0.1)


def test_an_incomplete_trial_ends_at_its_reservation(sample: Any) -> None:
    sql = "SELECT count(*), bool_and(ended = reserved) FROM trials WHERE state = 'incomplete'"
    assert ask(sample, sql).rows == ((2, True),)


def test_unknown_is_null_and_not_zero(sample: Any) -> None:
    sql = "SELECT count(*), count(usage_cost_microusd) FROM endings"
    assert ask(sample, sql).rows == ((4, 0),)


def test_counts_can_be_subtracted_below_zero(sample: Any) -> None:
    sql = "SELECT min(timings_tool_ms - timings_wall_ms) FROM endings"
    assert ask(sample, sql).rows == ((-19_000,),)


def test_an_imported_outcome_stays_beside_local_trials(sample: Any) -> None:
    answer = ask(sample, named_queries()["imported"].sql).as_json()["rows"]
    assert [(row["declared"], row["local_trials"], row["local_passed"]) for row in answer] == [
        ("qualified", 5, 4), ("inconclusive", 5, 4),
    ]  # fmt: skip
    sql = "SELECT count(*) FROM trials WHERE evidence_class = 'imported'"
    assert ask(sample, sql).rows == ((0,),)


def test_the_file_and_a_copy_made_from_the_ledger_say_the_same(
    full: Ledger, sample: Any, tmp_path: Path
) -> None:
    rebuild(tmp_path, full, DECLARED)
    with snapshot(tmp_path, full, DECLARED) as (connection, _):
        from_file = ask(connection, "FROM trials ORDER BY seq").rows
    assert from_file == ask(sample, "FROM trials ORDER BY seq").rows
    assert len(from_file) == 6
