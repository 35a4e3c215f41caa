"""The reference pages say what the program does: every reason, query and field is on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from qualify.assessment.reasons import PRECEDENCE, REASONS, START_FAULTS
from qualify.evidence.records import Genesis, Record, Refusal, Reservation, StartFailure, Trial
from qualify.results.projection import DECLARED_TABLES, EVIDENCE_TABLES
from qualify.results.queries import NamedQuery, named_queries

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
VERDICTS, RECORDS, QUERIES = (
    (REFERENCE / name).read_text("utf-8") for name in ("verdicts.md", "records.md", "queries.md")
)


@pytest.mark.parametrize("code", REASONS)
def test_every_reason_is_in_the_table_with_its_status(code: str) -> None:
    kind = REASONS[code]
    status = kind.status.value if kind.status else "a note"
    assert f"| `{code}` | {status} | {kind.meaning} |" in VERDICTS


@pytest.mark.parametrize("code", START_FAULTS)
def test_every_reason_of_a_start_is_in_its_table(code: str) -> None:
    fault = START_FAULTS[code]
    assert f"| `{code}` | {fault.meaning} | {fault.next_step} |" in VERDICTS


def test_the_reference_names_no_reason_that_is_not_there() -> None:
    table = VERDICTS.split("## Reasons")[1].split("##")[0]
    named = {line.split("`")[1] for line in table.splitlines() if line.startswith("| `")}
    assert named == set(REASONS)


def test_the_precedence_is_printed_in_its_order() -> None:
    lines = [f"{place}. `{status.value}`" for place, status in enumerate(PRECEDENCE, 1)]
    assert "\n".join(lines) in VERDICTS


def parameters(query: NamedQuery) -> str:
    shown = (p.name if p.default is None else f"{p.name}={p.default}" for p in query.parameters)
    return ", ".join(f"`{text}`" for text in shown)


def test_every_query_is_listed_with_its_parameters_and_no_other() -> None:
    table = QUERIES.split("## Named questions")[1].split("##")[0]
    listed = [line for line in table.splitlines() if line.startswith("| `")]
    known = named_queries().values()
    assert listed == [f"| `{q.name}` | {parameters(q)} | {q.description} |" for q in known]


@pytest.mark.parametrize(
    "table", [*EVIDENCE_TABLES, *DECLARED_TABLES, "trials", "judged", "sites", "meta"]
)
def test_every_table_is_described(table: str) -> None:
    assert f"`{table}`" in QUERIES


@pytest.mark.parametrize("model", Record.__subclasses__(), ids=lambda model: model.__name__)
def test_every_field_of_a_record_is_described(model: type[Record]) -> None:
    for name in model.model_fields:
        assert f"`{name}`" in RECORDS


@pytest.mark.parametrize("model", [Genesis, Reservation, Trial, Refusal, StartFailure])
def test_every_kind_of_entry_is_described(model: type[Record]) -> None:
    assert f"| `{model.model_fields['kind'].default}` |" in RECORDS
