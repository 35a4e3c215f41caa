"""The scripted engine as a process, alone and behind the relay."""

import http.client
import json
import time

import pytest

from qualify.core.status import EngineKind
from qualify.runtimes.asking import Unanswered, ask
from qualify.runtimes.calls import Expectation
from qualify.runtimes.relay import Relay
from support import rows

TOOLS = [{"type": "function", "function": {"name": "terminal", "parameters": {}}}]
CALL = {"tool": "terminal", "arguments": {"command": "ls {file}"}}
CAPTURES = {"file": r"([a-z]+\.txt)"}


def chat(url, key, content="list notes.txt", timeout_s=30, **more):
    body = {"model": "scripted", "messages": [{"role": "user", "content": content}], **more}
    return ask(f"{url}/chat/completions", key, body, deadline=time.monotonic() + timeout_s)


def ready(started, *replies, **options):
    engine = started(rows.scripted(list(replies), **options))
    facts = engine.wait_ready()
    assert facts.kind is EngineKind.SCRIPTED
    return engine


def test_it_answers_in_both_tool_modes(started):
    engine = ready(started, {"calls": [CALL, CALL]}, captures=CAPTURES)
    native = chat(engine.base_url, engine.api_key, tools=TOOLS)
    calls = native["choices"][0]["message"]["tool_calls"]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [
        {"command": "ls notes.txt"}
    ] * 2
    written = chat(engine.base_url, engine.api_key)
    assert written["choices"][0]["message"]["content"] == (
        "<function=terminal>\n<parameter=command>ls notes.txt</parameter>\n</function>"
    )
    assert written["usage"]["prompt_tokens"] == 4


@pytest.mark.parametrize("tools", [[], TOOLS])
def test_the_relay_gives_exactly_what_the_engine_would_have_said(started, tools):
    engine = ready(started, {"text": "Well, ", "calls": [CALL, CALL]}, captures=CAPTURES)
    with Relay(engine.base_url, engine.api_key, Expectation("scripted")) as relay:
        for _ in range(2):
            direct = chat(engine.base_url, engine.api_key, tools=tools)
            relayed = chat(relay.url, relay.key, tools=tools)
            assert relayed | {"id": ""} == direct | {"id": ""}


def test_the_readiness_completion_is_no_part_of_the_script(started):
    engine = ready(started, {"when_turn": 0, "text": "first"})
    assert chat(engine.base_url, engine.api_key)["choices"][0]["message"]["content"] == "first"


def test_without_the_key_it_answers_nobody(started):
    engine = ready(started, {"text": "a"})
    for path in ("chat/completions", "models"):
        body = {"messages": []} if path.startswith("chat") else None
        with pytest.raises(Unanswered) as caught:
            ask(f"{engine.base_url}/{path}", "wrong", body, deadline=time.monotonic() + 30)
        assert caught.value.status == 401
    listed = ask(f"{engine.base_url}/models", engine.api_key, deadline=time.monotonic() + 30)
    assert listed["data"][0]["id"] == "scripted"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_scripted_status_is_answered_and_passes_the_relay(started, status):
    engine = ready(started, {"status": status, "text": "busy"})
    with Relay(engine.base_url, engine.api_key, Expectation("scripted")) as relay:
        with pytest.raises(Unanswered) as caught:
            chat(relay.url, relay.key)
        assert caught.value.status == status
        assert relay.calls()[0].failure == "engine-error"


@pytest.mark.parametrize(
    ("fault", "failure"), [("garbage", "garbage"), ("disconnect", "disconnected")]
)
def test_a_scripted_fault_is_a_failed_call_and_the_engine_lives_on(started, fault, failure):
    engine = ready(started, {"when_message": "break", "fault": fault}, {"text": "fine"})
    with Relay(engine.base_url, engine.api_key, Expectation("scripted")) as relay:
        with pytest.raises(Unanswered):
            chat(relay.url, relay.key, "break")
        assert relay.since(0)[0].failure == failure
        assert engine.alive()
        assert chat(relay.url, relay.key)["choices"][0]["message"]["content"] == "fine"


def test_a_scripted_exit_ends_the_engine_and_it_can_be_started_again(started):
    engine = ready(started, {"when_message": "break", "fault": "exit"}, {"text": "fine"})
    with Relay(engine.base_url, engine.api_key, Expectation("scripted")) as relay:
        with pytest.raises(Unanswered):
            chat(relay.url, relay.key, "break")
        deadline = time.monotonic() + 20
        while engine.alive():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        engine.stop()
        engine.start()
        engine.wait_ready()
        relay.retarget(engine.base_url, engine.api_key)
        assert chat(relay.url, relay.key)["choices"][0]["message"]["content"] == "fine"


def test_a_scripted_hang_lasts_until_the_client_gives_up(started):
    engine = ready(started, {"when_message": "wait", "fault": "hang"}, {"text": "fine"})
    with Relay(engine.base_url, engine.api_key, Expectation("scripted")) as relay:
        with pytest.raises(Unanswered, match="timeout"):
            chat(relay.url, relay.key, "wait", timeout_s=0.5)
        assert relay.since(0)[0].failure == "client-gone"
        assert chat(relay.url, relay.key)["choices"][0]["message"]["content"] == "fine"


def test_a_delay_is_waited_for(started):
    engine = ready(started, {"delay_ms": 300, "text": "late"})
    with Relay(engine.base_url, engine.api_key, Expectation("scripted")) as relay:
        chat(relay.url, relay.key)
        assert relay.calls()[0].first_token_ms >= 300


@pytest.mark.parametrize("body", [b"[]", b"not json", b'{"model": "other", "messages": []}'])
def test_a_request_that_makes_no_sense_is_refused(started, body):
    engine = ready(started, {"text": "a"})
    host = engine.base_url.removeprefix("http://").removesuffix("/v1")
    connection = http.client.HTTPConnection(host, timeout=30)
    headers = {"Authorization": f"Bearer {engine.api_key}"}
    connection.request("POST", "/v1/chat/completions", body, headers)
    assert connection.getresponse().status == 400
    connection.close()
