"""The launcher of the engine images: lists rows, plans one, serves one, and ends it cleanly."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qualify.manifests.configuration import resolve
from qualify.runtimes import launcher
from qualify.runtimes.asking import Unanswered, ask

ROOT = Path(__file__).parents[3]


def environment(**more):
    return {**os.environ, launcher.PROJECT_VARIABLE: str(ROOT), **more}


def run(*arguments, **more):
    return subprocess.run(
        [sys.executable, "-P", "-m", "qualify.runtimes.launcher", *arguments],
        env=environment(**more), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_it_tells_its_version_and_the_engines_beside_it():
    said = run("--version")
    assert said.returncode == 0
    assert "qualify 0." in said.stdout
    assert "xllamacpp" in said.stdout


def test_it_lists_the_rows_that_can_be_served_here_and_all_on_request(catalog):
    here = [line.split("\t")[0] for line in run("rows").stdout.splitlines()]
    assert "cpu-qwen2.5-coder-1.5b" in here
    assert "cpu-fixture-vllm" not in here  # its engine is not installed beside the tests
    everything = run("rows", "--all").stdout.splitlines()
    assert {line.split("\t")[0] for line in everything} == set(catalog.rows)
    digests = {line.split("\t")[0]: line.split("\t")[3] for line in everything}
    assert digests["cpu-fixture-vllm"] == resolve(catalog, "cpu-fixture-vllm").digest


def test_a_plan_says_the_same_as_the_command_of_the_runner(catalog):
    from dataclasses import asdict

    from qualify.runtimes.plan import launch_plan

    said = run("plan", "cpu-fixture-vllm")
    assert said.returncode == 0, said.stderr
    plan = json.loads(said.stdout)["plan"]
    made = asdict(launch_plan(resolve(catalog, "cpu-fixture-vllm"), []))
    assert plan == json.loads(json.dumps(made, default=str))
    assert run("plan", "l40s-qwen3-coder-30b-fp8-cu130").returncode == 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("plan", "cpu-fixture-vlm"), "cpu-fixture-vllm"),
        (("serve", "cpu-fixture-vllm", "--model", "/nowhere"), "not installed here"),
        (("serve", "cpu-smollm2-135m", "--model", "/nowhere"), "cannot be read"),
        (("serve", "cpu-smollm2-135m", "--model", __file__), "is not the file"),
    ],
)
def test_what_cannot_be_served_ends_with_one_error(arguments, said):
    ended = run(*arguments)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_project_that_is_not_there_is_told():
    ended = run("rows", **{launcher.PROJECT_VARIABLE: "/nowhere"})
    assert ended.returncode == 2
    assert "/nowhere" in ended.stderr


@pytest.mark.real_model
def test_it_serves_with_a_given_key_and_ends_with_everything_on_sigterm(smollm2, tmp_path):
    (tmp_path / "key").write_text("a-key-of-ours\n")
    server = subprocess.Popen(
        [sys.executable, "-P", "-m", "qualify.runtimes.launcher", "serve", "cpu-smollm2-135m",
         "--model", str(smollm2), "--key-file", str(tmp_path / "key")],
        env=environment(TMPDIR=str(tmp_path)), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        told = json.loads(server.stdout.readline())
        assert told["facts"]["version"]
        assert "a-key-of-ours" not in json.dumps(told)
        deadline = __import__("time").monotonic() + 30
        assert ask(f"{told['address']}/models", "a-key-of-ours", deadline=deadline)["data"]
        with pytest.raises(Unanswered) as refusal:
            ask(f"{told['address']}/models", "another", deadline=deadline)
        assert refusal.value.status == 401
    finally:
        server.send_signal(signal.SIGTERM)
        code = server.wait(30)
    assert code == 128 + signal.SIGTERM
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key"]
    with pytest.raises(Unanswered):
        ask(f"{told['address']}/models", "a-key-of-ours", deadline=deadline)


@pytest.mark.parametrize("content", ["", "\n", "two\nlines", "\x00", "ä"])
def test_a_key_that_is_none_is_refused(tmp_path, content):
    from qualify.core.errors import UsageError

    (tmp_path / "key").write_text(content)
    with pytest.raises(UsageError):
        launcher._key(tmp_path / "key", tmp_path)


def test_a_key_that_nobody_gave_is_random_and_private(tmp_path):
    key, place = launcher._key(None, tmp_path)
    assert len(key) >= 32
    assert place.read_text() == key
    assert place.stat().st_mode & 0o777 == 0o600


def test_models_are_hashed_when_asked_for(catalog, tmp_path):
    import shutil

    from qualify.core.errors import UsageError

    configuration = resolve(catalog, "cpu-fixture-vllm")
    folder = shutil.copytree(ROOT / "tests/fixtures/models/fixture-tools", tmp_path / "model")
    launcher.require_files(configuration, folder, hashed=True)
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    launcher.require_files(configuration, folder, hashed=False)
    with pytest.raises(UsageError, match=r"model\.safetensors"):
        launcher.require_files(configuration, folder, hashed=True)
