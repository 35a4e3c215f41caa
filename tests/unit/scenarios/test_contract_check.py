"""A scenario that this version cannot judge is found before anything is reserved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qualify.manifests.catalog import load_catalog
from qualify.scenarios.contract import IDENTITY, mismatches

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"checks": ("direct-inference", "made-up")}, "has no check 'made-up'"),
        ({"checks": ("test-passes",)}, "has no check 'test-passes'"),
        ({"contract": 7}, "is for contract 7"),
        ({"checks": (IDENTITY,)}, None),
        ({}, None),
    ],
)
def test_a_check_or_contract_that_does_not_exist_is_named(
    change: dict[str, Any], fault: str | None
) -> None:
    scenario = load_catalog(ROOT).scenarios["append-and-keep"].model_copy(update=change)
    found = mismatches(scenario)
    assert (len(found), fault or "" in "".join(found)) == (1 if fault else 0, fault or True)


def test_every_shipped_scenario_can_be_judged() -> None:
    for scenario in load_catalog(ROOT).scenarios.values():
        assert mismatches(scenario) == []
