"""Carrying a depot: one uncompressed tar whose bytes follow from what it holds.

Packages are compressed already. Order, times, owners and modes are fixed, so equal depots give
equal archives, and an archive has only one permitted form: unpacking compares every header and
every padding byte with the one that packing would have written. A name that leads elsewhere, a
link, an entry too many or too few, a changed byte: none has that form, and none is written.

`--to` of either appears whole or not at all.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from qualify.core.errors import EnvironmentFault, Refusal, UsageError
from qualify.pins.depot import (
    BUSYBOX,
    FILES,
    INDEX,
    MAX_INDEX_BYTES,
    SEED,
    DepotIndex,
    index_bytes,
    parse_index,
    read_index,
)
from qualify.pins.depot_seed import seed_script
from qualify.pins.elf import nar_sha256
from qualify.storage.folders import fsync_folder
from qualify.storage.staging import staged_folder

type Report = Callable[[int, int], None]

_BLOCK = 512
_END = bytes(2 * _BLOCK)
_CHUNK = 1 << 20
_REPACK = "carry the archive again; what arrived is not what was packed"


@dataclass(frozen=True)
class _Entry:
    """One entry: either its `content`, or the size and SHA-256 that it must have."""

    name: str
    size: int
    mode: int = 0o644
    content: bytes | None = None
    sha256: str | None = None

    @property
    def header(self) -> bytes:
        info = tarfile.TarInfo(self.name)
        info.size = self.size
        info.mode = self.mode
        return info.tobuf(tarfile.GNU_FORMAT)

    @property
    def padding(self) -> bytes:
        return bytes(-self.size % _BLOCK)


def _entries(index: DepotIndex) -> Iterator[_Entry]:
    """What an archive of this depot holds, in order."""
    data = index_bytes(index)
    yield _Entry(INDEX, len(data), content=data)
    script = seed_script(index)
    yield _Entry(SEED, len(script), 0o755, content=script)
    if index.busybox:
        yield _Entry(BUSYBOX, index.busybox.size, 0o755)
    for file in index.files:
        yield _Entry(f"{FILES}/{file.name}", file.size, sha256=file.sha256)


def pack(depot: Path, target: Path, report: Report = lambda _done, _all: None) -> str:
    """Write the archive of `depot` to `target` and return its digest.

    Raises `Refusal` when a file of the depot is missing or changed, `UsageError` when `target`
    exists, `EnvironmentFault` when it cannot be written.
    """
    index = read_index(depot)
    if target.exists():
        raise UsageError("exists already", where=str(target), fix="choose another name")
    state, written = hashlib.sha256(), 0
    temporary = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:40]}.", dir=target.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as stream:
            for entry in _entries(index):
                for piece in _packed(entry, depot, index):
                    state.update(piece)
                    stream.write(piece)
                    written += len(piece)
                    report(min(written, index.size), index.size)
            state.update(_END)
            stream.write(_END)
            stream.flush()
            os.fchmod(stream.fileno(), 0o644)
            os.fsync(stream.fileno())
        temporary.replace(target)
        fsync_folder(target.parent)
    except OSError as error:
        raise _fault(error, target) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return f"sha256:{state.hexdigest()}"


def _packed(entry: _Entry, depot: Path, index: DepotIndex) -> Iterator[bytes]:
    yield entry.header
    if entry.content is not None:
        yield entry.content
    else:
        path = depot / entry.name
        if path.is_symlink() or not path.is_file() or path.stat().st_size != entry.size:
            raise Refusal("is missing or changed", where=str(path), fix="verify the depot")
        with path.open("rb") as stream:
            yield from _checked(stream, entry, index, str(path))
    yield entry.padding


def _checked(stream: IO[bytes], entry: _Entry, index: DepotIndex, where: str) -> Iterator[bytes]:
    """The bytes of an entry, read from `stream`. Raises `Refusal` at the end if they are wrong."""
    state, left = hashlib.sha256(), entry.size
    program = bytearray()
    while left:
        piece = stream.read(min(_CHUNK, left))
        if not piece:
            raise Refusal("ends too early", where=where, fix=_REPACK)
        left -= len(piece)
        state.update(piece)
        if entry.name == BUSYBOX:
            program += piece
        yield piece
    if entry.name == BUSYBOX:
        assert index.busybox is not None
        right = nar_sha256(bytes(program)) == index.busybox.nar_sha256
    elif entry.content is not None:
        right = state.digest() == hashlib.sha256(entry.content).digest()
    else:
        right = state.hexdigest() == entry.sha256
    if not right:
        raise Refusal(f"{entry.name} is not what the depot lists", where=where, fix=_REPACK)


def unpack(archive: Path, target: Path, report: Report = lambda _done, _all: None) -> DepotIndex:
    """Make the depot `target` from `archive`, checking every byte before the folder appears.

    Raises `Refusal` for an archive that packing would not have written, `UsageError` when it cannot
    be read or `target` exists, `EnvironmentFault` when the disk fills up.
    """
    try:
        stream = archive.open("rb")
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror}", where=str(archive), fix="give a packed depot"
        ) from error
    try:
        with stream, staged_folder(target) as work:
            index = _first_entry(stream, archive)
            _require_space(index, work)
            _write_all(stream, index, work, str(archive), report)
    except OSError as error:
        raise _fault(error, target) from error
    return index


def _first_entry(stream: IO[bytes], archive: Path) -> DepotIndex:
    """Read the index, which comes first and says what must follow; leaves `stream` at its start."""
    where = str(archive)
    try:
        info = tarfile.TarInfo.frombuf(stream.read(_BLOCK), "utf-8", "strict")
    except (tarfile.HeaderError, UnicodeDecodeError) as error:
        raise Refusal("is not a packed depot", where=where, fix=_REPACK) from error
    if info.name != INDEX or not info.isreg() or not 0 < info.size <= MAX_INDEX_BYTES:
        raise Refusal(f"does not begin with {INDEX}", where=where, fix=_REPACK)
    index = parse_index(stream.read(info.size), f"{where}: {INDEX}")
    stream.seek(0)
    return index


def _require_space(index: DepotIndex, target: Path) -> None:
    free = shutil.disk_usage(target).free
    if index.size > free:
        raise EnvironmentFault(
            f"not enough space: needs {index.size} bytes, {free} are free",
            where=str(target),
            fix="choose a folder on a larger disk",
        )


def _write_all(
    stream: IO[bytes], index: DepotIndex, work: Path, where: str, report: Report
) -> None:
    (work / FILES).mkdir()
    done = 0
    for entry in _entries(index):
        _require_header(stream.read(len(entry.header)), entry, where)
        path = work / entry.name
        path.parent.mkdir(exist_ok=True)
        with path.open("xb") as output:
            for piece in _checked(stream, entry, index, where):
                output.write(piece)
                done += len(piece)
                report(min(done, index.size), index.size)
            output.flush()
            os.fchmod(output.fileno(), entry.mode)
            os.fsync(output.fileno())
        if stream.read(len(entry.padding)) != entry.padding:
            raise Refusal(f"has bytes behind {entry.name}", where=where, fix=_REPACK)
    if stream.read(len(_END) + 1) != _END:
        raise Refusal("goes on behind its last file, or ends too early", where=where, fix=_REPACK)
    fsync_folder(work / FILES)


def _require_header(found: bytes, entry: _Entry, where: str) -> None:
    if found == entry.header:
        return
    try:
        info = tarfile.TarInfo.frombuf(found[-_BLOCK:], "utf-8", "surrogateescape")
        kind = "a link" if info.issym() or info.islnk() else "an entry"
        what = f"holds {kind} {info.name!r} where {entry.name} belongs"
    except tarfile.HeaderError:
        what = f"is damaged or cut off where {entry.name} belongs"
    raise Refusal(what, where=where, fix=_REPACK)


def _fault(error: OSError, target: Path) -> EnvironmentFault:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return EnvironmentFault(
            "the disk filled up; nothing of it was left behind",
            where=str(target),
            fix="free some space, or choose a folder on a larger disk",
        )
    return EnvironmentFault(
        f"cannot be written: {error.strerror or error}",
        where=str(error.filename or target),
        fix="choose a folder that you may write to",
    )
