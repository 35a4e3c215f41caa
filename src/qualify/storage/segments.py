"""A hash-chained log of any length: one file that is written to, and sealed ones before it.

The lines are those of `appendlog`. The file that is written to keeps its name; when it is full it
is renamed to `segment-<first sequence number, 12 digits>.log` beside it and never written again,
and the next one continues the chain. A log in one file is therefore a log of this kind as well.

Promises: as `appendlog`; besides, a reader finds every line exactly once also while a segment is
being sealed, and a writer reads only what was added since it last looked. Lines longer than
`MAX_LINE` are damage: nobody writes them, and whoever reads must not need memory for them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import BinaryIO

from qualify.core.errors import EnvironmentFault
from qualify.storage.appendlog import (
    GENESIS,
    ChainBroken,
    Head,
    Line,
    keep_torn_tail,
    write_all,
)
from qualify.storage.folders import fsync_folder
from qualify.storage.locks import file_lock

SEGMENT_BYTES = 16 << 20
"""A file that would grow over this is sealed first: so much is verified by each new process."""
MAX_LINE = 1 << 20
_SEALED = re.compile(r"segment-([0-9]{12})\.log")
_PARALLEL_FROM = 256 << 20
_PROCESSES = 2
_BUFFER = 1 << 20
"""Bytes; lines are of kilobytes, and the usual buffer holds four of them."""

type Progress = Callable[[int], None]
"""Called with the number of bytes that were read since the last call."""


@dataclass(frozen=True)
class Position:
    """A place between two lines."""

    seq: int = 0
    """The sequence number of the next line."""
    prev: str = GENESIS
    """The digest of the line before."""
    first: int = 0
    """The first sequence number of the segment in which the place lies."""
    offset: int = 0
    """Bytes before it in that segment."""


BEGIN = Position()


def sealed_path(active: Path, first: int) -> Path:
    """Where the segment that starts with line `first` lies when it is sealed."""
    return active.with_name(f"segment-{first:012}.log")


def sealed_segments(active: Path) -> list[tuple[int, Path]]:
    """The sealed segments beside `active`, in order, with their first sequence numbers."""
    try:
        with os.scandir(active.parent) as entries:
            names = [entry.name for entry in entries]
    except FileNotFoundError:
        return []
    found = [
        (int(match[1]), active.with_name(match[0]))
        for match in map(_SEALED.fullmatch, names)
        if match
    ]
    return sorted(found)


class ChainReader:
    """Yields lines from a position on, verifying the chain; `position` is after the last one.

    A torn last line is not yielded. Raises `ChainBroken`.
    """

    def __init__(
        self,
        active: Path,
        position: Position = BEGIN,
        sealed: Callable[[Position, os.stat_result], None] | None = None,
    ) -> None:
        """`sealed` is called at the end of each sealed segment, with where the next one begins."""
        self._active = active
        self._sealed = sealed
        self._seq, self._prev = position.seq, position.prev
        self._first, self._offset = position.first, position.offset

    @property
    def position(self) -> Position:
        """Where the next line will begin."""
        return Position(self._seq, self._prev, self._first, self._offset)

    def __iter__(self) -> Iterator[Line]:
        again = -1
        while True:
            sealed = sealed_path(self._active, self._first)
            path = sealed if sealed.exists() else self._active
            try:
                stream = _open(path, _BUFFER if path is sealed else -1)
            except FileNotFoundError:
                if path is sealed or sealed.exists():
                    continue
                self._require_last()
                return
            with stream:
                info = os.fstat(stream.fileno())
                stream.seek(self._offset)
                try:
                    yield from self._lines(stream, path, whole=path is sealed)
                except ChainBroken:
                    # The segment may have been sealed, or a torn tail cut, while we read it.
                    if path is sealed or again == self._offset:
                        raise
                    again = self._offset
                    continue
            if path is sealed:
                if self._seq == self._first:
                    raise ChainBroken("is a segment without lines", where=str(path))
                self._first, self._offset = self._seq, 0
                if self._sealed is not None:
                    self._sealed(self.position, info)
            elif not sealed.exists():
                self._require_last()
                return

    def _lines(self, stream: BinaryIO, path: Path, *, whole: bool) -> Iterator[Line]:
        readline = stream.readline
        sha256, limit = hashlib.sha256, MAX_LINE + 1
        seq, prev, offset = self._seq, self._prev, self._offset
        while raw := readline(limit):
            if not raw.endswith(b"\n"):
                if len(raw) == limit:
                    raise ChainBroken(f"has more than {MAX_LINE} bytes", where=f"{path}:{seq + 1}")
                if whole:
                    raise ChainBroken("ends within a line", where=f"{path}:{seq + 1}")
                return
            head = b"%d %s " % (seq, prev.encode())
            at = len(head)
            payload = raw[at + 65 : -1]
            digest = sha256(head + payload).hexdigest()
            if raw[:at] != head or raw[at : at + 65] != digest.encode() + b" ":
                raise ChainBroken(_fault(raw, seq, prev), where=f"{path}:{seq + 1}")
            if payload[:1] != b"{" or payload[-1:] != b"}":
                raise ChainBroken("is not a log line", where=f"{path}:{seq + 1}")
            line = Line(seq, prev, digest, payload)
            seq, prev, offset = seq + 1, digest, offset + len(raw)
            self._seq, self._prev, self._offset = seq, prev, offset
            yield line

    def _require_last(self) -> None:
        """No sealed segment may follow the end: one between was removed."""
        later = [first for first, _ in sealed_segments(self._active) if first > self._first]
        if later:
            raise ChainBroken(
                f"line {self._seq} and all to line {later[0] - 1} are missing, with their segment",
                where=str(sealed_path(self._active, later[0])),
            )


def _open(path: Path, buffering: int = -1) -> BinaryIO:
    """Open a file that may be from elsewhere: a FIFO would wait, a device would have no end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ChainBroken("is no plain file", where=str(path))
    return os.fdopen(handle, "rb", buffering)


