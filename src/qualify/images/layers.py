"""One layer as a stream: decompressed once, hashed on the way, member after member.

Promises: memory does not grow with the layer; both digests are known at the end; a header, a path
or a size that could harm whoever believes it ends the reading with one `ImageFault`; so does what
readers of tars do not all take for the same (`blobs.tar_entries`). Never: writes anything, or skips
a byte of a layer.

A thread reads ahead, because decompression and SHA-256 release Python's global lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast

from qualify.images.blobs import TarEntry, tar_entries
from qualify.images.decompression import CHUNK, ReadAhead
from qualify.images.errors import ImageFault, damaged
from qualify.images.image import Image, Layer
from qualify.images.limits import LIMITS, Limits

type Progress = Callable[[int], None]
"""Called with the number of stored bytes that were read since the last call."""

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
_CAPABILITIES = ("SCHILY.xattr.security.capability", "LIBARCHIVE.xattr.security.capability")
_KINDS = {
    b"0": "file", b"7": "file", b"5": "folder", b"2": "link", b"1": "hardlink",
    b"3": "device", b"4": "device", b"6": "pipe",
}  # fmt: skip
_BLOCK = 512


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of a layer."""

    path: str
    """Below the root, without a leading slash; empty for the root itself."""
    kind: str
    """`file`, `folder`, `link`, `hardlink`, `device`, `pipe`."""
    size: int
    mode: int
    uid: int
    gid: int
    mtime: int
    target: str
    """Of links: as it stands for `link`, normalised for `hardlink`."""
    capability: bool
    """Carries file capabilities (privileges without setuid)."""


@dataclass
class Allowance:
    """What all layers of one image together may still give."""

    limits: Limits = LIMITS
    members: int = 0
    unpacked: int = 0


def safe_path(name: str, where: str, limits: Limits = LIMITS) -> str:
    """`name` below the root, without `.`, empty parts and a leading slash.

    Raises `ImageFault` for `..`, NUL, and what is too long or too deep.
    """
    if "//" not in name and not name.startswith(("/", "./", "../")) and "/." not in name:
        plain = name.rstrip("/")
        if plain not in (".", "..") and len(plain) < 256 and "\0" not in plain:
            return plain
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise _hostile(f"{name[:200]!a} leads out of the image", where)
    if "\0" in name or len(name) > limits.path or len(parts) > limits.depth:
        raise _hostile(f"the path {name[:60]!a}… is too long, too deep, or holds a NUL", where)
    return "/".join(parts)


def _hostile(what: str, where: str) -> ImageFault:
    return ImageFault(what, where=where, fix="do not use this image")


class LayerReader:
    """Reads one layer. Use as a context: members in order, then `finish`."""

    def __init__(
        self, image: Image, layer: Layer, allowance: Allowance, progress: Progress | None = None
    ) -> None:
        self._layer = layer
        self._allowance = allowance
        self.where = f"{image.where}: layer {layer.index + 1}"
        self._ahead = ReadAhead(image.store, layer, self.where, progress)
        self._forward = _Forward(self._ahead, layer, allowance, self.where)
        self._member: TarEntry | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _t: TracebackType | None,
    ) -> None:
        self._ahead.close()

    def members(self) -> Iterator[Member]:
        """Every member; the content of the present one can be read with `chunks`.

        Raises `ImageFault`.
        """
        stream, limit = cast("Any", self._forward), self._allowance.limits.header
        for found in tar_entries(stream, self.where, limit):
            self._count()
            self._member = found
            yield self._checked(found)
        self._member = None

    def _count(self) -> None:
        allowance = self._allowance
        allowance.members += 1
        if allowance.members > allowance.limits.members:
            raise _hostile(f"more than {allowance.limits.members:,} entries", self.where)

    def _checked(self, entry: TarEntry) -> Member:
        limits = self._allowance.limits
        path, kind = safe_path(entry.name, self.where, limits), _KINDS[entry.type]
        target = ""
        if kind == "link":
            target = entry.link
            if not target or len(target) > limits.path:
                raise _hostile(f"the link {path[:200]!a} has no usable target", self.where)
        elif kind == "hardlink":
            target = safe_path(entry.link, self.where, limits)
        if not path and kind != "folder":
            raise _hostile(f"its root is a {kind}", self.where)
        if entry.size and path.rpartition("/")[2].startswith(WHITEOUT):
            raise _hostile(f"the mark {path[:200]!a} of a removed file has bytes", self.where)
        return Member(
            path,
            kind,
            entry.size,
            entry.mode & 0o7777,
            entry.uid,
            entry.gid,
            entry.mtime,
            target,
            not entry.attributes.isdisjoint(_CAPABILITIES),
        )

    def chunks(self) -> Iterator[bytes]:
        """The content of the present member, in pieces of at most 1 MiB. Raises `ImageFault`."""
        entry = self._member
        assert entry is not None
        self._forward.seek(entry.data)
        left = entry.size
        while left:
            piece = self._forward.some(min(left, CHUNK))
            if not piece:
                raise damaged("ends in the middle of a file: it is truncated", self.where)
            left -= len(piece)
            yield piece
        if self._forward.ended_before(entry.data + entry.size):
            raise damaged("ends in the middle of a file: it is truncated", self.where)

    def everything(self) -> Iterator[bytes]:
        """The layer's tar as it is, instead of its members. Raises `ImageFault`."""
        while piece := self._forward.some(CHUNK):
            yield piece

    @property
    def stored_digest(self) -> str:
        """Digest of the stored bytes, after `finish`."""
        return self._ahead.stored_digest

    def finish(self) -> tuple[str, ...]:
        """Read to the end; a sentence for each digest or size that does not match.

        Raises `ImageFault` when bytes follow the end of the archive that no reader would see.
        """
        while piece := self._forward.some(CHUNK):
            if piece.count(0) != len(piece):
                raise _hostile("holds bytes after the end of its tar", self.where)
        layer, ahead = self._layer, self._ahead
        faults = []
        if ahead.stored_size != layer.size:
            faults.append(f"has {ahead.stored_size} bytes, {layer.size} are declared")
        if layer.digest is not None and ahead.stored_digest != layer.digest:
            faults.append(f"has the digest {ahead.stored_digest}, not {layer.digest}")
        if ahead.tar_digest != layer.diff_id:
            faults.append(f"unpacks to {ahead.tar_digest}, not to its diff_id {layer.diff_id}")
        return tuple(f"layer {layer.index + 1} {fault}" for fault in faults)


