"""Where the bytes of an image lie: in a folder, or in one uncompressed tar.

A store answers by name only, and reads nothing that it was not asked for. It verifies nothing:
whoever reads a blob hashes it. A link in a folder is followed (a build may keep its blobs elsewhere
and link them), a link in a tar only to another of its members.

`tar_entries` reads the headers of these tars and of layers, and takes only what every reader takes
for the same thing: GNU tar, libarchive, Python and Go differ in what they forgive, and so in the
files they see. Formats: POSIX.1-2017 (pax, "ustar" and "pax"), and GNU's long names.
"""

from __future__ import annotations

import io
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from qualify.images.errors import ImageFault, damaged
from qualify.images.limits import LIMITS

_MAX_MEMBERS = 20_000
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"BZh": "bzip2"}


@dataclass(frozen=True, slots=True)
class TarEntry:
    """One member of a tar, long names and extended attributes applied."""

    name: str
    type: bytes
    """As in the header: `0` or `7` a file, `5` a folder, `1` a hard link, `2` a link, …"""
    link: str
    size: int
    """0 for all but files."""
    mode: int
    uid: int
    gid: int
    mtime: int
    attributes: frozenset[str]
    """Keywords of its own extended header."""
    data: int
    """Where its bytes begin."""


_BLOCK = 512
_FIELDS = ((100, 108), (108, 116), (116, 124), (124, 136), (329, 337), (337, 345))
"""Numbers of a header but for the time and the checksum, which follow other rules."""
_FILES = (b"0", b"7")
_TYPES = (*_FILES, b"1", b"2", b"3", b"4", b"5", b"6")
_OCTAL = re.compile(rb" *([0-7]*)[ \0]*")
_RECORD = re.compile(rb"([1-9][0-9]{0,8}) ([^=\0\n]+)=")
_VALUES = {
    **dict.fromkeys(("size", "uid", "gid"), re.compile(rb"[0-9]{1,18}")),
    **dict.fromkeys(("path", "linkpath"), re.compile(rb"[^\0]+")),
    "mtime": re.compile(rb"-?[0-9]{1,18}(\.[0-9]*)?"),
}
_SIZES = ("GNU.sparse.", "SCHILY.realsize", "SUN.holesdata")
_ONE_FILE = ("path", "linkpath", "size", "uid", "gid", "SCHILY.xattr.", "LIBARCHIVE.xattr.")


class _Unsound(Exception):
    """What readers would not all take for the same."""


def tar_entries(stream: BinaryIO, where: str, limit: int = LIMITS.header) -> Iterator[TarEntry]:
    """Every member up to the end: the stream's, or a block of zeros, behind which it then stands.

    `stream` is read and moved forward; between two members its bytes may be read. `limit` is the
    most bytes of one header. Raises `ImageFault` for a header that is damaged, or that readers
    understand in several ways.
    """
    try:
        while (entry := _next(stream, limit)) is not None:
            yield entry
            stream.seek(entry.data + entry.size + -entry.size % _BLOCK)
    except _Unsound as error:
        raise damaged(f"is no sound tar: {error}", where) from error


def _next(stream: BinaryIO, limit: int) -> TarEntry | None:
    notes: dict[bytes, bytes] = {}
    while any(block := stream.read(_BLOCK)):
        kind = _kind(block)
        if kind not in b"xgLK":
            return _entry(block, notes, stream.tell())
        size = _number(block[124:136])
        if size > limit:
            raise _Unsound(f"a header of {size} bytes")
        data = stream.read(size + -size % _BLOCK)[:size]
        if len(data) != size:
            raise _Unsound("it ends in a header")
        if kind == b"g" and not notes:
            if any(key.startswith((*_ONE_FILE, *_SIZES)) for key in _records(data)):
                raise _Unsound("a header for all members names or sizes them")
        elif kind in notes or kind == b"g":
            raise _Unsound("one member has several headers of a kind")
        else:
            notes[kind] = data
    if notes:
        raise _Unsound("a header belongs to no member")
    return None


def _kind(block: bytes) -> bytes:
    """The type of a header that is whole."""
    if len(block) != _BLOCK:
        raise _Unsound("it ends in a header")
    if _number(block[148:156]) != sum(block[:148]) + 8 * 32 + sum(block[156:]):
        raise _Unsound("bad checksum")
    magic = block[257:265]
    if magic[:6] != b"ustar\0" and (magic not in (b"ustar  \0", bytes(8)) or any(block[345:500])):
        raise _Unsound("a header is of no known format")
    if any(block[500:]):
        raise _Unsound("a header is of no known format")
    for start, end in _FIELDS:
        _number(block[start:end])
    _number(block[136:148], least=None)
    return block[156:157]


