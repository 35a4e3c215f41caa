"""What holds for any evidence: removing, adding failures or reordering never improves a verdict."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from qualify.assessment.grading import Grade, TrialEvidence, facts
from qualify.assessment.rules import Assessment
from qualify.core.digests import digest_bytes
from qualify.core.status import CheckOutcome, EvidenceClass, RowStatus, TrialOutcome
from support import evidence
from support.evidence import NOW, SuiteStandIn, policy, reservation, trial
from support.verdicts import assess

PASS = {"exact-bytes": CheckOutcome.PASSED, "replay": CheckOutcome.PASSED}
KINDS = ("pass", "pass", "pass", "fail", "unknown", "missing", "incomplete", "over-budget")


def made(number: int, kind: str, hours_ago: int) -> TrialEvidence:
    time = NOW - timedelta(hours=hours_ago)
    identifier = digest_bytes(b"%d" % number)
    entry = reservation(number, time)
    if kind == "incomplete":
        return TrialEvidence(identifier, number, entry, None)
    checks = dict(PASS)
    outcome = TrialOutcome.PASSED
    if kind == "fail":
        checks["replay"], outcome = CheckOutcome.FAILED, TrialOutcome.FAILED
    if kind == "unknown":
        checks["replay"], outcome = CheckOutcome.UNKNOWN, TrialOutcome.UNKNOWN
    if kind == "missing":
        del checks["replay"]
    usage = {"actions_proposed": 99} if kind == "over-budget" else {}
    end = trial(identifier, time, outcome=outcome, checks=checks, usage=usage)
    return TrialEvidence(identifier, number, entry, end)


@st.composite
def histories(draw: st.DrawFn) -> list[TrialEvidence]:
    """Up to ten trials in the order of time, spread over forty days."""
    kinds = draw(st.lists(st.sampled_from(KINDS), max_size=10))
    ages = sorted(
        draw(st.lists(st.integers(0, 40 * 24), min_size=len(kinds), max_size=len(kinds))),
        reverse=True,
    )
    return [
        made(number, kind, age) for number, (kind, age) in enumerate(zip(kinds, ages, strict=True))
    ]


def judge(trials: list[TrialEvidence]) -> Assessment:
    return assess(evidence.CONFIGURATION, SuiteStandIn(), trials, [], [], policy(), NOW)


def qualified(trials: list[TrialEvidence]) -> bool:
    return judge(trials).status is RowStatus.QUALIFIED


@settings(max_examples=150, deadline=None)
@given(histories())
def test_qualified_means_exactly_what_the_words_say(trials: list[TrialEvidence]) -> None:
    newest = trials[-3:]
    window = [t for t in trials if NOW - t.ended <= timedelta(days=30)]

    def clean(t: TrialEvidence) -> bool:
        return (
            t.end is not None
            and t.end.outcome is TrialOutcome.PASSED
            and len(t.end.checks) == 2
            and t.end.usage.actions_proposed <= 8
        )

    wanted = (
        len(newest) == 3
        and all(clean(t) and t in window for t in newest)
        and sum(map(clean, window)) * 100 >= 80 * len(window)
    )
    assert qualified(trials) is wanted


@settings(max_examples=100, deadline=None)
@given(histories(), st.randoms(use_true_random=False))
def test_the_order_in_which_evidence_is_handed_over_changes_nothing(
    trials: list[TrialEvidence], order: random.Random
) -> None:
    shuffled = list(trials)
    order.shuffle(shuffled)
    assert judge(shuffled).as_json() == judge(trials).as_json()


@settings(max_examples=100, deadline=None)
@given(histories(), st.data())
def test_removing_a_passing_trial_or_a_check_never_qualifies(
    trials: list[TrialEvidence], data: st.DataObject
) -> None:
    passed = [t for t in trials if facts(t, evidence.scenario()).judgement.grade is Grade.PASSED]
    if not passed or qualified(trials):
        return
    chosen = data.draw(st.sampled_from(passed))
    rest = [t for t in trials if t is not chosen]
    if chosen.end is not None and NOW - chosen.ended <= timedelta(days=30):
        assert not qualified(rest)
    assert chosen.end is not None
    fewer = chosen.end.model_copy(update={"checks": chosen.end.checks[1:]})
    assert not qualified([*rest, replace(chosen, end=fewer)])
    assert not qualified([*rest, replace(chosen, end=None)])


@settings(max_examples=100, deadline=None)
@given(histories(), st.sampled_from([k for k in KINDS if k != "pass"]), st.integers(0, 12))
def test_adding_a_trial_that_did_not_pass_never_qualifies(
    trials: list[TrialEvidence], kind: str, place: int
) -> None:
    before = qualified(trials)
    newest = made(50, kind, 0)
    assert not qualified([*trials, newest])
    if not before:
        # Slipped in anywhere, with the time that its neighbours have.
        at = min(place, len(trials))
        age = int((NOW - trials[at - 1].ended).total_seconds() // 3600) if at else 41 * 24
        moved = [replace(t, seq=t.seq + (100 if i >= at else 0)) for i, t in enumerate(trials)]
        assert not qualified([*moved, made(60, kind, age)])


@settings(max_examples=60, deadline=None)
@given(histories(), st.sampled_from([EvidenceClass.SCRIPTED, EvidenceClass.FIXTURE]))
def test_no_other_class_of_evidence_ever_qualifies(
    trials: list[TrialEvidence], other: EvidenceClass
) -> None:
    changed = [
        replace(t, reservation=t.reservation.model_copy(update={"evidence_class": other}))
        for t in trials
    ]
    assert not qualified(changed)


@settings(max_examples=100, deadline=None)
@given(histories())
def test_every_trial_in_the_window_stays_in_the_denominator(trials: list[TrialEvidence]) -> None:
    verdict = judge(trials)
    assert verdict.total == sum(NOW - t.ended <= timedelta(days=30) for t in trials)
    assert verdict.passed <= verdict.total


@settings(max_examples=60, deadline=None)
@given(histories())
def test_a_verdict_that_is_not_qualified_always_says_why(trials: list[TrialEvidence]) -> None:
    verdict = judge(trials)
    blocking = [reason for reason in verdict.reasons if reason.blocking]
    assert bool(blocking) is (verdict.status is not RowStatus.QUALIFIED)
