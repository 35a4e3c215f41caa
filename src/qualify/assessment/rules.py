"""Evidence → verdict, for one configuration and one suite. The only place where verdicts are made.

A configuration qualifies for a suite only while, for each scenario, its newest trials (three by the
policy) are real-model trials, fresh, and clean on every required check, budget and observation, and
the policy's share of *all* trials in the window has passed. Errors, timeouts and trials without an
end stay in every count. Scenarios are judged one by one: passes of one never make up for another.

Pure: no I/O, no clock, and the order in which evidence is handed over changes nothing. Nothing
promotes itself: every assessment says `automatic_promotion_allowed: false`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from qualify.assessment.aspects import Aspect, AspectOutcome, aspects_of, worst
from qualify.assessment.cases import NAMED_TRIALS, Case, EvidenceSource, Window
from qualify.assessment.grading import Fault, Grade, Graded, grade, is_clean
from qualify.assessment.intervals import pass_rate_interval
from qualify.assessment.reasons import PRECEDENCE, Reason
from qualify.core.clock import format_time
from qualify.core.status import CheckOutcome, EvidenceClass, RowStatus
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
class ScenarioResult:
    """The verdict on one scenario. Counts cover all trials in the policy's window."""

    scenario: str
    status: RowStatus
    passed: int
    total: int
    trials: tuple[Graded, ...]
    """The trials that were looked at one by one, newest first: the newest, every open one, and
    those from the future. Trials that run now are no part of any count."""
    newest: tuple[Graded, ...]
    """The newest with an end, on which the verdict stands."""
    check_counts: Mapping[str, Mapping[str, int]]
    """For each required check: how many trials in the window passed, failed, gave no answer."""
    aspects: Mapping[Aspect, AspectOutcome]
    """What the newest trials show of each aspect; none is implied by another one."""


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

    @property
    def aspects(self) -> dict[Aspect, AspectOutcome]:
        """Every aspect over all scenarios: the worst that one of them shows."""
        return {a: worst(s.aspects[a] for s in self.scenarios) for a in Aspect}

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
            "aspects": {aspect.value: found.value for aspect, found in self.aspects.items()},
            "reasons": [reason.as_json() for reason in self.reasons],
            "trials_used": list(self.trials_used),
            "scenarios": [_scenario_json(result) for result in self.scenarios],
        }


def assess(
    row: str,
    configuration: str,
    suite: SuiteLike,
    evidence: EvidenceSource,
    policy: Policy,
    now: datetime,
    *,
    what_if: bool = False,
) -> Assessment:
    """Judge `configuration` of `row` for `suite` at `now`.

    Trials of the row's former configurations and of former suites are never counted and only
    explain why there are none.
    """
    everything = evidence.cases(row, configuration)
    own = [c for c in everything if c.configuration == configuration]
    names = {scenario.id for scenario in suite.scenarios}
    cases = [c for c in own if c.suite_digest == suite.digest and c.scenario in names]
    regular = [c for c in cases if not c.experimental]
    evidence_class = next(
        (cls for cls in _STRONGEST_FIRST for c in regular if c.evidence_class is cls), None
    )
    counted = [c for c in regular if c.evidence_class is evidence_class]
    reasons = _admission_reasons(configuration, evidence)
    results: list[ScenarioResult] = []
    if not regular:
        reasons += _why_untested(everything, own, cases, suite, evidence) if not reasons else []
    else:
        for scenario in suite.scenarios:
            of_scenario = [c for c in counted if c.scenario == scenario.id]
            result, found = _judge_scenario(scenario, of_scenario, evidence, policy, now)
            results.append(result)
            reasons += found
        left_out = [c for c in regular if c.evidence_class is not evidence_class]
        if left_out:
            reasons.append(Reason("other-evidence-class", trials=evidence.named(left_out)))
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


def _admission_reasons(configuration: str, evidence: EvidenceSource) -> list[Reason]:
    """A refusal or a failed start counts until a later trial shows that the row starts."""
    newest_trial = evidence.newest_seq(configuration)
    reasons = []
    refused = evidence.refusal(configuration)
    if refused is not None and refused.seq > newest_trial:
        reasons.append(Reason("refused-by-admission", details=refused.entry.reasons))
    failed = evidence.start_failure(configuration)
    if failed is not None and failed.seq > newest_trial:
        reasons.append(Reason("start-failed", details=(failed.entry.reason,)))
    return reasons


def _why_untested(
    everything: Sequence[Case],
    own: list[Case],
    cases: list[Case],
    suite: SuiteLike,
    evidence: EvidenceSource,
) -> list[Reason]:
    if cases:
        return [Reason("experimental", trials=evidence.named(cases))]
    other = [c for c in own if c.suite == suite.id]
    if other:
        return [Reason("changed-suite", trials=evidence.named(other))]
    former = [c for c in everything if c not in own and c.suite == suite.id]
    if former:
        return [Reason("changed-configuration", trials=evidence.named(former))]
    return [Reason("no-trials")]


