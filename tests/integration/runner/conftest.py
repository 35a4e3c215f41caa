"""Runs of scripted rows on the real agent SDK, imported once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qualify.assessment.matrix import collect
from qualify.assessment.rules import Assessment
from qualify.assessment.rules import assess as judge
from qualify.core.clock import Clock
from qualify.evidence.ledger import Ledger, open_ledger
from qualify.manifests.catalog import Catalog, load_catalog
from qualify.runner.progress import Silent
from qualify.runner.run import Request, Result, execute
from support import commands
from support.commands import Ended
from support.forked import fork_worker
from support.scripted_project import write_project

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def agent_sdk() -> None:
    """The agent SDK, imported in this process so that forks have it."""
    from qualify.sessions.construction import preload

    preload()


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results and private store in a folder of the test's own; returns the results folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "results"


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return load_catalog(ROOT)


type Run = Callable[..., Result]


@pytest.fixture
def run(agent_sdk: None, places: Path, catalog: Catalog) -> Run:
    """`run(row, trials=1)` runs a scripted row with a forked worker."""

    def start(row: str, trials: int = 1, suite: str = "acceptance", **options: Any) -> Result:
        request = Request(row=row, suite=suite, trials=trials, results=places, **options)
        return execute(
            catalog, request, Silent(), acquire=lambda *_: None, verify=lambda *_: None,
            start_worker=fork_worker,
        )  # fmt: skip

    return start


@pytest.fixture
def ledger(places: Path) -> Ledger:
    return open_ledger(places)


@pytest.fixture
def verdict(catalog: Catalog, ledger: Ledger) -> Callable[[Result], Assessment]:
    """The assessment that the project's policy gives after a run."""

    def assess(result: Result) -> Assessment:
        return judge(
            result.configuration.row.id, result.configuration.digest, result.suite,
            collect(ledger.entries(), ledger.is_running), catalog.policy("release"), Clock().now(),
        )  # fmt: skip

    return assess


type Qualify = Callable[..., Ended]


@pytest.fixture
def qualify(agent_sdk: None, places: Path, tmp_path: Path) -> Qualify:
    """`qualify("run", "double", …)` is the command line; evidence goes to `places`."""

    def start(*arguments: str, wait: bool = True, **options: Any) -> Any:
        environment = {"QUALIFY_RESULTS": str(places), **options.pop("environment", {})}
        options = {"folder": tmp_path / "said", "cwd": tmp_path, **options}
        command = commands.start(*arguments, environment=environment, **options)
        return command.wait() if wait else command

    return start


@pytest.fixture
def project(tmp_path: Path) -> Callable[..., Path]:
    """`project(replies, budgets=…)` writes a project with the row `double`."""
    return lambda *options, **named: write_project(tmp_path / "project", *options, **named)
