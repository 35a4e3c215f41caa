"""The SDK's agent with a gate before every effect.

The SDK executes whatever is pending when it runs. `GatedAgent` asks the gate before each action and
tells it afterwards; the gate (the session's owner) writes the journal and may refuse. A refused
action is answered with an error event, so that the SDK takes it for settled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from openhands.sdk import Agent
from openhands.sdk.event import ActionEvent, AgentErrorEvent, Event
from openhands.sdk.event.error_classification import AGENT_OUTCOME
from pydantic import PrivateAttr

from qualify.sessions.construction import unmatched_events

if TYPE_CHECKING:
    from openhands.sdk.conversation.impl.local_conversation import LocalConversation
    from openhands.sdk.conversation.types import (
        ConversationCallbackType,
        ConversationTokenCallbackType,
    )


class EffectGate(Protocol):
    """Decides on effects and hears of them."""

    def before(self, action: ActionEvent) -> str | None:
        """Record the intent; or return what the agent is told instead of running the action."""

    def after(self, action: ActionEvent, events: list[Event]) -> None:
        """Record the outcome."""

    def broke(self, action: ActionEvent) -> None:
        """The tool raised: record an outcome of that kind."""


class GatedAgent(Agent):
    """An agent whose every action passes `gate`. Without a gate it executes nothing."""

    _gate: EffectGate | None = PrivateAttr(default=None)

    def set_gate(self, gate: EffectGate) -> None:
        """Bind the gate; once for each process that opens the session."""
        self._gate = gate

    def step(
        self,
        conversation: LocalConversation,
        on_event: ConversationCallbackType,
        on_token: ConversationTokenCallbackType | None = None,
    ) -> None:
        """One step, with the whole history: a group that was pending when the SDK loaded its store
        is missing from its cached view, also after it was answered.
        """
        if not unmatched_events(conversation):
            conversation.state.rebuild_view()
        super().step(conversation, on_event, on_token)

    def _execute_action_event(
        self, conversation: LocalConversation, action_event: ActionEvent
    ) -> list[Event]:
        if self._gate is None:
            raise RuntimeError("an agent without a gate was asked to act")
        refusal = self._gate.before(action_event)
        if refusal is not None:
            return [refused(action_event, refusal)]
        try:
            events: list[Event] = super()._execute_action_event(conversation, action_event)
        except BaseException:
            self._gate.broke(action_event)
            raise
        self._gate.after(action_event, events)
        return events


def refused(action: ActionEvent, text: str) -> Event:
    """The answer that settles an action which is not executed, now or again."""
    fields: dict[str, Any] = {
        "error": text,
        "tool_name": action.tool_name,
        "tool_call_id": action.tool_call.id,
        "classification": AGENT_OUTCOME,
    }
    return AgentErrorEvent(**fields)
