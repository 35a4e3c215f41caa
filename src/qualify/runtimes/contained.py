"""Runs an engine's program inside the root of an image, with bubblewrap.

The program sees the image's files read-only, the model's files read-only under `/model`, a private
temporary folder and home, `/proc` of its own processes, `/sys` read-only, the plain devices, and
the caller's network namespace, because the caller asks it on loopback. Nothing else of the machine
is there: no other folder, no other process, no accelerator. It runs as the image's user, without
capabilities.

Every process inside ends with bubblewrap, and bubblewrap with the process group that `processes`
kills. Whether bubblewrap works here is tried out, never assumed.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from qualify.core.errors import EnvironmentFault

USER = 10001
"""User and group inside: those of Qualify's own images."""
HOME = "/home/qualify"
MODEL = "/model"
"""Where the model's files lie inside."""
CODE = "/opt/qualify/src/qualify/runtimes"
"""Where an image of Qualify holds the servers' scripts."""
PYTHON = "/usr/bin/python3"
_OURS = ("proc", "dev", "sys", "tmp", "home", "root", "model", "run", "mnt", "media")
"""Top-level names that the image does not decide."""
_MAX_LINKS = 20
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class ImageRoot:
    """The unpacked, verified root of an image."""

    path: Path
    digest: str
    """Of the image's manifest."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """The variables that the image's configuration sets."""
    labels: Mapping[str, str] = field(default_factory=dict)


def command(
    root: ImageRoot,
    program: Sequence[str],
    *,
    environment: Mapping[str, str],
    readable: Mapping[str, Path],
) -> list[str]:
    """The command line that runs `program` in `root`.

    `environment` is added to the image's own variables and wins over them; `readable` are files and
    folders of the machine by their path inside. Both stand on bubblewrap's command line: no secret
    belongs into them.
    """
    argv = [
        "bwrap",
        *("--unshare-user", "--uid", str(USER), "--gid", str(USER)),
        *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *("--die-with-parent", "--cap-drop", "ALL", "--clearenv"),
        *_image(root.path),
        *("--proc", "/proc", "--dev", "/dev", "--ro-bind", "/sys", "/sys"),
        *("--perms", "1777", "--tmpfs", "/tmp"),  # noqa: S108
        *("--perms", "0700", "--tmpfs", HOME),
    ]
    for inside, path in readable.items():
        argv += ["--ro-bind", str(path.resolve()), inside]
    variables = {
        "PATH": _PATH, **root.environment, "HOME": HOME, "TMPDIR": "/tmp",  # noqa: S108
        "USER": "qualify", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", **environment,
    }  # fmt: skip
    for name, value in variables.items():
        argv += ["--setenv", name, value]
    return [*argv, "--remount-ro", "/", "--chdir", "/tmp", "--", *program]  # noqa: S108


def holds(root: ImageRoot, path: str) -> bool:
    """Whether the image has a file of that absolute path, links followed inside the image."""
    place, links = Path("/"), 0
    left = [part for part in path.split("/") if part]
    while left:
        part = left.pop(0)
        if part == "..":
            place = place.parent
            continue
        real = root.path / (place / part).relative_to("/")
        if not real.is_symlink():
            place = place / part
            continue
        target, links = real.readlink(), links + 1
        if links > _MAX_LINKS:
            return False
        if target.is_absolute():
            place = Path("/")
        left = [each for each in target.parts if each != "/"] + left
    return (root.path / place.relative_to("/")).is_file()


def decided_by_image(path: str) -> bool:
    """Whether the program sees the image's own at this path, which goes through no link."""
    return path.strip("/").partition("/")[0] not in _OURS


def _image(root: Path) -> list[str]:
    options = []
    for entry in sorted(root.iterdir()):
        if entry.name in _OURS:
            continue
        if entry.is_symlink():
            options += ["--symlink", str(entry.readlink()), f"/{entry.name}"]
        else:
            options += ["--ro-bind", str(entry), f"/{entry.name}"]
    return options


@cache
def require_bubblewrap() -> None:
    """Try out what `command` asks for, once. Raises `EnvironmentFault`."""
    fix = "install bubblewrap, and let users make namespaces; or run a row with placement host"
    if shutil.which("bwrap") is None:
        raise EnvironmentFault("an image is run under bubblewrap, which is not installed", fix=fix)
    usr = [*("--ro-bind", "/usr", "/usr"), *_links(("bin", "lib", "lib64"))]
    probe = [
        *("bwrap", "--unshare-user", "--uid", str(USER), "--gid", str(USER), "--unshare-pid"),
        *("--die-with-parent", "--cap-drop", "ALL", *usr, "--proc", "/proc", "--dev", "/dev"),
        *("--", "/usr/bin/true"),
    ]
    try:
        done = subprocess.run(probe, capture_output=True, timeout=20, check=False, text=True)
        said = done.stderr.strip() if done.returncode else ""
        failed = done.returncode != 0
    except (OSError, subprocess.TimeoutExpired) as error:
        failed, said = True, str(error)
    if failed:
        raise EnvironmentFault(f"bubblewrap cannot run an image here: {said[:200]}", fix=fix)


def _links(names: Sequence[str]) -> list[str]:
    options = []
    for name in names:
        place = Path("/") / name
        if place.is_symlink():
            options += ["--symlink", str(place.readlink()), str(place)]
        elif place.is_dir():
            options += ["--ro-bind", str(place), str(place)]
    return options
