"""The runner's end of the worker: start it, give it jobs, hear of its steps, stop it.

A worker that dies or does not answer is an outcome (`worker-died`, `deadline`), not an exception of
the run. The worker runs in a process group of its own and with an environment of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from qualify.core.errors import EnvironmentFault
from qualify.sessions.environment import worker_environment

type OnEvent = Callable[[dict[str, Any]], None]


class WorkerDied(Exception):
    """The worker ended without an answer."""


class WorkerLate(Exception):
    """No answer before the deadline."""


class Worker(Protocol):
    """A process that drives sessions."""

    def wait_ready(self, timeout_s: float) -> int:
        """Milliseconds that its imports took. Raises `EnvironmentFault`."""

    def perform(self, job: dict[str, Any], deadline: float, on_event: OnEvent) -> dict[str, Any]:
        """Run a job until `deadline` (`time.monotonic` seconds).

        Raises `WorkerDied` or `WorkerLate`; after either, the worker must be stopped.
        """

    def stop(self) -> None:
        """End the worker and its process group. Idempotent."""


class PipedWorker:
    """A worker at the other end of two pipes, however its process came to be."""

    def __init__(self, pid: int, jobs: int, answers: int, log: Path) -> None:
        self._pid, self._jobs, self._answers, self._log = pid, jobs, answers, log
        self._buffer = b""
        self._stopped = False

    def wait_ready(self, timeout_s: float) -> int:
        """Milliseconds that its imports took. Raises `EnvironmentFault`."""
        try:
            message = self._read(time.monotonic() + timeout_s)
        except (WorkerDied, WorkerLate) as error:
            raise EnvironmentFault(
                "the agent's worker process did not start",
                where=str(self._log),
                fix="read this log; `qualify doctor` says whether the agent SDK is installed",
            ) from error
        return int(message["import_ms"])

    def perform(self, job: dict[str, Any], deadline: float, on_event: OnEvent) -> dict[str, Any]:
        """Run a job; see `Worker`."""
        try:
            _write_all(self._jobs, json.dumps(job).encode() + b"\n")
        except BrokenPipeError as error:
            raise WorkerDied from error
        while True:
            message = self._read(deadline)
            if message["event"] in ("done", "broke"):
                return message
            on_event(message)

    def _read(self, deadline: float) -> dict[str, Any]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._answers, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise WorkerLate
                if selector.select(min(left, 0.5)):
                    chunk = os.read(self._answers, 65536)
                    if not chunk:
                        raise WorkerDied
                    self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message

    def stop(self) -> None:
        """End the worker and its process group. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        for handle in (self._jobs, self._answers):
            with contextlib.suppress(OSError):
                os.close(handle)
        gone = False
        try:
            gone = self._gone(2.0)
        finally:
            # An interruption of the wait still ends the worker.
            if not gone:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._pid, signal.SIGKILL)
                self._gone(10.0)

    def _gone(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                if os.waitpid(self._pid, os.WNOHANG)[0]:
                    return True
            except ChildProcessError:
                return True
            time.sleep(0.01)
        return False


def spawn_worker(private: Path, extra_environment: dict[str, str] | None = None) -> PipedWorker:
    """Start a worker with its home and log in `private`. Returns at once."""
    home = private / "home"
    home.mkdir(mode=0o700, exist_ok=True)
    log = private / "worker.log"
    jobs_read, jobs_write = os.pipe()
    answers_read, answers_write = os.pipe()
    with log.open("ab") as stream:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "qualify.runner.worker"],
            stdin=jobs_read,
            stdout=answers_write,
            stderr=stream,
            env=worker_environment(home) | (extra_environment or {}),
            start_new_session=True,
        )
    os.close(jobs_read)
    os.close(answers_write)
    # The exit status is collected by process id; keep Popen from warning about it.
    process.returncode = 0
    return PipedWorker(process.pid, jobs_write, answers_read, log)


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