_LINE = re.compile(rb"^(\d{1,15}) ([0-9a-f]{64}) ([0-9a-f]{64}) (\{.*\})\n$")


def _fault(raw: bytes, seq: int, prev: str) -> str:
    match = _LINE.match(raw)
    if match is None:
        return "is not a log line"
    if int(match[1]) != seq or len(match[1]) != len(str(seq)):
        return f"has sequence {match[1].decode()}, expected {seq}"
    if match[2].decode() != prev:
        return "does not continue the line before it"
    return "its digest does not match its content"


# ── verification ─────────────────────────────────────────────────────────────────────────────────


def verify(active: Path, progress: Progress | None = None) -> Head:
    """Verify every byte of the log and return its head. Raises `ChainBroken`.

    Segments are shared between two processes when there is much to read: each is verified by
    itself, and then that they continue each other.
    """
    segments = sealed_segments(active)
    at = BEGIN
    with ExitStack() as stack:
        verified: Iterator[tuple[str, int, str]] = map(_verify_segment, segments)
        if sum(path.stat().st_size for _, path in segments) >= _PARALLEL_FROM:
            pool = ProcessPoolExecutor(_PROCESSES, get_context("spawn"))
            verified = stack.enter_context(pool).map(_verify_segment, segments)
        for (first, path), (prev, seq, digest) in zip(segments, verified, strict=True):
            if first != at.seq or prev != at.prev:
                raise ChainBroken(
                    f"does not continue line {at.seq - 1}: segments were removed or replaced",
                    where=str(path),
                )
            at = Position(seq, digest, seq, 0)
            if progress is not None:
                progress(path.stat().st_size)
    return _finish(active, ChainReader(active, at), progress)


def _finish(active: Path, reader: ChainReader, progress: Progress | None) -> Head:
    for line in reader:
        if progress is not None:
            progress(len(line.payload) + 140)
    return head_at(active, reader.position)


def head_at(active: Path, position: Position) -> Head:
    """The head when `position` is the end: with the bytes of a torn line after it."""
    try:
        size = active.stat().st_size
    except FileNotFoundError:
        size = position.offset
    return Head(position.seq, position.prev, max(0, size - position.offset))


def _verify_segment(segment: tuple[int, Path]) -> tuple[str, int, str]:
    """(digest before, next sequence number, last digest) of a sealed segment."""
    first, path = segment
    with _open(path) as stream:
        match = re.match(rb"\d{1,15} ([0-9a-f]{64}) ", stream.read(100))
    if match is None:
        raise ChainBroken("is not a log line", where=f"{path}:{first + 1}")
    prev = match[1].decode()
    with _open(path, _BUFFER) as stream:
        end = _sound(stream, first, match[1])
    if end is not None:
        return prev, *end
    # Something is wrong with it: read it as carefully as a reader does, to say what and where.
    reader = ChainReader(path.with_name("none"), Position(first, prev, first, 0))
    with _open(path) as stream:
        for _ in reader._lines(stream, path, whole=True):
            pass
    return prev, reader.position.seq, reader.position.prev


def _sound(stream: BinaryIO, seq: int, prev: bytes) -> tuple[int, str] | None:
    """(next sequence number, last digest) of whole lines, each in its place; `None`: not so.

    What `ChainReader` checks of each line, in half its time: nothing is kept.
    """
    readline, sha256, limit = stream.readline, hashlib.sha256, MAX_LINE + 1
    while raw := readline(limit):
        head = b"%d %b " % (seq, prev)
        digest = sha256(head + raw[len(head) + 65 : -1]).hexdigest().encode()
        if not raw.startswith(b"%b%b {" % (head, digest)) or not raw.endswith(b"}\n"):
            return None
        seq, prev = seq + 1, digest
    return seq, prev.decode()


# ── writing ──────────────────────────────────────────────────────────────────────────────────────

type Build = Callable[[int, str], Sequence[bytes]]
"""Builds the payloads to append from the next sequence number and the digest before it."""


