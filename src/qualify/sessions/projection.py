"""What the journal says: groups, decisions, effects. A pure function of its events.

The same events give the same projection, byte for byte, in any process. A sequence that must not
happen (an effect without approval, an effect twice, a second decision) is a `Violation`: it is part
of the projection, not an exception, because a check has to report it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from qualify.core.canonical import canonical_json
from qualify.core.digests import digest_bytes
from qualify.sessions.journal import (
    FREE_TOOLS,
    Bound,
    ClientSeen,
    Decided,
    Intent,
    JournalEvent,
    Opened,
    Outcome,
    Paused,
    Presented,
    Refused,
    Reread,
    Sealed,
    Seen,
    Sent,
    UnknownOutcome,
)

type EffectState = Literal[
    "pending", "intended", "done", "error", "timeout", "interrupted", "unknown", "discarded"
]


@dataclass
class Effect:
    """One action and what became of it. `intents` counts how often it was about to happen."""

    action: str
    tool: str
    state: EffectState = "pending"
    exit_code: int | None = None
    intents: int = 0
    free: bool = False


@dataclass
class Group:
    """A group of actions that was presented, and the decision on it (None: still pending)."""

    number: int
    actions: list[str]
    request: int
    """Which user message it answers, counted from 1."""
    decision: Literal["approved", "rejected"] | None = None


@dataclass
class Projection:
    """State of a session as the journal tells it."""

    session: str = ""
    opened: int = 0
    messages: int = 0
    status: str = "new"
    groups: list[Group] = field(default_factory=list)
    effects: dict[str, Effect] = field(default_factory=dict)
    seen: list[tuple[str, str]] = field(default_factory=list)
    refused: int = 0
    violations: list[str] = field(default_factory=list)
    sealed_events: int | None = None
    sealed_store: str | None = None
    client: ClientSeen | None = None
    """What was bound before model work; `None`: nothing was."""
    readings: int = 0
    """How often it was read again."""
    client_changed: list[str] = field(default_factory=list)
    """What of it was another at some reading."""
    read_last: Literal["", "continuation", "end"] = ""
    """What it was last read again for, since model work."""
    binds: bool = False
    """Whether the journal is of a version that binds the client."""

    @property
    def unknown_effects(self) -> int:
        """Effects whose outcome nobody knows: intended, and neither settled nor running."""
        return sum(e.state in ("intended", "unknown") for e in self.effects.values())

    def group_of(self, action: str) -> Group | None:
        """The group that holds `action`."""
        return next((g for g in self.groups if action in g.actions), None)

    def digest(self) -> str:
        """Digest of the whole projection."""
        plain = {**asdict(self), "client": self.client and self.client.model_dump(mode="json")}
        return digest_bytes(canonical_json(_plain(plain)))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def project(events: Iterable[JournalEvent]) -> Projection:
    """Fold `events` into a projection."""
    state = Projection()
    for event in events:
        apply(state, event)
    return state


def apply(state: Projection, event: JournalEvent) -> None:
    """Fold one event into `state`."""
    match event:
        case Opened():
            state.session, state.opened = event.session, state.opened + 1
            state.binds = event.schema_version > 1
            state.read_last = ""
            # What was sealed before may change from here on.
            state.sealed_events = state.sealed_store = None
        case Bound() | Reread():
            _look(state, event)
        case Sent():
            _send(state)
        case Seen():
            state.seen.append((event.event, event.event_kind))
        case Presented():
            _present(state, event)
        case Decided():
            _decide(state, event)
        case Intent():
            _intend(state, event)
        case Outcome() | UnknownOutcome():
            _settle(state, event)
        case Refused():
            _refuse(state, event)
        case Paused():
            _pause(state, event)
        case Sealed():
            state.sealed_events, state.sealed_store = event.sdk_events, event.store


def _look(state: Projection, event: Bound | Reread) -> None:
    if isinstance(event, Bound):
        if state.client is not None:
            state.violations.append("client-bound-twice")
        state.client = state.client or event.client
        return
    if state.client is None:
        state.violations.append("client-not-bound")
    state.readings += 1
    state.read_last = event.at
    state.client_changed += [name for name in event.changed if name not in state.client_changed]


def _pause(state: Projection, event: Paused) -> None:
    if state.binds and state.read_last != "continuation":
        # The model may have worked, and nobody had looked at what was asking it.
        state.violations.append("client-not-read-again")
    state.read_last = ""
    state.status = event.status


def _send(state: Projection) -> None:
    if any(group.decision is None for group in state.groups):
        # The SDK would take the run that follows for approval.
        state.violations.append("message-while-waiting")
    state.messages += 1
    state.status = "running"


def _settle(state: Projection, event: Outcome | UnknownOutcome) -> None:
    effect = state.effects.get(event.action)
    if effect is None or effect.state != "intended":
        known = isinstance(event, Outcome)
        state.violations.append("outcome-without-intent" if known else "unknown-without-intent")
    elif isinstance(event, Outcome):
        effect.state, effect.exit_code = event.result, event.exit_code
    else:
        effect.state = "unknown"


def _refuse(state: Projection, event: Refused) -> None:
    state.refused += 1
    effect = state.effects.get(event.action)
    if event.reason == "discarded" and effect is not None and effect.state == "pending":
        effect.state = "discarded"


def _present(state: Projection, event: Presented) -> None:
    if event.group != len(state.groups):
        state.violations.append("group-out-of-order")
    state.groups.append(Group(event.group, [a.action for a in event.actions], state.messages))
    for action in event.actions:
        if action.action in state.effects:
            state.violations.append("action-presented-twice")
        state.effects.setdefault(action.action, Effect(action.action, action.tool))
    state.status = "waiting"


def _decide(state: Projection, event: Decided) -> None:
    group = state.groups[event.group] if event.group < len(state.groups) else None
    if group is None:
        state.violations.append("decision-without-group")
        return
    if group.decision is not None:
        state.violations.append("decided-twice")
        return
    group.decision = event.decision
    state.status = "running" if event.decision == "approved" else "idle"


def _intend(state: Projection, event: Intent) -> None:
    group = state.group_of(event.action)
    effect = state.effects.setdefault(event.action, Effect(event.action, event.tool))
    effect.free = event.free
    effect.intents += 1
    if effect.intents > 1:
        state.violations.append("effect-twice")
    if event.free and (event.tool not in FREE_TOOLS or group is not None):
        state.violations.append("effect-not-free")
    if not event.free and (group is None or group.decision != "approved"):
        state.violations.append("effect-without-approval")
    if effect.state == "discarded":
        state.violations.append("discarded-effect-ran")
    if group is not None and group.decision == "rejected":
        state.violations.append("rejected-effect-ran")
    effect.state = "intended"
