"""The client that the agent SDK uses, through the relay, in both of its modes."""

import json

import pytest

from qualify.core.status import ToolMode
from qualify.runtimes.calls import Expectation
from qualify.runtimes.relay import Relay
from support import rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOOL = {
    "type": "function",
    "function": {
        "name": "terminal",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}
REPLIES = [
    {"when_message": "busy", "status": 429, "text": "slow down"},
    {
        "when_message": "list",
        "calls": [
            {"tool": "terminal", "arguments": {"command": "ls"}},
            {"tool": "terminal", "arguments": {"command": "pwd"}},
        ],
    },
    {"text": "Hello there, how are you?"},
]


@pytest.fixture(scope="module")
def litellm():
    import os

    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    return pytest.importorskip("litellm")


@pytest.fixture
def relay(started):
    engine = started(rows.scripted(REPLIES))
    engine.wait_ready()
    with Relay(
        engine.base_url, engine.api_key, Expectation("scripted", ToolMode.NATIVE, 0)
    ) as made:
        yield made


def complete(litellm, relay, text, **more):
    return litellm.completion(
        model="openai/scripted",
        base_url=relay.url,
        api_key=relay.key,
        messages=[{"role": "user", "content": text}],
        temperature=0.0,
        num_retries=0,
        max_retries=0,
        **more,
    )


def test_text_comes_back_whole_with_its_usage(litellm, relay):
    answer = complete(litellm, relay, "hello", extra_body={"grammar": "root ::= x"})
    assert answer.choices[0].message.content == "Hello there, how are you?"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == 7
    (call,) = relay.calls()
    assert call.asked.tool_mode is ToolMode.PROMPT
    assert call.violations == ("other-tool-mode",)


def test_tool_calls_come_back_structured(litellm, relay):
    answer = complete(litellm, relay, "list", tools=[TOOL])
    calls = answer.choices[0].message.tool_calls
    assert [json.loads(c.function.arguments)["command"] for c in calls] == ["ls", "pwd"]
    assert answer.choices[0].finish_reason == "tool_calls"
    (call,) = relay.calls()
    assert (call.asked.tool_mode, call.violations) == (ToolMode.NATIVE, ())
    assert call.asked.temperature_milli == 0


def test_streamed_answers_are_the_same(litellm, relay):
    parts = complete(litellm, relay, "list", tools=[TOOL], stream=True)
    whole = litellm.stream_chunk_builder(list(parts))
    calls = whole.choices[0].message.tool_calls
    assert [json.loads(c.function.arguments)["command"] for c in calls] == ["ls", "pwd"]
    (call,) = relay.since(0)
    assert (call.ok, call.asked.stream) == (True, True)


def test_a_providers_error_is_the_same_error_for_the_client(litellm, relay):
    with pytest.raises(litellm.RateLimitError):
        complete(litellm, relay, "busy")
    assert all(call.status == 429 for call in relay.calls())


def test_another_model_is_refused_with_403(litellm, relay):
    with pytest.raises(litellm.APIError) as caught:
        litellm.completion(
            model="openai/gpt-4o",
            base_url=relay.url,
            api_key=relay.key,
            messages=[{"role": "user", "content": "hello"}],
            max_retries=0,
            num_retries=0,
        )
    assert caught.value.status_code == 403
    assert relay.calls()[0].failure == "model-not-allowed"
