"""An image's root file system in a folder, whole and verified, or not at all.

Promises: everything is written below a private folder that gets its name only after every layer
matched its digest; a path of the image never leads out of it, however its links stand; running it
again finds the folder, hashes every byte in it and compares that with what the layers said when
they were written, so that changed files never run under the image's digest. A folder that other
users could write is refused. Who can write as this user could write the files and what is said of
them: against that there is no help here. Never: makes device nodes, keeps setuid bits, or lets
other users write. Links are written as they are: an absolute one means the image's root, so whoever
reads the folder does so with that root (as bubblewrap does).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import orjson

from qualify.core.errors import EnvironmentFault, UsageError
from qualify.images.content import content_of_folder, content_of_tree, disk_mode
from qualify.images.errors import ImageFault, ImageTampered
from qualify.images.image import Image
from qualify.images.layers import OPAQUE, WHITEOUT, Allowance, LayerReader, Member, Progress
from qualify.images.limits import LIMITS, Limits
from qualify.images.rooted import require_links_inside
from qualify.images.tree import Node, Tree
from qualify.storage.folders import private_folder, write_atomic, xdg_cache_home
from qualify.storage.staging import staged_folder

SCHEMA = "qualify-unpacked-image/3"
ROOT = "rootfs"
_STATE = "image.json"
_ASIDE = "link"
"""Where a hard link lies beside the root until there is room for it."""


@dataclass(frozen=True)
class UnpackedImage:
    """An unpacked image: its digest, the folder of its root file system, its labels."""

    digest: str
    root: Path
    labels: Mapping[str, str]


def default_folder(image: Image) -> Path:
    """Where unpacked images are kept: `$XDG_CACHE_HOME/qualify/images/3/<hex digest>`.

    Makes the parent folder (0700). Raises `EnvironmentFault`.
    """
    return private_folder(xdg_cache_home() / "images" / SCHEMA[-1]) / image.digest.removeprefix(
        "sha256:"
    )


def unpack_image(
    image: Image,
    folder: Path | None = None,
    *,
    progress: Progress | None = None,
    limits: Limits = LIMITS,
) -> UnpackedImage:
    """Unpack to `folder`/rootfs (by default in the user's cache) and return where that is.

    An intact folder of the same image is used as it is. Raises `ImageFault` for an image that is
    malformed or hostile, `ImageTampered` when a layer is not what its digest says, `UsageError`
    when the folder holds something else or was changed, `EnvironmentFault` when it cannot be
    written.
    """
    target = default_folder(image) if folder is None else folder
    if os.path.lexists(target) and any(target.iterdir() if target.is_dir() else (target,)):
        return _present(image, target, progress)
    try:
        with staged_folder(target) as staging:
            (staging / ROOT).mkdir(mode=0o755)
            tree = _fill(image, staging / ROOT, progress, limits)
            content = content_of_tree(tree)
            state = {
                "schema": SCHEMA,
                "digest": image.digest,
                "content": content.digest,
                "bytes": content.size,
            }
            write_atomic(staging / _STATE, orjson.dumps(state, option=orjson.OPT_SORT_KEYS))
    except UsageError:
        # Another process may have unpacked the same image meanwhile.
        if not (target / _STATE).is_file():
            raise
        return _present(image, target, progress)
    except OSError as error:
        raise EnvironmentFault(
            f"the image cannot be unpacked: {error.strerror or error}",
            where=str(error.filename or target),
            fix="check the folder's permissions and the free space",
        ) from error
    return UnpackedImage(image.digest, target / ROOT, image.labels)


def _present(image: Image, folder: Path, progress: Progress | None) -> UnpackedImage:
    """What an earlier call left. Raises `UsageError` when it is not that image, unchanged."""
    fix = "remove the folder, or name another one"
    for each in (folder, folder / ROOT):
        _require_own(each, fix)
    try:
        state: Any = orjson.loads((folder / _STATE).read_bytes())
        schema, digest = state["schema"], state["digest"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError("is no unpacked image", where=str(folder), fix=fix) from error
    if schema != SCHEMA:
        raise UsageError("was unpacked by another version", where=str(folder), fix=fix)
    if digest != image.digest:
        raise UsageError(f"holds the image {digest}", where=str(folder), fix=fix)
    try:
        content = content_of_folder(
            folder / ROOT, progress and _in_stored_bytes(progress, image.size, state.get("bytes"))
        )
    except OSError as error:
        raise EnvironmentFault(
            f"the unpacked image cannot be read: {error.strerror or error}",
            where=str(error.filename or folder),
            fix=fix,
        ) from error
    if content.digest != state.get("content"):
        raise UsageError("was changed after it was unpacked", where=str(folder), fix=fix)
    return UnpackedImage(image.digest, folder / ROOT, image.labels)


def _require_own(folder: Path, fix: str) -> None:
    """Nobody but this user, and root, can have put anything there."""
    try:
        info = folder.lstat()
    except OSError as error:
        raise UsageError("is no unpacked image", where=str(folder.parent), fix=fix) from error
    if not stat.S_ISDIR(info.st_mode):
        raise UsageError("is no folder, so no unpacked image", where=str(folder), fix=fix)
    if info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise UsageError("could be changed by other users", where=str(folder), fix=fix)


def _in_stored_bytes(progress: Progress, stored: int, whole: object) -> Progress:
    """Tells bytes of files as their part of the stored image, whose size is thus the end."""
    done = told = 0
    total = max(whole, 1) if isinstance(whole, int) else 1

    def report(count: int) -> None:
        nonlocal done, told
        done = min(done + count, total)
        now = stored * done // total
        progress(now - told)
        told = now

    return report


def _fill(image: Image, root: Path, progress: Progress | None, limits: Limits) -> Tree:
    tree = Tree(image.where, limits)
    allowance = Allowance(limits)
    for layer in image.layers:
        with LayerReader(image, layer, allowance, progress) as reader:
            writer = _Writer(root, tree, layer.index, reader)
            for member in reader.members():
                writer.write(member)
            mismatches = reader.finish()
        if mismatches:
            raise ImageTampered(
                mismatches[0], where=image.where, fix="get the image again from its builder"
            )
    require_links_inside(tree)
    return tree


class _Writer:
    """Writes the members of one layer. The tree tells where a path really lies."""

    def __init__(self, root: Path, tree: Tree, layer: int, reader: LayerReader) -> None:
        self._root = root
        self._tree = tree
        self._layer = layer
        self._reader = reader
        self._last: tuple[str, Path] | None = None

    def write(self, member: Member) -> None:
        """Apply one member to the tree and to the folder. Raises `ImageFault`, `OSError`."""
        if member.kind in ("device", "pipe"):
            raise self._refusal(member, f"is a {member.kind}; only files, folders and links are")
        hidden = member.path.rpartition("/")[2].startswith(WHITEOUT)
        place = self._place(member)
        before = self._names(place.parent) if hidden else set()
        source = self._source(member)
        added = self._tree.add(member, self._layer)
        if hidden:
            self._remove_hidden(member, place, before)
        elif added is not None:
            self._make(member, place, source, added[1])

    def _refusal(self, member: Member, what: str) -> ImageFault:
        return ImageFault(
            f"{member.path[:200]!a} {what} unpacked",
            where=self._reader.where,
            fix="do not use this image, or unpack it where you can throw it away",
        )

    def _place(self, member: Member) -> Path:
        """The path on disk. Its parents are folders, because the tree has followed all links."""
        folder, _, name = member.path.rpartition("/")
        if self._last is not None and self._last[0] == folder:
            return self._last[1] / name if name else self._root
        # Makes the parents that the layer does not list, as the tree does.
        real = self._tree.make_folder(folder, self._layer)
        place = self._root / real if real else self._root
        missing = takewhile(lambda each: not each.is_dir(), (place, *place.parents))
        for each in reversed(list(missing)):
            each.mkdir()
            each.chmod(0o755)
        self._last = (folder, place)
        return place / name if name else self._root

    def _source(self, member: Member) -> Path | None:
        """The file that a hard link names, where it lies before the member is applied."""
        if member.kind != "hardlink":
            return None
        folder, _, name = member.target.rpartition("/")
        real = self._tree.real_path(folder)
        return None if real is None else self._root / real / name

    def _names(self, folder: Path) -> set[str]:
        return {path.name for path in folder.iterdir()}

    def _make(self, member: Member, place: Path, source: Path | None, node: Node) -> None:
        if member.kind == "folder" and place.is_dir() and not place.is_symlink():
            place.chmod(disk_mode("folder", member.mode))
            return
        if member.kind == "hardlink":
            assert source is not None
            self._another_name(source, place)
            return
        _remove(place)
        self._last = None if member.kind == "link" else self._last
        match member.kind:
            case "folder":
                place.mkdir(mode=0o700)
                place.chmod(disk_mode("folder", member.mode))
            case "link":
                place.symlink_to(member.target)
            case _:
                self._file(member, place, node)

    def _another_name(self, source: Path, place: Path) -> None:
        """Give a file a second name, also where that is now a folder that the file lies in."""
        self._last = None
        if place != source:
            aside = self._root.with_name(_ASIDE)
            os.link(source, aside, follow_symlinks=False)
            _remove(place)
            aside.rename(place)

    def _file(self, member: Member, place: Path, node: Node) -> None:
        """Write it, and tell its node what was written."""
        content = hashlib.sha256()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(place, flags, 0o600)
        with os.fdopen(handle, "wb") as stream:
            for chunk in self._reader.chunks():
                stream.write(chunk)
                content.update(chunk)
            stream.flush()
            os.fchmod(stream.fileno(), disk_mode("file", member.mode))
            os.utime(stream.fileno(), (member.mtime, member.mtime))
        node.digest = content.digest()

    def _remove_hidden(self, member: Member, mark: Path, before: set[str]) -> None:
        """Bring the folder of a whiteout in step with the tree."""
        self._last = None
        name = mark.name
        concerned = before if name == OPAQUE else {name.removeprefix(WHITEOUT)} & before
        folder = member.path.rpartition("/")[0]
        for each in concerned:
            self._prune(f"{folder}/{each}" if folder else each, mark.parent / each)

    def _prune(self, path: str, place: Path) -> None:
        """Remove what the tree no longer has at `path` and below."""
        waiting = [(self._tree.find(path, follow_last=False), place)]
        while waiting:
            node, place = waiting.pop()
            if node is None:
                _remove(place)
            elif node.children is not None:
                waiting += [(node.children.get(n), place / n) for n in self._names(place)]


def _remove(place: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink()
