"""The whole command line in a forked process that may get signals at any moment.

`./qualify` itself, with its signal handlers, exit codes and both output streams; only the import of
the agent SDK is saved, because the process is forked from one that has imported it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.forked import fork_worker


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit code (minus the signal that killed it) and what it printed."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """Standard output as one JSON document."""
        value: dict[str, Any] = json.loads(self.out, parse_constant=_not_json)
        return value


def _not_json(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


@dataclass
class Command:
    """A running command."""

    pid: int
    folder: Path
    started: float

    def signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal to the process, or as a terminal does to its whole group."""
        if group:
            os.killpg(self.pid, number)
        else:
            os.kill(self.pid, number)

    def said(self) -> str:
        """What it has written to standard error so far."""
        return (self.folder / f"{self.pid}.err").read_text(errors="replace")

    def until_said(self, text: str, timeout_s: float = 60) -> None:
        """Wait for a text on standard error."""
        deadline = time.monotonic() + timeout_s
        while text not in self.said():
            assert time.monotonic() < deadline, f"never said {text!r} but:\n{self.said()}"
            assert os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None, (
                f"ended without saying {text!r} but:\n{self.said()}"
            )
            time.sleep(0.005)

    def wait(self, timeout_s: float = 90) -> Ended:
        """Wait for its end."""
        deadline = time.monotonic() + timeout_s
        while True:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                break
            if time.monotonic() > deadline:
                os.killpg(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise AssertionError(f"did not end; it said:\n{self.said()}")
            time.sleep(0.005)
        out = (self.folder / f"{self.pid}.out").read_text(errors="surrogateescape")
        return Ended(os.waitstatus_to_exitcode(status), out, self.said())


def start(
    *arguments: str,
    folder: Path,
    cwd: Path | None = None,
    environment: Mapping[str, str | None] | None = None,
    before: Callable[[], object] | None = None,
    after: Callable[[], object] | None = None,
    forked_worker: bool = True,
) -> Command:
    """Start `qualify ARGUMENTS`; its streams go to files below `folder`.

    `environment` changes variables (`None` removes one); in the child, `before` runs first and
    `after` last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        for suffix in ("out", "err"):
            (folder / f"{pid}.{suffix}").touch()
        return Command(pid, folder, time.monotonic())
    try:
        _become(arguments, folder, cwd, environment or {}, before, forked_worker)
    except SystemExit as request:
        if after is not None:
            after()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(request.code if isinstance(request.code, int) else 1)
    except BaseException:  # noqa: BLE001 - the child must not go on as a second pytest
        import traceback

        traceback.print_exc()
    finally:
        os._exit(99)
    raise AssertionError


def run(*arguments: str, timeout_s: float = 90, **options: Any) -> Ended:
    """Start a command and wait for its end."""
    return start(*arguments, **options).wait(timeout_s)


def _become(
    arguments: tuple[str, ...],
    folder: Path,
    cwd: Path | None,
    environment: Mapping[str, str | None],
    before: Callable[[], object] | None,
    forked_worker: bool,
) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, suffix in ((1, "out"), (2, "err")):
        path = folder / f"{os.getpid()}.{suffix}"
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if cwd is not None:
        os.chdir(cwd)
    if before is not None:
        before()
    from qualify.cli import main
    from qualify.runner.run import execute

    if forked_worker:
        assert execute.__kwdefaults__ is not None
        execute.__kwdefaults__["start_worker"] = fork_worker
    sys.argv = ["qualify", *arguments]
    main()


def processes_using(place: Path) -> dict[int, str]:
    """Processes other than this one that work in `place` or hold a file of it open."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            links = [entry / "cwd", *(entry / "fd").iterdir()]
            targets = [link.readlink() for link in links if link.is_symlink()]
            if any(place == target or place in target.parents for target in targets):
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    return found


def nobody_left(place: Path, timeout_s: float = 20) -> dict[int, str]:
    """Wait until nobody uses `place`; who still does after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while (left := processes_using(place)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left
