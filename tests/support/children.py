"""Run a function in a forked child that may be killed at any moment.

Forking from a process that has imported the agent SDK once saves ten seconds for each child.
"""

from __future__ import annotations

import os
import pickle
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Child:
    """A forked child and what it says at its end."""

    pid: int
    answers: int

    def result(self) -> Any:
        """What the function returned. Raises `AssertionError` with the child's traceback."""
        with os.fdopen(self.answers, "rb") as stream:
            said = stream.read()
        os.waitpid(self.pid, 0)
        assert said, "the child died without a word"
        worked, value = pickle.loads(said)
        assert worked, value
        return value

    def died_of(self) -> int:
        """Wait for the child's end; the signal that ended it (0: none)."""
        os.close(self.answers)
        return os.WTERMSIG(os.waitpid(self.pid, 0)[1])

    def kill(self) -> None:
        """Kill -9."""
        os.kill(self.pid, signal.SIGKILL)
        assert self.died_of() == signal.SIGKILL


def forked(function: Callable[[], Any], log: Path) -> Child:
    """Start `function` in a child; what it prints goes to `log`."""
    answers, ours = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.close(answers)
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            try:
                said = (True, function())
            except BaseException:  # noqa: BLE001 - told to the parent, which raises
                said = (False, traceback.format_exc())
            with os.fdopen(ours, "wb") as stream:
                stream.write(pickle.dumps(said))
        finally:
            os._exit(0)
    os.close(ours)
    return Child(pid, answers)


def until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    """Wait for `condition`; fails after a time that no healthy machine needs."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
