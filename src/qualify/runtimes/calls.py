"""What the relay knows of a model call: what was asked, what was expected, what it cost.

Read from the request that was really sent and from the engine's own answer, never from settings. A
count that the engine does not give is `None`, never 0. Pure data and rules, no I/O, no content:
prompts and answers are looked at and not kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any, Literal

from qualify.core.status import ToolMode

type Kind = Literal["agent", "direct"]

_TEXT_CALL = "<function="
"""How the SDK's text format begins; its system prompt explains it in these words."""


@dataclass(frozen=True)
class Expectation:
    """What every request must say. `None`: nothing is expected.

    `temperature_milli` is the temperature times 1,000.
    """

    model_name: str
    tool_mode: ToolMode | None = None
    temperature_milli: int | None = None


@dataclass(frozen=True)
class Asked:
    """What a request says."""

    model: str | None
    tool_mode: ToolMode | None
    """`native` with tools in the body, `prompt` with the SDK's text format in its messages or a
    grammar, `None` when no tool is offered in any way."""
    temperature_milli: int | None
    stream: bool


@dataclass(frozen=True)
class Spent:
    """What an answer cost, by the engine's own account."""

    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_ms: int | None = None
    """Time of reading `prompt_evaluated` tokens (llama.cpp `timings`)."""
    prompt_evaluated: int | None = None
    generation_ms: int | None = None
    """Time of writing `completion_tokens` tokens (llama.cpp `timings`)."""


@dataclass(frozen=True)
class Call:
    """One finished model call."""

    kind: Kind
    ok: bool
    """A whole completion was passed on."""
    status: int
    """HTTP status that the client got; 499 when it had gone."""
    failure: str | None
    """Reason code of a failed call."""
    asked: Asked
    model_matches: bool
    violations: tuple[str, ...]
    """Reason codes of what the request said other than expected."""
    spent: Spent
    first_token_ms: int | None
    total_ms: int


@dataclass(frozen=True)
class Activity:
    """A call at work, for a person who waits. Counts of this call so far."""

    kind: Kind
    phase: Literal["waiting", "reading", "writing", "done"]
    elapsed_ms: int
    prompt_done: int | None
    prompt_total: int | None
    completion_tokens: int
    """Pieces received; an engine that sends several tokens in one piece shows fewer."""


def read_request(body: Mapping[str, Any]) -> Asked:
    """What a chat-completions request says."""
    model = body.get("model")
    return Asked(
        model=model if isinstance(model, str) else None,
        tool_mode=_tool_mode(body),
        temperature_milli=milli(body.get("temperature")),
        stream=body.get("stream") is True,
    )


def _tool_mode(body: Mapping[str, Any]) -> ToolMode | None:
    if body.get("tools"):
        return ToolMode.NATIVE
    if body.get("grammar") or any(_TEXT_CALL in text for text in _texts(body)):
        return ToolMode.PROMPT
    return None


def _texts(body: Mapping[str, Any]) -> Sequence[str]:
    messages = body.get("messages")
    found = []
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        parts = content if isinstance(content, list) else [{"text": content}]
        found += [part.get("text") for part in parts if isinstance(part, dict)]
    return [text for text in found if isinstance(text, str)]


def milli(value: object) -> int | None:
    """A number times 1,000, rounded; `None` for what is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return round(value * 1000)
    except (OverflowError, ValueError):
        return None


def violations(asked: Asked, kind: Kind, expected: Expectation) -> tuple[str, ...]:
    """Reason codes of every difference. The tool mode is expected of the agent's requests only."""
    found = []
    if asked.model != expected.model_name:
        found.append("model-not-allowed")
    if (
        kind == "agent"
        and expected.tool_mode is not None
        and asked.tool_mode is not expected.tool_mode
    ):
        found.append("other-tool-mode")
    if (
        expected.temperature_milli is not None
        and asked.temperature_milli != expected.temperature_milli
    ):
        found.append("other-temperature")
    return tuple(found)


def read_spent(usage: object, timings: object) -> Spent:
    """What `usage` (and llama.cpp's `timings`) say; nonsense counts as not said."""
    use = usage if isinstance(usage, Mapping) else {}
    times = timings if isinstance(timings, Mapping) else {}
    details = use.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    return Spent(
        prompt_tokens=_count(use.get("prompt_tokens")),
        cached_prompt_tokens=_count(cached if cached is not None else times.get("cache_n")),
        completion_tokens=_count(use.get("completion_tokens")),
        prompt_ms=_count(times.get("prompt_ms")),
        prompt_evaluated=_count(times.get("prompt_n")),
        generation_ms=_count(times.get("predicted_ms")),
    )


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < 2**53 else None


@dataclass(frozen=True)
class Total:
    """Several calls together. A sum is `None` as soon as one part of it cannot be told."""

    calls: int
    failed: int
    prompt_tokens: int | None
    cached_prompt_tokens: int | None
    completion_tokens: int | None
    model_ms: int
    first_token_ms_median: int | None
    completion_tokens_per_s_milli: int | None
    prompt_tokens_per_s_milli: int | None


def total(calls: Sequence[Call]) -> Total:
    """Add calls up. Rates come from the engine's own times where it gives them, else from the
    time between the first token and the end; a call that failed has no rate.
    """
    good = [call for call in calls if call.ok]
    firsts = [call.first_token_ms for call in good if call.first_token_ms is not None]
    # Refused before the engine saw them: these used nothing, and that is known.
    used = [call for call in calls if call.failure not in _UNSENT]
    return Total(
        calls=len(calls),
        failed=len(calls) - len(good),
        prompt_tokens=_sum([call.spent.prompt_tokens for call in used]),
        cached_prompt_tokens=_sum([call.spent.cached_prompt_tokens for call in used]),
        completion_tokens=_sum([call.spent.completion_tokens for call in used]),
        model_ms=sum(call.total_ms for call in calls),
        first_token_ms_median=median_low(firsts) if firsts else None,
        completion_tokens_per_s_milli=_rate(
            [(call.spent.completion_tokens, _generation_ms(call)) for call in good]
        ),
        prompt_tokens_per_s_milli=_rate(
            [(call.spent.prompt_evaluated, call.spent.prompt_ms) for call in good]
        ),
    )


_UNSENT = frozenset({"model-not-allowed", "bad-request", "body-too-large"})


def _generation_ms(call: Call) -> int | None:
    if call.spent.generation_ms is not None:
        return call.spent.generation_ms
    return None if call.first_token_ms is None else call.total_ms - call.first_token_ms


def _sum(parts: Sequence[int | None]) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _rate(parts: Sequence[tuple[int | None, int | None]]) -> int | None:
    """Tokens a second, times 1,000, over those parts that say both."""
    known = [(count, ms) for count, ms in parts if count is not None and ms is not None]
    time = sum(ms for _, ms in known)
    return sum(count for count, _ in known) * 1_000_000 // time if time else None
