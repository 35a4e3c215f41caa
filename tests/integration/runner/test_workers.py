"""The worker at the other end of two pipes: answers, lateness and death are outcomes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qualify.manifests.catalog import Catalog
from qualify.runner.workers import PipedWorker, WorkerDied, WorkerLate
from qualify.sessions.replay import replay
from support.chat import ChatServer, finish, run_command
from support.children import until
from support.forked import fork_worker


@pytest.fixture
def server() -> Iterator[ChatServer]:
    chat = ChatServer()
    yield chat
    chat.close()


@pytest.fixture
def worker(agent_sdk: None, tmp_path: Path) -> Iterator[PipedWorker]:
    (tmp_path / "worker").mkdir()
    found = fork_worker(tmp_path / "worker")
    assert found.wait_ready(60) >= 0
    yield found
    found.stop()
    assert processes_in(tmp_path) == []


@pytest.fixture
def job(catalog: Catalog, server: ChatServer, tmp_path: Path) -> dict[str, Any]:
    """A session that repairs nothing; its commands run without isolation."""
    return {
        "kind": "repair", "prompts": {"repair": "Do it."},
        "limits": {"actions": 9, "model_calls": 9},
        "session": {
            "folder": str(tmp_path / "session"), "session": "0" * 32,
            "agent": catalog.agents["openhands-native-minimal"].model_dump(mode="json"),
            "tool_mode": "native", "base_url": server.url, "api_key": "key-of-the-test",
            "model_name": "model-of-the-test", "isolation": "none", "readable": [],
        },
    }  # fmt: skip


def processes_in(folder: Path) -> list[str]:
    """Processes whose working folder is below `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and folder in (entry / "cwd").readlink().parents:
                found.append(entry.name)
        except OSError:
            continue
    return found


def soon() -> float:
    return time.monotonic() + 60


def test_a_job_is_answered_and_its_steps_are_heard(
    worker: PipedWorker, job: dict[str, Any], server: ChatServer, tmp_path: Path
) -> None:
    server.play(run_command("echo done > effects"), finish())
    heard: list[dict[str, Any]] = []
    answer = worker.perform(job, soon(), heard.append)
    assert (answer["event"], answer["stop_reason"]) == ("done", "completed")
    assert answer["projection"] == replay(tmp_path / "session").projection
    assert [(step["number"], step["tool"]) for step in heard] == [(1, "terminal"), (2, "finish")]


def test_a_job_that_breaks_leaves_the_worker_ready_for_the_next(
    worker: PipedWorker, job: dict[str, Any]
) -> None:
    broken = worker.perform({**job, "kind": "poetry"}, soon(), lambda _: None)
    assert broken == {"event": "broke", "code": "worker-error"}
    assert worker.perform(job, soon(), lambda _: None)["event"] == "done"


def test_a_late_worker_is_stopped_with_the_command_that_it_runs(
    worker: PipedWorker, job: dict[str, Any], server: ChatServer, tmp_path: Path
) -> None:
    server.play(run_command("touch begun; sleep 50; touch late"))
    begun = tmp_path / "session" / "workspace" / "begun"

    def leave_when_it_runs(_step: dict[str, Any]) -> None:
        until(begun.exists)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        worker.perform(job, soon(), leave_when_it_runs)
    with pytest.raises(WorkerLate):
        worker._read(time.monotonic())
    worker.stop()
    until(lambda: processes_in(tmp_path) == [])
    assert not begun.with_name("late").exists()
    assert replay(tmp_path / "session").unknown_effects == 1


def test_a_worker_that_dies_says_so(
    worker: PipedWorker, job: dict[str, Any], server: ChatServer
) -> None:
    server.play(run_command(f"kill -9 {worker._pid}"))
    with pytest.raises(WorkerDied):
        worker.perform(job, soon(), lambda _: None)
    with pytest.raises(WorkerDied):
        worker.perform(job, soon(), lambda _: None)


def test_a_worker_that_is_stopped_twice_is_gone(worker: PipedWorker) -> None:
    worker.stop()
    worker.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(worker._pid, 0)
