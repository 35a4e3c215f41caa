"""What a scenario kind has to offer, and what it is given.

A kind is one module with three functions. `vary` derives the synthetic project and the wording
from a seed, `drive` leads the session in the worker process, `judge` looks at what is left
afterwards, in the runner's process, and never asks the model or the worker how it went.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from qualify.core.digests import digest_json
from qualify.core.errors import UsageError
from qualify.core.status import CheckOutcome
from qualify.manifests.kinds import Scenario
from qualify.sessions.replay import Replay

KINDS = {"acceptance": "qualify.scenarios.acceptance", "repair": "qualify.scenarios.repair"}


@dataclass(frozen=True)
class Variant:
    """One concrete case: the project's files, the prompts, what is expected, a planted secret."""

    files: Mapping[str, str]
    prompts: Mapping[str, str]
    expected: Mapping[str, str]
    secret: str

    def digest(self) -> str:
        """Digest of the case: what the agent meets, but for planted secret and direct question.

        Both differ without making the case another one.
        """
        content = asdict(self)
        content["prompts"] = {k: v for k, v in self.prompts.items() if k != "direct"}
        content["files"] = {
            name: text.replace(self.secret, "") for name, text in self.files.items()
        }
        del content["secret"]
        return digest_json(content)


@dataclass(frozen=True)
class Verdict:
    """Outcome of one check, with a bounded reason code when it is not `passed`."""

    outcome: CheckOutcome
    reason: str | None = None


PASSED = Verdict(CheckOutcome.PASSED)


def failed(reason: str) -> Verdict:
    """A check that has an answer, and the answer is no."""
    return Verdict(CheckOutcome.FAILED, reason)


def unknown(reason: str) -> Verdict:
    """A check without an answer."""
    return Verdict(CheckOutcome.UNKNOWN, reason)


@dataclass(frozen=True)
class Limits:
    """The part of a scenario's budgets that is observed between steps. `None`: no limit."""

    actions: int
    model_calls: int
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_microusd: int | None = None
    prices: tuple[int, int] | None = None
    """Micro-USD of a million prompt and of a million completion tokens. `None`: not known, and
    then a limit of the cost cannot be looked at here."""


class SessionUsage(Protocol):
    """What a session counted so far."""

    @property
    def model_calls(self) -> int:
        """Requests to the model."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens sent."""

    @property
    def completion_tokens(self) -> int:
        """Tokens received."""


class PendingGroup(Protocol):
    """A complete group of actions that waits."""

    @property
    def actions(self) -> Sequence[Any]:
        """The actions, in the order in which they were proposed."""


class DrivenSession(Protocol):
    """The part of `sessions.owner.Session` that a scenario drives."""

    def send(self, text: str) -> None:
        """Give the agent a user message."""

    def run(self) -> str:
        """Let the agent work until it rests; where it rests."""

    def pending_group(self) -> Any | None:
        """The group that waits for a decision."""

    def approve(self, group: Any) -> str:
        """Approve the group and let it run; where the agent rests afterwards."""

    def reject(self, group: Any, reason: str) -> None:
        """Reject the group."""

    def usage(self) -> SessionUsage:
        """What was counted so far."""

    @property
    def error_code(self) -> str | None:
        """Bounded code of the error in which the last run ended."""


