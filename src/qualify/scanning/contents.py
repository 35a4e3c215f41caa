"""From the bytes of a file to the texts in it: encodings, strings in binary files, archives.

Nothing is unpacked to disk, and what is read is bounded: in depth, in members and in bytes. What
cannot be looked into is named, never left out in silence.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Buffer, Callable, Iterator
from dataclasses import dataclass
from typing import IO, Protocol, cast

import zstandard

from qualify.scanning.windows import HEAD, Piece, Raw, encoding_of, strings, text_windows, windows

_TAR = slice(257, 262)
_TAIL = 65_557
"""The end of a zip archive with the longest comment."""


@dataclass(frozen=True)
class Limits:
    """How far archives are looked into."""

    depth: int = 4
    members: int = 100_000
    unpacked: int = 256 << 20
    """Bytes of all members of one file, decompressed; for a large file `ratio` times its size."""
    ratio: int = 30
    nested: int = 64 << 20
    """Bytes of a member that is itself an archive and must be held in memory."""
    header: int = 16 << 20
    """Bytes of one header of an archive, and of the directory of a zip archive."""


LIMITS = Limits()


@dataclass(frozen=True)
class NotRead:
    """Something that was not looked into, and why."""

    inside: str
    why: str


type Part = Piece | Raw | NotRead


class TableReader(Protocol):
    """Gives the texts in a DuckDB or Parquet file; raises `ValueError` for what it cannot read."""

    def __call__(self, stream: IO[bytes], kind: str) -> Iterator[tuple[str, str]]:
        """Pairs of a place in the file and a text."""


class _Exhausted(Exception):
    """More than the limits allow."""


class _Budget:
    """What may still be unpacked of one file."""

    def __init__(self, limits: Limits, size: int) -> None:
        self.limits = limits
        self.unpacked = max(limits.unpacked, limits.ratio * size)
        self.bytes_left = self.unpacked
        self.members_left = limits.members

    def read(self, count: int) -> None:
        """Count bytes that came out of an archive. Raises `_Exhausted`."""
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise _Exhausted(f"unpacks to more than {self.unpacked >> 20} MiB")

    def member(self) -> None:
        """Count a member. Raises `_Exhausted`."""
        self.members_left -= 1
        if self.members_left < 0:
            raise _Exhausted(f"has more than {self.limits.members:,} members")


class _Metered(io.RawIOBase):
    """A stream of decompressed bytes that ends with an error where the budget ends."""

    def __init__(self, stream: IO[bytes], budget: _Budget) -> None:
        self._stream = stream
        self._budget = budget

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        target = memoryview(buffer).cast("B")
        data = self._stream.read(len(target))
        self._budget.read(len(data))
        target[: len(data)] = data
        return len(data)


class _Headers:
    """The stream of a tar archive: `tarfile` cannot make it read a huge header into memory.

    A stream that only goes forward can be used too: `tarfile` never goes back by more than a block.
    """

    def __init__(self, stream: IO[bytes], limit: int, *, forward: bool) -> None:
        self._stream = stream
        self._limit = limit
        self._forward = forward
        self._position = 0
        self._last = b""

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > self._limit:
            raise _Exhausted(f"has a header of more than {self._limit >> 20} MiB")
        if not self._forward:
            return self._stream.read(size)
        again = self._last[len(self._last) - self._back :][:size] if self._back else b""
        self._back -= len(again)
        data = self._stream.read(size - len(again)) if size > len(again) else b""
        self._last = (self._last + data)[-tarfile.BLOCKSIZE :]
        self._position += len(again) + len(data)
        return again + data

    _back = 0

    def tell(self) -> int:
        return self._position if self._forward else self._stream.tell()

    def seek(self, position: int, whence: int = 0) -> int:
        if not self._forward:
            return self._stream.seek(position, whence)
        while position > self._position and self.read(min(1 << 20, position - self._position)):
            pass
        if position < self._position:
            self._back += self._position - position
            if self._back > len(self._last):
                raise tarfile.ReadError("goes back")
            self._position = position
        return self._position


_DAMAGE = (
    OSError, EOFError, ValueError, KeyError, IndexError, NotImplementedError, RuntimeError,
    zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, zstandard.ZstdError,
    RecursionError, MemoryError, OverflowError, struct.error,
)  # fmt: skip


def parts(
    stream: IO[bytes], tables: TableReader | None = None, limits: Limits = LIMITS
) -> Iterator[Part]:
    """Everything to look at in one file. `stream` can be sought in."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    yield from _Opener(_Budget(limits, size), tables).open(stream, "", 0)


