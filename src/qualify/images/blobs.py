"""Where the bytes of an image lie: in a folder, or in one uncompressed tar.

A store answers by name only, and reads nothing that it was not asked for. It verifies nothing:
whoever reads a blob hashes it. A link in a folder is followed (a build may keep its blobs elsewhere
and link them), a link in a tar only to another of its members.
"""

from __future__ import annotations

import io
import stat
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from qualify.images.errors import ImageFault, damaged

_MAX_MEMBERS = 20_000
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ": "xz", b"BZh": "bzip2"}


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
    """The members of an uncompressed tar, found by one walk over its headers."""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._path = path
        self._places: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}
        self._list()

    def _list(self) -> None:
        try:
            with self._path.open("rb") as stream:
                _refuse_compressed(stream, self.where)
                with tarfile.open(fileobj=stream, mode="r:") as archive:
                    for count, member in enumerate(archive):
                        if count > _MAX_MEMBERS:
                            raise damaged(f"has more than {_MAX_MEMBERS:,} members", self.where)
                        self._enter(member)
        except tarfile.TarError as error:
            raise damaged(f"is no tar: {error}", self.where) from error
        except OSError as error:
            raise damaged(f"cannot be read: {error.strerror or error}", self.where) from error

    def _enter(self, member: tarfile.TarInfo) -> None:
        name = member.name.removeprefix("./")
        if member.issym():
            self._links[name] = str(Path(name).parent / member.linkname)
        elif member.islnk():
            self._links[name] = member.linkname.removeprefix("./")
        elif member.isreg() and member.sparse is None:
            self._places[name] = (member.offset_data, member.size)

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
            if name in self._places:
                return self._places[name]
            if name not in self._links:
                return None
            name = _flat(self._links[name])
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
