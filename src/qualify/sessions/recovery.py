"""Bring the SDK's own store in step with the journal after a crash.

The SDK writes its head pointer late, announces results only when a whole group is done, and drops
what it takes for unanswered from the history that its model reads. A model that does not see what
it did would propose it again, and a person would approve it again. So on reopening, every action
that the journal knows to be settled is answered, truthfully, before the model is asked anything.

Actions that were stored but never presented stay forgotten: the group may be incomplete, nobody
decided on it, and the model is asked again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from qualify.sessions.projection import Effect, Projection

type Reason = Literal["unknown-outcome", "already-done", "not-approved", "discarded"]

_ANSWERS = ("ObservationEvent", "UserRejectObservation", "AgentErrorEvent")


def recover(conversation: Any, state: Projection, refuse: Callable[[str, Reason], object]) -> None:
    """Take up stored answers, answer what the journal knows to be settled, announce rejections.

    `refuse` journals each action that the SDK would otherwise have run again.
    """
    from qualify.sessions.construction import unmatched_events

    head = _last_answer(conversation)
    if head is not None:
        conversation.navigate_to(head)
    rejected = False
    for action in unmatched_events(conversation):
        group, effect = state.group_of(action.id), state.effects.get(action.id)
        if group is not None and group.decision == "rejected":
            rejected = True
        elif effect is not None and effect.state != "pending":
            refuse(action.id, _reason(effect))
            _answer(conversation, action, _text(effect))
    if rejected:
        conversation.reject_pending_actions("This was rejected before a restart.")
    conversation.state.rebuild_view()


def answer_unmatched(conversation: Any, text: str) -> None:
    """Answer what is pending as not executed, so that no later run takes it up."""
    from qualify.sessions.construction import unmatched_events

    for action in unmatched_events(conversation):
        _answer(conversation, action, text)


def _last_answer(conversation: Any) -> str | None:
    """The last of the answers and user messages that were stored behind the head, if any."""
    branch = conversation.state.active_branch()
    if not branch:
        return None
    head, found = branch[-1].id, None
    for event in conversation.state.events:
        kind = type(event).__name__
        said = kind in _ANSWERS or (kind == "MessageEvent" and event.source == "user")
        if event.parent_id == head and said:
            head = found = event.id
    return found


def _answer(conversation: Any, action: Any, text: str) -> None:
    from qualify.sessions.agent import refused

    with conversation.state:
        conversation._on_event(refused(action, text))


def _reason(effect: Effect) -> Reason:
    if effect.state == "discarded":
        return "discarded"
    return "unknown-outcome" if effect.state in ("intended", "unknown") else "already-done"


def _text(effect: Effect) -> str:
    if effect.state == "discarded":
        return "Not executed: it followed the end of the task."
    if effect.state in ("intended", "unknown"):
        return (
            "A restart interrupted this. Whether it took effect is not known; it is not repeated."
        )
    code = "" if effect.exit_code is None else f" with exit code {effect.exit_code}"
    return f"This was executed and ended{code}. A restart lost its output; it is not repeated."
