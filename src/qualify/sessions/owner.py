"""The one owner of an OpenHands conversation.

A `Session` holds the exclusive lock of its folder, drives the SDK, and journals every decision and
every effect before and after it happens. What the SDK says of itself (its status, its pending list)
is never believed against the journal: an approved group takes effect once, a rejected one never,
and an effect whose outcome a crash swallowed is unknown and is not run again.

Folder: `journal.log` and its key, `conversation/` (the SDK's store), `workspace/`, `home/`, `tmp/`.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from qualify.core.canonical import canonical_json
from qualify.core.errors import EnvironmentFault
from qualify.sessions.journal import (
    FREE_TOOLS,
    Bound,
    ClientSeen,
    Decided,
    Intent,
    Journal,
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
from qualify.sessions.projection import Projection, apply, project
from qualify.sessions.recovery import Reason, answer_unmatched, recover
from qualify.sessions.replay import store_digest
from qualify.storage.folders import private_folder
from qualify.storage.locks import file_lock

type Status = Literal["waiting", "finished", "idle", "error", "stuck", "paused"]


@dataclass(frozen=True)
class SessionSpec:
    """Everything that a session needs to know; plain data, so that it can cross processes."""

    folder: str
    session: str
    agent: dict[str, Any]
    """Dump of the agent manifest (`Agent.model_dump(mode="json")`)."""
    tool_mode: str
    base_url: str
    api_key: str
    model_name: str
    isolation: Literal["none", "bubblewrap"] = "none"
    readable: tuple[str, ...] = ()


@dataclass(frozen=True)
class PendingAction:
    """An action that waits for a decision."""

    id: str
    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class PendingGroup:
    """The complete group of actions that waits for one decision."""

    number: int
    actions: tuple[PendingAction, ...]


@dataclass(frozen=True)
class SessionUsage:
    """What the SDK counted: requests to the model and the tokens that came back."""

    model_calls: int
    prompt_tokens: int
    completion_tokens: int


class Session:
    """Owner of one conversation. Use as a context manager; not for use by several threads."""

    def __init__(self, spec: SessionSpec, on_step: Callable[[str], None] | None = None) -> None:
        self.spec = spec
        self.folder = private_folder(Path(spec.folder))
        self.workspace = self.folder / "workspace"
        self._on_step = on_step or (lambda _step: None)
        # A group's actions may run in several threads of the SDK.
        self._guard = threading.RLock()
        self._closed = False
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(file_lock(self.folder / "owner.lock"))
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise

    # ── opening ──────────────────────────────────────────────────────────────────────────────

    def _open(self) -> None:
        from qualify.sessions import construction

        self.journal = Journal(self.folder)
        self.state: Projection = project(self.journal.events)
        for part in ("workspace", "home", "tmp", "conversation"):
            private_folder(self.folder / part)
        self._agent = construction.build_agent(self.spec, self.folder)
        self._agent.set_gate(self)
        self.fingerprint = construction.fingerprint(self._agent)
        reopened = bool(self.journal.events)
        self._record(
            Opened(
                session=self.spec.session,
                reopened=reopened,
                sdk_version=construction.sdk_version(),
                fingerprint=self.fingerprint,
            )
        )
        for effect in list(self.state.effects.values()):
            if effect.state == "intended":
                self._record(UnknownOutcome(action=effect.action))
        self._seen = {event for event, _ in self.state.seen}
        self._conversation = construction.open_conversation(
            self.spec, self.folder, self._agent, self._on_event
        )
        for event in self._conversation.state.events:
            self._on_event(event)
        if reopened:
            recover(self._conversation, self.state, self._refuse)
        if self.state.client is None:
            self._record(Bound(client=self._look()))
        self._last_error: str | None = None
        self._intended_at: dict[str, int] = {}
        self.tool_ms = 0
        """Milliseconds spent in tools by this process."""

    def _look(self) -> ClientSeen:
        from qualify.sessions.observation import observe

        return observe(self._conversation, self.spec)

    def _read_again(self, at: Literal["continuation", "end"]) -> str | None:
        """Compare the client with what was bound; bounded code of what forbids model work."""
        from qualify.sessions.observation import differences, implicit

        assert self.state.client is not None
        self._record(Reread(at=at, changed=tuple(differences(self.state.client, self._look()))))
        if self.state.client_changed:
            return "client-changed"
        return "implicit-context-limit" if implicit(self.state.client) else None

    def _continues(self) -> bool:
        """Look at the client before model work. When it may not go on, the session rests."""
        self._last_error = self._read_again("continuation")
        if self._last_error is not None:
            self._record(Paused(status="error"))
        return self._last_error is None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    # ── driving ──────────────────────────────────────────────────────────────────────────────

    def send(self, text: str) -> None:
        """Give the agent a user message. Refused while a group waits: the SDK would run it."""
        group = self.pending_group()
        if group is not None and self.state.groups[group.number].decision is None:
            raise _undecided()
        if group is not None:
            raise EnvironmentFault("an approved group has not been carried out", fix="run it first")
        self._record(Sent(message=self.journal.digest(text)))
        self._conversation.send_message(text)

    def run(self) -> Status:
        """Let the agent work until it rests; refused while a group waits for its decision."""
        group = self.pending_group()
        if group is not None and self.state.groups[group.number].decision is None:
            raise _undecided()
        return self._run() if self._continues() else "error"

    def pending_group(self) -> PendingGroup | None:
        """The group that waits, presented in the journal on first sight; `None`: none waits.

        After a crash it may be what is left of an approved group: `run` carries it out.
        """
        from qualify.sessions import construction

        actions = [
            action
            for action in construction.unmatched(self._conversation)
            if not self._settled(action.id)
        ]
        if not actions:
            return None
        group = self.state.group_of(actions[0].id)
        if group is None:
            proposed = tuple(
                ProposedAction(
                    action=a.id,
                    tool=a.tool,
                    call=self.journal.digest(a.tool.encode() + b"\0" + _plain_json(a.arguments)),
                )
                for a in actions
            )
            self._record(Presented(group=len(self.state.groups), actions=proposed))
            group = self.state.groups[-1]
        return PendingGroup(group.number, tuple(actions))

    def _settled(self, action: str) -> bool:
        effect = self.state.effects.get(action)
        group = self.state.group_of(action)
        if group is not None and group.decision == "rejected":
            return True
        return effect is not None and effect.state != "pending"

    def approve(self, group: PendingGroup) -> Status:
        """Approve the whole group, durably, then let it run. Returns where the agent rests.

        Nothing is approved for a client that is not the one that was bound.
        """
        if not self._continues():
            return "error"
        self._decide(group, "approved")
        return self._run()

    def reject(self, group: PendingGroup, reason: str) -> None:
        """Reject the whole group: none of it runs, now or later."""
        self._decide(group, "rejected")
        self._conversation.reject_pending_actions(reason)

    def _decide(self, group: PendingGroup, decision: Literal["approved", "rejected"]) -> None:
        if self.state.groups[group.number].decision is not None:
            raise EnvironmentFault("this group has been decided already")
        self._record(Decided(group=group.number, decision=decision))

    def _run(self) -> Status:
        from qualify.sessions import construction

        self._last_error = None
        try:
            self._conversation.run()
            status = construction.status(self._conversation)
        except Exception as error:  # noqa: BLE001
            # The SDK wraps what a model call or a tool raised; the session comes to rest in error.
            self._last_error = construction.classify(error)
            status = "error"
        if status == "error" and self._last_error is None:
            self._last_error = construction.resting_error(self._conversation)
        if status == "finished":
            # Calls after a finish in one group: the SDK drops them and keeps them pending.
            for action in construction.unmatched(self._conversation):
                self._refuse(action.id, "discarded")
            answer_unmatched(self._conversation, "Not executed: it followed the end of the task.")
        self._record(Paused(status=status))
        if status == "waiting":
            self.pending_group()
        return status

    @property
    def error_code(self) -> str | None:
        """Bounded code of the error in which the last run ended."""
        return self._last_error

    def usage(self) -> SessionUsage:
        """What the SDK counted so far."""
        from qualify.sessions import construction

        return SessionUsage(*construction.usage(self._conversation))

    def close(self) -> None:
        """Read the client a last time, seal the SDK's store in the journal and let go of the lock.

        Idempotent.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._read_again("end")
            self._conversation.close()
            count, digest = store_digest(self.folder, self.journal.digest)
            self._record(Sealed(sdk_events=count, store=digest))
        finally:
            self._stack.close()

    # ── the gate (sessions.agent.EffectGate) ─────────────────────────────────────────────────

    def before(self, action: Any) -> str | None:
        """Record the intent, or refuse."""
        with self._guard:
            return self._before(action)

    def _before(self, action: Any) -> str | None:
        free = action.tool_name in FREE_TOOLS and self.state.group_of(action.id) is None
        effect = self.state.effects.get(action.id)
        group = self.state.group_of(action.id)
        if effect is not None and effect.state in ("intended", "unknown"):
            return self._refuse(action.id, "unknown-outcome")
        if effect is not None and effect.intents:
            return self._refuse(action.id, "already-done")
        if effect is not None and effect.state == "discarded":
            return self._refuse(action.id, "discarded")
        if not free and (group is None or group.decision != "approved"):
            return self._refuse(action.id, "not-approved")
        self._record(Intent(action=action.id, tool=action.tool_name, free=free))
        self._intended_at[action.id] = time.monotonic_ns()
        self._on_step(action.tool_name)
        return None

    def _refuse(self, action: str, reason: Reason) -> str:
        self._record(Refused(action=action, reason=reason))
        return f"Not executed: {reason.replace('-', ' ')}."

    def after(self, action: Any, events: list[Any]) -> None:
        """Record the outcome with the exit code that the tool witnessed."""
        self._count_time(action.id)
        observation = getattr(events[0], "observation", None) if events else None
        failed = observation is None or bool(getattr(observation, "is_error", False))
        timed_out = bool(getattr(observation, "timeout", False))
        text = getattr(observation, "text", None)
        self._record(
            Outcome(
                action=action.id,
                result="timeout" if timed_out else "error" if failed else "done",
                exit_code=getattr(observation, "exit_code", None),
                output=self.journal.digest(text) if isinstance(text, str) else None,
            )
        )

    def broke(self, action: Any) -> None:
        """The tool raised: its outcome is an error."""
        self._count_time(action.id)
        self._record(Outcome(action=action.id, result="error", exit_code=None, output=None))

    def _count_time(self, action: str) -> None:
        with self._guard:
            begun = self._intended_at.pop(action, None)
            if begun is not None:
                self.tool_ms += (time.monotonic_ns() - begun) // 1_000_000

    # ── recording ────────────────────────────────────────────────────────────────────────────

    def _on_event(self, event: Any) -> None:
        with self._guard:
            if event.id not in self._seen:
                self._seen.add(event.id)
                self._record(Seen(event=event.id, event_kind=type(event).__name__))

    def _record(self, event: Any) -> None:
        with self._guard:
            self.journal.record(event)
            apply(self.state, event)


def _undecided() -> EnvironmentFault:
    return EnvironmentFault(
        "a group of actions waits for a decision", fix="approve or reject it first"
    )


def session_uuid(trial: str) -> uuid.UUID:
    """The conversation id of a trial: the first 128 bits of its digest."""
    return uuid.UUID(hex=trial.removeprefix("sha256:")[:32])


def _plain_json(value: Any) -> bytes:
    import json

    try:
        return canonical_json(value)
    except ValueError:
        return json.dumps(value, sort_keys=True, default=str).encode()
