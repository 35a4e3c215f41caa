"""What a run tells while it works. The command line shows it; a test may listen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from qualify.core.status import CheckOutcome, TrialOutcome


@dataclass(frozen=True)
class CheckLine:
    """One check of a finished trial, for a person."""

    check: str
    outcome: CheckOutcome
    reason: str | None


@dataclass(frozen=True)
class TrialSummary:
    """A finished trial, for a person. Durations in milliseconds."""

    trial: str
    scenario: str
    ordinal: int
    outcome: TrialOutcome
    stop_reason: str
    checks: tuple[CheckLine, ...]
    wall_ms: int
    model_ms: int | None
    own_ms: int | None
    """Wall time that was neither the model's nor a tool's."""
    completion_tokens: int | None
    first_token_ms: int | None
    tokens_per_s_milli: int | None


class Reporter(Protocol):
    """Hears of a run's progress, from one thread at a time."""

    def phase(self, text: str) -> None:
        """The run is now doing `text`."""

    def detail(self, text: str) -> None:
        """More about the present phase: a percentage, a count."""

    def trial_started(self, number: int, total: int, scenario: str) -> None:
        """Trial `number` of `total` starts."""

    def step(self, number: int, tool: str) -> None:
        """The agent takes its step `number`."""

    def tokens(self, count: int) -> None:
        """The model has written `count` tokens in this run so far."""

    def reading(self, done: int, total: int) -> None:
        """The model has read `done` of `total` tokens of the present request."""

    def trial_finished(self, summary: TrialSummary) -> None:
        """The trial's end is recorded."""


class Silent:
    """A reporter that says nothing."""

    def phase(self, text: str) -> None:
        """Nothing."""

    def detail(self, text: str) -> None:
        """Nothing."""

    def trial_started(self, number: int, total: int, scenario: str) -> None:
        """Nothing."""

    def step(self, number: int, tool: str) -> None:
        """Nothing."""

    def tokens(self, count: int) -> None:
        """Nothing."""

    def reading(self, done: int, total: int) -> None:
        """Nothing."""

    def trial_finished(self, summary: TrialSummary) -> None:
        """Nothing."""