def _judge_scenario(
    scenario: Scenario,
    cases: list[Case],
    evidence: EvidenceSource,
    policy: Policy,
    now: datetime,
) -> tuple[ScenarioResult, list[Reason]]:
    window = Window(
        newest=policy.trials_needed,
        oldest=now - timedelta(days=policy.freshness_days),
        latest=now + timedelta(seconds=policy.future_tolerance_s),
    )
    found = evidence.trials(cases, scenario, window)
    graded = [grade(t, now, policy.freshness_days, policy.future_tolerance_s) for t in found.single]
    ended = tuple(g for g in graded if g.grade is not Grade.RUNNING)
    running = tuple(g.evidence.trial for g in graded if g.grade is Grade.RUNNING)
    newest = ended[: policy.trials_needed]
    tally = Tally()
    for one in ended:
        if one.fresh:
            tally.count(one.grade, one.faults, one.checks, 1)
    for judgement, count in found.others:
        tally.count(judgement.grade, judgement.faults, judgement.checks, count)
    reasons = _newest_reasons(newest)
    if len(newest) < policy.trials_needed:
        reasons.append(Reason("too-few-trials", trials=tuple(g.evidence.trial for g in newest)))
    reasons += _share_reasons(tally, ended, policy)
    if running:
        reasons.append(Reason("running", trials=running))
    reasons = [replace(reason, scenario=scenario.id) for reason in reasons]
    result = ScenarioResult(
        scenario.id,
        status_of(reasons),
        tally.passed,
        tally.total,
        ended,
        newest,
        tally.checks,
        aspects_of(newest, scenario.checks, (reason.code for reason in reasons)),
    )
    return result, reasons


_NONE_YET = {word.value: 0 for word in CheckOutcome}


class Tally:
    """Counts of trials in the window. Everything that ended or died is in `total`."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0
        self.total = 0
        self.checks: dict[str, dict[str, int]] = {}

    def count(
        self,
        grade: Grade,
        faults: tuple[Fault, ...],
        checks: tuple[tuple[str, CheckOutcome], ...],
        count: int,
    ) -> None:
        """Add `count` trials of one kind."""
        self.total += count
        self.passed += count * is_clean(grade, faults)
        self.failed += count * (grade is Grade.FAILED)
        for name, outcome in checks:
            line = self.checks.get(name)
            if line is None:
                line = self.checks[name] = dict(_NONE_YET)
            line[outcome.value] += count


def _share_reasons(tally: Tally, ended: tuple[Graded, ...], policy: Policy) -> list[Reason]:
    """The policy's share of all trials in the window, once there are as many as it needs."""
    needed = policy.minimum_pass_percent * tally.total
    if tally.total < policy.trials_needed or tally.passed * 100 >= needed:
        return []
    # Would it be reached if all that has no answer had passed? Then nothing is lost, only unproven.
    lost = (tally.total - tally.failed) * 100 < needed
    code = "pass-share-below-policy" if lost else "pass-share-unproven"
    about = tuple(g.evidence.trial for g in ended if g.fresh and not g.clean)
    return [Reason(code, trials=about[:NAMED_TRIALS])]


def _newest_reasons(newest: tuple[Graded, ...]) -> list[Reason]:
    """What the newest trials have against them, one reason for each code."""
    found: dict[str, list[tuple[str, Fault]]] = {}
    variants: set[str] = set()
    for place, graded in enumerate(newest):
        trial, variant = graded.evidence.trial, graded.evidence.variant
        for fault in graded.faults:
            code = fault.code
            if code == "failed":
                code = "failed-latest-trial" if place == 0 else "failed-recent-trial"
            found.setdefault(code, []).append((trial, fault))
        if not graded.fresh:
            found.setdefault("stale", []).append((trial, Fault("stale")))
        if variant is None:
            continue
        if variant in variants:
            found.setdefault("repeated-variant", []).append((trial, Fault("repeated-variant")))
        variants.add(variant)
        for note in graded.evidence.notes:
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
        "checks": {name: dict(line) for name, line in result.check_counts.items()},
        "trials": [
            {
                "trial": graded.evidence.trial,
                "ordinal": graded.evidence.ordinal,
                "ended": format_time(graded.evidence.ended),
                "grade": graded.grade.value,
                "fresh": graded.fresh,
                "used": graded.evidence.trial in used,
                "faults": [fault.code for fault in graded.faults],
            }
            for graded in result.trials
        ],
    }
