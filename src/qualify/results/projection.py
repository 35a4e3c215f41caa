"""Ledger entries and manifests → lines of the database's tables. Pure.

A record's nested fields become columns named `part_field`; lists become tables of their own. What
comes from manifests (declared rows, imported outcomes) stays in tables of its own and is never
mixed with evidence.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qualify.evidence.ledger import StoredEntry
from qualify.evidence.records import Refusal, Reservation, StartFailure, Trial
from qualify.manifests.configuration import Configuration

type Lines = dict[str, list[dict[str, Any]]]
"""Table → its lines, column → plain value."""

EVIDENCE_TABLES = (
    "entries", "reservations", "endings", "checks", "budgets_exceeded", "refusals",
    "start_failures",
)  # fmt: skip
DECLARED_TABLES = ("declared_rows", "imported")


def project(entries: Iterable[StoredEntry], required: dict[str, tuple[str, ...]]) -> Lines:
    """The lines that `entries` add.

    `required` maps each trial reserved so far to its required checks, and is brought up to date.
    """
    lines: Lines = {table: [] for table in EVIDENCE_TABLES}
    for stored in entries:
        entry = stored.entry
        lines["entries"].append(
            {
                "seq": stored.seq,
                "digest": stored.digest,
                "kind": entry.kind,
                "time": entry.time,
                "clock_went_back": stored.clock_went_back,
            }
        )
        if isinstance(entry, Reservation):
            required[stored.digest] = entry.required_checks
            line = {
                "trial": stored.digest,
                "seq": stored.seq,
                **flatten(entry.model_dump(mode="json")),
            }
            lines["reservations"].append(line)
        elif isinstance(entry, Trial):
            _project_trial(stored.seq, entry, required[entry.trial], lines)
        elif isinstance(entry, Refusal):
            common = {"seq": stored.seq, "row": entry.row, "configuration": entry.configuration}
            lines["refusals"] += [
                {**common, "time": entry.time, "reason": reason} for reason in entry.reasons
            ]
        elif isinstance(entry, StartFailure):
            lines["start_failures"].append(
                {"seq": stored.seq, **flatten(entry.model_dump(mode="json"))}
            )
    return lines


def _project_trial(seq: int, entry: Trial, required: tuple[str, ...], lines: Lines) -> None:
    record = entry.model_dump(mode="json")
    lines["endings"].append({"seq": seq, **flatten(record)})
    recorded = {check.check for check in entry.checks}
    lines["checks"] += [
        {
            "trial": entry.trial,
            "check_id": check.check,
            "required": check.check in required,
            "outcome": check.outcome.value,
            "reason": check.reason,
        }
        for check in entry.checks
    ]
    lines["checks"] += [
        {"trial": entry.trial, "check_id": name, "required": True, "outcome": None, "reason": None}
        for name in required
        if name not in recorded
    ]
    lines["budgets_exceeded"] += [
        {"trial": entry.trial, **use} for use in record["budgets_exceeded"]
    ]


def declared(configurations: Iterable[Configuration]) -> Lines:
    """Declared rows and imported outcomes of a project's manifests."""
    lines: Lines = {table: [] for table in DECLARED_TABLES}
    for configuration in configurations:
        row = configuration.row
        lines["declared_rows"].append(
            {
                "row": row.id,
                "configuration": configuration.digest,
                "runtime": row.runtime,
                "engine": configuration.runtime.engine.value,
                "model": row.model,
                "platform": row.platform,
                "provider": configuration.platform.provider,
                "agent": row.agent,
                "precision": row.precision,
                "context_tokens": row.context_tokens,
                "tensor_parallel": row.tensor_parallel,
                "tool_mode": row.tool_mode.value,
                "graph_mode": row.graph_mode,
                "placement": row.placement,
                "evidence_class": configuration.evidence_class.value,
            }
        )
        lines["imported"] += [
            {"row": row.id, **outcome.model_dump(mode="json")} for outcome in row.imported
        ]
    return lines


def flatten(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields as `part_field`; lists are left out."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}_"))
        elif not isinstance(value, list):
            flat[prefix + key] = value
    return flat