def _entry(block: bytes, notes: dict[bytes, bytes], data: int) -> TarEntry:
    pax = _records(notes.get(b"x", b""))
    for key in pax:
        if key.startswith(_SIZES):
            raise _Unsound("a file is stored sparsely")
    name, link = _text(block[:100]), _text(block[157:257])
    if block[257:263] == b"ustar\0" and (prefix := _text(block[345:500])):
        name = f"{prefix}/{name}"
    name = _long(name, notes.get(b"L"), pax.get("path"))
    link = _long(link, notes.get(b"K"), pax.get("linkpath"))
    kind = block[156:157]
    if kind == b"\0":
        kind = b"5" if name.endswith("/") else b"0"
    size = _size(_number(block[124:136]), pax)
    if kind not in _TYPES:
        raise _Unsound(f"{name[:200]!a} is of unknown type {kind!r}")
    if kind in _FILES and name.endswith("/"):
        raise _Unsound(f"{name[:200]!a} is a file with the name of a folder")
    if kind not in _FILES and size:
        raise _Unsound(f"{name[:200]!a} has bytes, and is no file")
    mtime = pax.get("mtime")
    return TarEntry(
        name,
        kind,
        link,
        size,
        _number(block[100:108]),
        int(pax["uid"]) if "uid" in pax else _number(block[108:116]),
        int(pax["gid"]) if "gid" in pax else _number(block[116:124]),
        max(int(mtime.partition(b".")[0]) if mtime else _number(block[136:148], least=None), 0),
        frozenset(pax),
        data,
    )


def _number(field: bytes, *, least: int | None = 0) -> int:
    """A number of a header: octal, or GNU's binary form. Negative only without `least`."""
    if (match := _OCTAL.fullmatch(field)) is not None:
        return int(match[1] or b"0", 8)
    if field[0] == 0x80 or (field[0] == 0xFF and least is None):
        value = int.from_bytes(field[1:], "big") - (field[0] == 0xFF) * (1 << 8 * len(field) - 8)
        if value < 1 << 63:
            return value
    raise _Unsound("a number of a header is malformed")


def _size(size: int, pax: dict[str, bytes]) -> int:
    """A header's size, or the extended one where the header has no room for it."""
    if "size" not in pax:
        return size
    extended = int(pax["size"])
    if extended != size and extended < 8**11:
        raise _Unsound(f"a file has {size} bytes and {extended} bytes")
    return extended


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _long(short: str, gnu: bytes | None, pax: bytes | None) -> str:
    """A name that may be too long for its field."""
    if gnu is None and pax is None:
        return short
    if gnu is not None and pax is not None:
        raise _Unsound("a member has two names")
    name, _, rest = (gnu or pax or b"").partition(b"\0")
    if not name or rest.strip(b"\0"):
        raise _Unsound("a long name is empty, or holds a NUL")
    return name.decode("utf-8", "surrogateescape")


def _records(data: bytes) -> dict[str, bytes]:
    """Keywords and values of an extended header (POSIX.1-2017, pax Extended Header)."""
    found: dict[str, bytes] = {}
    at = 0
    while at < len(data):
        match = _RECORD.match(data, at)
        end = at + int(match[1]) if match else 0
        if match is None or not match.end() < end <= len(data) or data[end - 1] != ord("\n"):
            raise _Unsound("an extended header is malformed")
        key, value = match[2].decode("utf-8", "surrogateescape"), data[match.end() : end - 1]
        if key in found:
            raise _Unsound(f"an extended header says {key[:100]!a} twice")
        if (pattern := _VALUES.get(key)) is not None and not pattern.fullmatch(value):
            raise _Unsound(f"the {key} of an extended header is malformed")
        found[key] = value
        at = end
    return found


