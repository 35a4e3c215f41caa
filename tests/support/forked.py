"""A worker that is forked from a process which has imported the agent SDK once.

The same code as the spawned worker at both ends of the pipes; only the start differs. Kill tests
need it: a fresh import for each of fifty runs would take ten minutes.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from qualify.runner.worker import serve
from qualify.runner.workers import PipedWorker


def fork_worker(private: Path) -> PipedWorker:
    """Fork a worker; its home is in `private`."""
    log = private / "worker.log"
    jobs_read, jobs_write = os.pipe()
    answers_read, answers_write = os.pipe()
    # A signal during the fork would be raised in an at-fork hook, whose exceptions Python drops.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    pid = os.fork()
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    if pid == 0:
        try:
            os.setsid()
            os.close(jobs_write)
            os.close(answers_read)
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            home = private / "home"
            home.mkdir(exist_ok=True)
            os.environ["HOME"] = str(home)
            serve(os.fdopen(jobs_read, "rb"), os.fdopen(answers_write, "wb"))
        finally:
            os._exit(1)
    os.close(jobs_read)
    os.close(answers_write)
    return PipedWorker(pid, jobs_write, answers_read, log)
