"""Every outcome that a trial can have, made by a scripted engine on the real agent SDK."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from qualify.assessment.rules import Assessment
from qualify.core.status import CheckOutcome, RowStatus, TrialOutcome
from qualify.evidence.ledger import Ledger
from qualify.evidence.records import Trial
from qualify.runner.run import Result

OUTCOMES: list[tuple[str, TrialOutcome, dict[str, str]]] = [
    ("scripted-passes", TrialOutcome.PASSED, {}),
    ("scripted-passes-native", TrialOutcome.PASSED, {}),
    ("scripted-group-native", TrialOutcome.PASSED, {}),
    ("scripted-leaks-secret", TrialOutcome.PASSED, {}),
    ("scripted-rejects", TrialOutcome.FAILED, {"rejected-not-run": "nothing-rejected"}),
    ("scripted-wrong-bytes", TrialOutcome.FAILED, {"expected-bytes": "other-bytes"}),
    (
        "scripted-never-proposes",
        TrialOutcome.FAILED,
        {
            "structured-action": "no-action-proposed",
            "approved-once": "nothing-approved",
            "rejected-not-run": "nothing-rejected",
            "expected-bytes": "file-unchanged",
        },
    ),
    (
        "scripted-loops",
        TrialOutcome.FAILED,
        {"rejected-not-run": "nothing-rejected", "expected-bytes": "file-unchanged"},
    ),
    (
        "scripted-crashes",
        TrialOutcome.FAILED,
        {
            "structured-action": "no-action-proposed",
            "approved-once": "nothing-approved",
            "rejected-not-run": "nothing-rejected",
            "expected-bytes": "file-unchanged",
        },
    ),
]


@pytest.mark.parametrize(("row", "outcome", "reasons"), OUTCOMES, ids=[o[0] for o in OUTCOMES])
def test_a_scripted_row_has_its_outcome_and_never_qualifies(
    row: str,
    outcome: TrialOutcome,
    reasons: dict[str, str],
    run: Callable[..., Result],
    verdict: Callable[[Result], Assessment],
    ledger: Ledger,
) -> None:
    result = run(row)
    (trial,) = result.trials
    bad = {c.check: c.reason for c in trial.checks if c.outcome is not CheckOutcome.PASSED}
    assert (trial.outcome, bad) == (outcome, reasons)
    assessment = verdict(result)
    assert assessment.status is not RowStatus.QUALIFIED
    assert "scripted-evidence" in {reason.code for reason in assessment.reasons}
    (record,) = [s.entry for s in ledger.entries() if isinstance(s.entry, Trial)]
    assert record.stop_reason == trial.stop_reason
    assert record.usage.model_calls >= 2


def test_a_group_of_several_actions_is_decided_as_a_whole(
    run: Callable[..., Result], ledger: Ledger
) -> None:
    run("scripted-group-native")
    (record,) = [s.entry for s in ledger.entries() if isinstance(s.entry, Trial)]
    assert record.usage.actions_proposed == 3
    assert record.usage.actions_executed == 2
    assert record.usage.actions_rejected == 1


def test_three_scripted_passes_do_not_qualify(
    run: Callable[..., Result], verdict: Callable[[Result], Assessment]
) -> None:
    result = run("scripted-passes", trials=3)
    assert [t.outcome for t in result.trials] == [TrialOutcome.PASSED] * 3
    assert len({t.trial for t in result.trials}) == 3
    assert verdict(result).status is not RowStatus.QUALIFIED


def test_variants_follow_from_the_ordinal_and_are_never_repeated(
    run: Callable[..., Result], ledger: Ledger
) -> None:
    run("scripted-passes", trials=2)
    run("scripted-passes", trials=1)
    variants = [s.entry.variant for s in ledger.entries() if isinstance(s.entry, Trial)]
    assert len(set(variants)) == 3


def test_a_chosen_seed_makes_the_trial_experimental(
    run: Callable[..., Result], verdict: Callable[[Result], Assessment]
) -> None:
    result = run("scripted-passes", seed="mine")
    assessment: Any = verdict(result)
    assert assessment.total == 0
    assert "experimental" in {reason.code for reason in assessment.reasons}
