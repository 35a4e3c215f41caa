"""The table of verdicts: what qualifies, and which reason each way of not qualifying gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from qualify.assessment.cases import Sequenced
from qualify.assessment.grading import TrialEvidence
from qualify.assessment.reasons import PRECEDENCE, REASONS
from qualify.assessment.rules import Assessment
from qualify.core.digests import digest_bytes
from qualify.core.status import CheckOutcome, EvidenceClass, RowStatus, ToolMode, TrialOutcome
from qualify.evidence.records import BudgetUse, ModelIdentity
from support import evidence
from support.evidence import (
    CHECKS,
    DAY,
    NOW,
    SuiteStandIn,
    client,
    policy,
    reservation,
    scenario,
    trial,
)
from support.verdicts import assess

HOUR = timedelta(hours=1)
FAILED = {"exact-bytes": CheckOutcome.FAILED, "replay": CheckOutcome.PASSED}
UNKNOWN = {"exact-bytes": CheckOutcome.UNKNOWN, "replay": CheckOutcome.PASSED}


def made(
    number: int,
    *,
    age: timedelta | None = None,
    unfinished: bool = False,
    running: bool = False,
    reserved: dict[str, Any] | None = None,
    **end: Any,
) -> TrialEvidence:
    """Trial `number` (the order of reservation), clean unless told otherwise, hours ago."""
    time = NOW - (HOUR * (20 - number) if age is None else age)
    entry = reservation(number, time, **(reserved or {}))
    identifier = digest_bytes(f"trial {number} {entry.model_dump_json()}".encode())
    finish = None if unfinished else trial(identifier, time + timedelta(seconds=20), **end)
    return TrialEvidence(identifier, number * 2 + 1, entry, finish, running)


def passes(count: int, **changes: Any) -> list[TrialEvidence]:
    return [made(number, **changes) for number in range(count)]


def judge(trials: list[TrialEvidence], now: datetime = NOW, **numbers: Any) -> Assessment:
    return assess(evidence.CONFIGURATION, SuiteStandIn(), trials, [], [], policy(**numbers), now)


def codes(verdict: Assessment) -> set[str]:
    return {reason.code for reason in verdict.reasons if reason.blocking}


def test_three_fresh_clean_real_model_trials_qualify() -> None:
    verdict = judge(passes(3))
    assert verdict.status is RowStatus.QUALIFIED
    assert verdict.reasons == ()
    assert (verdict.passed, verdict.total) == (3, 3)
    assert verdict.automatic_promotion_allowed is False
    assert len(verdict.trials_used) == 3


@dataclass(frozen=True)
class Case:
    """Evidence that keeps a row from being qualified, the status, and exactly the reasons."""

    name: str
    trials: Callable[[], list[TrialEvidence]]
    status: RowStatus
    reasons: set[str]
    policy: dict[str, Any] = field(default_factory=dict)


def third(**changes: Any) -> Callable[[], list[TrialEvidence]]:
    """Two clean trials and a newest one that differs."""
    return lambda: [*passes(2), made(2, **changes)]


def all_with(**changes: Any) -> Callable[[], list[TrialEvidence]]:
    return lambda: passes(3, **changes)


OTHER = digest_bytes(b"other")
TABLE = (
    # one for each reason that the evidence can give
    Case("no trial", list, RowStatus.UNTESTED, {"no-trials"}),
    Case("too few", lambda: passes(2), RowStatus.INCOMPLETE, {"too-few-trials"}),
    Case("stale", all_with(age=31 * DAY), RowStatus.EXPIRED, {"stale"}),
    Case(
        "one of three stale",
        lambda: [made(0, age=31 * DAY), made(1), made(2)],
        RowStatus.EXPIRED,
        {"stale"},
    ),
    Case(
        "changed configuration",
        all_with(reserved={"configuration": OTHER}),
        RowStatus.UNTESTED,
        {"changed-configuration"},
    ),
    Case(
        "changed suite",
        all_with(reserved={"suite_digest": OTHER}),
        RowStatus.UNTESTED,
        {"changed-suite"},
    ),
    Case(
        "missing check",
        lambda: [*passes(9), made(9, checks={"replay": CheckOutcome.PASSED})],
        RowStatus.INCONCLUSIVE,
        {"missing-check"},
    ),
    Case(
        "no check at all",
        lambda: [*passes(9), made(9, checks={})],
        RowStatus.INCONCLUSIVE,
        {"missing-check"},
    ),
    Case(
        "pass share unproven",
        lambda: [made(0, unfinished=True), *(made(n) for n in range(1, 4))],
        RowStatus.INCOMPLETE,
        {"pass-share-unproven"},
    ),
    Case(
        "scripted",
        all_with(reserved={"evidence_class": EvidenceClass.SCRIPTED}),
        RowStatus.UNTESTED,
        {"scripted-evidence"},
    ),
    Case(
        "fixture",
        all_with(reserved={"evidence_class": EvidenceClass.FIXTURE}),
        RowStatus.UNTESTED,
        {"fixture-evidence"},
    ),
    Case(
        "imported",
        all_with(reserved={"evidence_class": EvidenceClass.IMPORTED}),
        RowStatus.UNTESTED,
        {"imported-evidence"},
    ),
    Case(
        "experimental",
        all_with(reserved={"experimental": True}),
        RowStatus.UNTESTED,
        {"experimental"},
    ),
    Case(
        "failed latest trial",
        lambda: [*passes(9), made(9, outcome=TrialOutcome.FAILED, checks=FAILED)],
        RowStatus.FAILED,
        {"failed-latest-trial"},
    ),
    Case(
        "failed recent trial",
        lambda: [*passes(8), made(8, outcome=TrialOutcome.FAILED, checks=FAILED), made(9)],
        RowStatus.FAILED,
        {"failed-recent-trial"},
    ),
    Case(
        "failed check under a recorded pass",
        third(checks=FAILED),
        RowStatus.FAILED,
        {"failed-latest-trial", "pass-share-below-policy"},
    ),
    Case(
        "recorded failure over passed checks",
        third(outcome=TrialOutcome.FAILED),
        RowStatus.FAILED,
        {"failed-latest-trial", "pass-share-below-policy"},
    ),
    Case(
        "unknown check",
        lambda: [*passes(9), made(9, outcome=TrialOutcome.UNKNOWN, checks=UNKNOWN)],
        RowStatus.INCONCLUSIVE,
        {"unknown-outcome"},
    ),
    Case(
        "unknown outcome over passed checks",
        lambda: [*passes(9), made(9, outcome=TrialOutcome.UNKNOWN)],
        RowStatus.INCONCLUSIVE,
        {"unknown-outcome"},
    ),
    Case(
        "incomplete trial",
        lambda: [*passes(9), made(9, unfinished=True)],
        RowStatus.INCOMPLETE,
        {"incomplete-trial"},
    ),
    Case(
        "budget overrun: actions",
        lambda: [*passes(9), made(9, usage={"actions_proposed": 9})],
        RowStatus.FAILED,
        {"budget-overrun"},
    ),
    Case(
        "budget overrun: time",
        lambda: [*passes(9), made(9, timings={"wall_ms": 600_001})],
        RowStatus.FAILED,
        {"budget-overrun"},
    ),
    Case(
        "budget overrun seen by the runner",
        lambda: [
            *passes(9),
            made(9, exceeded=(BudgetUse(budget="model_calls", limit=4, used=5),)),
        ],
        RowStatus.FAILED,
        {"budget-overrun"},
    ),
    Case(
        "use that cannot be told",
        lambda: [*passes(9), made(9, exceeded=(BudgetUse(budget="actions", limit=4, used=None),))],
        RowStatus.INCONCLUSIVE,
        {"usage-unknown"},
    ),
    Case(
        "pass share below the policy",
        lambda: [
            *(made(n, outcome=TrialOutcome.FAILED, checks=FAILED) for n in range(1)),
            *(made(n) for n in range(1, 4)),
        ],
        RowStatus.FAILED,
        {"pass-share-below-policy"},
    ),
    Case(
        "unknown model revision",
        all_with(model=ModelIdentity(id="model", revision=None, files=OTHER)),
        RowStatus.INCONCLUSIVE,
        {"unknown-model-revision", "pass-share-unproven"},
    ),
    Case(
        "no model identity",
        all_with(model=None),
        RowStatus.INCONCLUSIVE,
        {"unknown-model-revision", "unverified-model", "pass-share-unproven"},
    ),
    Case(
        "unverified model files",
        all_with(model=ModelIdentity(id="model", revision="a" * 40, files=None)),
        RowStatus.INCONCLUSIVE,
        {"unverified-model", "pass-share-unproven"},
    ),
    Case(
        "future time",
        lambda: [*passes(9), made(9, age=-HOUR)],
        RowStatus.INCONCLUSIVE,
        {"future-time"},
    ),
    Case(
        "tool mode not observed",
        lambda: [*passes(9), made(9, agent={"tool_mode_observed": None})],
        RowStatus.INCONCLUSIVE,
        {"client-not-observed"},
    ),
    Case(
        "another tool mode observed",
        lambda: [*passes(9), made(9, agent={"tool_mode_observed": ToolMode.NATIVE})],
        RowStatus.INCONCLUSIVE,
        {"client-not-observed"},
    ),
    Case(
        "another model asked for",
        lambda: [*passes(9), made(9, agent={"model_name_matches": False})],
        RowStatus.INCONCLUSIVE,
        {"client-not-observed"},
    ),
    Case(
        "client not bound",
        lambda: [*passes(9), made(9, client=None)],
        RowStatus.INCOMPLETE,
        {"client-not-bound"},
    ),
    Case(
        "client not read again at the end",
        lambda: [*passes(9), made(9, client=client(read_at_end=False))],
        RowStatus.INCOMPLETE,
        {"client-not-bound"},
    ),
    Case(
        "client changed",
        lambda: [*passes(9), made(9, client=client(changed=("options",)))],
        RowStatus.INCOMPLETE,
        {"client-changed"},
    ),
    Case(
        "implicit limit of the context",
        all_with(client=client(max_input_tokens=None)),
        RowStatus.INCOMPLETE,
        {"implicit-context-limit", "pass-share-unproven"},
    ),
    Case(
        "unknown effects",
        lambda: [*passes(9), made(9, unknown_effects=1)],
        RowStatus.INCONCLUSIVE,
        {"unknown-effects"},
    ),
    Case(
        "one variant three times",
        all_with(variant=OTHER),
        RowStatus.INCONCLUSIVE,
        {"repeated-variant"},
    ),
    Case(
        "stuck at the end",
        lambda: [*passes(9), made(9, stop_reason="agent-stuck")],
        RowStatus.INCONCLUSIVE,
        {"not-completed"},
    ),
    Case(
        "running beyond its time",
        lambda: [*passes(9), made(9, age=21 * timedelta(minutes=1), unfinished=True, running=True)],
        RowStatus.INCONCLUSIVE,
        {"overdue"},
    ),
)


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_each_way_of_not_qualifying_gives_its_own_status_and_reason(case: Case) -> None:
    verdict = judge(case.trials(), **case.policy)
    assert verdict.status is case.status
    assert codes(verdict) == case.reasons


def test_the_table_covers_every_blocking_reason() -> None:
    covered = {code for case in TABLE for code in case.reasons}
    elsewhere = {"refused-by-admission", "start-failed"}
    assert covered | elsewhere == {c for c, kind in REASONS.items() if kind.status is not None}


def test_precedence_names_every_status_once() -> None:
    assert sorted(PRECEDENCE) == sorted(RowStatus)


@pytest.mark.parametrize(
    ("age", "status"),
    [(30 * DAY, RowStatus.QUALIFIED), (30 * DAY + timedelta(seconds=1), RowStatus.EXPIRED)],
)
def test_the_last_second_of_the_window_is_fresh(age: timedelta, status: RowStatus) -> None:
    assert judge(passes(3, age=age)).status is status


def test_a_trial_slightly_ahead_of_now_is_within_tolerance() -> None:
    ahead = [*passes(2), made(2, age=-timedelta(seconds=280))]
    assert judge(ahead).status is RowStatus.QUALIFIED


def test_reaching_a_limit_exactly_passes() -> None:
    exact = {"actions_proposed": 8, "model_calls": 12}
    trials = passes(3, usage=exact, timings={"wall_ms": 600_000})
    assert judge(trials).status is RowStatus.QUALIFIED


def limited(used: int | None) -> Assessment:
    suite = SuiteStandIn(scenarios=(scenario(completion_tokens=100),))
    trials = [*passes(9), made(9, usage={"completion_tokens": used})]
    return assess(evidence.CONFIGURATION, suite, trials, [], [], policy(), NOW)


def test_use_that_cannot_be_told_from_zero_is_unknown() -> None:
    assert limited(100).status is RowStatus.QUALIFIED
    assert codes(limited(101)) == {"budget-overrun"}
    assert codes(limited(None)) == {"usage-unknown"}
    assert codes(limited(0)) == {"usage-unknown"}


def test_without_a_limit_unknown_use_does_not_matter() -> None:
    assert judge(passes(3, usage={"completion_tokens": None})).status is RowStatus.QUALIFIED


def test_a_remote_endpoint_needs_no_file_digest_but_a_revision() -> None:
    declared = ModelIdentity(id="model", revision="a" * 40, files=None)
    assert judge(passes(3, model=declared, remote=True)).status is RowStatus.QUALIFIED
    rolling = ModelIdentity(id="model", revision=None, files=None)
    assert "unknown-model-revision" in codes(judge(passes(3, model=rolling, remote=True)))


def test_a_running_trial_is_a_note_and_counts_for_nothing() -> None:
    verdict = judge([*passes(3), made(3, age=timedelta(), unfinished=True, running=True)])
    assert verdict.status is RowStatus.QUALIFIED
    assert [reason.code for reason in verdict.reasons] == ["running"]
    assert verdict.total == 3


def test_scripted_trials_of_a_row_with_real_ones_count_for_nothing() -> None:
    scripted = [made(n, reserved={"evidence_class": EvidenceClass.SCRIPTED}) for n in (3, 4, 5)]
    assert codes(judge([*passes(2), *scripted])) == {"too-few-trials"}
    verdict = judge([*passes(3), *scripted])
    assert verdict.status is RowStatus.QUALIFIED
    assert {reason.code for reason in verdict.reasons} == {"other-evidence-class"}


def test_a_failing_scripted_row_shows_its_failure_and_that_it_is_scripted() -> None:
    trials = passes(3, reserved={"evidence_class": EvidenceClass.SCRIPTED}, checks=FAILED)
    verdict = judge(trials)
    assert verdict.status is RowStatus.FAILED
    assert {"failed-latest-trial", "scripted-evidence"} <= codes(verdict)


def test_errors_and_unfinished_trials_stay_in_the_denominator() -> None:
    trials = [
        made(0, outcome=TrialOutcome.UNKNOWN, checks={}),
        made(1, unfinished=True),
        *(made(n) for n in range(2, 9)),
    ]
    verdict = judge(trials)
    assert (verdict.passed, verdict.total) == (7, 9)
    assert codes(verdict) == {"pass-share-unproven"}


def test_the_pass_share_counts_only_the_window() -> None:
    old = [made(n, age=(40 - n) * DAY, checks=FAILED) for n in range(3)]
    verdict = judge([*old, *(made(n) for n in range(3, 6))])
    assert verdict.status is RowStatus.QUALIFIED
    assert (verdict.passed, verdict.total) == (3, 3)


def test_exactly_the_policys_share_is_enough() -> None:
    failed = [made(0, outcome=TrialOutcome.FAILED, checks=FAILED)]
    assert judge([*failed, *(made(n) for n in range(1, 5))]).status is RowStatus.QUALIFIED
    assert judge([*failed, *(made(n) for n in range(1, 4))]).status is RowStatus.FAILED


def test_a_check_recorded_twice_counts_as_its_worse_outcome() -> None:
    evidence_ = made(2)
    assert evidence_.end is not None
    double = (*evidence_.end.checks, evidence_.end.checks[0].model_copy(
        update={"outcome": CheckOutcome.FAILED}
    ))  # fmt: skip
    worse = replace(evidence_, end=evidence_.end.model_copy(update={"checks": double}))
    assert "failed-latest-trial" in codes(judge([*passes(2), worse]))


def test_checks_demanded_by_the_reservation_are_required_too() -> None:
    extra = {"required_checks": (*CHECKS, "audit")}
    assert codes(judge([*passes(9), made(9, reserved=extra)])) == {"missing-check"}


def test_scenarios_are_judged_one_by_one() -> None:
    suite = SuiteStandIn(scenarios=(scenario("append"), scenario("other")))
    both = [
        *(made(n) for n in range(6)),
        *(made(n, reserved={"scenario": "other"}) for n in range(6, 9)),
    ]
    assert assess(evidence.CONFIGURATION, suite, both, [], [], policy(), NOW).status is (
        RowStatus.QUALIFIED
    )
    verdict = assess(evidence.CONFIGURATION, suite, both[:8], [], [], policy(), NOW)
    assert verdict.status is RowStatus.INCOMPLETE
    assert [(r.code, r.scenario) for r in verdict.reasons] == [("too-few-trials", "other")]
    assert [result.status for result in verdict.scenarios] == [
        RowStatus.QUALIFIED, RowStatus.INCOMPLETE,
    ]  # fmt: skip


def judged_with(trials: list[TrialEvidence], **entries: Any) -> Assessment:
    refusals = [Sequenced(seq, evidence.refusal()) for seq in entries.get("refusals", ())]
    failures = [Sequenced(seq, evidence.start_failure()) for seq in entries.get("failures", ())]
    return assess(evidence.CONFIGURATION, SuiteStandIn(), trials, refusals, failures, policy(), NOW)


def test_a_refused_row_is_unsupported_until_a_later_trial() -> None:
    assert judged_with([], refusals=[1]).status is RowStatus.UNSUPPORTED
    late = judged_with(passes(3), refusals=[99])
    assert late.status is RowStatus.UNSUPPORTED
    assert late.reasons[0].details == ("context-too-large",)
    assert judged_with(passes(3), refusals=[0]).status is RowStatus.QUALIFIED


def test_an_engine_that_did_not_start_is_inconclusive_until_a_later_trial() -> None:
    assert judged_with([], failures=[1]).status is RowStatus.INCONCLUSIVE
    assert codes(judged_with(passes(3), failures=[99])) == {"start-failed"}
    assert judged_with(passes(3), failures=[0]).status is RowStatus.QUALIFIED


def test_refusals_of_another_configuration_say_nothing() -> None:
    other = [Sequenced(99, evidence.refusal(configuration=OTHER))]
    verdict = assess(evidence.CONFIGURATION, SuiteStandIn(), passes(3), other, [], policy(), NOW)
    assert verdict.status is RowStatus.QUALIFIED


def test_an_assessment_is_plain_data_with_its_identities() -> None:
    document = judge([*passes(2), made(2, checks=FAILED)]).as_json()
    assert document["automatic_promotion_allowed"] is False
    assert document["policy_digest"].startswith("sha256:")
    assert document["time"] == "2026-11-30T12:00:00Z"
    assert document["scenarios"][0]["checks"]["exact-bytes"] == {
        "passed": 2, "failed": 1, "unknown": 0,
    }  # fmt: skip
    assert {reason["code"] for reason in document["reasons"]} >= {"failed-latest-trial"}
    assert all(reason["next_step"] for reason in document["reasons"])


def test_the_policys_numbers_decide() -> None:
    assert judge(passes(2), trials_needed=2).status is RowStatus.QUALIFIED
    assert judge(passes(3, age=8 * DAY), freshness_days=7).status is RowStatus.EXPIRED
    lenient = [made(0, checks=FAILED), *(made(n) for n in range(1, 4))]
    assert judge(lenient, minimum_pass_percent=75).status is RowStatus.QUALIFIED


def test_what_a_reader_should_know_is_a_note_and_blocks_nothing() -> None:
    unconfined = judge(passes(3, sandbox="none"))
    assert unconfined.status is RowStatus.QUALIFIED
    assert {reason.code for reason in unconfined.reasons} == {"unconfined"}
    remote = judge(passes(3, remote=True))
    assert remote.status is RowStatus.QUALIFIED
    assert {reason.code for reason in remote.reasons} == {"declared-endpoint"}
    assert judge(passes(3)).reasons == ()
