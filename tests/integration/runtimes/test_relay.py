"""The relay between real HTTP clients and real or misbehaving HTTP engines."""

import http.client
import json
import socket
import threading
import time
from urllib.parse import urlsplit

import pytest

from qualify.core.status import ToolMode
from qualify.runtimes.asking import Unanswered, ask
from qualify.runtimes.calls import Expectation, Spent
from qualify.runtimes.relay import Relay
from support.adversary import END, GOOD, USAGE, Adversary, chunk, event

MESSAGES = [{"role": "user", "content": "hello"}]
EXPECTED = Expectation("m", ToolMode.PROMPT, 0)


def post(url, key, body, path="/chat/completions", method="POST"):
    """Status, headers and bytes of one request."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        connection.request(method, parts.path + path, raw, headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read()
    finally:
        connection.close()


def asked(**changes):
    return {
        "model": "m",
        "messages": MESSAGES,
        "temperature": 0,
        "grammar": "root ::= x",
        **changes,
    }


def through(behaviour, body=None, **options):
    """One call through a relay: status, parsed answer, the call, the engine."""
    with (
        Adversary(behaviour) as engine,
        Relay(engine.url, "engine-key", EXPECTED, **options) as relay,
    ):
        status, _, content = post(relay.url, relay.key, body or asked())
        calls = relay.since(0)
        return status, json.loads(content), calls[0], engine


def good(handler, _body):
    handler.stream(GOOD)


def test_one_answer_is_put_together_from_the_engines_stream():
    status, answer, call, engine = through(good)
    assert status == 200
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "hello"}
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"] == USAGE
    assert engine.requests[0]["stream"] is True
    assert engine.requests[0]["stream_options"] == {"include_usage": True}
    assert (call.ok, call.spent) == (True, Spent(5, None, 2))
    assert 0 <= call.first_token_ms <= call.total_ms


def test_every_field_of_the_request_reaches_the_engine():
    body = asked(grammar="root ::= y", cache_prompt=True, seed=3, logit_bias={"1": 2})
    _, _, call, engine = through(good, body, extras={"return_progress": True})
    sent = engine.requests[0]
    assert {name: sent[name] for name in body} == body
    assert sent["return_progress"] is True
    assert call.asked.tool_mode is ToolMode.PROMPT
    assert call.violations == ()


def test_the_engine_gets_its_own_key_and_none_of_the_clients_headers():
    _, _, _, engine = through(good)
    assert engine.headers[0]["Authorization"] == "Bearer engine-key"
    assert engine.paths == ["/v1/chat/completions"]


def test_what_a_request_says_other_than_expected_is_recorded_and_passed_on():
    status, _, call, engine = through(good, asked(temperature=0.7, tools=[{"type": "function"}]))
    assert status == 200
    assert call.violations == ("other-tool-mode", "other-temperature")
    assert call.asked.temperature_milli == 700
    assert len(engine.requests) == 1


def test_another_model_is_refused_recorded_and_never_sent():
    status, answer, call, engine = through(good, asked(model="gpt-4"))
    assert status == 403
    assert answer["error"]["code"] == "model-not-allowed"
    assert (call.ok, call.failure, call.model_matches) == (False, "model-not-allowed", False)
    assert engine.requests == []


def test_a_direct_question_is_counted_apart_and_needs_no_tool_mode():
    with Adversary(good) as engine, Relay(engine.url, "", EXPECTED) as relay:
        post(relay.direct_url, relay.key, {"model": "m", "messages": MESSAGES, "temperature": 0})
        (call,) = relay.calls()
    assert (call.kind, call.violations) == ("direct", ())
    assert "Authorization" not in engine.headers[0]


@pytest.mark.parametrize("key", ["", "wrong", "Bearer"])
def test_without_the_key_nothing_passes_and_nothing_is_counted(key):
    with Adversary(good) as engine, Relay(engine.url, "", EXPECTED) as relay:
        status, _, _ = post(relay.url, key, asked())
        assert status == 401
        assert (relay.calls(), relay.refused, engine.requests) == ((), 1, [])
        assert post(relay.url, relay.key, asked())[0] == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/completions"),
        ("POST", "/embeddings"),
        ("GET", "/chat/completions"),
        ("GET", "/../props"),
        ("DELETE", "/models"),
        ("POST", "/chat/completions/x"),
    ],
)
def test_no_other_path_reaches_the_engine(method, path):
    with Adversary(good) as engine, Relay(engine.url, "", EXPECTED) as relay:
        status, _, _ = post(relay.url, relay.key, asked(), path, method)
        assert status in (404, 405)
        assert engine.paths == []


def test_only_the_allowed_model_is_listed():
    with Adversary(good) as engine, Relay(engine.url, "", EXPECTED) as relay:
        answer = ask(f"{relay.url}/models", relay.key, deadline=time.monotonic() + 30)
        assert [entry["id"] for entry in answer["data"]] == ["m"]
        assert engine.paths == []


@pytest.mark.parametrize("body", [b"not json", b"[1]", b"\xff\xfe"])
def test_a_body_that_is_no_object_is_refused(body):
    with Adversary(good) as engine, Relay(engine.url, "", EXPECTED) as relay:
        status, _, _ = post(relay.url, relay.key, body)
        assert status == 400
        assert relay.calls()[0].failure == "bad-request"
        assert engine.requests == []


def test_a_body_that_is_too_large_is_refused():
    with Adversary(good) as engine, Relay(engine.url, "", EXPECTED) as relay:
        status, _, _ = post(relay.url, relay.key, asked(filler="x" * (33 << 20)))
        assert status == 413
        assert relay.calls()[0].failure == "body-too-large"
        assert engine.requests == []


# ── engines that misbehave ───────────────────────────────────────────────────────────────────────


def redirect(handler, _body):
    handler.answer(307, b"", Location="http://127.0.0.1:9/elsewhere")


def refuses(handler, _body):
    handler.answer(429, b'{"error": {"message": "slow down"}}', Retry_After="7")


def error_in_stream(handler, _body):
    handler.stream(event({"error": {"code": 503, "message": "loading"}}))


def error_without_code(handler, _body):
    handler.stream(chunk("he"), event({"error": "broken"}))


def garbage(handler, _body):
    handler.stream(b"data: {not json\n\n")


def garbage_whole(handler, _body):
    handler.answer(200, b"\x00\xff{]not json")


def no_completion(handler, _body):
    handler.answer(200, b'{"hello": 1}')


def truncated(handler, _body):
    handler.stream(chunk("he"))


def empty(handler, _body):
    handler.stream()


def nothing_but_done(handler, _body):
    handler.stream(END)


def short_body(handler, _body):
    handler.answer(200, b'{"choices"', Content_Length="9999")


def closes(handler, _body):
    handler.connection.shutdown(socket.SHUT_RDWR)


def no_http(handler, _body):
    handler.wfile.write(b"SSH-2.0-x\r\n\r\n")


@pytest.mark.parametrize(
    ("behaviour", "status", "failure"),
    [
        (redirect, 502, "redirect-refused"),
        (refuses, 429, "engine-error"),
        (error_in_stream, 503, "engine-error"),
        (error_without_code, 502, "engine-error"),
        (garbage, 502, "garbage"),
        (garbage_whole, 502, "garbage"),
        (no_completion, 502, "garbage"),
        (truncated, 502, "truncated"),
        (empty, 502, "truncated"),
        (nothing_but_done, 502, "truncated"),
        (short_body, 502, "disconnected"),
        (closes, 502, "disconnected"),
        (no_http, 502, "garbage"),
    ],
)
def test_each_misbehaviour_is_an_error_with_its_reason(behaviour, status, failure):
    found, answer, call, _ = through(behaviour)
    assert found == call.status == status
    assert (call.ok, call.failure) == (False, failure)
    assert "error" in answer


def test_a_providers_error_passes_with_its_words_and_its_advice():
    with Adversary(refuses) as engine, Relay(engine.url, "", EXPECTED) as relay:
        status, headers, content = post(relay.url, relay.key, asked())
    assert (status, headers["Retry-After"]) == (429, "7")
    assert json.loads(content)["error"]["message"] == "slow down"


def test_an_engine_that_is_not_there_is_an_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        with Relay(url, "", EXPECTED) as relay:
            status, _, _ = post(relay.url, relay.key, asked())
            assert (status, relay.calls()[0].failure) == (502, "no-connection")


def test_an_engine_that_hangs_is_given_up_in_time():
    release = threading.Event()
    with (
        Adversary(lambda _handler, _body: release.wait(30) and None) as engine,
        Relay(engine.url, "", EXPECTED, timeout_s=0.3) as relay,
    ):
        status, _, _ = post(relay.url, relay.key, asked())
        release.set()
        assert (status, relay.calls()[0].failure) == (504, "timeout")


def test_an_engine_that_does_not_stream_passes_as_it_is():
    whole = {"id": "z", "choices": [{"message": {"content": "hi"}}], "usage": USAGE, "odd": [1]}

    def whole_answer(handler, _body):
        handler.answer(200, json.dumps(whole).encode())

    status, answer, call, _ = through(whole_answer)
    assert (status, answer) == (200, whole)
    assert call.spent.completion_tokens == 2
    assert call.first_token_ms is None


# ── streams ──────────────────────────────────────────────────────────────────────────────────────


def events_of(content):
    return [line[6:] for line in content.decode().split("\n") if line.startswith("data: ")]


def test_a_client_that_asked_for_a_stream_gets_one_without_what_only_we_asked_for():
    progress = event({"choices": [], "prompt_progress": {"total": 9, "processed": 3}})

    def streams(handler, _body):
        handler.stream(progress, GOOD)

    with Adversary(streams) as engine, Relay(engine.url, "", EXPECTED) as relay:
        _, _, content = post(relay.url, relay.key, asked(stream=True))
        (call,) = relay.since(0)
    events = events_of(content)
    assert events[-1] == "[DONE]"
    assert all(json.loads(e)["choices"] for e in events[:-1])
    assert (call.ok, call.spent.completion_tokens) == (True, 2)


def test_a_client_that_asked_for_usage_gets_it():
    with Adversary(good) as engine, Relay(engine.url, "", EXPECTED) as relay:
        body = asked(stream=True, stream_options={"include_usage": True})
        _, _, content = post(relay.url, relay.key, body)
    assert json.loads(events_of(content)[-2])["usage"] == USAGE


def test_a_stream_that_breaks_is_broken_for_the_client_too():
    with Adversary(truncated) as engine, Relay(engine.url, "", EXPECTED) as relay:
        with pytest.raises((http.client.HTTPException, OSError)):
            post(relay.url, relay.key, asked(stream=True))
        (call,) = relay.since(0)
    assert (call.ok, call.failure) == (False, "truncated")


def test_a_stream_that_never_begins_is_a_plain_error():
    with Adversary(error_in_stream) as engine, Relay(engine.url, "", EXPECTED) as relay:
        status, _, _ = post(relay.url, relay.key, asked(stream=True))
    assert status == 503


# ── accounting ───────────────────────────────────────────────────────────────────────────────────


def test_progress_is_told_while_the_engine_works():
    heard = []
    progress = event({"choices": [], "prompt_progress": {"total": 9, "processed": 3}})

    def streams(handler, _body):
        handler.stream(progress, chunk("he"), chunk("llo"), chunk(None, "stop"), END, pause_s=0.15)

    through(streams, on_activity=heard.append)
    phases = [activity.phase for activity in heard]
    assert phases[:2] == ["waiting", "reading"]
    assert "writing" in phases
    assert phases[-1] == "done"
    assert (heard[1].prompt_done, heard[1].prompt_total) == (3, 9)
    assert heard[-1].completion_tokens == 2


def test_a_mark_separates_the_calls_of_two_trials():
    with Adversary(good) as engine, Relay(engine.url, "", EXPECTED) as relay:
        post(relay.url, relay.key, asked())
        mark = relay.mark()
        post(relay.url, relay.key, asked(temperature=1))
        assert [call.asked.temperature_milli for call in relay.since(mark)] == [1000]
        assert len(relay.calls()) == 2


def test_a_client_that_goes_away_stops_the_engine_and_is_recorded():
    def endless(handler, _body):
        handler.stream(*[chunk("x" * 1000)] * 2000, pause_s=0.01)

    with Adversary(endless) as engine, Relay(engine.url, "", EXPECTED) as relay:
        parts = urlsplit(relay.url)
        connection = http.client.HTTPConnection(parts.hostname, parts.port)
        headers = {"Authorization": f"Bearer {relay.key}"}
        connection.request("POST", "/v1/chat/completions", json.dumps(asked()), headers)
        while not engine.requests:
            time.sleep(0.01)
        connection.close()
        assert relay.settle(20)
        (call,) = relay.calls()
        assert (call.failure, call.status) == ("client-gone", 499)
        assert engine.broken_off.wait(20)


def test_calls_at_once_are_all_counted():
    with Adversary(good) as engine, Relay(engine.url, "", EXPECTED) as relay:
        threads = [
            threading.Thread(target=post, args=(relay.url, relay.key, asked())) for _ in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(relay.since(0)) == 12
        assert all(call.ok for call in relay.calls())


def test_a_restarted_engine_is_found_under_its_new_address():
    with Adversary(good) as new, Relay("http://127.0.0.1:9/v1", "", EXPECTED) as relay:
        assert post(relay.url, relay.key, asked())[0] == 502
        relay.retarget(new.url, "new-key")
        assert post(relay.url, relay.key, asked())[0] == 200
        assert new.headers[0]["Authorization"] == "Bearer new-key"


def test_a_stopped_relay_answers_nobody():
    with Adversary(good) as engine:
        relay = Relay(engine.url, "", EXPECTED)
        url, key = relay.start()
        assert post(url, key, asked())[0] == 200
        relay.stop()
        relay.stop()
        with pytest.raises(Unanswered, match="no-connection"):
            ask(f"{url}/models", key, deadline=time.monotonic() + 5)


def test_stopping_breaks_off_a_call_at_work():
    release = threading.Event()
    with Adversary(lambda _h, _b: release.wait(30) and None) as engine:
        relay = Relay(engine.url, "", EXPECTED)
        url, key = relay.start()
        ended = []

        def client_call():
            try:
                ended.append(post(url, key, asked())[0])
            except (OSError, http.client.HTTPException):
                ended.append(0)

        client = threading.Thread(target=client_call, daemon=True)
        client.start()
        while not engine.requests:
            time.sleep(0.01)
        relay.stop()
        release.set()
        client.join(20)
        assert ended != [200]
        assert [call.ok for call in relay.calls()] == [False]
