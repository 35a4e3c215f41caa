"""Verdicts of many rows at once: one pass over the ledger, then the rules for each row and suite.

Pure, like the rules: entries, the question "does this trial run now?" and the time are passed in.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from qualify.assessment.cases import (
    NAMED_TRIALS,
    Case,
    CaseTrials,
    EvidenceSource,
    Sequenced,
    Window,
)
from qualify.assessment.grading import Judgement, TrialEvidence, TrialFacts, facts
from qualify.assessment.rules import Assessment, SuiteLike, assess
from qualify.evidence.ledger import StoredEntry
from qualify.evidence.records import Refusal, Reservation, StartFailure, Trial
from qualify.manifests.kinds import Policy, Row, Scenario


class ConfigurationLike(Protocol):
    """What an assessment needs of a configuration (`manifests.configuration.Configuration`)."""

    @property
    def row(self) -> Row: ...  # noqa: D102
    @property
    def digest(self) -> str: ...  # noqa: D102


@dataclass
class Evidence:
    """What a ledger says of each configuration, in memory (an `EvidenceSource`)."""

    trials_by_case: dict[Case, list[TrialEvidence]] = field(
        default_factory=lambda: defaultdict(list)
    )
    by_configuration: dict[str, set[Case]] = field(default_factory=lambda: defaultdict(set))
    by_row: dict[str, set[Case]] = field(default_factory=lambda: defaultdict(set))
    refusals: dict[str, Sequenced[Refusal]] = field(default_factory=dict)
    start_failures: dict[str, Sequenced[StartFailure]] = field(default_factory=dict)

    @property
    def all_trials(self) -> list[TrialEvidence]:
        """Every trial, oldest first."""
        return sorted(
            (t for trials in self.trials_by_case.values() for t in trials), key=lambda t: t.seq
        )

    def add(self, trial: TrialEvidence) -> None:
        """Take in one trial."""
        held = trial.reservation
        case = Case(
            held.row,
            held.configuration,
            held.suite,
            held.suite_digest,
            held.scenario,
            held.evidence_class,
            held.experimental,
        )
        self.trials_by_case[case].append(trial)
        self.by_configuration[case.configuration].add(case)
        self.by_row[case.row].add(case)

    def add_refusal(self, seq: int, entry: Refusal) -> None:
        """Take in a refusal; the newest of a configuration is kept."""
        known = self.refusals.get(entry.configuration)
        if known is None or known.seq < seq:
            self.refusals[entry.configuration] = Sequenced(seq, entry)

    def add_start_failure(self, seq: int, entry: StartFailure) -> None:
        """Take in an engine that did not start; the newest of a configuration is kept."""
        known = self.start_failures.get(entry.configuration)
        if known is None or known.seq < seq:
            self.start_failures[entry.configuration] = Sequenced(seq, entry)

    def of_configuration(self, configuration: str) -> list[TrialEvidence]:
        """The trials of one configuration, newest first."""
        return self._sorted(self.by_configuration.get(configuration, ()))

    def cases(self, row: str, configuration: str) -> Sequence[Case]:
        """As `EvidenceSource`."""
        return [*self.by_row.get(row, set()) | self.by_configuration.get(configuration, set())]

    def trials(self, cases: Sequence[Case], scenario: Scenario, window: Window) -> CaseTrials:
        """As `EvidenceSource`."""
        single: list[TrialFacts] = []
        others: Counter[Judgement] = Counter()
        newest = 0
        for trial in self._sorted(cases):
            known = facts(trial, scenario)
            newest += trial.end is not None
            future = max(known.started, known.ended) > window.latest
            if trial.end is None or future or newest <= window.newest:
                single.append(known)
            elif min(known.started, known.ended) >= window.oldest:
                others[known.judgement] += 1
        return CaseTrials(tuple(single), tuple(others.items()))

    def named(self, cases: Sequence[Case]) -> tuple[str, ...]:
        """As `EvidenceSource`."""
        return tuple(t.trial for t in self._sorted(cases)[:NAMED_TRIALS])

    def newest_seq(self, configuration: str) -> int:
        """As `EvidenceSource`."""
        return max((t.seq for t in self.of_configuration(configuration)), default=-1)

    def refusal(self, configuration: str) -> Sequenced[Refusal] | None:
        """As `EvidenceSource`."""
        return self.refusals.get(configuration)

    def start_failure(self, configuration: str) -> Sequenced[StartFailure] | None:
        """As `EvidenceSource`."""
        return self.start_failures.get(configuration)

    def _sorted(self, cases: Iterable[Case]) -> list[TrialEvidence]:
        found = (t for case in cases for t in self.trials_by_case.get(case, ()))
        return sorted(found, key=lambda t: t.seq, reverse=True)


def collect(entries: Iterable[StoredEntry], running: Callable[[str], bool]) -> Evidence:
    """Index the entries of a ledger. `running(trial)` is asked only for trials without an end."""
    reserved: dict[str, tuple[int, Reservation]] = {}
    ends: dict[str, Trial] = {}
    evidence = Evidence()
    for stored in entries:
        entry = stored.entry
        if isinstance(entry, Reservation):
            reserved[stored.digest] = (stored.seq, entry)
        elif isinstance(entry, Trial):
            ends[entry.trial] = entry
        elif isinstance(entry, Refusal):
            evidence.add_refusal(stored.seq, entry)
        elif isinstance(entry, StartFailure):
            evidence.add_start_failure(stored.seq, entry)
    for trial, (seq, reservation) in reserved.items():
        end = ends.get(trial)
        evidence.add(TrialEvidence(trial, seq, reservation, end, end is None and running(trial)))
    return evidence


def assess_rows(
    configurations: Iterable[ConfigurationLike],
    suites: Mapping[str, SuiteLike],
    evidence: EvidenceSource,
    policy: Policy,
    now: datetime,
) -> dict[tuple[str, str], Assessment]:
    """The verdict for every (row, suite) that the rows list."""
    verdicts: dict[tuple[str, str], Assessment] = {}
    for configuration in configurations:
        row = configuration.row
        wanted: Sequence[str] = row.suites
        for suite in wanted:
            verdicts[row.id, suite] = assess(
                row.id, configuration.digest, suites[suite], evidence, policy, now
            )
    return verdicts