class BlobStore(Protocol):
    """Files by name, such as `blobs/sha256/<hex>`."""

    @property
    def where(self) -> str:
        """What people call it in messages."""
        ...

    def has(self, name: str) -> bool:
        """Tell whether there is a file of that name."""
        ...

    def size(self, name: str) -> int:
        """Bytes of a file. Raises `ImageFault` when it is missing."""
        ...

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading. Raises `ImageFault` when it is missing."""
        ...


@dataclass(frozen=True)
class FolderStore:
    """The files of an OCI layout in a folder."""

    folder: Path

    @property
    def where(self) -> str:
        """The folder."""
        return str(self.folder)

    def has(self, name: str) -> bool:
        """As in `BlobStore`."""
        try:
            return stat.S_ISREG((self.folder / name).stat().st_mode)
        except OSError:
            return False

    def size(self, name: str) -> int:
        """As in `BlobStore`."""
        return self._stat(name)

    def open(self, name: str) -> BinaryIO:
        """As in `BlobStore`."""
        self._stat(name)
        try:
            return (self.folder / name).open("rb", buffering=0)
        except OSError as error:
            raise self._fault(name, error.strerror or str(error)) from error

    def _stat(self, name: str) -> int:
        try:
            info = (self.folder / name).stat()
        except OSError as error:
            raise self._fault(name, error.strerror or str(error)) from error
        if not stat.S_ISREG(info.st_mode):
            raise self._fault(name, "is not a file")
        return info.st_size

    def _fault(self, name: str, reason: str) -> ImageFault:
        return damaged(f"{name} cannot be read: {reason}", self.where)


class TarStore:
    """The members of an uncompressed tar, found by one walk over its headers.

    A name that comes twice is refused: some readers take the first, some the last.
    """

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._path = path
        self._places: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}
        self._list()

    def _list(self) -> None:
        try:
            with self._path.open("rb") as stream:
                size = self._path.stat().st_size
                _refuse_compressed(stream, self.where)
                for count, entry in enumerate(tar_entries(stream, self.where)):
                    if count > _MAX_MEMBERS:
                        raise damaged(f"has more than {_MAX_MEMBERS:,} members", self.where)
                    if entry.data + entry.size > size:
                        raise damaged("ends in the middle of a file: it is truncated", self.where)
                    self._enter(entry)
                while chunk := stream.read(1 << 20):
                    if chunk.count(0) != len(chunk):
                        raise damaged("holds bytes after the end of its tar", self.where)
        except OSError as error:
            raise damaged(f"cannot be read: {error.strerror or error}", self.where) from error

    def _enter(self, entry: TarEntry) -> None:
        name = _flat(entry.name)
        if entry.type == b"5":
            return
        if name in self._places or name in self._links:
            raise damaged(f"holds {name[:200]!a} twice", self.where)
        if entry.type == b"2":
            self._links[name] = str(Path(name).parent / entry.link)
        elif entry.type == b"1":
            self._links[name] = entry.link
        elif entry.type in _FILES:
            self._places[name] = (entry.data, entry.size)

    def has(self, name: str) -> bool:
        """As in `BlobStore`."""
        return self._place(name) is not None

    def size(self, name: str) -> int:
        """As in `BlobStore`."""
        return self._found(name)[1]

    def open(self, name: str) -> BinaryIO:
        """As in `BlobStore`."""
        start, size = self._found(name)
        try:
            raw = self._path.open("rb", buffering=0)
        except OSError as error:
            raise damaged(f"cannot be read: {error.strerror or error}", self.where) from error
        raw.seek(start)
        return io.BufferedReader(_Part(raw, size), 1 << 16)

    def _found(self, name: str) -> tuple[int, int]:
        place = self._place(name)
        if place is None:
            raise damaged(f"{name} is missing", self.where)
        return place

    def _place(self, name: str) -> tuple[int, int] | None:
        for _ in range(8):
            name = _flat(name)
            if name in self._places:
                return self._places[name]
            if name not in self._links:
                return None
            name = self._links[name]
        return None


def _flat(name: str) -> str:
    parts: list[str] = []
    for part in name.split("/"):
        if part == "..":
            if not parts:
                return ""
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def _refuse_compressed(stream: BinaryIO, where: str) -> None:
    head = stream.read(6)
    stream.seek(0)
    for magic, name in _COMPRESSED.items():
        if head.startswith(magic):
            raise ImageFault(
                f"is compressed with {name}; its members cannot be looked up",
                where=where,
                fix="decompress it first",
            )


class _Part(io.RawIOBase):
    """A range of a file that nobody else reads."""

    def __init__(self, raw: BinaryIO, size: int) -> None:
        self._raw = raw
        self._left = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)[: self._left]  # type: ignore[arg-type]
        count = self._raw.readinto(view)  # type: ignore[attr-defined]
        self._left -= count
        return int(count)

    def close(self) -> None:
        self._raw.close()
        super().close()