class SegmentedLog:
    """Writer of one log. Safe with any number of processes; each append is durable on return."""

    def __init__(
        self,
        active: Path,
        observe: Callable[[Line], None],
        sealed: Callable[[Position, os.stat_result], None] | None = None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """`observe` sees every line once, in order: those of others before an append is built, and
        our own. `sealed` is called at the end of each sealed segment, in the same order.
        """
        self.active = active
        self.position = BEGIN
        self._lock = active.with_name(active.name + ".lock")
        self._observe = observe
        self._on_sealed = sealed
        self._segment_bytes = segment_bytes
        self._last = b""
        """The last line that was seen, to notice that the file is another one."""
        self._left: tuple[int, ...] = ()
        """How the file was when we left it: as long as it is so, nobody has been at it."""

    def catch_up(self) -> Position:
        """Read what was added since the last look. Raises `ChainBroken`, `OSError`."""
        self._require_same()
        reader = ChainReader(self.active, self.position, self._on_sealed)
        line = None
        for line in reader:
            self._observe(line)
            # Kept step by step: whoever observes may look, and an error leaves a true position.
            self.position = reader.position
        self.position = reader.position
        if line is not None:
            self._last = _encoded(line)
        return self.position

    def _require_same(self) -> None:
        """The line before our position is still the one that we saw."""
        at = self.position
        if not at.offset:
            return
        for path in (sealed_path(self.active, at.first), self.active):
            try:
                with path.open("rb") as stream:
                    stream.seek(at.offset - len(self._last))
                    if stream.read(len(self._last)) == self._last:
                        return
            except FileNotFoundError:
                continue
        raise ChainBroken(
            f"line {at.seq} is no longer what it was", where=f"{self.active}:{at.seq}"
        )

    def append(self, build: Build, *, lock_timeout_s: float | None = 30) -> list[Line]:
        """Append what `build(seq, prev)` returns, called while the lock is held; all or nothing.

        Raises `EnvironmentFault` when the disk refuses (nothing of it stays), `ChainBroken` when
        the log is damaged, `LockHeld` after `lock_timeout_s` seconds.
        """
        try:
            with file_lock(self._lock, timeout_s=lock_timeout_s):
                if not self._left or self._left != _state(self.active):
                    self.catch_up()
                    self._cut_torn_tail()
                return self._append_locked(build)
        except OSError as error:
            raise EnvironmentFault(
                f"cannot be appended to: {error.strerror or error}",
                where=str(self.active),
                fix="check the free space and the folder's permissions",
            ) from error

    def _append_locked(self, build: Build) -> list[Line]:
        at = self.position
        lines, parts = [], []
        seq, prev = at.seq, at.prev
        for payload in build(seq, prev):
            if b"\n" in payload or not payload.startswith(b"{") or not payload.endswith(b"}"):
                raise ValueError("a log line holds one canonical JSON object")
            head = b"%d %s " % (seq, prev.encode())
            digest = hashlib.sha256(head + payload).hexdigest()
            raw = b"%s%s %s\n" % (head, digest.encode(), payload)
            if len(raw) > MAX_LINE:
                raise ValueError(f"a log line has at most {MAX_LINE} bytes")
            lines.append(Line(seq, prev, digest, payload))
            parts.append(raw)
            seq, prev = seq + 1, digest
        data = b"".join(parts)
        if not data:
            return []
        if at.offset and at.offset + len(data) > self._segment_bytes:
            self._seal()
        self._write(data)
        for line in lines:
            self._observe(line)
        self.position = Position(seq, prev, self.position.first, self.position.offset + len(data))
        self._last = parts[-1]
        return lines

    def _write(self, data: bytes) -> None:
        offset = self.position.offset
        handle = os.open(self.active, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._left = ()
            try:
                write_all(handle, data, offset)
                os.fsync(handle)
            except OSError:
                os.ftruncate(handle, offset)
                raise
            self._left = _stated(os.fstat(handle))
        finally:
            os.close(handle)
        if not offset:
            fsync_folder(self.active.parent)

    def _seal(self) -> None:
        """Give the full file its final name. What it holds is durable already."""
        at = self.position
        target = sealed_path(self.active, at.first)
        if target.exists():
            raise FileExistsError(errno.EEXIST, "the name of the segment is taken", str(target))
        self.active.rename(target)
        target.chmod(0o444)
        fsync_folder(target.parent)
        self.position = Position(at.seq, at.prev, at.seq, 0)
        self._last, self._left = b"", ()
        if self._on_sealed is not None:
            self._on_sealed(self.position, target.stat())

    def _cut_torn_tail(self) -> None:
        try:
            handle = os.open(self.active, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            size = os.fstat(handle).st_size
            if size > self.position.offset:
                keep_torn_tail(self.active, handle, self.position.offset, size, self.position.seq)
        finally:
            os.close(handle)


def _state(path: Path) -> tuple[int, ...]:
    try:
        return _stated(path.stat())
    except FileNotFoundError:
        return ()


def _stated(info: os.stat_result) -> tuple[int, ...]:
    return (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def _encoded(line: Line) -> bytes:
    return b"%d %s %s %s\n" % (line.seq, line.prev.encode(), line.digest.encode(), line.payload)
