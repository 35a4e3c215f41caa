"""What the relay reads from a request and how it adds up: unknown never becomes zero."""

import pytest

from qualify.core.status import ToolMode
from qualify.runtimes.calls import (
    Asked,
    Call,
    Expectation,
    Spent,
    milli,
    read_request,
    read_spent,
    total,
    violations,
)

TEXT_FORMAT = "Reply with <function=terminal> and so on"


def a_call(**changes):
    given = {
        "kind": "agent", "ok": True, "status": 200, "failure": None,
        "asked": Asked("m", None, 0, False), "model_matches": True, "violations": (),
        "spent": Spent(10, 4, 20, 100, 6, 1000), "first_token_ms": 110, "total_ms": 1200,
    }  # fmt: skip
    return Call(**{**given, **changes})


@pytest.mark.parametrize(
    ("body", "mode"),
    [
        ({"tools": [{"type": "function"}]}, ToolMode.NATIVE),
        ({"tools": [{"type": "function"}], "grammar": "root ::= x"}, ToolMode.NATIVE),
        ({"tools": [], "messages": [{"role": "system", "content": TEXT_FORMAT}]}, ToolMode.PROMPT),
        ({"messages": [{"content": [{"type": "text", "text": TEXT_FORMAT}]}]}, ToolMode.PROMPT),
        ({"grammar": "root ::= x", "messages": []}, ToolMode.PROMPT),
        ({"messages": [{"role": "user", "content": "hello"}]}, None),
        ({"messages": "nonsense"}, None),
        ({"messages": [None, {"content": None}, {"content": [None, {"text": 3}]}]}, None),
    ],
)
def test_the_tool_mode_is_read_from_what_was_sent(body, mode):
    assert read_request(body).tool_mode is mode


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 0), (0.7, 700), (1, 1000), (None, None), (True, None), ("0", None),
     (float("nan"), None), (float("inf"), None)],
)  # fmt: skip
def test_a_temperature_is_read_in_thousandths(value, expected):
    assert milli(value) == expected
    assert read_request({"temperature": value}).temperature_milli == expected


def test_only_true_asks_for_a_stream():
    assert read_request({"stream": True}).stream
    assert not read_request({"stream": "yes"}).stream
    assert not read_request({}).stream


EXPECTED = Expectation("m", ToolMode.NATIVE, 0)


@pytest.mark.parametrize(
    ("asked", "kind", "found"),
    [
        (Asked("m", ToolMode.NATIVE, 0, False), "agent", ()),
        (Asked("m", None, 0, False), "direct", ()),
        (Asked("m", ToolMode.PROMPT, 0, False), "agent", ("other-tool-mode",)),
        (Asked("m", None, 0, False), "agent", ("other-tool-mode",)),
        (Asked("m", ToolMode.NATIVE, None, False), "agent", ("other-temperature",)),
        (Asked("m", None, 700, False), "direct", ("other-temperature",)),
        (Asked(None, ToolMode.NATIVE, 0, False), "agent", ("model-not-allowed",)),
        (
            Asked("other", None, 1, False),
            "agent",
            ("model-not-allowed", "other-tool-mode", "other-temperature"),
        ),
    ],
)
def test_each_difference_from_what_is_expected_has_its_code(asked, kind, found):
    assert violations(asked, kind, EXPECTED) == found


def test_without_expectations_only_the_model_counts():
    assert violations(Asked("m", None, 700, True), "agent", Expectation("m")) == ()


def test_usage_and_timings_are_read():
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    timings = {"prompt_n": 4, "prompt_ms": 12.9, "predicted_ms": 30.2, "cache_n": 9}
    assert read_spent(usage, timings) == Spent(7, 3, 2, 12, 4, 30)


def test_cached_tokens_come_from_timings_where_usage_does_not_say():
    assert read_spent({"prompt_tokens": 7}, {"cache_n": 5}).cached_prompt_tokens == 5


@pytest.mark.parametrize(
    "usage",
    [None, [], "x", {"prompt_tokens": -1, "completion_tokens": "3"}, {"prompt_tokens": True},
     {"prompt_tokens_details": 4}, {"completion_tokens": float("nan")}],
)  # fmt: skip
def test_nonsense_counts_as_not_said(usage):
    assert read_spent(usage, usage) == Spent()


def test_calls_are_added_up():
    result = total([a_call(), a_call(first_token_ms=300)])
    assert (result.calls, result.failed) == (2, 0)
    assert (result.prompt_tokens, result.cached_prompt_tokens, result.completion_tokens) == (
        20,
        8,
        40,
    )
    assert result.model_ms == 2400
    assert result.first_token_ms_median == 110
    assert result.completion_tokens_per_s_milli == 20_000
    assert result.prompt_tokens_per_s_milli == 60_000


def test_one_answer_without_usage_makes_the_sum_unknown():
    result = total([a_call(), a_call(spent=Spent())])
    assert result.prompt_tokens is None
    assert result.completion_tokens is None
    assert result.completion_tokens_per_s_milli == 20_000


def test_a_failed_call_makes_the_sum_unknown_because_the_engine_may_have_worked():
    failed = a_call(ok=False, status=504, failure="timeout", spent=Spent(), first_token_ms=None)
    assert total([a_call(), failed]).completion_tokens is None
    assert total([a_call(), failed]).failed == 1


def test_a_call_that_was_never_sent_used_nothing():
    refused = a_call(ok=False, status=403, failure="model-not-allowed", spent=Spent())
    assert total([a_call(), refused]).completion_tokens == 20


def test_without_the_engines_own_times_the_rate_is_what_was_seen():
    seen = a_call(spent=Spent(10, None, 20), first_token_ms=200, total_ms=2200)
    assert total([seen]).completion_tokens_per_s_milli == 10_000
    assert total([seen]).prompt_tokens_per_s_milli is None


def test_no_calls_are_no_calls():
    result = total([])
    assert (result.calls, result.completion_tokens, result.first_token_ms_median) == (0, 0, None)
    assert result.completion_tokens_per_s_milli is None