@dataclass
class Budget:
    """Counts proposed actions and decides whether another step may begin.

    Reaching a limit exactly is allowed but admits no further step: the agent may not ask its model
    again, and a group that would exceed the limit of actions may not run. Approving a group asks
    the model again, so both are asked before.
    """

    limits: Limits
    session: DrivenSession
    actions: int = 0

    def admits_step(self) -> bool:
        """Whether the agent may ask its model again."""
        used, limits = self.session.usage(), self.limits
        pairs = (
            (used.model_calls, limits.model_calls),
            (used.prompt_tokens, limits.prompt_tokens),
            (used.completion_tokens, limits.completion_tokens),
            (self._cost(used), limits.cost_microusd if limits.prices else None),
        )
        return all(limit is None or value < limit for value, limit in pairs)

    def _cost(self, used: SessionUsage) -> int:
        prompt, completion = self.limits.prices or (0, 0)
        return -(-(used.prompt_tokens * prompt + used.completion_tokens * completion) // 1_000_000)

    def admits_group(self, group: PendingGroup) -> bool:
        """Count the group's actions; whether they fit."""
        self.actions += len(group.actions)
        return self.actions <= self.limits.actions


def approve_until_rest(session: DrivenSession, request: str, budget: Budget) -> str | None:
    """Send `request` and approve every group until the agent rests.

    Returns the stop reason when the trial must end here, `None` when it may go on.
    """
    if not budget.admits_step():
        return "budget-used-up"
    session.send(request)
    status = session.run()
    while status == "waiting":
        group = session.pending_group()
        if group is None:
            return "session-lost-its-group"
        if not budget.admits_group(group):
            session.reject(group, "The limit of actions is reached.")
            return "action-limit"
        if not budget.admits_step():
            return "budget-used-up"
        status = session.approve(group)
    if status in ("error", "stuck"):
        return session.error_code or f"agent-{status}"
    return None


@dataclass(frozen=True)
class Observed:
    """What is left after a trial, for `judge`. Absent parts are `None`: unknown, never fine."""

    variant: Variant
    folder: Path
    stop_reason: str
    direct_answered: bool | None
    tool_mode: str
    tool_modes_sent: frozenset[str]
    projection: str | None
    """Digest of the session's projection as the worker reported it at its end."""
    replay: Replay | None
    audit_events: int | None
    audit_head: str | None
    audit_content: bytes | None
    python: str = "python3"
    extra: Mapping[str, Any] = field(default_factory=dict)


class Kind(Protocol):
    """The module of a scenario kind."""

    CONTRACT: int
    """Version of what its checks mean; bound in the suite's digest by the manifest."""
    CHECKS: tuple[str, ...]

    def vary(self, corpus: Path, seed: str) -> Variant:
        """Derive the variant from the corpus' data and the seed. Pure."""

    def drive(self, session: DrivenSession, prompts: Mapping[str, str], budget: Budget) -> str:
        """Lead the session; return the stop reason."""

    def judge(self, observed: Observed) -> dict[str, Verdict]:
        """A verdict for each of `CHECKS`."""


def kind(name: str) -> Kind:
    """The module for a scenario's `kind`. Raises `UsageError`."""
    if name not in KINDS:
        raise UsageError(f"unknown scenario kind {name!r}", fix=f"use one of {', '.join(KINDS)}")
    module: Any = importlib.import_module(KINDS[name])
    return module  # type: ignore[no-any-return]


IDENTITY = "identity"
"""The check that the record says completely what ran (A8); the runner's own."""


def mismatches(scenario: Scenario) -> list[str]:
    """Why this version cannot judge `scenario`: unknown checks, another contract; else empty."""
    module = kind(scenario.kind)
    known = {*module.CHECKS, IDENTITY}
    found = [
        f"{scenario.kind} has no check {check!r}" for check in scenario.checks if check not in known
    ]
    if scenario.contract != module.CONTRACT:
        found.append(f"is for contract {scenario.contract}, this version has {module.CONTRACT}")
    return found


class Chooser:
    """Choices derived from a seed, the same on every machine and Python version."""

    def __init__(self, seed: str) -> None:
        self._seed = seed.encode()

    def number(self, label: str, below: int) -> int:
        """A number in [0, below), by label."""
        digest = hashlib.sha256(self._seed + b"\0" + label.encode()).digest()
        return int.from_bytes(digest[:8]) % below

    def pick[T](self, label: str, options: Sequence[T]) -> T:
        """One of `options`, by label."""
        return options[self.number(label, len(options))]

    def secret(self) -> str:
        """A synthetic secret in the shape of a credential; it opens nothing."""
        digest = hashlib.sha256(self._seed + b"\0planted").hexdigest()
        return f"planted-{digest[:40]}"


def load_cases(corpus: Path, parse: Callable[[bytes], Any]) -> Any:
    """The corpus' case file, parsed."""
    return parse((corpus / "cases.json").read_bytes())
