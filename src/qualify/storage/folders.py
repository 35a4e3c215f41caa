"""Private folders, the XDG places, and durable writes.

A private folder is owned by the current user and closed to everybody else (0700). Writes through
`write_atomic` are either wholly there after a crash or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path

from qualify.core.errors import EnvironmentFault


def xdg_state_home() -> Path:
    """`$XDG_STATE_HOME/qualify`, by default `~/.local/state/qualify`."""
    return _xdg("XDG_STATE_HOME", ".local/state")


def xdg_data_home() -> Path:
    """`$XDG_DATA_HOME/qualify`, by default `~/.local/share/qualify`."""
    return _xdg("XDG_DATA_HOME", ".local/share")


def xdg_cache_home() -> Path:
    """`$XDG_CACHE_HOME/qualify`, by default `~/.cache/qualify`."""
    return _xdg("XDG_CACHE_HOME", ".cache")


def xdg_config_home() -> Path:
    """`$XDG_CONFIG_HOME/qualify`, by default `~/.config/qualify`."""
    return _xdg("XDG_CONFIG_HOME", ".config")


def _xdg(variable: str, default: str) -> Path:
    value = os.environ.get(variable, "")
    # The base-directory specification says that relative values are to be ignored.
    try:
        base = Path(value) if value.startswith("/") else Path.home() / default
    except RuntimeError as error:
        raise EnvironmentFault(
            "the user has no home folder", fix=f"set HOME, or {variable} to an absolute path"
        ) from error
    return base / "qualify"


def private_folder(path: Path) -> Path:
    """Create `path` with mode 0700 (parents too) and return it.

    Raises `EnvironmentFault` when it exists but is no folder, belongs to somebody else, is open to
    others and cannot be closed, or cannot be created.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.lstat()
        if not stat.S_ISDIR(info.st_mode):
            raise EnvironmentFault("is not a folder", where=str(path), fix="move it away")
        if info.st_uid != os.geteuid():
            raise EnvironmentFault(
                "belongs to another user", where=str(path), fix="choose a folder of your own"
            )
        if stat.S_IMODE(info.st_mode) & 0o077:
            path.chmod(0o700)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot be made a private folder: {error.strerror or error}",
            where=str(path),
            fix="check its parent's permissions and the free space",
        ) from error
    return path


def fsync_folder(path: Path) -> None:
    """Make a rename or a new entry in `path` durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_plain(path: Path, limit: int) -> bytes:
    """The bytes of a plain file (links followed) of at most `limit` bytes.

    Never waits (a FIFO) and never reads on without end (a device). Raises `OSError`, whose
    `strerror` is a sentence's end: "is no plain file", "has more than N bytes", …
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "is no plain file", str(path))
    with os.fdopen(handle, "rb") as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"has more than {limit} bytes", str(path))
    return data


def write_atomic(path: Path, data: bytes, *, mode: int = 0o644, durable: bool = True) -> None:
    """Replace `path` by `data` in one step: temporary file beside it, fsync, rename, fsync.

    `durable=False` leaves out the fsyncs (caches). Raises `OSError`; nothing half-written stays.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            if durable:
                os.fsync(stream.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise
    if durable:
        fsync_folder(path.parent)
