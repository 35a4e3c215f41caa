"""The package clients of this machine, as fetchers of one exact wheel.

Tried in order: pip of this Python, pip of another Python on PATH, uv. Packages are never installed,
built or run: pip delivers the wheel as it is, uv unpacks it into a folder of ours. How a client is
run stands in `qualify.pins.clients`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qualify.manifests.kinds import PackagePart
from qualify.pins.clients import ClientError, client_environment, pip_commands, run_child

__all__ = ["Client", "ClientError", "available_clients", "run_client"]


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


def available_clients() -> tuple[Client, ...]:
    """The clients that this machine has, best first."""
    found = [Client(name, (*command, "download")) for name, command in pip_commands()]
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
    run_child(
        client.arguments(part, target),
        work,
        # Bytecode lies beside the parts, where the next client finds it.
        client_environment(scratch, bytecode=scratch.parents[2] / "bytecode"),
        watched=(scratch, target),
        stopped=stopped,
        progress=progress,
    )
    return target
