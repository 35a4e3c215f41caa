"""The worker process: imports the agent SDK once and drives one session after another.

`python -m qualify.runner.worker` reads jobs as JSON lines on standard input and answers with JSON
lines on standard output; what libraries print goes to standard error, which the runner sends to a
private log. When its input ends, because the runner closed it or died, the worker ends itself and
the commands that it had started, wherever it stands.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

from qualify.scenarios.contract import Budget, Limits, kind

type Emit = Callable[[dict[str, Any]], None]


def serve(jobs: BinaryIO, answers: BinaryIO) -> None:
    """Answer jobs until the input ends."""
    guard = threading.Lock()

    def emit(message: dict[str, Any]) -> None:
        with guard:
            answers.write(json.dumps(message).encode() + b"\n")
            answers.flush()

    begun = time.monotonic_ns()
    queue = _follow(jobs)
    from qualify.sessions.construction import preload

    preload()
    emit({"event": "ready", "import_ms": (time.monotonic_ns() - begun) // 1_000_000})
    for job in queue:
        try:
            emit({"event": "done", **perform(job, emit)})
        except Exception as error:  # noqa: BLE001  (the worker lives on, the trial is unknown)
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            sys.stderr.flush()
            emit({"event": "broke", "code": "worker-error"})


def _follow(jobs: BinaryIO) -> Iterator[dict[str, Any]]:
    """Read jobs in a thread, so that the end of the input is noticed in the middle of a job."""
    queue: SimpleQueue[dict[str, Any]] = SimpleQueue()

    def read() -> None:
        for line in iter(jobs.readline, b""):
            queue.put(json.loads(line))
        _end()

    threading.Thread(target=read, daemon=True).start()
    return iter(queue.get, None)


def _end() -> None:
    """The runner is gone: end the commands of this process, then the process."""
    for child in _children():
        try:
            os.killpg(child, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    os._exit(0)


def _children() -> list[int]:
    found = []
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in children.read_text().split()]
    return found


def perform(job: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """Drive one session; return its stop reason, its projection's digest and what it counted."""
    from qualify.sessions.owner import Session, SessionSpec

    spec = SessionSpec(**{**job["session"], "readable": tuple(job["session"]["readable"])})
    module = kind(job["kind"])
    steps = 0

    def on_step(tool: str) -> None:
        nonlocal steps
        steps += 1
        emit({"event": "step", "number": steps, "tool": tool})

    begun = time.monotonic_ns()
    with Session(spec, on_step) as session:
        opened = time.monotonic_ns()
        budget = Budget(Limits(**job["limits"]), session)
        stop_reason = module.drive(session, job["prompts"], budget)
        usage = asdict(session.usage())
        fingerprint = session.fingerprint
    return {
        "stop_reason": stop_reason,
        "projection": session.state.digest(),
        "fingerprint": fingerprint,
        "tool_ms": session.tool_ms,
        "usage": usage,
        "open_ms": (opened - begun) // 1_000_000,
        "session_ms": (time.monotonic_ns() - begun) // 1_000_000,
    }


def main() -> None:
    """Serve on the standard streams; keep them from anything that prints."""
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    serve(jobs, answers)


if __name__ == "__main__":
    main()
