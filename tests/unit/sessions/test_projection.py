"""The projection: a pure fold of the journal's events that names what must not happen."""

from __future__ import annotations

import copy
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qualify.sessions.journal import (
    Bound,
    ClientSeen,
    Decided,
    Intent,
    JournalEvent,
    Opened,
    Outcome,
    Paused,
    Presented,
    ProposedAction,
    Refused,
    Reread,
    Sealed,
    Seen,
    Sent,
    UnknownOutcome,
)
from qualify.sessions.projection import apply, project

DIGEST = "sha256:" + "a" * 64


def opened(reopened: bool = False) -> Opened:
    return Opened(session="0" * 32, reopened=reopened, sdk_version="1.0", fingerprint=DIGEST)


CLIENT = ClientSeen(
    requested_model=DIGEST, sdk_version="1.0", max_input_tokens=9, max_output_tokens=9,
    confirmation_policy="AlwaysConfirm", analyzer=None, platform="Linux-x86_64-3.13.0",
    options=DIGEST, security=DIGEST,
)  # fmt: skip


def bound() -> Bound:
    return Bound(client=CLIENT)


def again(at: Literal["continuation", "end"] = "continuation", *changed: str) -> Reread:
    return Reread(at=at, changed=changed)


def sent() -> Sent:
    return Sent(message=DIGEST)


def presented(group: int, *actions: str) -> Presented:
    proposed = (ProposedAction(action=a, tool="terminal", call=DIGEST) for a in actions)
    return Presented(group=group, actions=tuple(proposed))


def approved(group: int) -> Decided:
    return Decided(group=group, decision="approved")


def rejected(group: int) -> Decided:
    return Decided(group=group, decision="rejected")


def intent(action: str, tool: str = "terminal", *, free: bool = False) -> Intent:
    return Intent(action=action, tool=tool, free=free)


def outcome(action: str) -> Outcome:
    return Outcome(action=action, result="done", exit_code=0, output=None)


WHOLE: list[JournalEvent] = [
    opened(), bound(), sent(), again(), presented(0, "a", "b"), Paused(status="waiting"), again(),
    approved(0), intent("a"), outcome("a"), intent("b"), outcome("b"),
    intent("f", "finish", free=True), outcome("f"), Paused(status="finished"), sent(), again(),
    presented(1, "c"), rejected(1), Paused(status="idle"), again("end"),
    Sealed(sdk_events=3, store=DIGEST),
]  # fmt: skip

VIOLATIONS: list[tuple[str, list[JournalEvent]]] = [
    ("effect-without-approval", [presented(0, "a"), intent("a")]),
    ("effect-without-approval", [intent("a")]),
    ("effect-twice", [presented(0, "a"), approved(0), intent("a"), outcome("a"), intent("a")]),
    ("rejected-effect-ran", [presented(0, "a"), rejected(0), intent("a")]),
    ("effect-not-free", [intent("a", "terminal", free=True)]),
    ("effect-not-free", [presented(0, "a"), intent("a", "finish", free=True)]),
    ("discarded-effect-ran", [
        presented(0, "a"), approved(0), Refused(action="a", reason="discarded"), intent("a"),
    ]),
    ("decided-twice", [presented(0, "a"), approved(0), rejected(0)]),
    ("decided-twice", [presented(0, "a"), approved(0), approved(0)]),
    ("decision-without-group", [approved(0)]),
    ("group-out-of-order", [presented(1, "a")]),
    ("action-presented-twice", [presented(0, "a"), approved(0), presented(1, "a")]),
    ("message-while-waiting", [presented(0, "a"), sent()]),
    ("outcome-without-intent", [presented(0, "a"), approved(0), outcome("a")]),
    ("outcome-without-intent", [outcome("a")]),
    ("outcome-without-intent", [
        presented(0, "a"), approved(0), intent("a"), outcome("a"), outcome("a"),
    ]),
    ("unknown-without-intent", [UnknownOutcome(action="a")]),
    ("unknown-without-intent", [
        presented(0, "a"), approved(0), intent("a"), outcome("a"), UnknownOutcome(action="a"),
    ]),
    ("client-not-bound", [opened(), again()]),
    ("client-bound-twice", [opened(), bound(), bound()]),
    ("client-not-read-again", [opened(), bound(), sent(), Paused(status="finished")]),
    ("client-not-read-again", [
        opened(), bound(), sent(), again(), Paused(status="waiting"), Paused(status="finished"),
    ]),
    ("client-not-read-again", [
        opened(), bound(), sent(), again(), opened(reopened=True), Paused(status="finished"),
    ]),
]  # fmt: skip


