"""What the relay saw of a trial, as the record's usage and timings.

All of it comes from requests that were sent and answers that came back. A number that one answer
left out makes the whole sum unknown (`None`): unknown is never zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qualify.evidence.records import BudgetUse, Timings, Usage
from qualify.manifests.configuration import Configuration
from qualify.manifests.kinds import Budgets, Prices
from qualify.runtimes.asking import Unanswered, ask, completed
from qualify.runtimes.calls import Activity, Call, Expectation, Total, milli, total
from qualify.scenarios.contract import Limits
from qualify.sessions.replay import Replay

if TYPE_CHECKING:
    from qualify.runner.progress import Reporter
    from qualify.runtimes.engine import Engine
    from qualify.runtimes.relay import Relay

_DIRECT_TOKENS = 8


def make_relay(configuration: Configuration, engine: Engine, reporter: Reporter) -> Relay:
    """A started relay in front of `engine`; `reporter` hears what the model reads and writes."""
    from qualify.runtimes.relay import Relay

    sampling = configuration.agent.sampling
    temperature = sampling.temperature
    relay = Relay(
        engine.base_url,
        engine.api_key,
        Expectation(
            engine.model_name,
            tool_mode=configuration.row.tool_mode,
            temperature_milli=None if temperature is None else milli(float(temperature)),
        ),
        extras=engine.request_extras,
        on_activity=TokenCount(reporter),
        timeout_s=configuration.agent.limits.request_timeout_s,
    )
    relay.start()
    return relay


class TokenCount:
    """Adds up the tokens of the calls that have ended and of the one that is at work."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._ended = self._current = 0

    def __call__(self, activity: Activity) -> None:
        """Hear of a call."""
        self._current = max(self._current, activity.completion_tokens)
        if activity.phase == "done":
            self._ended, self._current = self._ended + self._current, 0
        self._reporter.tokens(self._ended + self._current)
        if activity.phase == "reading" and activity.prompt_total:
            self._reporter.reading(activity.prompt_done or 0, activity.prompt_total)


def ask_directly(relay: Relay, prompt: str, temperature: float | None, deadline: float) -> bool:
    """A1: ask one question without any tool; whether a completion came back before `deadline`."""
    body: dict[str, Any] = {
        "model": relay.model_name,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": _DIRECT_TOKENS,
    }
    if temperature is not None:
        body["temperature"] = temperature
    try:
        answer = ask(f"{relay.direct_url}/chat/completions", relay.key, body, deadline=deadline)
    except Unanswered:
        return False
    if not completed(answer):
        return False
    message = answer["choices"][0]["message"]
    return bool((message.get("content") or "").strip() or message.get("reasoning_content"))


def remaining(budgets: Budgets, used: Iterable[Call], prices: Prices | None) -> Limits:
    """What is left for the session after our own calls: a budget counts all calls of a trial."""
    spent = total(list(used))
    return Limits(
        actions=budgets.actions,
        model_calls=max(0, budgets.model_calls - spent.calls),
        prompt_tokens=_less(budgets.prompt_tokens, spent.prompt_tokens),
        completion_tokens=_less(budgets.completion_tokens, spent.completion_tokens),
        cost_microusd=_less(budgets.cost_microusd, _cost(prices, spent)),
        prices=None
        if prices is None
        else (prices.prompt_microusd_per_million, prices.completion_microusd_per_million),
    )


def _cost(prices: Prices | None, spent: Total) -> int | None:
    if prices is None or spent.prompt_tokens is None or spent.completion_tokens is None:
        return None
    return prices.cost(spent.prompt_tokens, spent.completion_tokens)


def prices_of(configuration: Configuration) -> Prices | None:
    """What the row's provider charges. A server of ours has no price: its cost is not known."""
    endpoint = configuration.runtime.endpoint
    return endpoint.prices if endpoint is not None else None


def _less(limit: int | None, used: int | None) -> int | None:
    return None if limit is None else max(0, limit - (used or 0))


@dataclass(frozen=True)
class Metered:
    """Usage and times of one trial. Durations in milliseconds."""

    usage: Usage
    wall_ms: int
    model_ms: int | None
    tool_ms: int | None
    first_token_ms: int | None
    generation_milli: int | None
    prompt_milli: int | None
    modes: frozenset[str]
    """Tool modes of the agent's requests, as sent."""
    temperatures: frozenset[int | None]
    names_match: bool | None

    @property
    def own_ms(self) -> int | None:
        """Wall time that neither the model nor a tool took: ours."""
        if self.model_ms is None or self.tool_ms is None:
            return None
        return max(0, self.wall_ms - self.model_ms - self.tool_ms)

    def over(self, budgets: Budgets) -> tuple[BudgetUse, ...]:
        """Budgets that were exceeded, or whose use cannot be told."""
        used: dict[str, int | None] = {
            "wall_time_s": -(-self.wall_ms // 1000),
            "actions": self.usage.actions_proposed,
            "model_calls": self.usage.model_calls,
            "prompt_tokens": self.usage.prompt_tokens,
            "completion_tokens": self.usage.completion_tokens,
            "cost_microusd": self.usage.cost_microusd,
        }
        found = []
        for name, value in used.items():
            limit = getattr(budgets, name)
            if limit is not None and (value is None or value > limit):
                found.append(
                    BudgetUse.model_validate({"budget": name, "limit": limit, "used": value})
                )
        return tuple(found)

    def timings(
        self, judging_ms: int, engine_start_ms: int | None, worker_start_ms: int | None
    ) -> Timings:
        """The record's timings."""
        return Timings(
            wall_ms=self.wall_ms,
            judging_ms=judging_ms,
            model_ms=self.model_ms,
            tool_ms=self.tool_ms,
            first_token_ms_median=self.first_token_ms,
            completion_tokens_per_s_milli=self.generation_milli,
            prompt_tokens_per_s_milli=self.prompt_milli,
            engine_start_ms=engine_start_ms,
            worker_start_ms=worker_start_ms,
        )


def meter(
    calls: Iterable[Call],
    answer: dict[str, Any],
    replay: Replay | None,
    wall_ms: int,
    prices: Prices | None,
) -> Metered:
    """Add up what the relay saw since the trial began.

    Actions are counted from the replayed journal; of the worker's `answer` (maybe empty) only the
    time in tools is taken.
    """
    calls = list(calls)
    agent = [call for call in calls if call.kind == "agent"]
    sums = total(calls)
    usage = Usage(
        model_calls=sums.calls,
        failed_calls=sums.failed,
        prompt_tokens=sums.prompt_tokens,
        cached_prompt_tokens=sums.cached_prompt_tokens,
        completion_tokens=sums.completion_tokens,
        cost_microusd=_cost(prices, sums),
        actions_proposed=sum(replay.sizes) if replay else None,
        actions_executed=sum(replay.executed) if replay else None,
        actions_rejected=_rejected(replay) if replay else None,
    )
    return Metered(
        usage=usage,
        wall_ms=wall_ms,
        model_ms=sums.model_ms,
        tool_ms=answer.get("tool_ms"),
        first_token_ms=sums.first_token_ms_median,
        generation_milli=sums.completion_tokens_per_s_milli,
        prompt_milli=sums.prompt_tokens_per_s_milli,
        modes=frozenset(str(call.asked.tool_mode) for call in agent),
        temperatures=frozenset(call.asked.temperature_milli for call in agent),
        names_match=all(call.model_matches for call in agent) if agent else None,
    )


def _rejected(replay: Replay) -> int:
    pairs = zip(replay.decisions, replay.sizes, strict=True)
    return sum(size for decision, size in pairs if decision == "rejected")
