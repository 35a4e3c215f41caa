"""What the rules ask of evidence, so that ten trials in a ledger and ten million in a database give
the same verdict by the same rule.

A case is what trials have in common: row, configuration, suite, scenario, class, and whether they
are experimental. Of a case the rules need the newest trials one by one, and the others of the
window as counts of equal judgements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from qualify.assessment.grading import Judgement, TrialFacts
from qualify.core.status import EvidenceClass
from qualify.evidence.records import Refusal, StartFailure
from qualify.manifests.kinds import Scenario

NAMED_TRIALS = 10
"""How many trials a reason names at most, where it speaks of all that were left out."""


@dataclass(frozen=True)
class Case:
    """What the trials of one case have in common."""

    row: str
    configuration: str
    suite: str
    suite_digest: str
    scenario: str
    evidence_class: EvidenceClass
    experimental: bool


@dataclass(frozen=True)
class Window:
    """Which trials count, as the policy and the moment say. The bounds belong to the window."""

    newest: int
    """How many of the newest trials are looked at one by one."""
    oldest: datetime
    """The oldest time that is fresh."""
    latest: datetime
    """The latest time that no clock explains."""


@dataclass(frozen=True)
class CaseTrials:
    """The trials of cases that are counted together."""

    single: tuple[TrialFacts, ...]
    """Newest first: the newest with an end, as many as asked for, and every one that is open or
    lies in the future."""
    others: tuple[tuple[Judgement, int], ...]
    """All others within the window: equal judgements, counted."""


@dataclass(frozen=True)
class Sequenced[R: (Refusal, StartFailure)]:
    """An entry that is no trial, with its position in the ledger."""

    seq: int
    entry: R


class EvidenceSource(Protocol):
    """Evidence of one site. Every answer is about all of it, whatever the order it came in."""

    def cases(self, row: str, configuration: str) -> Sequence[Case]:
        """Every case of the configuration, and of the row's former configurations."""

    def trials(self, cases: Sequence[Case], scenario: Scenario, window: Window) -> CaseTrials:
        """The trials of `cases`, all of which are of `scenario`."""

    def named(self, cases: Sequence[Case]) -> tuple[str, ...]:
        """Ids of the newest trials of `cases`, at most `NAMED_TRIALS`, newest first."""

    def newest_seq(self, configuration: str) -> int:
        """Position of the configuration's newest reservation; -1 without any."""

    def refusal(self, configuration: str) -> Sequenced[Refusal] | None:
        """The configuration's newest refusal by admission."""

    def start_failure(self, configuration: str) -> Sequenced[StartFailure] | None:
        """The configuration's newest engine that did not become ready."""
