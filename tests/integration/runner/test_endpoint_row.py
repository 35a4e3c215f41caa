"""A row on an endpoint that somebody else runs: the record claims only what was observed.

The service behind it is the scripted engine, run by the test as a stranger's server.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from qualify.core.status import EngineKind, TrialOutcome
from qualify.evidence.ledger import Ledger
from qualify.evidence.records import Trial
from qualify.manifests.catalog import Catalog, load_catalog
from qualify.manifests.configuration import resolve
from qualify.runner.progress import Silent
from qualify.runner.run import Request, Result, execute
from qualify.runtimes.engine import Engine, make_engine
from support.forked import fork_worker

ROOT = Path(__file__).parents[3]


@pytest.fixture
def service(catalog: Catalog, tmp_path: Path) -> Iterator[Engine]:
    engine = make_engine(
        resolve(catalog, "scripted-passes-native"),
        model_path=None,
        private=tmp_path,
        startup_budget_s=60,
    )
    engine.start()
    engine.wait_ready()
    yield engine
    engine.stop()


def limit_cost(project: Path, microusd: int) -> None:
    scenario = project / "manifests" / "scenarios" / "append-and-keep.yaml"
    lines = scenario.read_text().splitlines(keepends=True)
    at = lines.index("budgets:\n")
    scenario.write_text(
        "".join([*lines[: at + 1], f"  cost_microusd: {microusd}\n", *lines[at + 1 :]])
    )


def _run(project: Path, results: Path) -> Result:
    return execute(
        load_catalog(project),
        Request("theirs", "acceptance", 1, results),
        Silent(),
        acquire=lambda *_: None,
        verify=lambda *_: None,
        start_worker=fork_worker,
    )


@pytest.fixture
def project(tmp_path: Path, service: Engine) -> Path:
    """The project with a runtime for the service and a row on it."""
    folder = tmp_path / "project"
    for part in ("manifests", "corpora", "locks"):
        shutil.copytree(ROOT / part, folder / part)
    (folder / "manifests" / "runtimes" / "their-service.yaml").write_text(
        f"""id: their-service
engine: endpoint
endpoint:
  url: "{service.base_url}"
  provider: a stranger
  model_name: {service.model_name}
  api_key_variable: THEIR_KEY
  prices:
    prompt_microusd_per_million: 2500000
    completion_microusd_per_million: 10000000
"""
    )
    (folder / "manifests" / "matrix" / "theirs.yaml").write_text(
        """id: theirs
runtime: their-service
model: qwen2.5-coder-1.5b-instruct-q4_k_m
platform: cpu-x86_64
precision: q4_k_m
context_tokens: 16384
tool_mode: native
agent: openhands-native-minimal
suites:
  - acceptance
"""
    )
    return folder


def test_a_trial_on_an_endpoint_passes_and_claims_nothing_that_was_not_observed(
    agent_sdk: None,
    project: Path,
    service: Engine,
    places: Path,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("THEIR_KEY", service.api_key)
    (summary,) = _run(project, places).trials
    assert summary.outcome is TrialOutcome.PASSED
    (record,) = [s.entry for s in ledger.entries() if isinstance(s.entry, Trial)]
    assert record.engine.kind is EngineKind.ENDPOINT
    assert record.engine.remote
    assert record.engine.version is None
    assert record.engine.chat_template is None
    assert record.model is not None
    assert record.model.files is None
    used = record.usage
    assert used.prompt_tokens
    assert used.completion_tokens
    assert used.cost_microusd == -(-(25 * used.prompt_tokens + 100 * used.completion_tokens) // 10)
    assert (record.budgets_exceeded, record.budgets_bind) == ((), "between-steps")
    assert record.client is not None
    assert (record.client.read_at_end, record.client.changed) == (True, ())
    everything = b"".join(p.read_bytes() for p in places.rglob("*") if p.is_file())
    assert service.api_key.encode() not in everything


def test_a_limit_of_the_cost_admits_no_further_step_and_is_judged_again(
    agent_sdk: None,
    project: Path,
    service: Engine,
    places: Path,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("THEIR_KEY", service.api_key)
    limit_cost(project, 1)
    (summary,) = _run(project, places).trials
    assert summary.outcome is not TrialOutcome.PASSED
    (record,) = [s.entry for s in ledger.entries() if isinstance(s.entry, Trial)]
    assert record.stop_reason == "budget-used-up"
    (over,) = record.budgets_exceeded
    assert (over.budget, over.limit, over.used) == ("cost_microusd", 1, record.usage.cost_microusd)


def test_an_endpoint_that_refuses_the_key_is_a_recorded_start_failure(
    agent_sdk: None, project: Path, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIR_KEY", "not-the-key")
    result = _run(project, places)
    assert result.trials == []
    assert result.start_failure is not None
    assert result.start_failure.reason_code == "key-refused"
