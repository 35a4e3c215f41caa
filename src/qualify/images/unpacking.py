"""An image's root file system in a folder, whole and verified, or not at all.

Promises: everything is written below a private folder that gets its name only after every layer
matched its digest; a path of the image never leads out of it, however its links stand; running it
again finds the folder and hashes every byte in it, so that changed files never run under the
image's digest. Who can write as this user could write the folder and what is said of it: against
them there is no help here. Never: makes device nodes, keeps setuid bits, or gives files to other
users. Links are written as they are: an absolute one means the image's root, so whoever reads the
folder does so with that root (as bubblewrap does).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import batched
from pathlib import Path
from typing import Any

import orjson

from qualify.core.canonical import canonical_json
from qualify.core.errors import EnvironmentFault, UsageError
from qualify.images.errors import ImageFault, ImageTampered
from qualify.images.image import Image
from qualify.images.layers import OPAQUE, WHITEOUT, Allowance, LayerReader, Member, Progress
from qualify.images.limits import LIMITS, Limits
from qualify.images.rooted import link_that_leads_out
from qualify.images.tree import Tree
from qualify.storage.folders import private_folder, write_atomic, xdg_cache_home
from qualify.storage.staging import staged_folder

SCHEMA = "qualify-unpacked-image/2"
ROOT = "rootfs"
_HASHERS = 2
_PIECE = 1 << 20
_STATE = "image.json"


@dataclass(frozen=True)
class UnpackedImage:
    """An unpacked image: its digest, the folder of its root file system, its labels."""

    digest: str
    root: Path
    labels: Mapping[str, str]


def default_folder(image: Image) -> Path:
    """Where unpacked images are kept: `$XDG_CACHE_HOME/qualify/images/2/<hex digest>`.

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
            _fill(image, staging / ROOT, progress, limits)
            state = {
                "schema": SCHEMA,
                "digest": image.digest,
                "content": content_digest(staging / ROOT),
                "labels": image.labels,
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
    info = folder.stat()
    if info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise UsageError("could be changed by other users", where=str(folder), fix=fix)
    try:
        state: Any = orjson.loads((folder / _STATE).read_bytes())
        found = state["digest"], state["content"], dict(state["labels"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError("is no unpacked image", where=str(folder), fix=fix) from error
    if found[0] != image.digest:
        raise UsageError(f"holds the image {found[0]}", where=str(folder), fix=fix)
    if found[1] != content_digest(folder / ROOT, progress):
        raise UsageError("was changed after it was unpacked", where=str(folder), fix=fix)
    return UnpackedImage(image.digest, folder / ROOT, found[2])


def content_digest(root: Path, progress: Progress | None = None) -> str:
    """Digest of every path below `root` with type, mode, target of a link, and SHA-256 of a file.

    `progress` gets the bytes read. A file with several names is read once.
    """
    state = hashlib.sha256()
    known: dict[tuple[int, int], Future[str]] = {}
    with ThreadPoolExecutor(_HASHERS) as pool:
        for batch in batched(_listed(root), 4096):
            rows: list[tuple[list[Any], Future[str] | None]] = []
            for path, info in batch:
                name = os.path.relpath(path, root).encode("utf-8", "surrogateescape").hex()
                row: list[Any] = [name, info.st_mode]
                content = None
                if stat.S_ISLNK(info.st_mode):
                    row.append(os.fsencode(path.readlink()).hex())
                elif stat.S_ISREG(info.st_mode):
                    key = info.st_dev, info.st_ino
                    content = known.get(key) or pool.submit(_file_digest, path, progress)
                    if info.st_nlink > 1:
                        known[key] = content
                rows.append((row, content))
            for row, content in rows:
                if content is not None:
                    row.append(content.result())
                state.update(canonical_json(row) + b"\n")
    return "sha256:" + state.hexdigest()


def _listed(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    stack = [root]
    while stack:
        with os.scandir(stack.pop()) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                info = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(info.st_mode):
                    stack.append(Path(entry.path))
                yield Path(entry.path), info


def _file_digest(path: Path, progress: Progress | None) -> str:
    state = hashlib.sha256()
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(handle, "rb", buffering=0) as stream:
        while piece := stream.read(_PIECE):
            state.update(piece)
            if progress is not None:
                progress(len(piece))
    return state.hexdigest()


def _fill(image: Image, root: Path, progress: Progress | None, limits: Limits) -> None:
    tree = Tree(image.where)
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
    way_out = link_that_leads_out(root)
    if way_out is not None:
        raise ImageFault(
            f"{way_out[:200]!a} is a link that climbs out of the root",
            where=image.where,
            fix="do not use this image, or unpack it where you can throw it away",
        )


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
        self._tree.add(member, self._layer)
        if hidden:
            self._remove_hidden(member, place, before)
        elif member.path:
            self._make(member, place, source)

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
        place.mkdir(mode=0o755, parents=True, exist_ok=True)
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

    def _make(self, member: Member, place: Path, source: Path | None) -> None:
        if member.kind == "folder" and place.is_dir() and not place.is_symlink():
            place.chmod(member.mode & 0o1777 | 0o700)
            return
        if place != source:
            _remove(place)
        self._last = None if member.kind == "link" else self._last
        match member.kind:
            case "folder":
                place.mkdir(mode=0o700)
                place.chmod(member.mode & 0o1777 | 0o700)
            case "link":
                place.symlink_to(member.target)
            case "hardlink":
                assert source is not None
                if place != source:
                    os.link(source, place, follow_symlinks=False)
            case _:
                self._file(member, place)

    def _file(self, member: Member, place: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(place, flags, 0o600)
        with os.fdopen(handle, "wb", buffering=0) as stream:
            for chunk in self._reader.chunks():
                stream.write(chunk)
            os.fchmod(stream.fileno(), member.mode & 0o1777 | 0o400)
            os.utime(stream.fileno(), (member.mtime, member.mtime))

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
        node = self._tree.find(path, follow_last=False)
        if node is None:
            _remove(place)
        elif node.children is not None:
            for name in self._names(place):
                self._prune(f"{path}/{name}", place / name)


def _remove(place: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        else:
            place.unlink()
