"""Which files are looked at: what Git tracks and the results, or what the caller names.

Links are not followed; a link that the caller names is, because it was named.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qualify.core.errors import EnvironmentFault, UsageError


@dataclass(frozen=True)
class Chosen:
    """A file to look at. `shown` is its place as people read it."""

    path: Path
    shown: str
    sort: str
    """`file`, `link`, or why it is left out."""


def tracked(project: Path) -> list[Chosen]:
    """The files of a project that Git tracks; all of them where there is no Git.

    Raises `EnvironmentFault` when Git does not answer.
    """
    if not (project / ".git").exists():
        return list(_walked(project, ""))
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "-C", str(project), "ls-files", "-z", "--cached"],
            capture_output=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError) as error:
        raise EnvironmentFault(
            "Git does not say which files it tracks",
            where=str(project),
            fix="install git, allow this folder with safe.directory, or name folders to scan",
        ) from error
    names = [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
    return [
        chosen for name in names if (chosen := _one(project / name, name, tracked=True)) is not None
    ]


def named(path: Path, project: Path | None) -> list[Chosen]:
    """A file, or every file below a folder. Raises `UsageError` when it cannot be read."""
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise UsageError(
            "there is no such file or folder", where=str(path)[:200], fix="name one that exists"
        ) from error
    shown = _below(real, project)
    if real.is_dir():
        return list(_walked(real, "" if shown == "." else shown))
    chosen = _one(real, shown)
    return [chosen] if chosen is not None else []


def _below(path: Path, project: Path | None) -> str:
    """The path below the project, or from its last folder on."""
    if project is not None and path.is_relative_to(project.resolve()):
        return path.relative_to(project.resolve()).as_posix()
    return path.name or "."


def _one(path: Path, shown: str, *, tracked: bool = False) -> Chosen | None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None  # deleted in the working tree
    except OSError as error:
        return Chosen(path, shown, f"cannot be read ({error.strerror})")
    if stat.S_ISLNK(mode):
        return Chosen(path, shown, "link")
    if stat.S_ISREG(mode):
        return Chosen(path, shown, "file")
    if tracked and stat.S_ISDIR(mode):
        return Chosen(path, shown, "another repository")
    return Chosen(path, shown, "a device, a pipe or a socket")


def _walked(root: Path, shown: str) -> Iterator[Chosen]:
    stack = [(root, shown)]
    while stack:
        folder, place = stack.pop()
        try:
            with os.scandir(folder) as entries:
                ordered = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            yield Chosen(folder, place or ".", f"cannot be read ({error.strerror})")
            continue
        for entry in ordered:
            below = f"{place}/{entry.name}" if place else entry.name
            if entry.is_dir(follow_symlinks=False):
                if entry.name == ".git":
                    yield Chosen(Path(entry.path), below, "the history of a repository")
                else:
                    stack.append((Path(entry.path), below))
            else:
                chosen = _one(Path(entry.path), below)
                if chosen is not None:
                    yield chosen
