"""Folders that appear whole or not at all.

A folder is filled beside its target, under a hidden name, and renamed into place when everything in
it is written. A process that fails removes what it filled; what a killed process left is removed by
the next one that fills the same target. While a folder is being filled its holder has a lock on
it, so that nobody takes it for a leftover.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from qualify.core.errors import EnvironmentFault, UsageError
from qualify.storage.folders import fsync_folder

_MARK = ".partial-"


@contextlib.contextmanager
def staged_folder(target: Path) -> Iterator[Path]:
    """Yield a folder to fill (mode 0755); it becomes `target` when the block ends without an error.

    An empty folder at `target` is replaced. Raises `UsageError` when anything else is there or its
    parent is no folder, `EnvironmentFault` when the place cannot be written.
    """
    target = target.absolute()
    _require_free(target)
    _remove_leftovers(target)
    try:
        staging, handle = _locked_folder(target)
    except OSError as error:
        raise _unwritable(target.parent, error) from error
    try:
        yield staging
        fsync_folder(staging)
        _publish(staging, target)
    finally:
        os.close(handle)
        shutil.rmtree(staging, ignore_errors=True)


class ScratchFolder:
    """A private folder for as long as its maker lives.

    What a killed maker left is removed by the next one that asks with the same prefix.
    """

    def __init__(self, prefix: str, parent: Path) -> None:
        """Make `<parent>/<prefix>…` (mode 0700). Raises `OSError`."""
        _remove_unlocked(path for path in parent.glob(f"{prefix}*") if _is_mine(path))
        self.path, self._handle = _new_locked_folder(prefix, parent)

    def remove(self) -> None:
        """Remove it with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._handle)


def _is_mine(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False


def _locked_folder(target: Path) -> tuple[Path, int]:
    """A new folder beside `target` and the descriptor that holds its lock."""
    staging, handle = _new_locked_folder(_prefix(target), target.parent)
    staging.chmod(0o755)
    return staging, handle


def _new_locked_folder(prefix: str, parent: Path) -> tuple[Path, int]:
    while True:
        staging = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(staging, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(handle, fcntl.LOCK_EX)
            # Somebody may have taken it for a leftover before it was locked.
            if os.fstat(handle).st_nlink:
                return staging, handle
            os.close(handle)


def _prefix(target: Path) -> str:
    return f".{target.name[:100]}{_MARK}"


def _require_free(target: Path) -> None:
    if not target.parent.is_dir():
        raise UsageError("is no folder", where=str(target.parent), fix="make it first")
    if target.is_symlink() or (target.exists() and not _is_empty_folder(target)):
        raise UsageError(
            "is there already", where=str(target), fix="name a new folder, or remove this one"
        )


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and next(path.iterdir(), None) is None


def _remove_leftovers(target: Path) -> None:
    _remove_unlocked(target.parent.glob(f"{_escaped(_prefix(target))}*"))


def _remove_unlocked(paths: Iterable[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
            finally:
                os.close(handle)


def _escaped(text: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in text)


def _publish(staging: Path, target: Path) -> None:
    try:
        staging.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise UsageError(
                "was made by another process meanwhile", where=str(target), fix="look at it first"
            ) from error
        raise _unwritable(target, error) from error
    fsync_folder(target.parent)


def _unwritable(place: Path, error: OSError) -> EnvironmentFault:
    return EnvironmentFault(
        f"cannot be written: {error.strerror or error}",
        where=str(place),
        fix="check its permissions and the free space",
    )