class _Forward:
    """The decompressed layer for `tar_entries`: read, tell, and seek forward only."""

    def __init__(self, ahead: ReadAhead, layer: Layer, allowance: Allowance, where: str) -> None:
        self._ahead = ahead
        self._stored = max(layer.size, 1)
        self._allowance = allowance
        self._where = where
        self._chunk = b""
        self._at = 0
        self._start = 0
        """Position of the chunk's first byte in the tar."""
        self._end: int | None = None
        """Where the tar ended, when its last block was not filled up."""

    def tell(self) -> int:
        return self._start + self._at

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes, fewer at the end. Used for headers, hence bounded.

        Nothing of what was filled up: a reader that fills nothing sees no header there.
        """
        end = self._at + size
        if end <= len(self._chunk) and not self.ended_before(self._start + end):
            piece = self._chunk[self._at : end]
            self._at = end
            return piece
        if size > self._allowance.limits.header:
            raise _hostile(f"a header of {size} bytes", self._where)
        begin, pieces = self.tell(), []
        while size and (piece := self.some(size)):
            pieces.append(piece)
            size -= len(piece)
        found = b"".join(pieces)
        return found if self._end is None else found[: max(self._end - begin, 0)]

    def some(self, size: int) -> bytes:
        """At least one byte and at most `size`; nothing at the end."""
        if self._at == len(self._chunk) and not self._refill():
            return b""
        piece = self._chunk[self._at : self._at + size]
        self._at += len(piece)
        return piece

    def seek(self, position: int) -> int:
        """Move forward. Raises `ImageFault` when the layer ends before."""
        ahead = position - self.tell()
        if ahead < 0:
            raise damaged("its members overlap", self._where)
        while self._at + ahead > len(self._chunk):
            ahead -= len(self._chunk) - self._at
            if not self._refill():
                raise damaged("ends in the middle of a file: it is truncated", self._where)
        self._at += ahead
        return position

    def ended_before(self, position: int) -> bool:
        """Whether `position` lies in what was filled up."""
        return self._end is not None and position > self._end

    def _refill(self) -> bool:
        self._start += len(self._chunk)
        self._at = 0
        self._chunk = self._ahead.next()
        if not self._chunk and self._start % _BLOCK:
            # Some writers leave the last block short; readers take it for filled up.
            self._end = self._start
            self._chunk = b"\0" * (-self._start % _BLOCK)
            return True
        allowance, given = self._allowance, self._start + len(self._chunk)
        allowance.unpacked += len(self._chunk)
        limits = allowance.limits
        if allowance.unpacked > limits.unpacked:
            raise _hostile(f"unpacks to more than {limits.unpacked >> 30} GiB", self._where)
        if given > limits.ratio_from and given > limits.ratio * self._stored:
            raise _hostile(
                f"unpacks to more than {limits.ratio} times its size: a decompression bomb",
                self._where,
            )
        return bool(self._chunk)
