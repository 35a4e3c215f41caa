"""Advisory file locks between processes (flock).

The kernel releases the lock when its holder dies, however it dies. The lock file says who holds it,
as information only; it stays on disk when the lock is released, because removing it would let two
processes lock two files of one name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from qualify.core.errors import EnvironmentFault


class LockHeld(EnvironmentFault):
    """Somebody else holds the lock; `pid` names the process when it could be read."""

    def __init__(self, path: Path, pid: int | None) -> None:
        who = f"process {pid}" if pid else "another process"
        super().__init__(f"is in use by {who}", where=str(path), fix="wait for it, or stop it")
        self.pid = pid


@contextlib.contextmanager
def file_lock(path: Path, *, shared: bool = False, timeout_s: float | None = 0) -> Iterator[int]:
    """Hold a lock on `path` (created if missing) and yield its file descriptor.

    `timeout_s` 0 fails at once, `None` waits for ever. Raises `LockHeld` or `OSError`.
    The descriptor is not inherited by programs that are started meanwhile.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _acquire(handle, path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, timeout_s)
        if not shared:
            _sign(handle)
        yield handle
    finally:
        os.close(handle)


def _sign(handle: int) -> None:
    """Say who holds the lock. Written only when it is news: the next fsync would wait for it."""
    owner = json.dumps({"pid": os.getpid()}).encode()
    if os.pread(handle, len(owner) + 1, 0) != owner:
        os.pwrite(handle, owner, 0)
        os.ftruncate(handle, len(owner))


def _acquire(handle: int, path: Path, kind: int, timeout_s: float | None) -> None:
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    pause = 0.002
    while True:
        try:
            if deadline is None:
                fcntl.flock(handle, kind)
            else:
                fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
        if deadline is None or time.monotonic() >= deadline:
            raise LockHeld(path, lock_owner(path))
        time.sleep(pause)
        pause = min(pause * 2, 0.1)


def lock_owner(path: Path) -> int | None:
    """Process id that the lock file names (it may be stale), or `None`."""
    try:
        owner = json.loads(path.read_bytes()[:200])["pid"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return owner if isinstance(owner, int) else None


def is_locked(path: Path) -> bool:
    """Tell whether somebody holds the exclusive lock now. A missing file is not locked."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False
