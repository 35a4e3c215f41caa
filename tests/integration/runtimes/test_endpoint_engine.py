"""A declared endpoint: nothing is started, only what it answers is known."""

import pytest

from qualify.core.status import EngineKind
from qualify.runtimes.engine import EngineFault
from support import rows
from support.adversary import Adversary

WHOLE = b'{"choices": [{"message": {"content": "ready"}}]}'


def good(handler, _body):
    handler.answer(200, WHOLE)


def fault_of(engine):
    with pytest.raises(EngineFault) as caught:
        engine.wait_ready()
    assert not engine.alive()
    return caught.value


def test_it_is_ready_when_a_completion_came_back_and_claims_nothing_more(started, monkeypatch):
    monkeypatch.setenv("THEIR_KEY", "k-123")
    with Adversary(good) as service:
        engine = started(rows.endpoint(service.url + "/", api_key_variable="THEIR_KEY"))
        facts = engine.wait_ready()
        assert service.headers[0]["Authorization"] == "Bearer k-123"
        assert service.requests[0]["model"] == "their-model"
    assert (facts.kind, facts.remote) == (EngineKind.ENDPOINT, True)
    assert facts.version is facts.context_tokens_per_slot is facts.chat_template is None
    assert engine.base_url == service.url
    assert engine.alive()


def test_a_key_that_is_not_there_is_told_before_anything_is_sent(started, monkeypatch):
    monkeypatch.delenv("THEIR_KEY", raising=False)
    with Adversary(good) as service:
        with pytest.raises(EngineFault, match=r"\$THEIR_KEY") as caught:
            started(rows.endpoint(service.url, api_key_variable="THEIR_KEY"))
        assert service.paths == []
    assert caught.value.reason_code == "key-missing"


def test_no_key_is_sent_where_none_is_declared(started):
    with Adversary(good) as service:
        started(rows.endpoint(service.url)).wait_ready()
        assert "Authorization" not in service.headers[0]


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        (lambda handler, _: handler.answer(401, b"{}"), "key-refused"),
        (lambda handler, _: handler.answer(404, b"{}"), "no-answer"),
        (lambda handler, _: handler.answer(302, b"", Location="http://127.0.0.1:9/"), "no-answer"),
        (lambda handler, _: handler.answer(200, b"<html>"), "garbage"),
        (lambda handler, _: handler.answer(200, b'{"choices": []}'), "garbage"),
    ],
)
def test_each_failure_has_its_reason_and_names_the_endpoint(started, behaviour, code):
    with Adversary(behaviour) as service:
        fault = fault_of(started(rows.endpoint(service.url)))
        assert fault.reason_code == code
        assert service.url in fault.where
        assert len(service.paths) == 1


def test_an_endpoint_that_is_not_there_is_told(started):
    assert fault_of(started(rows.endpoint("http://127.0.0.1:9/v1"))).reason_code == "no-answer"


def test_an_endpoint_that_hangs_is_given_up_in_time(started):
    import threading

    release = threading.Event()
    with Adversary(lambda _handler, _body: release.wait(30) and None) as service:
        fault = fault_of(started(rows.endpoint(service.url), startup_budget_s=1))
        release.set()
    assert fault.reason_code == "not-ready-in-time"
