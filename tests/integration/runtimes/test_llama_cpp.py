"""llama.cpp's real server with a real, small model."""

import struct
import time
from pathlib import Path

import pytest

from qualify.core.status import ToolMode
from qualify.manifests.kinds import Package
from qualify.runtimes.asking import Unanswered, ask
from qualify.runtimes.calls import Expectation
from qualify.runtimes.engine import EngineFault, make_engine
from qualify.runtimes.gguf import read_metadata
from qualify.runtimes.llama_cpp import PACKAGE, TEMPLATE_KEY
from qualify.runtimes.relay import Relay
from support import rows

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(300)]

SMALL = {
    "model": {"id": "small", "architecture": {"parameters": 1, "trained_context": 8192}},
    "row": {"context_tokens": 2048},
    "runtime": {"packages": (Package(name=PACKAGE, version="2026.10.11549"),)},
}
SYSTEM = "You are careful. " + " ".join(f"Rule {n}: keep item {n}." for n in range(60))
TOOL = {
    "type": "function",
    "function": {
        "name": "terminal",
        "description": "Run a command",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


def small(**changes):
    """The small model's row; `changes` by manifest kind."""
    return rows.llama_cpp(
        **{name: {**base, **changes.get(name, {})} for name, base in SMALL.items()}
    )


@pytest.fixture(scope="module")
def server(smollm2, tmp_path_factory):
    """One ready engine for the tests that only ask: the engine, its facts."""
    engine = make_engine(
        small(),
        model_path=smollm2,
        private=tmp_path_factory.mktemp("engine"),
        startup_budget_s=120,
    )
    engine.start()
    try:
        yield engine, engine.wait_ready()
    finally:
        engine.stop()


@pytest.fixture
def relay(server):
    engine, _ = server
    with Relay(
        engine.base_url, engine.api_key, Expectation("small"), extras=engine.request_extras
    ) as made:
        yield made


def chat(url, key, messages, **more):
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    body = {"model": "small", "messages": messages, "temperature": 0, "max_tokens": 12, **more}
    return ask(f"{url}/chat/completions", key, body, deadline=time.monotonic() + 120)


def fault_of(engine):
    with pytest.raises(EngineFault) as caught:
        engine.wait_ready()
    assert not engine.alive()
    return caught.value


def test_its_facts_are_read_back(server, smollm2):
    _, facts = server
    assert facts.version == "2026.10.11549"
    assert facts.build == "xllamacpp-64fbe0fe7c40"
    assert (facts.context_tokens_per_slot, facts.slots) == (2048, 1)
    assert facts.chat_template is not None
    assert facts.chat_template.startswith("sha256:")
    assert facts.start_ms > 0
    assert read_metadata(smollm2, {TEMPLATE_KEY})


def test_its_key_stands_in_no_place_that_others_read(server):
    engine, _ = server
    child = engine._child
    for path in (Path(f"/proc/{child.pid}/cmdline"), Path(f"/proc/{child.pid}/environ"), child.log):
        assert engine.api_key.encode() not in path.read_bytes()


def test_nothing_but_health_is_answered_without_the_key(server):
    engine, _ = server
    root = engine.base_url.removesuffix("/v1")
    for path in ("/v1/models", "/props", "/slots", "/metrics"):
        with pytest.raises(Unanswered):
            ask(f"{root}{path}", "wrong", deadline=time.monotonic() + 30)


def test_the_log_holds_no_prompt_and_no_answer(server):
    engine, _ = server
    answer = chat(engine.base_url, engine.api_key, "The password is swordfish-4711.")
    log = engine._child.log.read_text()
    assert "swordfish" not in log
    assert answer["choices"][0]["message"]["content"][:20] not in log


def test_the_relay_gives_what_the_server_gives(server, relay):
    engine, _ = server
    question = "Name three colours."
    chat(engine.base_url, engine.api_key, question)
    whole = chat(engine.base_url, engine.api_key, question)
    relayed = chat(relay.url, relay.key, question)
    same = ("object", "model", "system_fingerprint", "choices", "usage")
    assert {name: relayed[name] for name in same} == {name: whole[name] for name in same}
    assert set(relayed) == set(whole)
    (call,) = relay.since(0)
    assert call.spent.completion_tokens == whole["usage"]["completion_tokens"]
    assert call.spent.generation_ms is not None
    assert 0 < call.first_token_ms <= call.total_ms


def test_a_grammar_reaches_the_server(relay):
    answer = chat(relay.url, relay.key, "Say anything.", grammar='root ::= "blue-" [0-9]')
    content = answer["choices"][0]["message"]["content"]
    assert content[:5] == "blue-"
    assert content[5:].isdigit()
    assert relay.since(0)[0].asked.tool_mode is ToolMode.PROMPT


def test_a_request_with_tools_is_answered_alike_through_the_relay(server, relay):
    engine, _ = server
    more = {"tools": [TOOL], "tool_choice": "auto", "max_tokens": 24}
    whole = chat(engine.base_url, engine.api_key, "List the files.", **more)
    relayed = chat(relay.url, relay.key, "List the files.", **more)
    assert relayed["choices"] == whole["choices"]
    assert relay.since(0)[0].asked.tool_mode is ToolMode.NATIVE


def test_an_error_of_the_server_passes_with_its_words(relay):
    with pytest.raises(Unanswered) as caught:
        chat(relay.url, relay.key, "word " * 4000)
    assert caught.value.status == 400
    assert relay.since(0)[0].failure == "engine-error"


def test_a_question_in_between_does_not_cost_the_long_prompt_again(server):
    engine, _ = server

    def cached(messages):
        answer = chat(engine.base_url, engine.api_key, messages)
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def long(task):
        return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task}]

    cached(long("First task."))
    cached("A short question of its own.")
    assert cached(long("Second task.")) > 400


