"""One pass over an image: every layer decompressed once, everything that a guard wants to know
taken from that stream.

What is asked of the result (the merged view) is stored at its nodes, so that it vanishes with a
file that a later layer replaces. What counts in any layer (weights, credentials: a deleted file is
still shipped) is a list of findings.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from qualify.images.credentials import OVERLAP, in_named_file, in_text, is_text, wants_whole
from qualify.images.decompression import CHUNK
from qualify.images.errors import ImageFault, ImageTampered, damaged
from qualify.images.image import Image
from qualify.images.layers import Allowance, LayerReader, Member, Progress
from qualify.images.libraries import MAGIC, NeededLibraries
from qualify.images.limits import LIMITS, Limits
from qualify.images.tree import Node, Tree
from qualify.images.weights import HEAD, allowed_weights, weights_kind

_HEAD = 4096
"""First bytes of a file, by which its kind is told."""
_STORE = b"/nix/store/"
_STORE_PATH = re.compile(rb"/nix/store/[0-9a-df-np-sv-z]{32}-")
_READ = re.compile(
    r"(^|/)[^/]+\.dist-info/(METADATA|RECORD)$"
    r"|(^|/)[^/]+\.egg-info/PKG-INFO$"
    r"|(^|/)vllm/(entrypoints/openai/)?tool_parsers/[^/]+\.py$"
    r"|(^|/)torch/version\.py$"
    r"|^etc/passwd$|^(etc|usr/lib)/os-release$"
    r"|^var/lib/dpkg/status(\.d/[^/]+)?$"
)


@dataclass(frozen=True)
class Finding:
    """Something in one file of one layer."""

    topic: str
    """`weights`, `credentials`, `build-paths`."""
    what: str
    path: str
    layer: int
    node: Node = field(repr=False, compare=False)
    allowed: str | None = None
    """Why it may be there."""


@dataclass
class Scan:
    """What one pass has found."""

    tree: Tree
    findings: list[Finding] = field(default_factory=list)
    mismatches: list[str] = field(default_factory=list)
    """Layers that are not what their digests say."""
    broken: str | None = None
    """Why the pass ended early; then nothing can be said of the content."""
    unread: list[str] = field(default_factory=list)
    """ELF files whose libraries could not be told."""
    too_large: list[str] = field(default_factory=list)
    """Files that would be read as text, and are not: too large, or known by another name only."""
    files: int = 0
    unpacked: int = 0
    """Bytes of all layers, decompressed."""


def scan_image(
    image: Image,
    *,
    progress: Progress | None = None,
    tolerant: bool = False,
    limits: Limits = LIMITS,
) -> Scan:
    """Stream every layer once.

    Raises `ImageFault` for what cannot be read and `ImageTampered` when a digest does not match;
    with `tolerant`, both are noted in the result instead.
    """
    found = Scan(Tree(image.where, limits))
    allowance = Allowance(limits)
    examiner = _Examiner(found, limits)
    try:
        for layer in image.layers:
            with LayerReader(image, layer, allowance, progress) as reader:
                for member in reader.members():
                    placed = found.tree.add(member, layer.index)
                    if placed is not None and member.kind == "file":
                        examiner.examine(placed[1], member, layer.index, reader.chunks())
                mismatches = reader.finish()
            found.mismatches += mismatches
            if mismatches and not tolerant:
                raise ImageTampered(
                    mismatches[0], where=image.where, fix="get the image again from its builder"
                )
    except ImageFault as error:
        if not tolerant:
            raise
        found.broken = str(error)
    _note_unread(found)
    found.unpacked = allowance.unpacked
    return found


def scan_folder(root: Path, *, progress: Progress | None = None, limits: Limits = LIMITS) -> Scan:
    """The same pass over an environment that lies in a folder. Follows no link.

    Raises `ImageFault` for what cannot be read.
    """
    found = Scan(Tree(str(root), limits))
    examiner = _Examiner(found, limits)
    try:
        for path, info in _listed(root):
            shown = path.relative_to(root).as_posix()
            member = _member(path, shown, info)
            placed = found.tree.add(member, 0)
            if placed is not None and member.kind == "file":
                examiner.examine(placed[1], member, 0, _chunks(path, progress))
                found.unpacked += info.st_size
    except OSError as error:
        raise damaged(f"cannot be read: {error.strerror}", str(error.filename or root)) from error
    _note_unread(found)
    return found


def _note_unread(found: Scan) -> None:
    """Note the files that lie where a text is expected, and came there by another name.

    A hard link or a folder's link brings them there after their bytes have passed.
    """
    known = set(found.too_large)
    for path, node in found.tree.walk():
        if node.kind == "file" and node.text is None and _READ.search(path):
            if node.size == 0:
                node.text = b""
            elif path not in known:
                found.too_large.append(path)


def _listed(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    stack = [root]
    while stack:
        folder = stack.pop()
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                info = entry.stat(follow_symlinks=False)
                yield Path(entry.path), info
                if stat.S_ISDIR(info.st_mode):
                    stack.append(Path(entry.path))


_KINDS = {
    stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link",
    stat.S_IFCHR: "device", stat.S_IFBLK: "device", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "pipe",
}  # fmt: skip


def _member(path: Path, shown: str, info: os.stat_result) -> Member:
    kind = _KINDS[stat.S_IFMT(info.st_mode)]
    return Member(
        shown,
        kind,
        info.st_size if kind == "file" else 0,
        stat.S_IMODE(info.st_mode),
        info.st_uid,
        info.st_gid,
        int(info.st_mtime),
        str(path.readlink()) if kind == "link" else "",
        capability=False,
    )


def _chunks(path: Path, progress: Progress | None) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as stream:
        while chunk := stream.read(CHUNK):
            if progress is not None:
                progress(len(chunk))
            yield chunk


def _with_head(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes; the first piece has `_HEAD` of them, wherever the file was cut."""
    head, whole = b"", False
    for chunk in chunks:
        piece = chunk if whole else head + chunk
        whole = whole or len(piece) >= _HEAD
        if whole:
            yield piece
        else:
            head = piece
    if head and not whole:
        yield head


