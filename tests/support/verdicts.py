"""Verdicts on evidence that a test holds in its hands."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from qualify.assessment.cases import Sequenced
from qualify.assessment.grading import TrialEvidence
from qualify.assessment.matrix import Evidence
from qualify.assessment.rules import Assessment, SuiteLike
from qualify.assessment.rules import assess as judge
from qualify.evidence.records import Refusal, StartFailure
from qualify.manifests.kinds import Policy
from support.evidence import ROW


def assess(
    configuration: str,
    suite: SuiteLike,
    trials: Iterable[TrialEvidence],
    refusals: Iterable[Sequenced[Refusal]],
    start_failures: Iterable[Sequenced[StartFailure]],
    policy: Policy,
    now: datetime,
) -> Assessment:
    """The verdict on the row of `support.evidence` from these trials and entries."""
    evidence = Evidence()
    for trial in trials:
        evidence.add(trial)
    for refusal in refusals:
        evidence.add_refusal(refusal.seq, refusal.entry)
    for failure in start_failures:
        evidence.add_start_failure(failure.seq, failure.entry)
    return judge(ROW, configuration, suite, evidence, policy, now)
