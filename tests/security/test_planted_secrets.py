"""Secrets planted in prompts, outputs, files, environment and paths never reach evidence."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from qualify.manifests.catalog import load_catalog
from qualify.runner.progress import Silent
from qualify.runner.run import Request, execute
from qualify.scenarios.checks import disguises
from support.forked import fork_worker

ROOT = Path(__file__).parents[2]
PROMPT = "planted-prompt-5f1d6c0a9b3e"
CONTENT = "planted-content-77aa12de90c4"
ENVIRONMENT = "planted-environment-c0ffee314159"
PLACE = "planted-place-2b7e151628ae"


@pytest.fixture(scope="module")
def agent_sdk() -> None:
    from qualify.sessions.construction import preload

    preload()


def _project_with_secrets(place: Path) -> Path:
    """A copy of the project whose corpus carries secrets in its wording and its file contents."""
    project = place / PLACE
    for part in ("manifests", "corpora", "locks"):
        shutil.copytree(ROOT / part, project / part)
    corpus = project / "corpora" / "acceptance"
    cases = json.loads((corpus / "cases.json").read_text())
    cases["lines"] = [PROMPT]
    cases["existing"] = [[CONTENT]]
    (corpus / "cases.json").write_text(json.dumps(cases))
    card = (corpus / "card.yaml").read_text().splitlines()
    data = (corpus / "cases.json").read_bytes()
    renewed = {"size": str(len(data)), "sha256": f'"{hashlib.sha256(data).hexdigest()}"'}
    lines = []
    for line in card:
        key = line.strip().removeprefix("- ").partition(":")[0]
        lines.append(f"    {key}: {renewed[key]}" if key in renewed else line)
    (corpus / "card.yaml").write_text("\n".join(lines) + "\n")
    return project


def _all_bytes(folder: Path) -> bytes:
    return b"\0".join(
        str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    )


@pytest.mark.parametrize(
    "row", ["scripted-leaks-secret", "scripted-passes-native", "scripted-crashes"]
)
def test_no_planted_secret_is_found_in_any_byte_of_the_results(
    row: str, agent_sdk: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = _project_with_secrets(tmp_path)
    state = tmp_path / PLACE / "state"
    results = tmp_path / PLACE / "results"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.setenv("QUALIFY_TEST_TOKEN", ENVIRONMENT)
    request = Request(row=row, suite="acceptance", trials=1, results=results)
    catalog = load_catalog(project)
    result = execute(
        catalog, request, Silent(), acquire=lambda *_: None, verify=lambda *_: None,
        start_worker=fork_worker,
    )  # fmt: skip
    _follow(catalog, results)
    found = _all_bytes(results)
    (trial,) = result.trials
    workspace = next(state.glob(f"qualify/*/trials/{trial.trial[7:]}/workspace"))
    planted = (workspace / "settings.ini").read_text().split("token = ")[1].strip()
    secrets = [PROMPT, CONTENT, ENVIRONMENT, PLACE, planted]
    assert len(found) > 1000
    for secret in secrets:
        for shape in disguises(secret):
            assert shape not in found, secret
    # The positive control: what was planted really was in reach of the run.
    private = _all_bytes(state)
    assert all(secret.encode() in private for secret in (PROMPT, CONTENT, planted))


def _follow(catalog: object, results: Path) -> None:
    from qualify.evidence.ledger import open_ledger
    from qualify.manifests.catalog import Catalog
    from qualify.manifests.configuration import resolve
    from qualify.results.database import follow
    from qualify.results.projection import declared

    assert isinstance(catalog, Catalog)
    lines = declared([resolve(catalog, row) for row in catalog.rows])
    follow(results, open_ledger(results), lines)


def test_a_command_cannot_read_the_environment_of_the_runner(
    agent_sdk: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("QUALIFY_TEST_TOKEN", ENVIRONMENT)
    request = Request("scripted-leaks-secret", "acceptance", 1, tmp_path / "results")
    execute(
        load_catalog(ROOT), request, Silent(), acquire=lambda *_: None, verify=lambda *_: None,
        start_worker=fork_worker,
    )  # fmt: skip
    events = b"".join(p.read_bytes() for p in (tmp_path / "state").rglob("event-*.json"))
    assert b"PATH=" in events, "the script's `env` must have run"
    assert ENVIRONMENT.encode() not in events
