"""`qualify doctor` on a small project: every lack has its finding, its fix and exit 10."""

import hashlib
import json
import shutil
import subprocess
import sys
from decimal import Decimal
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner

from qualify.cli import cli
from qualify.runtimes.probe import GpuFacts, GpuState, MachineFacts
from qualify.runtimes.probe_engine import InstalledEngine

REPOSITORY = Path(__file__).resolve().parents[3]
WEIGHTS = b"GGUF" + bytes(3000)
NO_VERSION = "0.0.1"


def manifest(project, kind, name, text):
    folder = project / "manifests" / kind
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.yaml").write_text(f"id: {name}\n{text}")


def row(project, name, **fields):
    base = {
        "runtime": "engine",
        "model": "tiny",
        "platform": "here",
        "precision": "q4",
        "context_tokens": 4096,
        "tool_mode": "prompt",
        "agent": "coder",
    }
    lines = [f"{key}: {value}" for key, value in {**base, **fields}.items() if value is not None]
    manifest(project, "matrix", name, "\n".join(lines) + "\n")


@pytest.fixture
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copytree(REPOSITORY / "locks", folder / "locks")
    version = metadata.version("xllamacpp")
    packages = f'packages:\n  - {{name: xllamacpp, version: "{version}"}}\n'
    launch = "llama_cpp: {}\n"
    manifest(
        folder, "runtimes", "engine", f"engine: llama-cpp\nlock: llama-cpp-cpu\n{packages}{launch}"
    )
    other = packages.replace(version, NO_VERSION)
    manifest(folder, "runtimes", "other-version", f"engine: llama-cpp\nlock: base\n{other}{launch}")
    manifest(folder, "runtimes", "declared", "engine: vllm\ntool_parsers: [hermes]\n")
    endpoint = "url: http://127.0.0.1:9/v1\n  provider: local\n  model_name: m\n"
    key = "  api_key_variable: EXAMPLE_KEY\n"
    manifest(folder, "runtimes", "remote", f"engine: endpoint\nendpoint:\n  {endpoint}{key}")
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    files = f"files:\n  - path: tiny.gguf\n    size: {len(WEIGHTS)}\n    sha256: {digest}\n"
    about = "repository: example/tiny\nformat: gguf\n"
    manifest(folder, "models", "tiny", about + "licence: {spdx: MIT}\n" + files)
    terms = "licence: {spdx: LicenseRef-Terms, approval: explicit}\n"
    manifest(folder, "models", "terms", about + terms + files)
    manifest(folder, "models", "unknown-files", about + "licence: {spdx: MIT}\n")
    manifest(folder, "platforms", "here", "provider: local\narchitecture: x86_64\n")
    manifest(folder, "platforms", "big", "provider: local\narchitecture: aarch64\n")
    gpu = "gpu: {model: T4, count: 1, memory_mib: 16384, compute_capability: 7.5}\n"
    manifest(folder, "platforms", "gpu", f"provider: local\narchitecture: x86_64\n{gpu}")
    agent = "harness: openhands\nlock: agent-openhands\ntools: [{name: finish}]\n"
    limits = "in_context_example: false\nsampling: {}\nlimits: {}\n"
    manifest(folder, "agents", "coder", agent + limits)
    row(folder, "works", context_tokens=2048)
    row(folder, "needs-approval", model="terms")
    row(folder, "no-files", model="unknown-files", context_tokens=1024)
    row(folder, "wrong-machine", platform="big")
    row(folder, "needs-gpu", platform="gpu")
    row(folder, "wrong-version", runtime="other-version")
    row(folder, "declared-only", runtime="declared", tool_parser="hermes")
    row(folder, "remote", runtime="remote", model="unknown-files", tool_mode="native")
    row(folder, "too-many-shards", tensor_parallel=2)
    row(folder, "parser", tool_parser="hermes")
    on_cuda = 'engine: vllm\nlock: base\ncuda: "12.9"\ntool_parsers: [hermes]\nvllm: {}\n'
    manifest(folder, "runtimes", "on-cuda", on_cuda)
    row(folder, "on-cards", runtime="on-cuda", platform="gpu", tool_parser="hermes")
    monkeypatch.setenv("QUALIFY_MODEL_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("QUALIFY_RESULTS", raising=False)
    monkeypatch.delenv("EXAMPLE_KEY", raising=False)
    return folder


@pytest.fixture
def qualify(project):
    def run(*arguments):
        return CliRunner().invoke(
            cli, ["--project", str(project), *arguments], standalone_mode=False
        )

    return run


@pytest.fixture
def acquired(qualify, tmp_path):
    weights = tmp_path / "weights"
    weights.write_bytes(WEIGHTS)
    result = qualify("model", "acquire", "tiny", "--from", str(weights))
    assert result.exception is None
    return next((tmp_path / "store" / "blobs").iterdir())


def findings(result, area):
    document = json.loads(result.stdout)
    return {
        finding["subject"]: finding for finding in document["findings"] if finding["area"] == area
    }


def lacking(result):
    return [f for f in json.loads(result.stdout)["findings"] if f["level"] == "lacking"]


def test_a_healthy_machine_gives_exit_0_and_says_what_was_looked_at(qualify):
    result = qualify("doctor")
    assert result.return_value == 0, result.output
    for word in ("processor", "memory", "GPU", "llama.cpp", "agent SDK", "model store", "results"):
        assert word in result.stdout
    assert "nothing is lacking" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_versions_come_from_metadata_and_no_engine_is_imported(project):
    script = (
        "import sys\nfrom qualify.cli import cli\n"
        f"cli.main(['--project', {str(project)!r}, 'doctor', '--json'], standalone_mode=False)\n"
        "print({'openhands', 'xllamacpp', 'litellm', 'duckdb'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "set()"
    engine = next(f for f in json.loads(done.stdout)["findings"] if f["subject"] == "llama.cpp")
    assert metadata.version("xllamacpp") in engine["text"]


def test_a_row_that_has_everything_can_run_here(qualify, acquired):
    result = qualify("doctor", "works", "--json")
    assert lacking(result) == []
    assert result.return_value == 0
    assert set(findings(result, "row works")) >= {"platform", "runtime", "agent", "model"}
    assert "works can run here" in qualify("doctor", "works").stdout


@pytest.mark.parametrize(
    ("row", "subject", "text", "fix"),
    [
        ("works", "model", "is not acquired", "qualify model acquire tiny"),
        ("needs-approval", "model", "must be approved", "--approve-licence LicenseRef-Terms"),
        ("no-files", "manifest", "the model has no files", "declare"),
        ("wrong-machine", "platform", "declared aarch64", "platform"),
        ("needs-gpu", "platform", "no GPU", "platform"),
        ("wrong-version", "runtime", f"the row needs {NO_VERSION}", "./qualify"),
        ("declared-only", "manifest", "the runtime has no lock", "declare"),
        ("too-many-shards", "admission", "does not split tensors", "tensor_parallel 1"),
        ("parser", "admission", "does not offer the tool parser hermes", "it offers"),
        ("remote", "endpoint", "$EXAMPLE_KEY is not set", "export EXAMPLE_KEY"),
    ],
)
def test_each_lack_of_a_row_has_a_finding_with_its_fix(
    qualify, monkeypatch, row, subject, text, fix
):
    if row == "needs-gpu":
        monkeypatch.setattr("qualify.runtimes.probe.shutil.which", lambda _tool: None)
        monkeypatch.setattr("qualify.runtimes.probe._nvidia_devices", lambda _root: False)
    result = qualify("doctor", row, "--json")
    assert result.return_value == 10
    found = [f for f in lacking(result) if f["subject"] == subject]
    assert any(text in f["text"] for f in found), found
    assert any(fix in f["fix"] for f in found), found
    assert all(f["fix"] for f in lacking(result))


def test_the_key_of_an_endpoint_is_looked_for_and_never_shown(qualify, monkeypatch):
    monkeypatch.setenv("EXAMPLE_KEY", "sk-very-secret")
    result = qualify("doctor", "remote", "--json")
    assert findings(result, "row remote")["endpoint"]["level"] == "ok"
    assert "sk-very-secret" not in result.output


def test_a_truncated_model_is_damaged_and_named_with_sizes(qualify, acquired):
    acquired.chmod(0o644)
    acquired.write_bytes(WEIGHTS[:100])
    result = qualify("doctor", "works", "--json")
    assert result.return_value == 10
    (finding,) = lacking(result)
    assert f"expected {len(WEIGHTS)} bytes, found 100 bytes" in finding["text"]
    assert finding["fix"] == "qualify model acquire tiny"


def test_evidence_in_an_ignored_folder_of_a_checkout_is_warned_about(qualify, project, tmp_path):
    subprocess.run(["git", "init", "--quiet", str(project)], check=True)
    (project / ".gitignore").write_text("/results/*\n")
    assert findings(qualify("doctor", "--json"), "project")["results"]["level"] == "ok"
    (project / "results" / "ledger").mkdir(parents=True)
    (project / "results" / "ledger" / "ledger.log").write_bytes(b"")
    result = qualify("doctor", "--json")
    finding = findings(result, "project")["results"]
    assert (finding["level"], result.return_value) == ("warning", 0)
    assert "git clean" in finding["text"]
    assert "QUALIFY_RESULTS" in finding["fix"]


def test_manifests_with_mistakes_are_a_lack_of_the_project(qualify, project):
    (project / "manifests" / "models" / "tiny.yaml").write_text("id: tiny\n")
    result = qualify("doctor", "--json")
    assert result.return_value == 10
    assert "qualify manifest check" in lacking(result)[0]["fix"]


def test_an_unknown_row_is_a_usage_error_with_a_hint(qualify):
    result = qualify("doctor", "work")
    assert result.exception.exit_code == 2
    assert "did you mean 'works'?" in str(result.exception)


def test_without_a_project_the_machine_is_still_examined(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QUALIFY_PROJECT", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    result = CliRunner().invoke(cli, ["doctor"], standalone_mode=False)
    assert result.return_value == 0, result.output
    assert "no project here" in result.stdout


def machine_with(driver, cuda):
    card = GpuFacts("Tesla T4", 16384, Decimal("7.5"))
    return MachineFacts(
        "x86_64", None, 2, 2, (), 8000, 8000, 9999, GpuState.WORKING, (card,), None, driver, cuda
    )


@pytest.mark.parametrize(
    ("driver", "cuda", "text"),
    [
        ("590.48.01", "13.1", "590.48.01 runs CUDA 12.9 (native)"),
        ("535.154.05", "12.2", "535.154.05 runs CUDA 12.9 (minor-version compatibility)"),
    ],
)
def test_how_the_driver_runs_the_runtimes_cuda_is_said(qualify, monkeypatch, driver, cuda, text):
    here = machine_with(driver, cuda)
    monkeypatch.setattr("qualify.runner.diagnosis.probe_machine", lambda *_: here)
    found = findings(qualify("doctor", "on-cards", "--json"), "row on-cards")
    assert (found["driver"]["level"], found["driver"]["text"]) == ("ok", text)


def test_a_driver_that_is_too_old_here_is_lacking_with_its_fix(qualify, monkeypatch):
    here = machine_with("470.256.02", "11.4")
    monkeypatch.setattr("qualify.runner.diagnosis.probe_machine", lambda *_: here)
    result = qualify("doctor", "on-cards", "--json")
    told = [each for each in lacking(result) if each["subject"] == "admission"]
    (finding,) = (each for each in told if "driver" in each["text"])
    assert "CUDA 12.9 needs driver 525.60.13 or later" in finding["text"]
    assert "update the driver" in finding["fix"]
    assert "driver" not in findings(result, "row on-cards")


def test_the_parsers_of_the_engine_that_is_installed_are_counted_and_asked(qualify, monkeypatch):
    def installed(parsers, remark=None):
        engine = InstalledEngine("vllm", "0.19.1", parsers, remark)
        for place in ("diagnosis", "row_diagnosis"):
            monkeypatch.setattr(f"qualify.runner.{place}.installed_vllm", lambda: engine)
        return qualify("doctor", "on-cards", "--json")

    result = installed(("hermes", "openai"))
    assert findings(result, "engines")["vLLM"]["text"] == "vllm 0.19.1, 2 tool parsers"
    assert [f for f in lacking(result) if f["subject"] == "tool parser"] == []
    (missing,) = (f for f in lacking(installed(("openai",))) if f["subject"] == "tool parser")
    assert "has no tool parser hermes" in missing["text"]
    unread = findings(installed(None, "cannot be parsed"), "engines")["vLLM"]
    assert (unread["level"], "cannot be parsed" in unread["text"]) == ("warning", True)
