"""Records become lines of tables, with no field forgotten and nothing mixed up."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from qualify.core.clock import format_time
from qualify.core.status import CheckOutcome
from qualify.evidence.ledger import Ledger, open_ledger
from qualify.evidence.records import BudgetUse
from qualify.results.database import rebuild, snapshot
from qualify.results.projection import DECLARED_TABLES, EVIDENCE_TABLES
from qualify.results.queries import answer, ask, named_queries, named_question
from support import evidence
from support.evidence import SettableClock, reserve, run


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return open_ledger(tmp_path, SettableClock().clock())


def told(ledger: Ledger, folder: Path, sql: str) -> list[tuple[Any, ...]]:
    with snapshot(folder, ledger, None) as (connection, _):
        found: list[tuple[Any, ...]] = connection.execute(sql).fetchall()
    return found


def flatten(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields as `part_field`; lists of records are left out."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}_"))
        elif not isinstance(value, list) or prefix:
            flat[prefix + key] = value
    return flat


def test_every_field_of_a_record_has_its_column_with_its_value(
    ledger: Ledger, tmp_path: Path
) -> None:
    reserved = run(ledger, SettableClock())
    with snapshot(tmp_path, ledger, None) as (connection, _):
        cursor = connection.execute("SELECT * FROM trials")
        names = [column[0] for column in cursor.description or ()]
        (row,) = cursor.fetchall()
    found = dict(zip(names, row, strict=True))
    end = next(e.entry for e in ledger.entries() if e.entry.kind == "trial")
    held = next(e.entry for e in ledger.entries() if e.entry.kind == "reservation")
    expected = {
        **flatten(held.model_dump(mode="json")),
        **flatten(end.model_dump(mode="json")),
        "state": "passed",
        "trial": reserved.trial,
        "site": 0,
        "seq": 1,
        "end_seq": 2,
    }
    for left_out in ("kind", "schema_version", "time"):
        del expected[left_out]
    times = {name: found.pop(name) for name in ("reserved", "ended")}
    assert found == expected
    assert [format_time(t.replace(tzinfo=UTC)) for t in times.values()] == [held.time, end.time]


def test_a_required_check_that_the_end_does_not_name_is_a_line_without_outcome(
    ledger: Ledger, tmp_path: Path
) -> None:
    run(
        ledger,
        SettableClock(),
        checks={"replay": CheckOutcome.PASSED, "extra": CheckOutcome.FAILED},
    )
    assert set(told(ledger, tmp_path, "SELECT check_id, required, outcome FROM checks")) == {
        ("replay", True, "passed"), ("extra", False, "failed"), ("exact-bytes", True, None),
    }  # fmt: skip


def test_refusals_and_engines_that_did_not_start_are_kept_with_their_reasons(
    ledger: Ledger, tmp_path: Path
) -> None:
    ledger.append(evidence.refusal(reasons=("a", "b")))
    ledger.append(evidence.start_failure())
    assert told(ledger, tmp_path, "SELECT reasons FROM refusals") == [(["a", "b"],)]
    assert told(ledger, tmp_path, "SELECT elapsed_ms FROM start_failures") == [(9,)]


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


NOTHING_THERE = ("clock", "conflicts", "expiring", "flaky", "regressions-since")


@pytest.mark.parametrize("name", named_queries())
def test_each_named_query_answers(name: str, sample: Any) -> None:
    query = named_queries()[name]
    assert query.description.endswith(".")
    given = {"digest": evidence.CONFIGURATION} if name == "regressions-since" else {}
    found = answer(sample, named_question(name, given, evidence.NOW))
    if name not in NOTHING_THERE:
        assert found.rows, "the sample has something for every other question"
    assert found.as_json()["columns"] == list(found.columns)
    assert found.columns[0] == "site" or name in ("imported", "evidence-gaps")


def test_an_incomplete_trial_ends_at_its_reservation(sample: Any) -> None:
    sql = "SELECT count(*), bool_and(ended = reserved) FROM trials WHERE state = 'incomplete'"
    assert ask(sample, sql).rows == ((2, True),)


def test_unknown_is_null_and_not_zero(sample: Any) -> None:
    sql = "SELECT count(*), count(usage_cost_microusd) FROM finished"
    assert ask(sample, sql).rows == ((4, 0),)


def test_counts_can_be_subtracted_below_zero(sample: Any) -> None:
    sql = "SELECT min(timings_tool_ms - timings_wall_ms) FROM finished"
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
