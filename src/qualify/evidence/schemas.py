"""JSON Schemas (2020-12) of our predicates, for whoever reads our statements."""

from __future__ import annotations

from typing import Any

from qualify.evidence.attestations import ASSESSMENT, Assessment
from qualify.evidence.checkpoints import CHECKPOINT, HANDOVER, Checkpoint, Handover
from qualify.evidence.claims import CLAIM, Claim
from qualify.evidence.exports import EXPORT, Export
from qualify.evidence.statements import Predicate

PREDICATES: dict[str, tuple[str, type[Predicate]]] = {
    "assessment": (ASSESSMENT, Assessment),
    "checkpoint": (CHECKPOINT, Checkpoint),
    "key-handover": (HANDOVER, Handover),
    "claim": (CLAIM, Claim),
    "evidence-export": (EXPORT, Export),
}
"""Name → (predicate type, model)."""


def predicate_schema(name: str) -> dict[str, Any]:
    """The schema of the predicate with that name (a key of `PREDICATES`)."""
    kind, model = PREDICATES[name]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": kind,
        **model.model_json_schema(),
    }
