"""Verdicts of many rows at once: one pass over the ledger, then the rules for each row and suite.

Pure, like the rules: entries, the question "does this trial run now?" and the time are passed in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from qualify.assessment.grading import TrialEvidence
from qualify.assessment.rules import Assessment, Sequenced, SuiteLike, assess
from qualify.evidence.ledger import StoredEntry
from qualify.evidence.records import Refusal, Reservation, StartFailure, Trial
from qualify.manifests.kinds import Policy, Row


class ConfigurationLike(Protocol):
    """What an assessment needs of a configuration (`manifests.configuration.Configuration`)."""

    @property
    def row(self) -> Row: ...  # noqa: D102
    @property
    def digest(self) -> str: ...  # noqa: D102


@dataclass
class Evidence:
    """What a ledger says of each configuration, in one index."""

    trials: list[TrialEvidence] = field(default_factory=list)
    by_configuration: dict[str, list[TrialEvidence]] = field(
        default_factory=lambda: defaultdict(list)
    )
    by_row: dict[str, list[TrialEvidence]] = field(default_factory=lambda: defaultdict(list))
    refusals: dict[str, list[Sequenced[Refusal]]] = field(default_factory=lambda: defaultdict(list))
    start_failures: dict[str, list[Sequenced[StartFailure]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def of(self, row: str, configuration: str) -> list[TrialEvidence]:
        """Trials of a configuration, and of the row's former ones."""
        found = {t.trial: t for t in self.by_row.get(row, ())}
        found.update((t.trial, t) for t in self.by_configuration.get(configuration, ()))
        return list(found.values())

    def assess(
        self,
        row: str,
        configuration: str,
        suite: SuiteLike,
        policy: Policy,
        now: datetime,
        *,
        what_if: bool = False,
    ) -> Assessment:
        """The verdict on one row's configuration for one suite."""
        return assess(
            configuration,
            suite,
            self.of(row, configuration),
            self.refusals.get(configuration, ()),
            self.start_failures.get(configuration, ()),
            policy,
            now,
            what_if=what_if,
        )


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
            evidence.refusals[entry.configuration].append(Sequenced(stored.seq, entry))
        elif isinstance(entry, StartFailure):
            evidence.start_failures[entry.configuration].append(Sequenced(stored.seq, entry))
    for trial, (seq, reservation) in reserved.items():
        end = ends.get(trial)
        made = TrialEvidence(trial, seq, reservation, end, end is None and running(trial))
        evidence.trials.append(made)
        evidence.by_configuration[reservation.configuration].append(made)
        evidence.by_row[reservation.row].append(made)
    return evidence


def assess_rows(
    configurations: Iterable[ConfigurationLike],
    suites: Mapping[str, SuiteLike],
    entries: Iterable[StoredEntry],
    policy: Policy,
    now: datetime,
    running: Callable[[str], bool],
) -> dict[tuple[str, str], Assessment]:
    """The verdict for every (row, suite) that the rows list. Raises as the ledger's `entries`."""
    evidence = collect(entries, running)
    verdicts: dict[tuple[str, str], Assessment] = {}
    for configuration in configurations:
        row = configuration.row
        wanted: Sequence[str] = row.suites
        for suite in wanted:
            verdicts[row.id, suite] = evidence.assess(
                row.id, configuration.digest, suites[suite], policy, now
            )
    return verdicts
