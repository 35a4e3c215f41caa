"""One layer of an image: a tar file in a gzip member, and who owns each path in it.

Promises: times, owners and modes are what the caller says and nothing else; a path has one owner,
or the build ends with an error that names both; no path of the Nix store is left in any file,
because it would mean nothing on another machine.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import tarfile
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import BinaryIO, Self

from qualify.images.building.gzip_stream import GzipStream

LEVEL = 4
"""zlib level of every layer (docs/guide/builds.md has the measurement)."""

EPOCH = 1
"""Time of every file, in seconds since 1970. Not 0: some tools take that for "no time"."""

_CHUNK = 1 << 20
_SMALL = 1 << 16
_STORE_PATH = re.compile(rb"/nix/store/[0-9a-df-np-sv-z]{32}-")
_LONGEST = 11 + 32 + 1
_STATES_LICENCE = re.compile(r"\.dist-info/METADATA$|^usr/share/doc/[^/]+/copyright$")


class BuildError(Exception):
    """What is being built cannot be built: the message says which file of whom, and why."""


class LayerWriter:
    """Writes `layer.tar.gz`, `layer.json`, `owners.json` and `stated.json` into an existing folder.

    `stated.json` holds the files that state a licence, so that a bill of materials needs no layer.

    Used as a context manager; only a body that ends normally leaves a `layer.json`. Paths are
    relative to the root of the image, with `/`. Missing parent folders are written first, as
    `root:root 0755`. Writing the same folder twice is allowed, the first mode stays.
    """

    def __init__(self, folder: Path, *, title: str, threads: int, level: int = LEVEL) -> None:
        self._folder = folder
        self._title = title
        self._out = (folder / "layer.tar.gz").open("xb")
        self._gzip = GzipStream(self._out, level, threads)
        self._tar = tarfile.TarFile(
            mode="w",
            fileobj=_Sink(self._gzip),
            format=tarfile.GNU_FORMAT,
            encoding="utf-8",
            copybufsize=_CHUNK,
        )
        self.owners: dict[str, tuple[str, str]] = {}
        """Owner and identity (a digest, `-> target`, or empty) of each path that is no folder."""
        self.folders: dict[str, str] = {}
        """First owner of each folder."""
        self._stated: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._gzip.abandon()
            self._out.close()
            return
        self._tar.close()
        self._gzip.close()
        self._out.close()
        described = {
            "digest": f"sha256:{self._gzip.sha256}",
            "diff_id": f"sha256:{self._gzip.plain_sha256}",
            "size": self._gzip.size,
            "plain_size": self._gzip.plain_size,
            "title": self._title,
        }
        write_json(self._folder / "layer.json", described)
        write_json(
            self._folder / "owners.json", {"files": self.owners, "folders": sorted(self.folders)}
        )
        write_json(self._folder / "stated.json", self._stated)

    def folder(
        self, path: str, owner: str, *, mode: int = 0o755, uid: int = 0, gid: int = 0
    ) -> None:
        """Write a folder and its parents, unless they have been written."""
        path = clean(path)
        if path in self.folders:
            return
        if path in self.owners:
            raise BuildError(f"{path} is a file of {self.owners[path][0]} and a folder of {owner}")
        self._parents(path, owner)
        self.folders[path] = owner
        entry = self._entry(path, tarfile.DIRTYPE, mode)
        entry.uid, entry.gid = uid, gid
        self._tar.addfile(entry)

    def file(self, path: str, data: bytes, owner: str, *, mode: int = 0o644) -> None:
        """Write a file whose bytes are at hand."""
        identity = hashlib.sha256(data).hexdigest() if len(data) <= _SMALL else ""
        if not self._claim(path, owner, identity):
            return
        if _STATES_LICENCE.search(path):
            self._stated[clean(path)] = base64.b64encode(data).decode("ascii")
        self._write(path, io.BytesIO(data), len(data), mode, owner)

    def stream(
        self, path: str, data: BinaryIO, size: int, owner: str, *, mode: int = 0o644
    ) -> None:
        """Write a file of `size` bytes from a stream. Raises `BuildError` when it is shorter."""
        if size <= _SMALL or _STATES_LICENCE.search(path):
            self.file(path, data.read(), owner, mode=mode)
            return
        self._claim(path, owner, "")
        self._write(path, data, size, mode, owner)

    def link(self, path: str, target: str, owner: str) -> None:
        """Write a symbolic link."""
        if self._claim(path, owner, f"-> {target}"):
            entry = self._entry(clean(path), tarfile.SYMTYPE, 0o777)
            entry.linkname = target
            self._tar.addfile(entry)

    def same_file(self, path: str, first: str, owner: str) -> None:
        """Write a hard link to a file that this layer already holds."""
        if clean(first) not in self.owners:
            raise BuildError(f"{path} of {owner} is a hard link to {first}, which is not there yet")
        if self._claim(path, owner, f"= {clean(first)}"):
            entry = self._entry(clean(path), tarfile.LNKTYPE, 0o644)
            entry.linkname = clean(first)
            self._tar.addfile(entry)

    def _write(self, path: str, data: BinaryIO, size: int, mode: int, owner: str) -> None:
        if mode & 0o7000:
            raise BuildError(
                f"{path} of {owner} has mode {mode:04o}: set-id files have no place in an image"
            )
        entry = self._entry(clean(path), tarfile.REGTYPE, mode)
        entry.size = size
        watched = _Watched(data, f"{path} of {owner}")
        try:
            self._tar.addfile(entry, watched)
        except OSError as error:
            if str(error) != "unexpected end of data":
                raise
            raise BuildError(f"{path} of {owner} is shorter than {size} bytes") from error

    def _claim(self, path: str, owner: str, identity: str) -> bool:
        """Whether the path is to be written: not when an equal file of another owner is there."""
        path = clean(path)
        if path in self.folders:
            raise BuildError(f"{path} is a folder of {self.folders[path]} and a file of {owner}")
        if path in self.owners:
            check_shared(path, self.owners[path], (owner, identity))
            return False
        self._parents(path, owner)
        self.owners[path] = (owner, identity)
        return True

    def _parents(self, path: str, owner: str) -> None:
        parent = str(PurePosixPath(path).parent)
        if parent != "." and parent not in self.folders:
            self.folder(parent, owner)

    @staticmethod
    def _entry(path: str, kind: bytes, mode: int) -> tarfile.TarInfo:
        entry = tarfile.TarInfo(path)
        entry.type = kind
        entry.mode = mode
        entry.mtime = EPOCH
        return entry


def clean(path: str) -> str:
    """The path without `./`. Raises `BuildError` when it would leave the root or is empty."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts:
        raise BuildError(f"{path!r} is no path below the root of an image")
    return str(pure)