class _Opener:
    def __init__(self, budget: _Budget, tables: TableReader | None) -> None:
        self._budget = budget
        self._tables = tables

    def open(self, stream: IO[bytes], inside: str, depth: int) -> Iterator[Part]:
        """The parts of a stream that can be sought in."""
        head = stream.read(HEAD)
        stream.seek(0)
        kind = _kind(head) or _kind_by_end(stream, head)
        try:
            if kind is None:
                yield from _plain(stream, head, inside)
            elif depth >= self._budget.limits.depth:
                yield NotRead(inside, f"is packed more than {depth} times")
            else:
                yield from self._opened(stream, head, kind, inside, depth)
        except _Exhausted as error:
            yield NotRead(inside, str(error))
        except _DAMAGE as error:
            yield NotRead(inside, f"cannot be unpacked ({type(error).__name__})")

    def _opened(
        self, stream: IO[bytes], head: bytes, kind: str, inside: str, depth: int
    ) -> Iterator[Part]:
        if kind in _PACKED:
            yield from self._packed(_PACKED[kind](stream), inside, depth)
        elif kind == "zip":
            yield from self._zip(stream, inside, depth)
        elif kind == "zip at the end":
            yield from _plain(stream, head, inside)
            yield from self._zip(stream, inside, depth)
        elif kind == "tar":
            yield from self._tar(stream, inside, depth, forward=False)
        elif kind in ("DuckDB", "Parquet"):
            yield from self._table(stream, head, inside, kind)
        else:
            yield from _plain(stream, head, inside)
            yield NotRead(inside, _UNREAD[kind])

    def _metered(self, stream: IO[bytes], buffer: int) -> tuple[IO[bytes], bytes]:
        """A stream that counts, and its first bytes."""
        metered = io.BufferedReader(_Metered(stream, self._budget), buffer)
        return cast("IO[bytes]", metered), metered.peek(HEAD)[:HEAD]

    def _packed(self, unpacked: IO[bytes], inside: str, depth: int) -> Iterator[Part]:
        metered, head = self._metered(unpacked, 1 << 20)
        kind = _kind(head)
        if kind is None:
            yield from _plain(metered, head, inside)
        elif kind == "tar":
            yield from self._tar(metered, inside, depth + 1, forward=True)
        else:
            yield from self._nested(metered, inside, depth)

    def _nested(self, stream: IO[bytes], inside: str, depth: int) -> Iterator[Part]:
        """A member that is packed itself."""
        limit = self._budget.limits.nested
        data = stream.read(limit + 1)
        if len(data) > limit:
            yield NotRead(inside, f"is a packed file of more than {limit >> 20} MiB inside another")
        else:
            yield from self.open(io.BytesIO(data), inside, depth + 1)

    def _member(self, stream: IO[bytes], inside: str, depth: int) -> Iterator[Part]:
        metered, head = self._metered(stream, 1 << 16)
        if _kind(head) is None:
            yield from _plain(metered, head, inside)
        else:
            yield from self._nested(metered, inside, depth)

    def _zip(self, stream: IO[bytes], inside: str, depth: int) -> Iterator[Part]:
        limit = self._budget.limits.header
        if _directory_size(stream) > limit:
            raise _Exhausted(f"has a directory of more than {limit >> 20} MiB")
        with zipfile.ZipFile(stream) as archive:
            if archive.comment:
                yield Piece.of(f"{inside}!comment", archive.comment.decode("utf-8", "replace"))
            for info in archive.infolist():
                self._budget.member()
                place = f"{inside}!{info.filename}"
                yield Piece.of(place, "")
                if info.flag_bits & 1:
                    yield NotRead(place, "is encrypted")
                    continue
                try:
                    with archive.open(info) as member:
                        yield from self._member(member, place, depth)
                except _DAMAGE as error:
                    yield NotRead(place, f"cannot be unpacked ({type(error).__name__})")

    def _tar(self, stream: IO[bytes], inside: str, depth: int, *, forward: bool) -> Iterator[Part]:
        source = cast("IO[bytes]", _Headers(stream, self._budget.limits.header, forward=forward))
        with tarfile.open(fileobj=source, mode="r:") as archive:
            for info in archive:
                # Or a million empty members stay in memory.
                archive.members = []  # type: ignore[attr-defined]
                self._budget.member()
                place = f"{inside}!{info.name}"
                yield Piece.of(place, info.linkname)
                member = archive.extractfile(info) if info.isreg() else None
                if member is not None:
                    yield from self._member(member, place, depth)
                elif info.size:
                    yield NotRead(place, "is no file, and has content")
            source.seek(archive.offset)
            yield from strings(_after(source), f"{inside}!after the end")

    def _table(self, stream: IO[bytes], head: bytes, inside: str, kind: str) -> Iterator[Part]:
        # Also what is in no table: macros, metadata, rows that were deleted.
        yield from _plain(stream, head, inside)
        if self._tables is None:
            yield NotRead(inside, f"is a {kind} file, whose columns are compressed")
            return
        stream.seek(0)
        for place, text in self._tables(stream, kind):
            for piece in windows(iter((text,)), f"{inside}!{place}"):
                yield piece.without_lines()