def test_a_whole_session_is_told_without_a_violation() -> None:
    state = project(WHOLE)
    assert state.violations == []
    assert [(g.number, g.decision, g.request) for g in state.groups] == [
        (0, "approved", 1), (1, "rejected", 2),
    ]  # fmt: skip
    assert {a: (e.state, e.intents, e.free) for a, e in state.effects.items()} == {
        "a": ("done", 1, False), "b": ("done", 1, False),
        "f": ("done", 1, True), "c": ("pending", 0, False),
    }  # fmt: skip
    assert (state.messages, state.status, state.opened) == (2, "idle", 1)
    assert (state.sealed_events, state.sealed_store) == (3, DIGEST)
    assert (state.client, state.readings, state.client_changed) == (CLIENT, 4, [])
    assert state.read_last == "end"
    assert state.unknown_effects == 0


@pytest.mark.parametrize(("violation", "events"), VIOLATIONS)
def test_what_must_not_happen_is_named(violation: str, events: list[JournalEvent]) -> None:
    state = project([opened(), *events])
    assert violation in state.violations
    # The control: without its last event the story is still fine.
    before = project([opened(), *events[:-1]]).violations
    assert violation not in before


def test_an_action_that_is_presented_again_keeps_its_past() -> None:
    events = [presented(0, "a"), approved(0), intent("a"), outcome("a"), presented(1, "a")]
    assert project(events).effects["a"].intents == 1


def test_an_intent_without_an_outcome_is_an_unknown_effect() -> None:
    begun: list[JournalEvent] = [opened(), presented(0, "a"), approved(0), intent("a")]
    assert project(begun).unknown_effects == 1
    reopened = [*begun, opened(reopened=True), UnknownOutcome(action="a")]
    assert project(reopened).unknown_effects == 1
    assert project(reopened).effects["a"].state == "unknown"
    assert project([*begun, outcome("a")]).unknown_effects == 0


def test_opening_again_lifts_the_seal() -> None:
    state = project([*WHOLE, opened(reopened=True)])
    assert (state.opened, state.sealed_events, state.sealed_store) == (2, None, None)


def test_a_discarded_action_is_neither_pending_nor_run() -> None:
    state = project([presented(0, "a"), approved(0), Refused(action="a", reason="discarded")])
    assert (state.effects["a"].state, state.effects["a"].intents) == ("discarded", 0)
    assert state.refused == 1


ACTIONS = st.sampled_from("abc")
ANY_EVENT = st.one_of(
    st.just(opened()), st.just(sent()),
    st.builds(lambda g, a: presented(g, *a), st.integers(0, 3), st.lists(ACTIONS, max_size=2)),
    st.builds(approved, st.integers(0, 3)), st.builds(rejected, st.integers(0, 3)),
    st.builds(lambda a, f: intent(a, free=f), ACTIONS, st.booleans()), st.builds(outcome, ACTIONS),
    st.builds(lambda a: UnknownOutcome(action=a), ACTIONS),
    st.builds(lambda a: Refused(action=a, reason="already-done"), ACTIONS),
    st.builds(lambda e: Seen(event=e, event_kind="ActionEvent"), ACTIONS),
    st.just(Paused(status="idle")), st.just(Sealed(sdk_events=1, store=DIGEST)),
)  # fmt: skip
ANY_STORY = st.lists(ANY_EVENT, max_size=25)


@given(ANY_STORY)
def test_any_story_folds_to_the_same_projection_event_by_event(events: list[JournalEvent]) -> None:
    before = copy.deepcopy(events)
    state = project([])
    for event in events:
        apply(state, event)
    assert state.digest() == project(events).digest()
    assert events == before


@given(ANY_STORY)
def test_no_story_in_which_something_ran_wrongly_is_told_without_a_violation(
    events: list[JournalEvent],
) -> None:
    """Counted apart from the fold: an effect twice, unapproved or rejected is always named."""
    decisions: dict[int, str] = {}
    owner: dict[str, int] = {}
    ran: list[str] = []
    wrong = False
    groups = 0
    for event in events:
        match event:
            case Presented():
                for action in event.actions:
                    owner.setdefault(action.action, groups)
                groups += 1
            case Decided():
                decisions.setdefault(event.group, event.decision)
            case Intent():
                ran.append(event.action)
                wrong |= decisions.get(owner.get(event.action, -1)) != "approved"
            case _:
                pass
    wrong |= len(ran) != len(set(ran))
    if wrong:
        assert project(events).violations


@given(ANY_STORY, ANY_EVENT)
def test_a_violation_is_never_taken_back(events: list[JournalEvent], more: JournalEvent) -> None:
    before = project(events).violations
    assert project([*events, more]).violations[: len(before)] == before


def test_a_journal_of_version_1_has_no_client_to_read() -> None:
    old = opened().model_copy(update={"schema_version": 1})
    state = project([old, sent(), Paused(status="finished")])
    assert (state.violations, state.client) == ([], None)


def test_what_changed_of_the_client_is_told_once() -> None:
    state = project([opened(), bound(), again("continuation", "options"), again("end", "options")])
    assert state.client_changed == ["options"]
    assert state.violations == []
