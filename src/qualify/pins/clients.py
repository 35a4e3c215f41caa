"""The package clients of this machine: which there are, and running one as a child that ends.

Which index, mirror or depot they ask is the machine's affair: no address is ever given to them.
A client works in a session of its own and dies with this process, however this process dies. Its
output goes to a log; only its last lines are shown, and only when it failed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_TAIL_LINES = 6
_BYTECODE = "PYTHONPYCACHEPREFIX"
_DROPPED = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_REQUIREMENT",
)
# Run by the child before it becomes the client: PR_SET_PDEATHSIG (1) with SIGKILL, and a look
# whether the parent had died before that.
_WITH_PARENT = (
    "import ctypes,os,sys;"
    "ctypes.CDLL(None).prctl(1,9,0,0,0);"
    "os.getppid()==int(sys.argv[1]) or os._exit(1);"
    "os.execvp(sys.argv[2],sys.argv[2:])"
)


class ClientError(Exception):
    """A client ended without delivering; the text is its last lines."""


def pip_commands() -> list[tuple[str, tuple[str, ...]]]:
    """Name and command of each pip of this machine, best first."""
    found: list[tuple[str, tuple[str, ...]]] = []
    if importlib.util.find_spec("pip") is not None:
        found.append(("pip of this Python", (sys.executable, "-P", "-m", "pip")))
    for name in ("pip3", "pip"):
        path = shutil.which(name)
        if path is not None and Path(path).parent != Path(sys.executable).parent:
            found.append((path, (path,)))
            break
    return found


def client_environment(scratch: Path, bytecode: Path) -> dict[str, str]:
    """What a Python client sees: the machine's settings, `scratch` for its temporary files.

    Its own bytecode goes below `bytecode` where compiling it anew would cost each start a second.
    """
    environment = {key: value for key, value in os.environ.items() if key not in _DROPPED}
    if environment.pop("PYTHONDONTWRITEBYTECODE", "") and not environment.get(_BYTECODE):
        environment[_BYTECODE] = str(bytecode)
    return environment | {
        "TMPDIR": str(scratch),
        "PIP_REQUIRE_VIRTUALENV": "0",
        "PIP_REQUIRE_HASHES": "0",
        "UV_PYTHON_DOWNLOADS": "never",
        # What pip does: the best file of all indexes. The digest of what came decides anyway.
        "UV_INDEX_STRATEGY": os.environ.get("UV_INDEX_STRATEGY", "unsafe-best-match"),
        "NO_COLOR": "1",
    }


def run_child(
    command: Sequence[str],
    work: Path,
    environment: Mapping[str, str],
    *,
    watched: Sequence[Path],
    stopped: Callable[[], bool],
    progress: Callable[[int], None],
) -> None:
    """Run `command` in the folder `work` until it ends.

    `progress` is told the bytes in the fullest of the `watched` folders so far. Raises
    `ClientError` when it fails, and early when `stopped()` becomes true.
    """
    log = work / "client.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WITH_PARENT, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=work,
            env=dict(environment),
            start_new_session=True,
        )
    try:
        while True:
            try:
                code = child.wait(timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                progress(max(_bytes_below(folder) for folder in watched))
            if stopped():
                raise ClientError("stopped")
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if code != 0:
        raise ClientError(_last_lines(log) or f"exit code {code}")


def _bytes_below(folder: Path) -> int:
    total = 0
    for place, _, names in folder.walk():
        for name in names:
            with contextlib.suppress(OSError):
                total += (place / name).lstat().st_size
    return total


def _last_lines(log: Path) -> str:
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 8192))
        text = stream.read().decode(errors="replace")
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-_TAIL_LINES:])
