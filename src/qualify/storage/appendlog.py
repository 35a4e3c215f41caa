r"""Append-only, hash-chained line logs that survive a crash at any byte.

A line is `SEQ PREV DIGEST JSON\n`: a decimal sequence number from 0, the digest of the previous
line's JSON binding (64 hex digits; zeros for the first), this line's digest, and canonical JSON.
The digest covers `SEQ PREV JSON`, so a chain can be verified without parsing any JSON.

A writer holds the exclusive lock, appends one whole line, and fsyncs before it returns. A crash can
leave a torn last line (no newline at the end). It was never acknowledged: readers ignore it and
report it, and the next writer seals it into `<log>.torn-<SEQ>` beside the log before it appends. A
line that ends in a newline but does not verify is never a torn tail: it is damage, and is refused.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from qualify.core.errors import EnvironmentFault, Refusal
from qualify.storage.folders import fsync_folder
from qualify.storage.locks import file_lock

GENESIS = "0" * 64
_LINE = re.compile(rb"^(\d{1,15}) ([0-9a-f]{64}) ([0-9a-f]{64}) (\{.*\})$")
_TAIL = 1 << 16

type PayloadBuilder = Callable[[int, str], bytes]
"""Builds a line's payload from its sequence number and the digest before it."""


class ChainBroken(Refusal):
    """A log does not verify; `where` names file and line."""

    def __init__(self, what: str, *, where: str) -> None:
        fix = "keep the file as it is, and restore it from a copy that verifies"
        super().__init__(what, where=where, fix=fix)


@dataclass(frozen=True)
class Line:
    """One verified line. `digest` and `prev` are 64 hex digits, `payload` canonical JSON."""

    seq: int
    prev: str
    digest: str
    payload: bytes


@dataclass(frozen=True)
class Head:
    """Where a log ends: the number of lines, the last digest (zeros when empty), and the byte
    length of a torn tail (0 when there is none).
    """

    count: int
    digest: str
    torn_bytes: int = 0


def line_digest(seq: int, prev: str, payload: bytes) -> str:
    """SHA-256 over `SEQ PREV JSON`, as 64 hex digits."""
    return hashlib.sha256(b"%d %s %s" % (seq, prev.encode(), payload)).hexdigest()


def encode_line(seq: int, prev: str, payload: bytes) -> tuple[bytes, str]:
    """Return the line's bytes (with its newline) and its digest."""
    digest = line_digest(seq, prev, payload)
    return b"%d %s %s %s\n" % (seq, prev.encode(), digest.encode(), payload), digest


def read_log(path: Path) -> Iterator[Line]:
    """Yield every line of `path`, verifying the chain on the way; a missing file is empty.

    A torn tail is not yielded (see `read_head`). Raises `ChainBroken`.
    """
    seq, prev, offset, asked_again = 0, GENESIS, 0, -1
    while True:
        try:
            stream = path.open("rb")
        except FileNotFoundError:
            return
        with stream:
            stream.seek(offset)
            for raw in stream:
                if not raw.endswith(b"\n"):
                    return
                try:
                    line = _parse(raw[:-1], path, seq, prev)
                except ChainBroken:
                    if asked_again == offset:
                        raise
                    # A writer may have sealed a torn tail while we read it: ask the file once more.
                    asked_again = offset
                    break
                yield line
                seq, prev, offset = seq + 1, line.digest, offset + len(raw)
            else:
                return


def read_head(path: Path) -> Head:
    """Verify the whole chain and return its head. Raises `ChainBroken`."""
    count, digest, end = 0, GENESIS, 0
    for line in read_log(path):
        count, digest = line.seq + 1, line.digest
        end += len(encode_line(line.seq, line.prev, line.payload)[0])
    size = path.stat().st_size if path.exists() else 0
    return Head(count, digest, size - end)


