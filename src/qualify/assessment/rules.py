"""Evidence → verdict, for one configuration and one suite. The only place where verdicts are made.

A configuration qualifies for a suite only while, for each scenario, its newest trials (three by the
policy) are real-model trials, fresh, and clean on every required check, budget and observation, and
the policy's share of *all* trials in the window has passed. Errors, timeouts and trials without an
end stay in every count. Scenarios are judged one by one: passes of one never make up for another.

Pure: no I/O, no clock, and the order in which evidence is handed over changes nothing. Nothing
promotes itself: every assessment says `automatic_promotion_allowed: false`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol

from qualify.assessment.grading import Fault, Grade, Graded, TrialEvidence, grade
from qualify.assessment.intervals import pass_rate_interval
from qualify.assessment.reasons import PRECEDENCE, Reason
from qualify.core.clock import format_time
from qualify.core.status import CheckOutcome, EvidenceClass, RowStatus
from qualify.evidence.records import Refusal, StartFailure, Trial
from qualify.manifests.configuration import policy_digest
from qualify.manifests.kinds import Policy, Scenario

DEFAULT_POLICY = "release"
"""The policy of a project's verdicts; any other is a what-if."""

_STRONGEST_FIRST = (
    EvidenceClass.REAL_MODEL,
    EvidenceClass.FIXTURE,
    EvidenceClass.SCRIPTED,
    EvidenceClass.IMPORTED,
)
_CANNOT_QUALIFY = {
    EvidenceClass.FIXTURE: "fixture-evidence",
    EvidenceClass.SCRIPTED: "scripted-evidence",
    EvidenceClass.IMPORTED: "imported-evidence",
}


class SuiteLike(Protocol):
    """What an assessment needs of a suite (`manifests.configuration.SuiteIdentity`)."""

    @property
    def id(self) -> str: ...  # noqa: D102
    @property
    def digest(self) -> str: ...  # noqa: D102
    @property
    def scenarios(self) -> Sequence[Scenario]: ...  # noqa: D102


@dataclass(frozen=True)
class Sequenced[R: (Refusal, StartFailure)]:
    """An entry that is no trial, with its position in the ledger."""

    seq: int
    entry: R


@dataclass(frozen=True)
class ScenarioResult:
    """The verdict on one scenario. Counts cover all trials in the policy's window."""

    scenario: str
    status: RowStatus
    passed: int
    total: int
    trials: tuple[Graded, ...]
    """All counted trials, newest first, also those that have left the window."""
    newest: tuple[Graded, ...]
    """The newest ones, on which the verdict stands."""

    def check_counts(self) -> dict[str, dict[str, int]]:
        """For each required check: how many trials in the window passed, failed, gave no answer."""
        counts: dict[str, dict[str, int]] = {}
        for graded in self.trials:
            for name, outcome in graded.checks if graded.fresh else ():
                line = counts.setdefault(name, {word.value: 0 for word in CheckOutcome})
                line[outcome.value] += 1
        return counts


@dataclass(frozen=True)
class Assessment:
    """A verdict with its reasons, its time, and the trials that it used."""

    configuration: str
    suite: str
    suite_digest: str
    policy: str
    policy_digest: str
    time: str
    status: RowStatus
    reasons: tuple[Reason, ...]
    """Blocking reasons first, in the order of `PRECEDENCE`, then notes."""
    evidence_class: EvidenceClass | None
    """The class of the trials counted; `None` without trials."""
    passed: int
    total: int
    scenarios: tuple[ScenarioResult, ...]
    what_if: bool = False
    """Another policy or time than the project's: never a verdict to act on."""
    automatic_promotion_allowed: bool = False

    @property
    def interval(self) -> tuple[int, int] | None:
        """Exact 95 % interval of the pass rate, per mille."""
        return pass_rate_interval(self.passed, self.total)

    @property
    def trials_used(self) -> tuple[str, ...]:
        """Ids of the newest trials of each scenario, on which the verdict stands."""
        return tuple(g.evidence.trial for s in self.scenarios for g in s.newest)

    def as_json(self) -> dict[str, Any]:
        """Plain data with stable keys (docs/reference/verdicts.md)."""
        return {
            "configuration": self.configuration,
            "suite": self.suite,
            "suite_digest": self.suite_digest,
            "policy": self.policy,
            "policy_digest": self.policy_digest,
            "time": self.time,
            "status": self.status.value,
            "what_if": self.what_if,
            "automatic_promotion_allowed": self.automatic_promotion_allowed,
            "evidence_class": self.evidence_class.value if self.evidence_class else None,
            **_counts_json(self.passed, self.total),
            "reasons": [reason.as_json() for reason in self.reasons],
            "trials_used": list(self.trials_used),
            "scenarios": [_scenario_json(result) for result in self.scenarios],
        }


