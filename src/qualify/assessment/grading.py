"""One trial judged again from its record: what it counts as, and why.

The outcome that the runner recorded is never believed upwards: a trial counts as passed only when
the record itself shows every required check passed, every budget kept, and the client observed as
the row wants it. A trial without an end is incomplete, and its end is its reservation's time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from qualify.core.clock import parse_time
from qualify.core.status import CheckOutcome, EvidenceClass, TrialOutcome
from qualify.evidence.records import Reservation, Trial
from qualify.manifests.kinds import Budgets, Scenario

GRADING_VERSION = 2
"""Raised whenever a record may be judged otherwise than before: kept judgements are made anew."""


class Grade(StrEnum):
    """What a trial counts as. Everything but `running` stays in the denominator."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    INCOMPLETE = "incomplete"
    RUNNING = "running"


@dataclass(frozen=True)
class TrialEvidence:
    """A reservation, its end if there is one, and whether a process holds its lock now."""

    trial: str
    seq: int
    """Position of the reservation in its ledger: the order of trials."""
    reservation: Reservation
    end: Trial | None
    running: bool = False

    @property
    def started(self) -> datetime:
        """When it was reserved."""
        return parse_time(self.reservation.time)

    @property
    def ended(self) -> datetime:
        """When it ended; the reservation's time while there is no end."""
        return parse_time(self.end.time) if self.end else self.started


@dataclass(frozen=True)
class Fault:
    """One reason (a code of `reasons.REASONS`) why a trial is not clean."""

    code: str
    checks: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """What a trial's record says for itself, whatever time it is: the part of a grade that can be
    kept beside the record. Of equal judgements it is enough to keep one and to count.
    """

    grade: Grade
    faults: tuple[Fault, ...]
    checks: tuple[tuple[str, CheckOutcome], ...]
    """The outcome of each required check."""


@dataclass(frozen=True)
class TrialFacts:
    """What a verdict needs to know of one trial."""

    trial: str
    seq: int
    """Position of the reservation in its ledger: the order of trials."""
    ordinal: int
    started: datetime
    ended: datetime
    """The reservation's time while there is no end."""
    judgement: Judgement
    """Of a trial without an end: incomplete."""
    variant: str | None = None
    notes: tuple[str, ...] = ()
    """Codes of notes: what a reader of the verdict should know, though it blocks nothing."""
    running: bool = False
    """A process holds its lock now."""
    wall_time_s: int = 0
    """The scenario's limit, from which a trial that is held open is overdue."""


@dataclass(frozen=True)
class Graded:
    """A trial with its grade at one moment, its faults, and the outcome of each required check."""

    evidence: TrialFacts
    grade: Grade
    faults: tuple[Fault, ...]
    checks: tuple[tuple[str, CheckOutcome], ...]
    fresh: bool
    """Not older than the policy allows."""

    @property
    def clean(self) -> bool:
        """Passed, and nothing speaks against it but perhaps its age."""
        return is_clean(self.grade, self.faults)


_WITHOUT_END = (Fault("incomplete-trial"),)


def is_clean(grade: Grade, faults: tuple[Fault, ...]) -> bool:
    """Passed, and nothing speaks against it."""
    return grade is Grade.PASSED and not faults


_INCOMPLETE = frozenset({"client-not-bound", "client-changed", "implicit-context-limit"})
"""Faults that leave a trial incomplete although it has an end."""


def judge(reservation: Reservation, end: Trial | None, scenario: Scenario) -> Judgement:
    """Judge a trial of `scenario` from its record. Depends on nothing else, not on the time."""
    if end is None:
        return judge_open(reservation.required_checks, scenario)
    required = _required(reservation.required_checks, scenario)
    outcomes = _check_outcomes(end, required)
    checks = tuple(outcomes.items())
    faults = [
        *_check_faults(end, required, outcomes),
        *_budget_faults(end, scenario.budgets),
        *_observation_faults(reservation, end),
    ]
    return Judgement(_result(end, outcomes, faults), tuple(faults), checks)


def judge_open(required_checks: tuple[str, ...], scenario: Scenario) -> Judgement:
    """Judge a trial without an end: incomplete, and no check has an answer."""
    unknown = ((name, CheckOutcome.UNKNOWN) for name in _required(required_checks, scenario))
    return Judgement(Grade.INCOMPLETE, _WITHOUT_END, tuple(unknown))


def _required(required_checks: tuple[str, ...], scenario: Scenario) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*scenario.checks, *required_checks)))


def facts(evidence: TrialEvidence, scenario: Scenario) -> TrialFacts:
    """What a verdict needs to know of a trial of `scenario`."""
    end = evidence.end
    return TrialFacts(
        evidence.trial,
        evidence.seq,
        evidence.reservation.ordinal,
        evidence.started,
        evidence.ended,
        judge(evidence.reservation, end, scenario),
        variant=end.variant if end else None,
        notes=note_codes(end.enforcement.sandbox, end.engine.remote) if end else (),
        running=evidence.running,
        wall_time_s=scenario.budgets.wall_time_s,
    )


def note_codes(sandbox: str, remote: bool) -> tuple[str, ...]:
    """What a reader of the verdict should know of a trial, though it blocks nothing."""
    found = ("unconfined",) if sandbox == "none" else ()
    return (*found, "declared-endpoint") if remote else found


