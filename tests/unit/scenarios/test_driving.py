"""How a session is led: approvals, the rejection, limits that are reached and limits exceeded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from qualify.scenarios import acceptance, repair
from qualify.scenarios.contract import Budget, Limits

PROMPTS = {"append": "append", "remove": "remove", "repair": "repair"}


@dataclass(frozen=True)
class Group:
    actions: tuple[str, ...]


@dataclass(frozen=True)
class Used:
    model_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass
class Led:
    """A session whose agent rests as it is told: a number of waiting actions, or a status."""

    rests: list[int | str]
    error_code: str | None = None
    calls_each: int = 1
    did: list[str] = field(default_factory=list)
    waiting: int = 0
    calls: int = 0

    def send(self, text: str) -> None:
        self.did.append(text)

    def run(self) -> str:
        self.calls += self.calls_each
        rest = self.rests.pop(0)
        self.waiting = rest if isinstance(rest, int) else 0
        return "waiting" if isinstance(rest, int) else rest

    def pending_group(self) -> Group | None:
        return Group(("action",) * self.waiting) if self.waiting else None

    def approve(self, group: Any) -> str:
        self.did.append(f"approved {len(group.actions)}")
        return self.run()

    def reject(self, group: Any, reason: str) -> None:
        assert reason
        self.did.append(f"rejected {len(group.actions)}")
        self.waiting = 0

    def usage(self) -> Used:
        return Used(self.calls, 100 * self.calls, 10 * self.calls)


def lead(
    kind: Any, rests: Iterable[int | str], limits: Limits, **more: Any
) -> tuple[str, list[str]]:
    session = Led(list(rests), **more)
    return kind.drive(session, PROMPTS, Budget(limits, session)), session.did


PLENTY = Limits(actions=20, model_calls=20)
# Each call of the double below takes 100 prompt tokens and 10 completion tokens: 300 micro-USD.
PRICES = (2_000_000, 10_000_000)


@pytest.mark.parametrize(
    ("rests", "stop", "did"),
    [
        ([1, "finished", 1], "completed", ["append", "approved 1", "remove", "rejected 1"]),
        ([2, 1, "idle", 3], "completed",
         ["append", "approved 2", "approved 1", "remove", "rejected 3"]),
        (["finished", "finished"], "completed", ["append", "remove"]),
        (["error"], "agent-error", ["append"]),
        ([1, "stuck"], "agent-stuck", ["append", "approved 1"]),
        ([1, "finished", "error"], "agent-error", ["append", "approved 1", "remove"]),
        ([1, "finished", "stuck"], "agent-stuck", ["append", "approved 1", "remove"]),
        ([0], "session-lost-its-group", ["append"]),
        ([1, "finished", 0], "session-lost-its-group", ["append", "approved 1", "remove"]),
    ],
)  # fmt: skip
def test_acceptance_approves_the_first_request_and_rejects_the_second(
    rests: list[int | str], stop: str, did: list[str]
) -> None:
    assert lead(acceptance, rests, PLENTY) == (stop, did)


def test_an_error_code_of_the_session_is_the_stop_reason() -> None:
    stop, _ = lead(acceptance, ["error"], PLENTY, error_code="model-timeout")
    assert stop == "model-timeout"


@pytest.mark.parametrize(
    ("rests", "stop", "did"),
    [
        ([1, 2, "finished"], "completed", ["repair", "approved 1", "approved 2"]),
        ([1, "error"], "agent-error", ["repair", "approved 1"]),
        (["finished"], "completed", ["repair"]),
    ],
)
def test_repair_approves_everything(rests: list[int | str], stop: str, did: list[str]) -> None:
    assert lead(repair, rests, PLENTY) == (stop, did)


def test_a_group_that_reaches_the_limit_of_actions_runs_and_the_next_is_rejected() -> None:
    limits = Limits(actions=3, model_calls=20)
    assert lead(repair, [1, 2, "finished"], limits)[0] == "completed"
    stop, did = lead(repair, [1, 2, 1], limits)
    assert (stop, did) == ("action-limit", ["repair", "approved 1", "approved 2", "rejected 1"])


def test_a_group_that_would_exceed_the_limit_of_actions_does_not_run() -> None:
    stop, did = lead(repair, [1, 3], Limits(actions=3, model_calls=20))
    assert (stop, did) == ("action-limit", ["repair", "approved 1", "rejected 3"])


@pytest.mark.parametrize(
    ("limits", "stop"),
    [
        (Limits(20, model_calls=3), "completed"),
        (Limits(20, model_calls=2), "budget-used-up"),
        (Limits(20, 20, prompt_tokens=201), "completed"),
        (Limits(20, 20, prompt_tokens=200), "budget-used-up"),
        (Limits(20, 20, completion_tokens=21), "completed"),
        (Limits(20, 20, completion_tokens=20), "budget-used-up"),
        (Limits(20, 20, cost_microusd=601, prices=PRICES), "completed"),
        (Limits(20, 20, cost_microusd=600, prices=PRICES), "budget-used-up"),
        (Limits(20, 20, cost_microusd=1), "completed"),  # prices are not known: judged later
    ],
)
def test_a_limit_that_is_reached_admits_no_further_question_to_the_model(
    limits: Limits, stop: str
) -> None:
    """Three questions are needed: the request, one approval, the deletion."""
    found, did = lead(acceptance, [1, "finished", 1], limits)
    assert found == stop
    assert ("remove" in did) == (stop == "completed")


def test_nothing_is_approved_when_the_first_run_used_everything_up() -> None:
    limits = Limits(actions=20, model_calls=5)
    stop, did = lead(repair, [1, "finished"], limits, calls_each=5)
    assert (stop, did) == ("budget-used-up", ["repair"])