def assess(
    configuration: str,
    suite: SuiteLike,
    trials: Iterable[TrialEvidence],
    refusals: Iterable[Sequenced[Refusal]],
    start_failures: Iterable[Sequenced[StartFailure]],
    policy: Policy,
    now: datetime,
    *,
    what_if: bool = False,
) -> Assessment:
    """Judge `configuration` for `suite` at `now`.

    `trials` may hold trials of other configurations and suites (the row's former ones): they are
    never counted and only explain why there are none. The same holds for the other two.
    """
    everything = sorted(trials, key=lambda t: t.seq, reverse=True)
    own = [t for t in everything if t.reservation.configuration == configuration]
    names = {scenario.id for scenario in suite.scenarios}
    cases = [
        t
        for t in own
        if t.reservation.suite_digest == suite.digest and t.reservation.scenario in names
    ]
    regular = [t for t in cases if not t.reservation.experimental]
    evidence_class = next(
        (c for c in _STRONGEST_FIRST for t in regular if t.reservation.evidence_class is c), None
    )
    counted = [t for t in regular if t.reservation.evidence_class is evidence_class]
    reasons = _admission_reasons(configuration, own, refusals, start_failures)
    results: list[ScenarioResult] = []
    if not regular:
        reasons += _why_untested(everything, own, cases, suite) if not reasons else []
    else:
        for scenario in suite.scenarios:
            result, found = _judge_scenario(scenario, counted, policy, now)
            results.append(result)
            reasons += found
        left_out = tuple(
            t.trial for t in regular if t.reservation.evidence_class is not evidence_class
        )
        if left_out:
            reasons.append(Reason("other-evidence-class", trials=left_out))
    if evidence_class in _CANNOT_QUALIFY:
        used = tuple(g.evidence.trial for r in results for g in r.newest)
        reasons.append(Reason(_CANNOT_QUALIFY[evidence_class], trials=used))
    return Assessment(
        configuration=configuration,
        suite=suite.id,
        suite_digest=suite.digest,
        policy=policy.id,
        policy_digest=policy_digest(policy),
        time=format_time(now),
        status=status_of(reasons),
        reasons=tuple(sorted(reasons, key=_rank)),
        evidence_class=evidence_class,
        passed=sum(result.passed for result in results),
        total=sum(result.total for result in results),
        scenarios=tuple(results),
        what_if=what_if,
    )


def status_of(reasons: Iterable[Reason]) -> RowStatus:
    """The status that reasons give together: the first in `PRECEDENCE`; without any, qualified."""
    found = {reason.kind.status for reason in reasons}
    return next((status for status in PRECEDENCE if status in found), RowStatus.QUALIFIED)


def _rank(reason: Reason) -> int:
    status = reason.kind.status
    return len(PRECEDENCE) if status is None else PRECEDENCE.index(status)


def _admission_reasons(
    configuration: str,
    own: list[TrialEvidence],
    refusals: Iterable[Sequenced[Refusal]],
    start_failures: Iterable[Sequenced[StartFailure]],
) -> list[Reason]:
    """A refusal or a failed start counts until a later trial shows that the row starts."""
    newest_trial = own[0].seq if own else -1
    reasons = []
    refused = [r for r in refusals if r.entry.configuration == configuration]
    if refused and (last := max(refused, key=lambda r: r.seq)).seq > newest_trial:
        reasons.append(Reason("refused-by-admission", details=last.entry.reasons))
    failed = [s for s in start_failures if s.entry.configuration == configuration]
    if failed and (late := max(failed, key=lambda s: s.seq)).seq > newest_trial:
        reasons.append(Reason("start-failed", details=(late.entry.reason,)))
    return reasons


def _why_untested(
    everything: list[TrialEvidence],
    own: list[TrialEvidence],
    cases: list[TrialEvidence],
    suite: SuiteLike,
) -> list[Reason]:
    if cases:
        return [Reason("experimental", trials=tuple(t.trial for t in cases))]
    other = tuple(t.trial for t in own if t.reservation.suite == suite.id)
    if other:
        return [Reason("changed-suite", trials=other)]
    mine = {t.trial for t in own}
    former = [t for t in everything if t.trial not in mine and t.reservation.suite == suite.id]
    if former:
        return [Reason("changed-configuration", trials=tuple(t.trial for t in former))]
    return [Reason("no-trials")]


