"""What an unpacked image holds, as one digest: told from its layers, or read from the disk.

Both ways give the same digest when the folder is what the layers say: every path with its type,
permissions, target of a link, and SHA-256 of a file. Times and owners are left out. The one from
the layers costs no reading, because whoever writes a file hashes it; the other reads every byte.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from qualify.core.canonical import canonical_json
from qualify.images.layers import Progress
from qualify.images.tree import Node, Tree

_HASHERS = 4
_LARGE = 1 << 18
"""Files from this size on are hashed in threads; below it that costs more than it gains."""
_WAITING = 1024
_PIECE = 1 << 20
_CHANGED = {errno.EACCES, errno.ELOOP, errno.ENOENT, errno.ENOTDIR, errno.ENXIO}


@dataclass(frozen=True)
class Content:
    """The digest, and how many bytes have to be read to find it again."""

    digest: str
    size: int


def disk_mode(kind: str, mode: int) -> int:
    """The permissions with which a file or folder of an image is written.

    Its own, but never setuid or setgid, never writable by others, and always usable by the owner.
    """
    return mode & 0o1755 | (0o700 if kind == "folder" else 0o400)


def content_of_tree(tree: Tree) -> Content:
    """What the folder holds once `tree` is written; its files know their digests."""
    state, size, seen = hashlib.sha256(), 0, set()
    for path, node in tree.walk():
        if node.kind == "file" and id(node) not in seen:
            size += node.size
            seen.add(id(node))
        state.update(_row(path, node.kind, disk_mode(node.kind, node.mode), _told(node)))
    return Content("sha256:" + state.hexdigest(), size)


def _told(node: Node) -> bytes:
    return os.fsencode(node.target) if node.kind == "link" else node.digest


def content_of_folder(root: Path, progress: Progress | None = None) -> Content:
    """What `root` holds now. Reads every file once, several at a time; `progress` gets the bytes.

    What is no file, folder or link is told as such and not opened. Raises `OSError`.
    """
    root = root.absolute()
    found, prefix = _Reading(progress), len(str(root / "x")) - 1
    with ThreadPoolExecutor(_HASHERS) as pool:
        for path, info in _listed(root):
            found.add(path, path[prefix:], info, pool)
        found.collect(0)
    return Content("sha256:" + found.state.hexdigest(), found.size)


def _listed(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Everything below `root` in the order in which `Tree.walk` tells it."""
    stack: list[tuple[str, os.stat_result | None]] = [(str(root), None)]
    while stack:
        path, info = stack.pop()
        if info is not None:
            yield path, info
        if info is None or stat.S_ISDIR(info.st_mode):
            with os.scandir(path) as entries:
                below = sorted(entries, key=lambda each: each.name, reverse=True)
            stack += [(each.path, each.stat(follow_symlinks=False)) for each in below]


class _Reading:
    """Rows in their order, while the files of later ones are still being read."""

    def __init__(self, progress: Progress | None) -> None:
        self.state = hashlib.sha256()
        self.size = 0
        self._progress = progress
        self._rows: deque[tuple[str, str, int, bytes | Future[bytes], int]] = deque()
        self._known: dict[tuple[int, int], bytes | Future[bytes]] = {}
        """Files with several names."""

    def add(self, path: str, name: str, info: os.stat_result, pool: ThreadPoolExecutor) -> None:
        """The next path. Waits when too many files are being read."""
        mode, size = info.st_mode, 0
        content: bytes | Future[bytes] = b""
        if stat.S_ISLNK(mode):
            # As it stands: a `Path` would leave out a slash at its end.
            kind, content = "link", os.fsencode(os.readlink(path))  # noqa: PTH115
        elif stat.S_ISDIR(mode):
            kind = "folder"
        elif stat.S_ISREG(mode):
            kind, key = "file", (info.st_dev, info.st_ino)
            known = self._known.get(key)
            if known is None:
                size, large = info.st_size, info.st_size >= _LARGE
                known = pool.submit(_file_digest, path) if large else _file_digest(path)
                if info.st_nlink > 1:
                    self._known[key] = known
            content = known
        else:
            kind = "other"
        self._rows.append((name, kind, stat.S_IMODE(mode), content, size))
        self.collect(_WAITING)

    def collect(self, waiting: int) -> None:
        """Take up the first rows until only so many are left."""
        while len(self._rows) > waiting:
            name, kind, mode, content, size = self._rows.popleft()
            told = content if isinstance(content, bytes) else content.result()
            self.state.update(_row(name, kind, mode, told))
            self.size += size
            if self._progress is not None and size:
                self._progress(size)


def _file_digest(path: str) -> bytes:
    """SHA-256 of a regular file; nothing of one that is no longer there, or may not be read."""
    state = hashlib.sha256()
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _CHANGED:
            return b""
        raise
    with os.fdopen(handle, "rb", buffering=0) as stream:
        while piece := stream.read(_PIECE):
            state.update(piece)
    return state.digest()


def _row(path: str, kind: str, mode: int, content: bytes) -> bytes:
    shown = None if kind == "link" else mode
    return canonical_json([os.fsencode(path).hex(), kind, shown, content.hex()]) + b"\n"
