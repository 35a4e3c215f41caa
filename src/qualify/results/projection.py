"""Manifests → lines of the tables of what is declared. Pure.

What comes from manifests (declared rows, imported outcomes) stays in tables of its own and is never
mixed with evidence.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qualify.manifests.configuration import Configuration

type Lines = dict[str, list[dict[str, Any]]]
"""Table → its lines, column → plain value."""

EVIDENCE_TABLES = (
    "entries", "cases", "unfinished", "finished", "judgements", "conflicts", "refusals",
    "start_failures",
)  # fmt: skip
DECLARED_TABLES = ("declared_rows", "imported")


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