def _judge_scenario(
    scenario: Scenario, counted: list[TrialEvidence], policy: Policy, now: datetime
) -> tuple[ScenarioResult, list[Reason]]:
    """`counted` is newest first."""
    graded = [
        grade(t, scenario, now, policy.freshness_days, policy.future_tolerance_s)
        for t in counted
        if t.reservation.scenario == scenario.id
    ]
    ended = tuple(g for g in graded if g.grade is not Grade.RUNNING)
    running = tuple(g.evidence.trial for g in graded if g.grade is Grade.RUNNING)
    newest = ended[: policy.trials_needed]
    window = [g for g in ended if g.fresh]
    passed = sum(g.clean for g in window)
    reasons = _newest_reasons(newest)
    if len(newest) < policy.trials_needed:
        reasons.append(Reason("too-few-trials", trials=tuple(g.evidence.trial for g in newest)))
    reasons += _share_reasons(window, policy)
    if running:
        reasons.append(Reason("running", trials=running))
    reasons = [replace(reason, scenario=scenario.id) for reason in reasons]
    result = ScenarioResult(scenario.id, status_of(reasons), passed, len(window), ended, newest)
    return result, reasons


def _share_reasons(window: list[Graded], policy: Policy) -> list[Reason]:
    """The policy's share of all trials in the window, once there are as many as it needs."""
    total, passed = len(window), sum(g.clean for g in window)
    needed = policy.minimum_pass_percent * total
    if total < policy.trials_needed or passed * 100 >= needed:
        return []
    failed = sum(g.grade is Grade.FAILED for g in window)
    # Would it be reached if all that has no answer had passed? Then nothing is lost, only unproven.
    code = "pass-share-below-policy" if (total - failed) * 100 < needed else "pass-share-unproven"
    return [Reason(code, trials=tuple(g.evidence.trial for g in window if not g.clean))]


def _newest_reasons(newest: tuple[Graded, ...]) -> list[Reason]:
    """What the newest trials have against them, one reason for each code."""
    found: dict[str, list[tuple[str, Fault]]] = {}
    variants: set[str] = set()
    for place, graded in enumerate(newest):
        trial, end = graded.evidence.trial, graded.evidence.end
        for fault in graded.faults:
            code = fault.code
            if code == "failed":
                code = "failed-latest-trial" if place == 0 else "failed-recent-trial"
            found.setdefault(code, []).append((trial, fault))
        if not graded.fresh:
            found.setdefault("stale", []).append((trial, Fault("stale")))
        if end is None:
            continue
        if end.variant in variants:
            found.setdefault("repeated-variant", []).append((trial, Fault("repeated-variant")))
        variants.add(end.variant)
        for note in _notes(end):
            found.setdefault(note, []).append((trial, Fault(note)))
    return [
        Reason(
            code,
            trials=tuple(trial for trial, _ in faults),
            checks=tuple(dict.fromkeys(c for _, fault in faults for c in fault.checks)),
            budgets=tuple(dict.fromkeys(b for _, fault in faults for b in fault.budgets)),
        )
        for code, faults in found.items()
    ]


def _notes(end: Trial) -> list[str]:
    """What a reader of the verdict should know of a trial, though it blocks nothing."""
    found = ["unconfined"] if end.enforcement.sandbox == "none" else []
    return [*found, "declared-endpoint"] if end.engine.remote else found


def _counts_json(passed: int, total: int) -> dict[str, Any]:
    interval = pass_rate_interval(passed, total)
    return {
        "passed": passed,
        "total": total,
        "interval_low_per_mille": interval[0] if interval else None,
        "interval_high_per_mille": interval[1] if interval else None,
    }


def _scenario_json(result: ScenarioResult) -> dict[str, Any]:
    used = {graded.evidence.trial for graded in result.newest}
    return {
        "scenario": result.scenario,
        "status": result.status.value,
        **_counts_json(result.passed, result.total),
        "checks": result.check_counts(),
        "trials": [
            {
                "trial": graded.evidence.trial,
                "ordinal": graded.evidence.reservation.ordinal,
                "ended": format_time(graded.evidence.ended),
                "grade": graded.grade.value,
                "fresh": graded.fresh,
                "used": graded.evidence.trial in used,
                "faults": [fault.code for fault in graded.faults],
            }
            for graded in result.trials
        ],
    }