def _after(stream: IO[bytes]) -> IO[bytes]:
    """The rest of a stream, which is read a little at a time."""
    return cast("IO[bytes]", io.BufferedReader(_Rest(stream), 1 << 20))


class _Rest(io.RawIOBase):
    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        target = memoryview(buffer).cast("B")
        data = self._stream.read(min(len(target), 1 << 16))
        target[: len(data)] = data
        return len(data)


def _kind(head: bytes) -> str | None:
    """What a file is by its first bytes, if it needs opening."""
    for kind, start, magic in _MAGIC:
        if head[start : start + len(magic)] == magic:
            return kind
    if head[_TAR] == b"ustar":
        return "tar"
    if head[8:12] == b"DUCK":
        return "DuckDB"
    return None


def _kind_by_end(stream: IO[bytes], head: bytes) -> str | None:
    """A zip archive behind a program that unpacks it."""
    size = stream.seek(0, os.SEEK_END)
    tail = b""
    if size > HEAD or b"PK\x05\x06" in head:
        stream.seek(max(0, size - _TAIL))
        tail = stream.read(_TAIL)
    stream.seek(0)
    return "zip at the end" if b"PK\x05\x06" in tail or b"PK\x05\x06" in head else None


def _directory_size(stream: IO[bytes]) -> int:
    """Bytes of the directory of a zip archive, as its end declares them."""
    size = stream.seek(0, os.SEEK_END)
    start = max(0, size - _TAIL - 20)
    stream.seek(start)
    tail = stream.read(_TAIL + 20)
    stream.seek(0)
    end = tail.rfind(b"PK\x05\x06")
    if end < 0:
        raise zipfile.BadZipFile("has no end")
    (declared,) = struct.unpack_from("<L", tail, end + 12)
    if tail[max(0, end - 20) :][:4] == b"PK\x06\x07":
        (place,) = struct.unpack_from("<Q", tail, end - 12)
        stream.seek(place)
        record = stream.read(56)
        stream.seek(0)
        (declared,) = struct.unpack_from("<Q", record, 40)
    return int(declared)


_MAGIC = (
    ("zip", 0, b"PK\x03\x04"), ("zip", 0, b"PK\x05\x06"), ("gzip", 0, b"\x1f\x8b\x08"),
    ("bzip2", 0, b"BZh"), ("xz", 0, b"\xfd7zXZ\0"), ("zstd", 0, b"\x28\xb5\x2f\xfd"),
    ("7z", 0, b"7z\xbc\xaf\x27\x1c"), ("rar", 0, b"Rar!\x1a\x07"), ("Parquet", 0, b"PAR1"),
    ("PDF", 0, b"%PDF-"), ("picture", 0, b"\x89PNG\r\n\x1a\n"), ("picture", 0, b"\xff\xd8\xff"),
    ("picture", 0, b"GIF8"), ("picture", 8, b"WEBPVP8"), ("lz4", 0, b"\x04\x22\x4d\x18"),
    ("arrow", 0, b"ARROW1\0\0"), ("cabinet", 0, b"MSCF\0\0\0\0"), ("squashfs", 0, b"hsqs"),
    ("age", 0, b"age-encryption.org/v"), ("office", 0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"),
    ("pack", 0, b"PACK\0\0\0\x02"),
)  # fmt: skip
_UNREAD = {
    "7z": "is a 7z archive", "rar": "is a RAR archive", "lz4": "is compressed with LZ4",
    "PDF": "is a PDF, whose pages are compressed",
    "picture": "is a picture: what it shows was not read",
    "arrow": "is an Arrow file, whose columns can be compressed", "cabinet": "is a cabinet archive",
    "squashfs": "is a squashfs image", "age": "is encrypted with age",
    "office": "is an office document of the old kind", "pack": "is a Git pack",
}  # fmt: skip


def _bzip2(stream: IO[bytes]) -> IO[bytes]:
    return bz2.BZ2File(stream)


def _xz(stream: IO[bytes]) -> IO[bytes]:
    return lzma.LZMAFile(stream)


def _gzip(stream: IO[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", gzip.GzipFile(fileobj=stream))


def _zstd(stream: IO[bytes]) -> IO[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    return cast("IO[bytes]", decompressor.stream_reader(stream, read_across_frames=True))


_PACKED: dict[str, Callable[[IO[bytes]], IO[bytes]]] = {
    "gzip": _gzip, "bzip2": _bzip2, "xz": _xz, "zstd": _zstd,
}  # fmt: skip


def _plain(stream: IO[bytes], head: bytes, inside: str) -> Iterator[Piece | Raw]:
    encoding = encoding_of(head)
    if encoding is None:
        yield from strings(stream, inside)
    else:
        yield from text_windows(stream, encoding, inside)
