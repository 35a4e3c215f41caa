"""The session's own journal: an intent before every effect, its outcome after.

The agent SDK executes an approved group again after a crash and announces observations only when a
whole batch is done. So what happened is known from this journal: a hash-chained append log in the
trial's private folder, durable before and after each effect. An intent without an outcome on
reopening is an *unknown outcome*; it is recorded as such and is never run again.

Events hold ids, tool names, exit codes and keyed digests (HMAC with the trial's key), never a
command, a prompt or an output: the journal can be exported as it is. Imports no agent SDK.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from qualify.core.canonical import canonical_json
from qualify.core.digests import DIGEST_PATTERN, keyed_digest
from qualify.core.errors import EnvironmentFault
from qualify.storage.appendlog import AppendLog, Line, read_log
from qualify.storage.folders import write_atomic

JOURNAL = "journal.log"
KEY = "journal.key"
FREE_TOOLS = ("finish", "think")
"""Tools without an effect: alone, they ask for no approval."""

# No field takes free text: what a model or a person wrote has no place to slip into.
type _Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,80}$")]
type _Tool = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
type _Word = Annotated[str, Field(pattern=r"^[A-Za-z]{1,80}$")]
type _Name = Annotated[str, Field(pattern=r"^[a-z][a-z-]{0,47}$")]
type _Version = Annotated[str, Field(pattern=r"^[0-9A-Za-z.+!_-]{1,40}$")]
type _Digest = Annotated[str, Field(pattern=DIGEST_PATTERN)]
type _Count = Annotated[int, Field(ge=0)]


class Event(BaseModel):
    """Base of journal events: frozen, strict, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


VERSION: Literal[2] = 2
"""Of the journal's format. In version 1 the client was not bound."""


class Opened(Event):
    """The session was opened by a process. `reopened` is true for every time but the first."""

    kind: Literal["opened"] = "opened"
    schema_version: Literal[1, 2] = VERSION
    session: _Id
    reopened: bool
    sdk_version: _Version
    fingerprint: _Digest


class ClientSeen(Event):
    """What asks the model, as its owner sees it (`sessions.observation`). `None`: not said.

    Counts are tokens; `confirmation_policy` and `analyzer` are names of classes of the agent SDK.
    """

    requested_model: _Digest
    sdk_version: _Version
    max_input_tokens: _Count | None
    max_output_tokens: _Count | None
    confirmation_policy: _Word
    analyzer: _Word | None
    platform: _Id
    options: _Digest
    """Of the model client's options."""
    security: _Digest
    """Of tools, confirmation policy, analyzer, hooks and isolation."""


class Bound(Event):
    """The client before any model work: from here on it has to stay the same."""

    kind: Literal["bound"] = "bound"
    client: ClientSeen


class Reread(Event):
    """The client was looked at again; `changed` names what is not as it was bound."""

    kind: Literal["reread"] = "reread"
    at: Literal["continuation", "end"]
    changed: tuple[_Name, ...]


class Sent(Event):
    """A user message was given to the agent."""

    kind: Literal["sent"] = "sent"
    message: _Digest


class Seen(Event):
    """The SDK announced an event."""

    kind: Literal["seen"] = "seen"
    event: _Id
    event_kind: _Word


class ProposedAction(Event):
    """One action of a group. `call` is the keyed digest of tool and arguments."""

    action: _Id
    tool: _Tool
    call: _Digest


class Presented(Event):
    """A complete group waits for a decision."""

    kind: Literal["presented"] = "presented"
    group: _Count
    actions: tuple[ProposedAction, ...]


class Decided(Event):
    """The decision on a whole group, durable before anything of it runs."""

    kind: Literal["decided"] = "decided"
    group: _Count
    decision: Literal["approved", "rejected"]


class Intent(Event):
    """An effect is about to happen. `free` effects (finish, think) ask for no approval."""

    kind: Literal["intent"] = "intent"
    action: _Id
    tool: _Tool
    free: bool


class Outcome(Event):
    """The effect has ended. `exit_code` is the waited-for process's own; None: no process."""

    kind: Literal["outcome"] = "outcome"
    action: _Id
    result: Literal["done", "error", "timeout", "interrupted"]
    exit_code: int | None
    output: _Digest | None


class UnknownOutcome(Event):
    """An intent without an outcome was found on reopening. It is never run again."""

    kind: Literal["unknown-outcome"] = "unknown-outcome"
    action: _Id


class Refused(Event):
    """An action that must not run was kept from it.

    `discarded`: the SDK ends a group at a `finish` and forgets what came after it.
    """

    kind: Literal["refused"] = "refused"
    action: _Id
    reason: Literal["unknown-outcome", "already-done", "not-approved", "discarded"]


class Paused(Event):
    """A run of the agent came to rest."""

    kind: Literal["paused"] = "paused"
    status: Literal["waiting", "finished", "idle", "error", "stuck", "paused"]


class Sealed(Event):
    """The SDK's own store at the end: number of event files and their keyed digest."""

    kind: Literal["sealed"] = "sealed"
    sdk_events: _Count
    store: _Digest


type JournalEvent = Annotated[
    Opened | Bound | Reread | Sent | Seen | Presented | Decided | Intent | Outcome | UnknownOutcome
    | Refused | Paused | Sealed,
    Field(discriminator="kind"),
]  # fmt: skip
_EVENT: TypeAdapter[JournalEvent] = TypeAdapter(JournalEvent)


def parse_event(line: Line) -> JournalEvent:
    """The typed event of a journal line. Raises `EnvironmentFault` for what is no event."""
    try:
        return _EVENT.validate_json(line.payload)
    except ValueError as error:
        raise EnvironmentFault(
            "is not an event of this version of the journal",
            where=f"journal line {line.seq + 1}",
            fix="read it with the version of Qualify that wrote it",
        ) from error


def read_journal(folder: Path) -> list[JournalEvent]:
    """All events of the journal in `folder`, its chain verified. Raises `ChainBroken`."""
    return [parse_event(line) for line in read_log(folder / JOURNAL)]


class Journal:
    """Writer of the journal in a private folder, and keeper of its key."""

    def __init__(self, folder: Path) -> None:
        self._log = AppendLog(folder / JOURNAL)
        self._key = _load_or_make_key(folder / KEY)
        self.events: list[JournalEvent] = read_journal(folder)
        self.head = ""

    def record(self, event: JournalEvent) -> None:
        """Append durably. Raises `EnvironmentFault`."""
        line = self._log.append(canonical_json(event.model_dump(mode="json")))
        self.events.append(event)
        self.head = "sha256:" + line.digest

    def digest(self, data: bytes | str) -> str:
        """Keyed digest of `data`: equal data can be recognised, short data cannot be guessed."""
        return keyed_digest(self._key, data.encode() if isinstance(data, str) else data)


def load_key(folder: Path) -> bytes:
    """The journal's key. Raises `FileNotFoundError`."""
    return (folder / KEY).read_bytes()


def _load_or_make_key(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        key = secrets.token_bytes(32)
        write_atomic(path, key, mode=0o600)
        return key