class _Examiner:
    """Looks at the content of files, one at a time."""

    def __init__(self, found: Scan, limits: Limits) -> None:
        self._found = found
        self._limits = limits
        self._texts = 0
        """Bytes that stay in memory."""

    def examine(self, node: Node, member: Member, layer: int, chunks: Iterable[bytes]) -> None:
        """Read one file to its end and note what the guards want to know of it."""
        self._found.files += 1
        path = member.path
        state, topics = hashlib.sha256(), set[tuple[str, str]]()
        head, text, elf, kept, tail = b"", False, None, None, b""
        for chunk in _with_head(chunks):
            if not head:
                head = chunk[:_HEAD]
                text = is_text(head)
                elf = NeededLibraries() if head.startswith(MAGIC) else None
                kept = self._keeps(path, member.size)
            state.update(chunk)
            if elf is not None:
                elf.feed(chunk)
            if kept is not None:
                kept.append(chunk)
            piece = tail + chunk if tail else chunk
            if text:
                topics.update(("credentials", what) for what in in_text(piece))
            if _STORE in piece and _STORE_PATH.search(piece):
                topics.add(("build-paths", "a path of a Nix store"))
            tail = piece[-OVERLAP:]
        node.digest = state.digest()
        self._conclude(node, member, head, elf, kept)
        if kind := weights_kind(head[:HEAD], member.size, path):
            topics.add(("weights", kind))
        if node.text is not None and wants_whole(path):
            topics.update(("credentials", what) for what in in_named_file(path, node.text))
            node.text = node.text if _READ.search(path) else None
        for topic, what in sorted(topics):
            reason = allowed_weights().get(node.digest.hex()) if topic == "weights" else None
            self._found.findings.append(Finding(topic, what, path, layer, node, reason))

    def _keeps(self, path: str, size: int) -> list[bytes] | None:
        if not (_READ.search(path) or wants_whole(path)):
            return None
        if size > self._limits.text:
            self._found.too_large.append(path)
            return None
        if _READ.search(path):
            self._stays(size)
        return []

    def _stays(self, size: int) -> None:
        self._texts += size
        if self._texts > self._limits.texts:
            raise ImageFault(
                f"more than {self._limits.texts >> 20} MiB of RECORD, METADATA and the like",
                where=self._found.tree.where,
                fix="do not use this image",
            )

    def _conclude(
        self,
        node: Node,
        member: Member,
        head: bytes,
        elf: NeededLibraries | None,
        kept: list[bytes] | None,
    ) -> None:
        if kept is not None:
            node.text = b"".join(kept)
        elif not head and self._keeps(member.path, 0) is not None:
            node.text = b""
        if elf is not None:
            node.sort = "elf"
            node.needed = elf.result()
            if node.needed is None:
                self._found.unread.append(member.path)
            else:
                self._stays(sum(map(len, node.needed)))
        elif head.startswith(b"#!"):
            node.sort = "script"
