"""Content-minimized records: everything that the ledger may hold.

No field here can hold a prompt, a tool's output, a command, a file's content, a credential, a local
path or a participant's datum: fields are ids, enumerations, digests, versions, counts, durations
and booleans; every string has a pattern and a length limit. Unknown is `null`, never 0. Durations
are integers with the unit in the name; records hold no floats, so that their canonical JSON is the
same everywhere.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    model_validator,
)

from qualify.core.clock import TIME_PATTERN, parse_time
from qualify.core.digests import DIGEST_PATTERN
from qualify.core.identifiers import ID_PATTERN
from qualify.core.status import (
    CheckOutcome,
    EngineKind,
    EvidenceClass,
    ToolMode,
    TrialOutcome,
)
from qualify.evidence.versions import SCHEMA

_LONGEST_WORD = 19
_BETWEEN_WORDS = re.compile(r"[ ()@.,]")


def is_hardware_name(text: str) -> bool:
    """Whether no word of `text` is long enough to be a credential: the shortest have 20."""
    return all(len(word) <= _LONGEST_WORD for word in _BETWEEN_WORDS.split(text))


def _words(name: str) -> str:
    if not is_hardware_name(name):
        raise ValueError(f"a word of more than {_LONGEST_WORD} characters")
    return name


def _exists(time: str) -> str:
    parse_time(time)
    return time


type Id = Annotated[str, StringConstraints(pattern=ID_PATTERN, max_length=80)]
type Digest = Annotated[str, StringConstraints(pattern=DIGEST_PATTERN)]
type Time = Annotated[str, StringConstraints(pattern=TIME_PATTERN), AfterValidator(_exists)]
type SiteId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
type Version = Annotated[str, StringConstraints(pattern=r"^[0-9][0-9A-Za-z.+!-]{0,39}$")]
type Revision = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
type ReasonCode = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,47}$")]
type Hardware = Annotated[
    str,
    StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ()@.,+_-]{0,63}$", max_length=64),
    AfterValidator(_words),
]
"""What a processor calls itself: words, none as long as the shortest credential is."""
type Name = Annotated[str, StringConstraints(pattern=r"^(?:[A-Z]{1,4}[a-z]{1,16}){1,5}$")]
"""Of a class."""
type Platform = Annotated[
    str, StringConstraints(pattern=r"^[A-Z][a-z]{1,15}-[a-z0-9_]{1,15}-[0-9][0-9a-z.]{0,15}$")
]
"""System, architecture and version of Python."""
type Count = Annotated[int, Field(ge=0, le=2**53 - 1)]


class Record(BaseModel):
    """Base of all record parts: frozen, strict, no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Genesis(Record):
    """First entry of a ledger."""

    kind: Literal["genesis"] = "genesis"
    schema_version: Literal[1] = 1
    time: Time
    site: SiteId


class Reservation(Record):
    """A trial that is about to start. The digest of this entry is the trial's id."""

    kind: Literal["reservation"] = "reservation"
    schema_version: Literal[1] = 1
    time: Time
    row: Id
    configuration: Digest
    suite: Id
    suite_digest: Digest
    scenario: Id
    ordinal: Count
    """Earlier, not experimental reservations of (configuration, suite digest, scenario)."""
    seed: Digest
    """Derived from configuration, suite digest, scenario and ordinal; gives the variant."""
    evidence_class: EvidenceClass
    experimental: bool
    required_checks: tuple[Id, ...]


class Check(Record):
    """One check and its outcome."""

    check: Id
    outcome: CheckOutcome
    reason: ReasonCode | None = None


class Engine(Record):
    """The inference engine, as observed."""

    kind: EngineKind
    version: Version | None
    build: Id | None = None
    context_tokens_per_slot: Count | None
    slots: Count | None
    tensor_parallel: Count
    chat_template: Digest | None
    tool_parser: Id | None
    remote: bool
    """True: a declared endpoint; weights, precision, GPU and server software stay declared."""
    image: Digest | None = None
    """Of the image that the server ran in; `None`: it ran on the host, or elsewhere."""
    network: Literal["open", "loopback-only"] | None = None
    """What the server's network namespace had; `None`: not looked at, or not our server."""


class ModelIdentity(Record):
    """The model, verified file by file before the trial."""

    id: Id
    revision: Revision | None
    files: Digest | None
    """Digest of the list of (path, size, SHA-256) that was verified; `None`: not verified."""


class Machine(Record):
    """The hardware, as observed."""

    architecture: Id
    cpu_model: Hardware | None
    logical_cores: Count | None
    memory_mib: Count | None
    gpu_model: Hardware | None
    gpu_count: Count
    driver: Version | None


class AgentIdentity(Record):
    """The coding agent, as observed."""

    id: Id
    sdk_version: Version | None
    fingerprint: Digest | None
    """Digest of the agent's own dump, secrets masked, with its system prompt and tools."""
    tool_mode_requested: ToolMode
    tool_mode_observed: ToolMode | None
    """From the requests that were sent; `None`: no request was seen or they differed."""
    temperature_milli_observed: Count | None
    model_name_matches: bool | None
    skills: Count