def check_shared(path: str, first: tuple[str, str], second: tuple[str, str]) -> None:
    """Raise `BuildError` unless two owners may share a path.

    They may when the bytes are equal and the file is a package's `__init__.py`, or its bytecode:
    parts of one namespace that come in several wheels each ship it. For any other file even equal
    bytes are an error, because the next version of either would silently replace the other's.
    """
    name = PurePosixPath(path).name
    equal = first[1] == second[1] != ""
    if equal and (name == "__init__.py" or name.startswith("__init__.cpython-")):
        return
    raise BuildError(
        f"two packages own {path}: {first[0]} and {second[0]}"
        + (" (with equal bytes)" if equal else "")
    )


def write_json(path: Path, value: object) -> None:
    """Write a value so that equal values give equal bytes."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    path.write_text(text + "\n", encoding="ascii")


class _Sink(io.RawIOBase):
    """What `tarfile` writes to."""

    def __init__(self, gzip: GzipStream) -> None:
        self._gzip = gzip

    def write(self, data: bytes) -> int:  # type: ignore[override]
        return self._gzip.write(data)

    def tell(self) -> int:
        return self._gzip.tell()


class _Watched(io.RawIOBase):
    """A stream in which a path of the Nix store is an error."""

    def __init__(self, data: BinaryIO, name: str) -> None:
        self._data = data
        self._name = name
        self._tail = b""

    def read(self, size: int = -1) -> bytes:
        data = self._data.read(size)
        if b"/nix/store/" in data:
            self._refuse(data)
        if self._tail:
            self._refuse(self._tail + data[:_LONGEST])
        self._tail = data[-_LONGEST:]
        return data

    def _refuse(self, data: bytes) -> None:
        found = _STORE_PATH.search(data)
        if found:
            raise BuildError(
                f"{self._name} holds a path of the Nix store: {found[0].decode('ascii')}"
            )