@pytest.mark.parametrize(
    ("code", "configuration"),
    [
        ("wrong-context", small(row={"context_tokens": 16384})),
        ("wrong-context", small(row={"context_tokens": 2000})),
        ("wrong-version", small(runtime={"packages": (Package(name=PACKAGE, version="1.0"),)})),
        ("wrong-parser", small(row={"tool_parser": "hermes"})),
    ],
)
def test_what_is_not_as_the_row_says_is_a_fault(started, smollm2, code, configuration):
    assert fault_of(started(configuration, model_path=smollm2)).reason_code == code


def test_two_slots_have_the_rows_context_each(started, smollm2):
    facts = started(small(row={"slots": 2, "context_tokens": 512}), model_path=smollm2).wait_ready()
    assert (facts.slots, facts.context_tokens_per_slot) == (2, 512)


def test_a_model_that_is_not_there_is_told_at_once(started, tmp_path):
    for path in (None, tmp_path / "missing.gguf", tmp_path):
        with pytest.raises(EngineFault) as caught:
            started(small(), model_path=path)
        assert caught.value.reason_code == "model-missing"


@pytest.mark.parametrize("size", [0, 100, 90_000_000])
def test_a_truncated_model_is_a_fault(started, smollm2, tmp_path, size):
    path = tmp_path / "cut.gguf"
    with smollm2.open("rb") as stream:
        path.write_bytes(stream.read(size))
    assert fault_of(started(small(), model_path=path)).reason_code == "load-failed"


def test_a_model_that_is_no_model_is_a_fault(started, tmp_path):
    path = tmp_path / "text.gguf"
    path.write_bytes(b"once upon a time " * 1000)
    assert fault_of(started(small(), model_path=path)).reason_code == "load-failed"


def without_template(model, folder):
    """A copy of `model` whose chat template is not found: its key is renamed in place."""
    data = model.read_bytes()
    key = struct.pack("<Q", len(TEMPLATE_KEY)) + TEMPLATE_KEY.encode()
    assert data.count(key) == 1
    path = folder / "bare.gguf"
    path.write_bytes(data.replace(key, key[:-1] + b"X"))
    return path


def test_a_model_without_a_template_is_refused_where_one_is_required(started, smollm2, tmp_path):
    bare = without_template(smollm2, tmp_path)
    assert fault_of(started(small(), model_path=bare)).reason_code == "no-chat-template"


def test_a_model_without_a_template_may_run_where_the_row_says_so(
    started, smollm2, tmp_path, server
):
    bare = without_template(smollm2, tmp_path)
    lenient = small(runtime={"llama_cpp": {"chat_template_required": False}})
    facts = started(lenient, model_path=bare).wait_ready()
    assert facts.chat_template not in (None, server[1].chat_template)


def test_a_template_that_is_not_the_models_own_is_a_fault(started, smollm2, tmp_path):
    """The server's template is compared with the file that the row verified, not with its word."""
    engine = started(small(), model_path=without_template(smollm2, tmp_path))
    engine._model_path = smollm2
    assert fault_of(engine).reason_code == "template-substituted"


def test_a_budget_that_is_too_short_is_a_fault_and_leaves_nothing(started, smollm2):
    engine = started(small(), model_path=smollm2, startup_budget_s=0)
    pid = engine._child.pid
    assert fault_of(engine).reason_code == "not-ready-in-time"
    assert not Path(f"/proc/{pid}").exists()


def test_progress_says_how_much_of_a_long_prompt_is_read(server):
    engine, _ = server
    heard = []
    with Relay(
        engine.base_url,
        engine.api_key,
        Expectation("small"),
        extras=engine.request_extras,
        on_activity=heard.append,
    ) as relay:
        words = " ".join(f"item {n}" for n in range(400))
        chat(relay.url, relay.key, words)
    reading = [activity for activity in heard if activity.phase == "reading"]
    assert reading
    assert reading[-1].prompt_done == reading[-1].prompt_total
    assert heard[-1].phase == "done"