class Client(Record):
    """What asked the model, as the session's owner saw it before, between and after model work."""

    requested_model: Digest
    """Of the model's name in the requests."""
    sdk_version: Version
    max_input_tokens: Count | None
    max_output_tokens: Count | None
    """`None`: implicit; the model client takes whatever it takes."""
    confirmation_policy: Name
    analyzer: Name | None
    """Of the agent SDK's security analyzer; `None`: none."""
    platform: Platform
    options: Digest
    """Of the model client's options."""
    security: Digest
    """Of tools, confirmation policy, analyzer, hooks and isolation."""
    readings: Count
    """How often it was read again after it was bound."""
    read_at_end: bool
    changed: tuple[ReasonCode, ...]
    """Which of the fields above were others at a later reading."""


class Harness(Record):
    """Ourselves."""

    version: Version
    commit: Revision | None
    modified: bool | None
    python: Version
    record_schema: Literal[1, 2] = SCHEMA


class Enforcement(Record):
    """What was really enforced while the trial ran."""

    sandbox: Literal["none", "bubblewrap"]
    network: Literal["open", "loopback-only"]
    private_home: bool
    environment_allow_list: bool


class Usage(Record):
    """What the trial used, metered by the relay. `None`: cannot be told."""

    model_calls: Count
    failed_calls: Count
    prompt_tokens: Count | None
    cached_prompt_tokens: Count | None
    completion_tokens: Count | None
    cost_microusd: Count | None
    actions_proposed: Count | None
    actions_executed: Count | None
    actions_rejected: Count | None


class Timings(Record):
    """Milliseconds on the monotonic clock. `None`: cannot be told."""

    wall_ms: Count
    """From the start of the trial to the end of its session; replay and export not counted."""
    judging_ms: Count | None
    """Replay, export and checks afterwards."""
    model_ms: Count | None
    tool_ms: Count | None
    first_token_ms_median: Count | None
    completion_tokens_per_s_milli: Count | None
    """Completion tokens a second of generation, times 1,000."""
    prompt_tokens_per_s_milli: Count | None
    engine_start_ms: Count | None
    worker_start_ms: Count | None


class Audit(Record):
    """The session's journal and its content-minimized export."""

    journal_head: Digest | None
    journal_events: Count | None
    export: Digest | None
    export_events: Count | None
    unknown_effects: Count


class BudgetUse(Record):
    """A limit of the scenario that was exceeded, or whose use cannot be told."""

    budget: Literal[
        "wall_time_s", "actions", "model_calls", "prompt_tokens", "completion_tokens",
        "cost_microusd",
    ]  # fmt: skip
    limit: Count
    used: Count | None


class Trial(Record):
    """The end of a trial. There is at most one for a reservation."""

    kind: Literal["trial"] = "trial"
    schema_version: Literal[1, 2] = SCHEMA
    time: Time
    trial: Digest
    outcome: TrialOutcome
    stop_reason: ReasonCode
    """Why it ended: `completed`, `worker-died`, `deadline`, `interrupted`, `engine-died`, …"""
    variant: Digest
    """Digest of the variant that was derived from the seed."""
    checks: tuple[Check, ...]
    budgets_exceeded: tuple[BudgetUse, ...]
    budgets_bind: Literal["between-steps"] | None = None
    """Where limits are looked at: not inside one run of the agent SDK. Schema 1 did not say."""
    engine: Engine
    model: ModelIdentity | None
    machine: Machine
    agent: AgentIdentity
    client: Client | None = None
    """`None`: it was not bound; or the record is of schema 1, which did not know it."""
    harness: Harness
    enforcement: Enforcement
    usage: Usage
    timings: Timings
    audit: Audit

    @model_validator(mode="after")
    def _fields_since_2(self) -> Self:
        since = self.model_fields_set & {"client", "budgets_bind"}
        if self.schema_version == 1 and since:
            raise ValueError(f"schema 1 has no {min(since)}")
        return self


class Refusal(Record):
    """A row that admission refused: evidence of `unsupported`. It is no trial."""

    kind: Literal["refusal"] = "refusal"
    schema_version: Literal[1] = 1
    time: Time
    row: Id
    configuration: Digest
    reasons: tuple[ReasonCode, ...]


class StartFailure(Record):
    """An engine that did not become ready: evidence of `inconclusive`. It is no trial."""

    kind: Literal["start-failure"] = "start-failure"
    schema_version: Literal[1] = 1
    time: Time
    row: Id
    configuration: Digest
    reason: ReasonCode
    elapsed_ms: Count


type Entry = Annotated[
    Genesis | Reservation | Trial | Refusal | StartFailure, Field(discriminator="kind")
]

ENTRY: TypeAdapter[Entry] = TypeAdapter(Entry)
"""Validates any ledger entry from canonical JSON."""