def _parse(raw: bytes, path: Path, seq: int, prev: str) -> Line:
    where = f"{path}:{seq + 1}"
    match = _LINE.match(raw)
    if match is None:
        raise ChainBroken("is not a log line", where=where)
    if int(match[1]) != seq or len(match[1]) != len(str(seq)):
        raise ChainBroken(f"has sequence {match[1].decode()}, expected {seq}", where=where)
    if match[2].decode() != prev:
        raise ChainBroken("does not continue the line before it", where=where)
    digest = line_digest(seq, prev, match[4])
    if match[3].decode() != digest:
        raise ChainBroken("its digest does not match its content", where=where)
    return Line(seq, prev, digest, match[4])


class AppendLog:
    """Writer of one log. Safe with any number of processes; each append is durable on return."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_path = path.with_name(path.name + ".lock")

    def append(self, payload: bytes, *, lock_timeout_s: float | None = 30) -> Line:
        """Append one canonical JSON object and fsync.

        Raises `EnvironmentFault` when the disk refuses (nothing of the line stays), `ChainBroken`
        when the log's last line does not verify, `LockHeld` after `lock_timeout_s` seconds.
        """
        return self.append_with(lambda _seq, _prev: payload, lock_timeout_s=lock_timeout_s)

    def append_with(self, build: PayloadBuilder, *, lock_timeout_s: float | None = 30) -> Line:
        """Append what `build(seq, prev)` returns, called while the lock is held."""
        try:
            with file_lock(self._lock_path, timeout_s=lock_timeout_s):
                return self._append_locked(build)
        except OSError as error:
            raise EnvironmentFault(
                f"cannot be appended to: {error.strerror or error}",
                where=str(self.path),
                fix="check the free space and the folder's permissions",
            ) from error

    def _append_locked(self, build: PayloadBuilder) -> Line:
        created = not self.path.exists()
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            end, seq, prev = self._tail(handle)
            payload = build(seq, prev)
            if b"\n" in payload or not payload.startswith(b"{"):
                raise ValueError("a log line holds one canonical JSON object")
            raw, digest = encode_line(seq, prev, payload)
            try:
                write_all(handle, raw, end)
                os.fsync(handle)
            except OSError:
                os.ftruncate(handle, end)
                raise
        finally:
            os.close(handle)
        if created:
            fsync_folder(self.path.parent)
        return Line(seq, prev, digest, payload)

    def _tail(self, handle: int) -> tuple[int, int, str]:
        """End of the last whole line, next sequence number and its `prev`; seals a torn tail."""
        size = os.fstat(handle).st_size
        window = _TAIL
        while True:
            start = max(0, size - window)
            data = os.pread(handle, size - start, start)
            last = data.rfind(b"\n")
            before = data.rfind(b"\n", 0, last) if last >= 0 else -1
            if start == 0 or before >= 0:
                break
            window *= 4
        end = start + last + 1 if last >= 0 else 0
        seq, prev = 0, GENESIS
        if last >= 0:
            raw = data[before + 1 : last]
            match = _LINE.match(raw)
            where = f"{self.path} (last line)"
            if match is None:
                raise ChainBroken("is not a log line", where=where)
            seq = int(match[1])
            prev = line_digest(seq, match[2].decode(), match[4])
            if match[3].decode() != prev:
                raise ChainBroken("its digest does not match its content", where=where)
            seq += 1
        if end < size:
            keep_torn_tail(self.path, handle, end, size, seq)
        return end, seq, prev


def keep_torn_tail(path: Path, handle: int, end: int, size: int, seq: int) -> None:
    """Keep the bytes from `end` to `size` beside the log, then cut them off. Raises `OSError`."""
    torn = os.pread(handle, size - end, end)
    name = f"{path.name}.torn-{seq}"
    number = 0
    while True:
        target = path.with_name(name if number == 0 else f"{name}.{number}")
        try:
            copy = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            break
        except FileExistsError:
            number += 1
    try:
        write_all(copy, torn, 0)
        os.fsync(copy)
    except OSError:
        target.unlink()
        raise
    finally:
        os.close(copy)
    os.ftruncate(handle, end)
    os.fsync(handle)
    fsync_folder(path.parent)


def write_all(handle: int, data: bytes, offset: int) -> None:
    """Write all of `data` at `offset`. Raises `OSError`."""
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, offset)
        view, offset = view[written:], offset + written
