"""Writes an offline bundle: images and everything about them in one folder that can be carried.

Equal images and an equal project give equal bytes. The folder appears whole or not at all. Blobs
are streamed, and hashed while they are copied. No network, clock, home folder or user enters. What
goes in is decided in `bundle_plan`, the form is in `bundle_format`, checking in `bundle_check`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from qualify.core.digests import digest_bytes
from qualify.core.errors import EnvironmentFault, UsageError
from qualify.images import bundle_format as form
from qualify.images.attestations import (
    make_provenance,
    make_sbom,
    provenance_mistakes,
    sbom_mistakes,
)
from qualify.images.bundle_check import BundleReport, check_bundle
from qualify.images.bundle_plan import BundlePlan, PlannedImage
from qualify.images.bundle_readme import readme_bytes
from qualify.images.companions import companion_bytes, require_own_digest
from qualify.images.errors import ImageTampered
from qualify.images.provenance import FILE_NAME as PROVENANCE_FILE
from qualify.images.sbom import FILE_NAME as SBOM_FILE
from qualify.storage.staging import staged_folder

_CHUNK = 1 << 20
_SPARE_BYTES = 64 << 20

type Progress = Callable[[int], None]
"""Told the bytes of each chunk that was written."""


@dataclass(frozen=True)
class MadeBundle:
    """A finished bundle: where it is, the digest of its `bundle.json`, and what it came to."""

    folder: Path
    digest: str
    files: int
    size: int
    """Bytes of all files."""


def make_bundle(plan: BundlePlan, target: Path, progress: Progress | None = None) -> MadeBundle:
    """Write the planned bundle to the new folder `target`.

    Raises `ImageTampered` when a blob is not what its digest says, `EnvironmentFault` when the disk
    is full or not writable; then nothing stays.
    """
    try:
        _require_space(plan, target.absolute().parent)
        with staged_folder(target) as folder:
            writer = _Writer(folder, progress)
            _write_images(writer, plan)
            _write_project(writer, plan)
            entries = [image.entry for image in plan.images]
            writer.write(form.README, readme_bytes(plan, entries))
            digest = _write_lists(writer, plan, entries)
            report = check_bundle(folder, announced=digest, progress=progress)
            _require_accepted(report, target)
    except OSError as error:
        raise EnvironmentFault(
            f"the bundle cannot be written: {error.strerror or error}",
            where=str(error.filename or target),
            fix="check the free space and the permissions; nothing was left behind",
        ) from error
    return MadeBundle(target, digest, len(writer.files), sum(writer.sizes.values()))


def _require_accepted(report: BundleReport, target: Path) -> None:
    """What is made is checked like what was carried: whoever gets it will do the same."""
    if not report.accepted:
        first = report.findings[0]
        raise ImageTampered(
            f"the bundle would not be accepted: {first.path}: {first.detail}",
            where=str(target),
            fix="nothing was written; make that right in the project or build the image again",
        )


def _require_space(plan: BundlePlan, folder: Path) -> None:
    if not folder.is_dir():
        return
    needed, free = plan.total + _SPARE_BYTES, shutil.disk_usage(folder).free
    if free < needed:
        raise EnvironmentFault(
            f"the bundle needs {needed / 1e9:.2f} GB, {free / 1e9:.2f} GB are free",
            where=str(folder),
            fix="free some space, or choose another place",
        )


class _Writer:
    """Writes files below a folder and remembers the size and SHA-256 of each."""

    def __init__(self, folder: Path, progress: Progress | None) -> None:
        self.files: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        self._folder = folder
        self.progress = progress

    def write(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with path.open("xb") as stream:
            stream.write(data)
            _settle(stream)
        self._enter(name, len(data), hashlib.sha256(data).hexdigest())

    def copy(self, source: BinaryIO, name: str) -> str:
        """Copy a stream and return the SHA-256 of what was written."""
        state, size = hashlib.sha256(), 0
        with self._path(name).open("xb") as stream:
            while chunk := source.read(_CHUNK):
                stream.write(chunk)
                state.update(chunk)
                size += len(chunk)
                if self.progress is not None:
                    self.progress(len(chunk))
            _settle(stream)
        self._enter(name, size, state.hexdigest())
        return state.hexdigest()

    def _path(self, name: str) -> Path:
        path = self._folder / name
        for parent in reversed(path.relative_to(self._folder).parents[:-1]):
            folder = self._folder / parent
            if not folder.is_dir():
                folder.mkdir()
                folder.chmod(0o755)
        return path

    def _enter(self, name: str, size: int, sha256: str) -> None:
        self.files[name], self.sizes[name] = sha256, size


def _settle(stream: BinaryIO) -> None:
    stream.flush()
    os.fchmod(stream.fileno(), 0o644)
    os.fsync(stream.fileno())


def _write_images(writer: _Writer, plan: BundlePlan) -> None:
    writer.write(f"{form.LAYOUT}/oci-layout", form.LAYOUT_FILE)
    writer.write(
        f"{form.LAYOUT}/index.json", form.layout_index(image.entry for image in plan.images)
    )
    for digest, blob in sorted(plan.blobs.items()):
        with blob.path.open("rb") as stream:
            if f"sha256:{writer.copy(stream, form.blob_path(digest))}" != digest:
                raise ImageTampered(
                    "is not what its name says", where=str(blob.path), fix="build the image again"
                )
    for image in plan.images:
        require_own_digest(image.image)
        writer.write(image.entry.sbom, _sbom(image, writer.progress))
        writer.write(image.entry.provenance, _provenance(image))


def _sbom(planned: PlannedImage, progress: Progress | None) -> bytes:
    """The one that the build left beside the image, else a new one."""
    data = companion_bytes(planned.image, SBOM_FILE)
    if data is None:
        return make_sbom(planned.image, planned.pins, progress)
    _refuse(planned, SBOM_FILE, sbom_mistakes(data, planned.image, planned.pins))
    return data


def _provenance(planned: PlannedImage) -> bytes:
    """As `_sbom`."""
    data = companion_bytes(planned.image, PROVENANCE_FILE)
    if data is None:
        return make_provenance(planned.image, planned.pins)
    _refuse(planned, PROVENANCE_FILE, provenance_mistakes(data, planned.image, planned.pins))
    return data


def _refuse(planned: PlannedImage, name: str, mistakes: list[str]) -> None:
    if mistakes:
        raise ImageTampered(
            f"{name} {mistakes[0]}", where=planned.image.where, fix="build the image again"
        )


def _write_project(writer: _Writer, plan: BundlePlan) -> None:
    for name, file in plan.files.items():
        with file.path.open("rb") as stream:
            found = writer.copy(stream, name)
        if found != file.sha256:
            raise UsageError(
                "was changed while the bundle was being made",
                where=str(file.path),
                fix="make it again when nobody works on the project",
            )


def _write_lists(writer: _Writer, plan: BundlePlan, entries: list[form.BundledImage]) -> str:
    index = form.BundleIndex(
        schema=form.SCHEMA,
        bundle=str(plan.bundle.id),
        revision=plan.project_files.revision,
        declarations=plan.declarations,
        rows=tuple(str(row) for row in plan.bundle.rows),
        images=tuple(entries),
        files=tuple(
            form.BundledFile(path=path, sha256=writer.files[path], size=writer.sizes[path])
            for path in sorted(writer.files)
        ),
    )
    data = form.index_bytes(index)
    writer.write(form.INDEX, data)
    writer.write(form.SUMS, form.sums_text(index))
    return digest_bytes(data)
