"""Aspects are reported apart, and none is implied by another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from qualify.assessment.aspects import OF_CHECK, Aspect, AspectOutcome, aspects_of
from qualify.assessment.grading import Fault, Grade, Graded
from qualify.core.status import CheckOutcome
from qualify.manifests.catalog import load_catalog

PROJECT = Path(__file__).parents[3]
CHECKS = tuple(OF_CHECK)


def graded(**changed: CheckOutcome) -> Graded:
    outcomes = dict.fromkeys(CHECKS, CheckOutcome.PASSED) | {
        name.replace("_", "-"): outcome for name, outcome in changed.items()
    }
    return Graded(None, Grade.PASSED, (), tuple(outcomes.items()), fresh=True)  # type: ignore[arg-type]


def test_every_check_of_every_scenario_belongs_to_one_aspect() -> None:
    declared = {c for s in load_catalog(PROJECT).scenarios.values() for c in s.checks}
    assert declared <= set(OF_CHECK)


def test_clean_trials_pass_every_aspect() -> None:
    found = aspects_of([graded()] * 3, CHECKS, ())
    assert found == dict.fromkeys(Aspect, AspectOutcome.PASSED)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("outcome", [CheckOutcome.FAILED, CheckOutcome.UNKNOWN])
def test_a_check_speaks_of_its_own_aspect_alone(check: str, outcome: CheckOutcome) -> None:
    bad = graded(**{check.replace("-", "_"): outcome})
    found = aspects_of([graded(), bad, graded()], CHECKS, ())
    assert found.pop(OF_CHECK[check]).value == outcome.value
    assert set(found.values()) == {AspectOutcome.PASSED}


def test_what_no_check_looks_at_is_not_tested() -> None:
    found = aspects_of([graded()], ("replay",), ())
    assert found[Aspect.RECOVERY] is AspectOutcome.PASSED
    for aspect in (Aspect.CONNECTION, Aspect.TOOL_USE, Aspect.ARTEFACTS, Aspect.CODE):
        assert found[aspect] is AspectOutcome.NOT_TESTED


def test_without_trials_nothing_is_known() -> None:
    found = aspects_of([], CHECKS, ("too-few-trials",))
    assert set(found.values()) == {AspectOutcome.UNKNOWN}


@pytest.mark.parametrize("code", ["not-completed", "incomplete-trial", "overdue"])
def test_a_session_that_did_not_end_by_itself_is_no_completion(code: str) -> None:
    open_ = Graded(None, Grade.UNKNOWN, (Fault(code),), graded().checks, fresh=True)  # type: ignore[arg-type]
    found = aspects_of([graded(), open_], CHECKS, ())
    assert found[Aspect.COMPLETION] is AspectOutcome.UNKNOWN
    assert found[Aspect.ARTEFACTS] is AspectOutcome.PASSED


@pytest.mark.parametrize(
    ("code", "outcome"),
    [("pass-share-below-policy", "failed"), ("pass-share-unproven", "unknown"),
     ("too-few-trials", "unknown"), ("repeated-variant", "unknown"), ("stale", "passed")],
)  # fmt: skip
def test_numbers_are_an_aspect_of_their_own(code: str, outcome: str) -> None:
    found = aspects_of([graded()], CHECKS, (code,))
    assert found[Aspect.STATISTICS].value == outcome
    assert found[Aspect.CONNECTION] is AspectOutcome.PASSED


@pytest.mark.parametrize(
    ("code", "outcome"),
    [("budget-overrun", "failed"), ("usage-unknown", "unknown"), ("unknown-effects", "unknown")],
)
def test_budgets_and_effects_are_policy(code: str, outcome: str) -> None:
    trial = Graded(None, Grade.FAILED, (Fault(code),), graded().checks, fresh=True)  # type: ignore[arg-type]
    found = aspects_of([graded(), trial], CHECKS, ())
    assert found.pop(Aspect.POLICY).value == outcome
    assert set(found.values()) == {AspectOutcome.PASSED}
