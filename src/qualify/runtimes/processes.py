"""Child processes that leave nothing behind.

A child runs in a session and process group of its own, writes its output into a private log, gets
its instructions (keys among them) through an anonymous file on standard input, never on its command
line or in its environment, and reports back through a pipe. Starting one never blocks. It ends with
its parent on every path: `stop` on success and error, Ctrl-C and SIGTERM through the caller's
`finally`, and the kernel itself when the parent is killed (see `watched`).

Nothing here knows what a child does.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

_WATCHED = Path(__file__).with_name("watched.py")
_INHERITED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "TZ")
ENVIRONMENT = (*_INHERITED, "HOME", "TMPDIR")
"""Names of what a child finds in its environment when its engine adds nothing."""
_MESSAGE_LIMIT = 1 << 20
_LOG_TAIL = 2000

_watch_ends: set[int] = set()


def _forget_watch_ends() -> None:
    # A forked copy of the parent would keep children alive that are not its own.
    for handle in _watch_ends:
        with contextlib.suppress(OSError):
            os.close(handle)
    _watch_ends.clear()


os.register_at_fork(after_in_child=_forget_watch_ends)


@dataclass(frozen=True)
class Ended:
    """How a child ended: `code` is its exit code, or minus the number of the signal."""

    code: int

    def __str__(self) -> str:
        if self.code >= 0:
            return f"exit code {self.code}"
        with contextlib.suppress(ValueError):
            return signal.Signals(-self.code).name
        return f"signal {-self.code}"


class Child:
    """One running child process. Made by `spawn`."""

    def __init__(
        self, process: subprocess.Popen[bytes], watch: int, report: int, log: Path
    ) -> None:
        self.pid = process.pid
        self.log = log
        self._process = process
        self._watch = watch
        self._report = report
        self._report_open = True
        self._exit_handle = os.pidfd_open(process.pid)
        self._buffer = b""
        self._stopped: Ended | None = None

    def ended(self) -> Ended | None:
        """How it ended, or `None` while it runs. Not reaped yet, so its group id stays its own."""
        if self._stopped is not None:
            return self._stopped
        info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return None
        killed = info.si_code in (os.CLD_KILLED, os.CLD_DUMPED)
        return Ended(-info.si_status if killed else info.si_status)

    def message(self, deadline: float) -> dict[str, Any] | None:
        """The child's next report, or `None` when it ended or `time.monotonic()` passed `deadline`.

        Anything that is not a JSON object on one line of at most 1 MiB counts as
        `{"fault": "garbage"}`.
        """
        while b"\n" not in self._buffer:
            if len(self._buffer) > _MESSAGE_LIMIT:
                return {"fault": "garbage"}
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not self._report_open:
                return None
            poll = select.poll()
            poll.register(self._report, select.POLLIN | select.POLLHUP)
            if not poll.poll(remaining * 1000):
                return None
            data = os.read(self._report, 65536)
            self._report_open = bool(data)
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        try:
            value = json.loads(line)
        except ValueError:
            return {"fault": "garbage"}
        return value if isinstance(value, dict) else {"fault": "garbage"}

    def wait(self, timeout_s: float) -> Ended | None:
        """Wait until it ends, at most `timeout_s` seconds."""
        if self._stopped is None:
            poll = select.poll()
            poll.register(self._exit_handle, select.POLLIN)
            poll.poll(max(0.0, timeout_s) * 1000)
        return self.ended()

    def network(self) -> Literal["open", "loopback-only"] | None:
        """Whether its network namespace has an interface besides loopback; `None`: it is gone."""
        try:
            lines = Path(f"/proc/{self.pid}/net/dev").read_text().splitlines()
        except OSError:
            return None
        names = {line.split(":")[0].strip() for line in lines if ":" in line}
        return "open" if names - {"lo"} else "loopback-only"

    def log_tail(self, limit: int = _LOG_TAIL) -> str:
        """The last `limit` bytes of its log, for a person's eyes; empty when there is none."""
        try:
            with self.log.open("rb") as stream:
                size = stream.seek(0, os.SEEK_END)
                stream.seek(max(0, size - limit))
                return stream.read().decode("utf-8", "replace").strip()
        except OSError:
            return ""

    def stop(self, grace_s: float = 5.0) -> None:
        """End the whole process group: SIGTERM, at most `grace_s` seconds, SIGKILL. Idempotent.

        An interruption while it waits still kills the group before it goes on.
        """
        if self._stopped is not None:
            return
        try:
            self._signal(signal.SIGTERM)
            self.wait(grace_s)
        finally:
            self._signal(signal.SIGKILL)
            self._stopped = self._reap()
            self._close()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _reap(self) -> Ended:
        code = self._process.wait()
        # Members of the group other than the leader are init's children by now; they have been
        # sent SIGKILL and need a moment to go.
        limit = time.monotonic() + 5
        while time.monotonic() < limit:
            try:
                os.killpg(self.pid, 0)
            except (ProcessLookupError, PermissionError):
                break
            time.sleep(0.005)
        return Ended(code)

    def _close(self) -> None:
        _watch_ends.discard(self._watch)
        for handle in (self._watch, self._report, self._exit_handle):
            with contextlib.suppress(OSError):
                os.close(handle)


def spawn(
    program: Sequence[str],
    *,
    instructions: Mapping[str, Any],
    log: Path,
    home: Path,
    environment: Mapping[str, str] | None = None,
    interpreter: str = sys.executable,
) -> Child:
    """Start `program` (a script of ours ending in `.py`, or a command) and return at once.

    The child finds `instructions` as JSON on its standard input, with `report`: the descriptor to
    write JSON lines to. Its environment holds an allow-list, `home` as HOME and TMPDIR, and
    `environment`. `log` must not exist. Raises `OSError` when it cannot be started.
    """
    log_handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    watch_read, watch_write = os.pipe()
    report_read, report_write = os.pipe()
    stdin = os.memfd_create("instructions", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(stdin), "wb") as stream:
            stream.write(json.dumps({**instructions, "report": report_write}).encode())
        os.lseek(stdin, 0, os.SEEK_SET)
        process = subprocess.Popen(
            [interpreter, *_options(), str(_WATCHED), str(watch_read), *program],
            stdin=stdin,
            stdout=log_handle,
            stderr=log_handle,
            env=child_environment(home, environment or {}),
            cwd=home,
            pass_fds=(watch_read, report_write),
            start_new_session=True,
        )
        _watch_ends.add(watch_write)
        return Child(process, watch_write, report_read, log)
    except BaseException:
        os.close(watch_write)
        os.close(report_read)
        raise
    finally:
        for handle in (log_handle, watch_read, report_write, stdin):
            os.close(handle)


def _options() -> list[str]:
    """Isolated mode ignores PYTHON* variables, so where bytecode lies is said again."""
    prefix = sys.pycache_prefix
    return ["-I", "-X", "utf8", *(["-X", f"pycache_prefix={prefix}"] if prefix else [])]


def child_environment(home: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """What a child finds in its environment: an allow-list, HOME and TMPDIR, and `extra`."""
    kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {**kept, "HOME": str(home), "TMPDIR": str(home), **extra}
