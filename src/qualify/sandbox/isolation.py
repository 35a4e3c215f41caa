"""Isolation of tool commands with bubblewrap, proven by a marker that only the inside can make.

Where bubblewrap works, a command sees the system read-only, its workspace, home and temporary
folder writable, no network interface but an own loopback, and no other process. Where it does not,
commands run plainly and the record says `none`: nothing here pretends.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/alternatives", "/etc/ld.so.cache",
           "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/localtime")  # fmt: skip


@dataclass(frozen=True)
class Isolation:
    """What commands run under. `readable` folders are visible read-only besides the system."""

    kind: Literal["none", "bubblewrap"]
    readable: tuple[Path, ...] = ()

    def wrap(
        self,
        argv: list[str],
        *,
        workspace: Path,
        home: Path,
        temporary: Path,
        environment: Mapping[str, str],
        status: int | None = None,
    ) -> list[str]:
        """The command line that runs `argv` in `workspace` under this isolation.

        Under bubblewrap the command gets exactly `environment`; under `none` the caller must give
        it to the process itself. `status` is a file descriptor on which bubblewrap says how the
        command ended (see `witnessed`).
        """
        if self.kind == "none":
            return argv
        options = _bubblewrap(self.readable, workspace, home, temporary)
        for name, value in environment.items():
            options += ["--setenv", name, value]
        if status is not None:
            options += ["--json-status-fd", str(status)]
        return [*options, "--chdir", str(workspace), "--", *argv]


def witnessed(status: bytes) -> bool:
    """Whether bubblewrap saw the command itself end. False: the inside was never set up."""
    return b'"exit-code"' in status


def _bubblewrap(
    readable: tuple[Path, ...], workspace: Path, home: Path, temporary: Path
) -> list[str]:
    options = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"]
    for place in _SYSTEM:
        if Path(place).is_symlink():
            options += ["--symlink", str(Path(place).readlink()), place]
        elif Path(place).exists():
            options += ["--ro-bind", place, place]
    options += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]  # noqa: S108
    for folder in readable:
        options += ["--ro-bind", str(folder), str(folder)]
    for folder in (workspace, home, temporary):
        options += ["--bind", str(folder), str(folder)]
    return options


@cache
def available(readable: tuple[Path, ...] = ()) -> Isolation:
    """The strongest isolation that this machine really gives, tried out once.

    The probe runs inside: it writes a marker of this start, lists its network interfaces and tries
    to write outside its folders. Only a start that left the marker, saw no interface but loopback
    and reached nothing outside counts.
    """
    if shutil.which("bwrap") is None:
        return Isolation("none")
    candidate = Isolation("bubblewrap", readable)
    with tempfile.TemporaryDirectory(prefix="qualify-probe-") as name:
        base = Path(name)
        folders = {part: base / part for part in ("workspace", "home", "tmp")}
        for folder in folders.values():
            folder.mkdir()
        marker = secrets.token_hex(16)
        script = f'echo {marker} > proof; cat /proc/net/dev > interfaces; echo x > "{base}/outside"'
        argv = candidate.wrap(
            ["/bin/sh", "-c", script],
            workspace=folders["workspace"],
            home=folders["home"],
            temporary=folders["tmp"],
            environment={"PATH": "/usr/bin:/bin"},
        )
        try:
            subprocess.run(
                argv, timeout=20, capture_output=True, check=False, cwd=folders["workspace"]
            )
            proof = (folders["workspace"] / "proof").read_text().strip()
            interfaces = (folders["workspace"] / "interfaces").read_text()
        except (OSError, subprocess.TimeoutExpired):
            return Isolation("none")
        names = {line.split(":")[0].strip() for line in interfaces.splitlines() if ":" in line}
        if proof != marker or names - {"lo"} or (base / "outside").exists():
            return Isolation("none")
    return candidate