def grade(
    evidence: TrialFacts, now: datetime, freshness_days: int, future_tolerance_s: int
) -> Graded:
    """What a trial counts as at `now`."""
    judgement = evidence.judgement
    result, faults = judgement.grade, judgement.faults
    oldest = min(evidence.started, evidence.ended)
    fresh = now - oldest <= timedelta(days=freshness_days)
    if faults == _WITHOUT_END and evidence.running:
        result, faults = _held_open(evidence, now)
    if max(evidence.started, evidence.ended) - now > timedelta(seconds=future_tolerance_s):
        faults = (Fault("future-time"), *faults)
        result = Grade.UNKNOWN if result is Grade.PASSED else result
    return Graded(evidence, result, faults, judgement.checks, fresh)


def _held_open(evidence: TrialFacts, now: datetime) -> tuple[Grade, tuple[Fault, ...]]:
    # A trial that is held open for ever must not keep its failure out of the count.
    if now - evidence.started > timedelta(seconds=2 * evidence.wall_time_s):
        return Grade.UNKNOWN, (Fault("overdue"),)
    return Grade.RUNNING, ()


def _check_outcomes(end: Trial, required: tuple[str, ...]) -> dict[str, CheckOutcome]:
    """Outcome of each required check; a check recorded twice counts as its worse outcome."""
    found: dict[str, CheckOutcome] = {}
    order = (CheckOutcome.PASSED, CheckOutcome.UNKNOWN, CheckOutcome.FAILED)
    for check in end.checks:
        before = found.get(check.check, CheckOutcome.PASSED)
        found[check.check] = max(before, check.outcome, key=order.index)
    return {name: found.get(name, CheckOutcome.UNKNOWN) for name in required}


def _check_faults(
    end: Trial, required: tuple[str, ...], outcomes: dict[str, CheckOutcome]
) -> list[Fault]:
    recorded = {check.check for check in end.checks}
    faults = []
    missing = tuple(name for name in required if name not in recorded)
    if missing:
        faults.append(Fault("missing-check", checks=missing))
    failed = tuple(name for name in required if outcomes[name] is CheckOutcome.FAILED)
    if failed or end.outcome is TrialOutcome.FAILED:
        faults.append(Fault("failed", checks=failed))
    unknown = tuple(
        name for name in required if outcomes[name] is CheckOutcome.UNKNOWN and name in recorded
    )
    if unknown or (end.outcome is TrialOutcome.UNKNOWN and not missing):
        faults.append(Fault("unknown-outcome", checks=unknown))
    return faults


def _budget_faults(end: Trial, budgets: Budgets) -> list[Fault]:
    """Budgets judged again. Reaching a limit exactly passes."""
    usage = end.usage
    limits: list[tuple[str, int | None, int | None]] = [
        ("wall_time_s", budgets.wall_time_s * 1000, end.timings.wall_ms),
        ("actions", budgets.actions, usage.actions_proposed),
        ("model_calls", budgets.model_calls, usage.model_calls),
        ("prompt_tokens", budgets.prompt_tokens, usage.prompt_tokens),
        ("completion_tokens", budgets.completion_tokens, usage.completion_tokens),
        ("cost_microusd", budgets.cost_microusd, usage.cost_microusd),
    ]
    over = {use.budget for use in end.budgets_exceeded if use.used is not None}
    unknown = {use.budget for use in end.budgets_exceeded if use.used is None}
    for name, limit, used in limits:
        if limit is None:
            continue
        if used is None or (used == 0 and "tokens" in name and usage.model_calls):
            # A provider that reports nothing and one that reports zero tokens look alike.
            unknown.add(name)  # type: ignore[arg-type]
        elif used > limit:
            over.add(name)  # type: ignore[arg-type]
    faults = []
    if over:
        faults.append(Fault("budget-overrun", budgets=tuple(sorted(over))))
    if unknown:
        faults.append(Fault("usage-unknown", budgets=tuple(sorted(unknown))))
    return faults


def _observation_faults(reservation: Reservation, end: Trial) -> list[Fault]:
    faults = []
    if end.stop_reason != "completed":
        faults.append(Fault("not-completed"))
    if end.audit.unknown_effects:
        faults.append(Fault("unknown-effects"))
    agent = end.agent
    if agent.tool_mode_observed is not agent.tool_mode_requested or not agent.model_name_matches:
        faults.append(Fault("client-not-observed"))
    faults += _client_faults(end)
    if reservation.evidence_class is EvidenceClass.REAL_MODEL:
        if end.model is None or end.model.revision is None:
            faults.append(Fault("unknown-model-revision"))
        if not end.engine.remote and (end.model is None or end.model.files is None):
            faults.append(Fault("unverified-model"))
    return faults


def _client_faults(end: Trial) -> list[Fault]:
    """One and the same client asked the model from beginning to end, within limits that were said.

    Records of schema 1 do not name it.
    """
    if end.schema_version == 1:
        return []
    client = end.client
    if client is None or not client.readings or not client.read_at_end:
        return [Fault("client-not-bound")]
    faults = [Fault("client-changed")] if client.changed else []
    if client.max_input_tokens is None or client.max_output_tokens is None:
        faults.append(Fault("implicit-context-limit"))
    return faults


def _result(end: Trial, outcomes: dict[str, CheckOutcome], faults: list[Fault]) -> Grade:
    codes = {fault.code for fault in faults}
    if codes & {"failed", "budget-overrun"}:
        return Grade.FAILED
    if codes & _INCOMPLETE:
        return Grade.INCOMPLETE
    settled = end.outcome is TrialOutcome.PASSED
    if faults or not settled or set(outcomes.values()) != {CheckOutcome.PASSED}:
        return Grade.UNKNOWN
    return Grade.PASSED
