"""The package clients of this machine, as fetchers of one exact wheel.

Which index, mirror or depot they ask is the machine's affair: no address is ever given to them.
Tried in order: pip of this Python, pip of another Python on PATH, uv. Packages are never installed,
built or run: pip delivers the wheel as it is, uv unpacks it into a folder of ours.

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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qualify.manifests.kinds import PackagePart

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


@dataclass(frozen=True)
class Client:
    """A program that fetches a wheel. `unpacks` tells that it leaves the wheel's members."""

    name: str
    command: tuple[str, ...]
    unpacks: bool = False

    def arguments(self, part: PackagePart, target: Path) -> list[str]:
        """The whole command that fetches `part` into the folder `target`."""
        wanted = f"{part.package}=={part.version}"
        if self.unpacks:
            options = [
                "--no-deps",
                "--no-build",
                "--no-cache",
                "--link-mode",
                "copy",
                "--no-progress",
            ]
            return [*self.command, *options, "--target", str(target), "--", wanted]
        options = ["--no-deps", "--no-cache-dir", "--only-binary=:all:", "--no-input"]
        quiet = ["--disable-pip-version-check", "--progress-bar=off"]
        return [*self.command, *options, *quiet, "--dest", str(target), "--", wanted]


class ClientError(Exception):
    """A client ended without delivering; the text is its last lines."""


def available_clients() -> tuple[Client, ...]:
    """The clients that this machine has, best first."""
    found = []
    if importlib.util.find_spec("pip") is not None:
        command = (sys.executable, "-P", "-m", "pip", "download")
        found.append(Client("pip of this Python", command))
    for name in ("pip3", "pip"):
        path = shutil.which(name)
        if path is not None and Path(path).parent != Path(sys.executable).parent:
            found.append(Client(path, (path, "download")))
            break
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.is_file() else shutil.which("uv")
    if uv is not None:
        command = (uv, "pip", "install", "--python", sys.executable)
        found.append(Client("uv", command, unpacks=True))
    return tuple(found)


def run_client(
    client: Client,
    part: PackagePart,
    work: Path,
    *,
    stopped: Callable[[], bool],
    progress: Callable[[int], None],
) -> Path:
    """Fetch `part` with `client` into the empty folder `work` and return the folder of what came.

    `progress` is told the bytes on disk so far. Raises `ClientError`; returns early with it when
    `stopped()` becomes true.
    """
    target, scratch = work / "target", work / "scratch"
    target.mkdir()
    scratch.mkdir()
    log = work / "client.log"
    with log.open("wb") as output:
        child = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", "-c", _WITH_PARENT, str(os.getpid())),
                *client.arguments(part, target),
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=work,
            env=_environment(scratch),
            start_new_session=True,
        )
    try:
        while True:
            try:
                code = child.wait(timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                progress(max(_bytes_below(scratch), _bytes_below(target)))
            if stopped():
                raise ClientError("stopped")
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if code != 0:
        raise ClientError(_last_lines(log) or f"exit code {code}")
    return target


def _environment(scratch: Path) -> dict[str, str]:
    environment = {key: value for key, value in os.environ.items() if key not in _DROPPED}
    if environment.pop("PYTHONDONTWRITEBYTECODE", "") and not environment.get(_BYTECODE):
        # Compiling pip costs a second of each start: its bytecode may lie beside the parts.
        environment[_BYTECODE] = str(scratch.parents[2] / "bytecode")
    return environment | {
        "TMPDIR": str(scratch),
        "PIP_REQUIRE_VIRTUALENV": "0",
        "PIP_REQUIRE_HASHES": "0",
        "UV_PYTHON_DOWNLOADS": "never",
        # What pip does: the best file of all indexes. The assembled file's digest decides anyway.
        "UV_INDEX_STRATEGY": os.environ.get("UV_INDEX_STRATEGY", "unsafe-best-match"),
        "NO_COLOR": "1",
    }


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
