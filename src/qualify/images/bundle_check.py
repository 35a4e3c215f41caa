"""Checks an offline bundle: without a network, without a project, without believing it.

Two passes. The first compares the folder with the two lists in it: every file is there, is a plain
file, and has its bytes, and nothing else is there. The second reads what is right so far and
compares what it says: the layout's images with the bundle's, each image's blobs, labels, locks and
declarations, and that bill and provenance are about that very image. Everything that is wrong is a
finding; nothing stops at the first. Links are never followed, files are streamed.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from qualify.core.digests import digest_bytes
from qualify.core.errors import UsageError
from qualify.images import bundle_format as form
from qualify.images.bundle_contents import contradictions
from qualify.images.errors import ImageFault

_CHUNK = 1 << 20
_KEPT = 1000
"""Findings that are kept; the rest are only counted."""
_PRIVILEGED = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX

type Progress = Callable[[int], None]


class Fault(StrEnum):
    """What is wrong with a file of a bundle."""

    MISSING = "missing"
    CHANGED = "changed"
    EXTRA = "extra"
    UNSAFE = "unsafe"
    """A link, a device, a name or a mode that no bundle has."""
    UNREADABLE = "unreadable"
    INCONSISTENT = "inconsistent"
    """It has its bytes, and they contradict another part of the bundle."""


WHOLE = "every file has the bytes of the lists, and nothing else is there"
AGREED = "images, labels, locks, manifests, bills and provenance are consistent"
ANNOUNCED = "it is the bundle with the announced digest"
NOT_ANNOUNCED = (
    "that nobody changed files and lists together: compare its digest with the one that its maker "
    "tells you (--digest)"
)
MAKER = "who made it: nothing in it is signed"
BELIEVED = "that images hold what they say (`qualify image guard`) and state the licences in bills"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: what, with which file, and what was expected."""

    fault: Fault
    path: str
    detail: str


@dataclass
class BundleReport:
    """What a check has found. `index` is `None` when `bundle.json` itself cannot be used."""

    folder: Path
    announced: str | None = None
    """The digest that the bundle should have, when the caller was told it."""
    digest: str | None = None
    """Of `bundle.json` as it lies there."""
    index: form.BundleIndex | None = None
    findings: list[Finding] = field(default_factory=list)
    """In the order of the check; at most a thousand."""
    count: int = 0
    """All findings."""
    files: int = 0
    size: int = 0
    """Bytes that were hashed."""

    @property
    def accepted(self) -> bool:
        """Nothing is wrong."""
        return self.index is not None and not self.count

    @property
    def established(self) -> tuple[str, ...]:
        """What the check has shown, in sentences; nothing when something is wrong."""
        if not self.accepted:
            return ()
        return (WHOLE, AGREED) if self.announced is None else (WHOLE, AGREED, ANNOUNCED)

    @property
    def not_established(self) -> tuple[str, ...]:
        """What even an accepted bundle leaves open."""
        open_ = (MAKER, BELIEVED)
        return (NOT_ANNOUNCED, *open_) if self.announced is None else open_

    def add(self, fault: Fault, path: str, detail: str) -> None:
        """Note one more. A path that could deceive whoever reads it is shown escaped."""
        self.count += 1
        if len(self.findings) < _KEPT:
            shown = path if form.is_safe_path(path) else ascii(path)[1:-1]
            self.findings.append(Finding(fault, shown, detail))


def check_bundle(
    folder: Path, *, announced: str | None = None, progress: Progress | None = None
) -> BundleReport:
    """Check the bundle in `folder`; `announced` is its digest as told by another way.

    `progress` is called with the bytes of each chunk. Raises `UsageError` when it is no bundle.
    """
    report = BundleReport(folder, announced)
    data = _index_bytes(folder, report)
    if data is None:
        return report
    report.digest = digest_bytes(data)
    if announced is not None and announced != report.digest:
        report.add(
            Fault.CHANGED, form.INDEX, f"has the digest {report.digest}, announced is {announced}"
        )
    try:
        report.index = form.parse_index(data, form.INDEX)
    except ImageFault as error:
        report.add(Fault.CHANGED, form.INDEX, error.what)
        return report
    right = _check_files(report, report.index, data, progress)
    for path, detail in contradictions(folder, report.index, right):
        report.add(Fault.INCONSISTENT, path, detail)
    return report


def total_size(folder: Path) -> int | None:
    """Bytes that a check will hash, for showing progress; `None` when it cannot be told."""
    try:
        data = (folder / form.INDEX).read_bytes()
        return sum(file.size for file in form.parse_index(data, form.INDEX).files)
    except (OSError, ImageFault):
        return None


def _index_bytes(folder: Path, report: BundleReport) -> bytes | None:
    """The bytes of `bundle.json`. Raises `UsageError` for a folder that never was a bundle."""
    if not folder.is_dir():
        raise UsageError("is no folder", where=str(folder), fix="give the folder of a bundle")
    found = {name for name in (form.INDEX, form.SUMS) if os.path.lexists(folder / name)}
    if not found:
        raise UsageError(
            f"is no bundle: it holds neither {form.INDEX} nor {form.SUMS}",
            where=str(folder),
            fix="give the folder that `qualify bundle make` wrote",
        )
    if form.INDEX not in found:
        report.add(Fault.MISSING, form.INDEX, "without it nothing can be checked")
        return None
    try:
        with _open(folder / form.INDEX) as stream:
            size = os.fstat(stream.fileno()).st_size
            data = stream.read(min(size, form.MAX_INDEX_BYTES) + 1)
    except OSError as error:
        report.add(*_unopened(form.INDEX, error))
        return None
    if len(data) > form.MAX_INDEX_BYTES:
        report.add(Fault.CHANGED, form.INDEX, f"has more than {form.MAX_INDEX_BYTES} bytes")
        return None
    return data


def _check_files(
    report: BundleReport, index: form.BundleIndex, data: bytes, progress: Progress | None
) -> set[str]:
    """Compare the folder with its lists; the paths of the files that are right."""
    sums = form.sums_text(index)
    wanted = {file.path: (file.size, file.sha256) for file in index.files}
    wanted[form.INDEX] = (len(data), hashlib.sha256(data).hexdigest())
    wanted[form.SUMS] = (len(sums), hashlib.sha256(sums).hexdigest())
    found = _present(report, set(wanted))
    right = set()
    for path, (size, sha256) in sorted(wanted.items()):
        if path not in found:
            continue
        if found[path] is None:
            report.add(Fault.MISSING, path, f"{size} bytes, sha256:{sha256}")
        elif found[path] != size:
            report.add(Fault.CHANGED, path, f"has {found[path]} bytes instead of {size}")
        elif _has_bytes(report, path, sha256, progress):
            right.add(path)
    if form.SUMS in found and form.SUMS not in right:
        _compare_lists(report, data, len(sums))
    return right


def _compare_lists(report: BundleReport, data: bytes, length: int) -> None:
    """Name `bundle.json` too when the sums that are there were made for another one."""
    try:
        with _open(report.folder / form.SUMS) as stream:
            lines = stream.read(length + 1).splitlines()
    except OSError:
        return
    digest = hashlib.sha256(data).hexdigest()
    for line in lines:
        if line[64:] == f"  {form.INDEX}".encode() and line[:64] != digest.encode():
            report.add(
                Fault.CHANGED,
                form.INDEX,
                f"is sha256:{digest}, {form.SUMS} says otherwise: one of the two was changed",
            )


def _present(report: BundleReport, wanted: set[str]) -> dict[str, int | None]:
    """Size of each wanted file as it lies there, `None` when there is none; without those that are
    unsafe, which are noted here, as is everything that is not wanted.
    """
    folders = {str(parent) for path in wanted for parent in Path(path).parents}
    found: dict[str, int | None] = dict.fromkeys(wanted)
    if folder_fault := _unsafe_mode(report.folder.stat()):
        report.add(Fault.UNSAFE, ".", folder_fault)
    for path, info in _entries(report):
        is_folder = stat.S_ISDIR(info.st_mode)
        if fault := _unsafe(path, info):
            report.add(Fault.UNSAFE, path, fault)
            # Named once: what is unsafe is not missing as well.
            found.pop(path, None)
        elif is_folder and path not in folders:
            report.add(Fault.EXTRA, path, "a folder that is not part of the bundle")
        elif not is_folder and path not in wanted:
            report.add(Fault.EXTRA, path, "not part of the bundle")
        elif not is_folder:
            found[path] = info.st_size
    return found


def _entries(report: BundleReport) -> Iterator[tuple[str, os.stat_result]]:
    """Everything below the folder, links not followed, as paths below it."""
    stack = [""]
    while stack:
        below = stack.pop()
        try:
            with os.scandir(report.folder / below) as listing:
                entries = sorted(listing, key=lambda each: each.name)
        except OSError as error:
            report.add(Fault.UNREADABLE, below or ".", error.strerror or str(error))
            continue
        for entry in entries:
            path = f"{below}/{entry.name}" if below else entry.name
            info = entry.stat(follow_symlinks=False)
            yield path, info
            if stat.S_ISDIR(info.st_mode):
                stack.append(path)


def _unsafe(path: str, info: os.stat_result) -> str:
    """Why no bundle has such an entry; empty when it may."""
    if not form.is_safe_path(path):
        return "has a name that no bundle has"
    if stat.S_ISLNK(info.st_mode):
        return "is a link"
    if not (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)):
        return "is neither a file nor a folder"
    return _unsafe_mode(info)


def _unsafe_mode(info: os.stat_result) -> str:
    mode = stat.S_IMODE(info.st_mode)
    # A folder may have got its group's bit from the folder that it was copied to.
    if mode & stat.S_IWOTH or (mode & _PRIVILEGED and stat.S_ISREG(info.st_mode)):
        return f"has the mode {mode:04o}"
    return ""


def _has_bytes(report: BundleReport, path: str, sha256: str, progress: Progress | None) -> bool:
    state = hashlib.sha256()
    try:
        with _open(report.folder / path) as stream:
            while chunk := stream.read(_CHUNK):
                state.update(chunk)
                report.size += len(chunk)
                if progress is not None:
                    progress(len(chunk))
    except OSError as error:
        report.add(*_unopened(path, error))
        return False
    report.files += 1
    if state.hexdigest() != sha256:
        report.add(
            Fault.CHANGED, path, f"expected sha256:{sha256}, found sha256:{state.hexdigest()}"
        )
        return False
    return True


def _open(path: Path) -> io.FileIO:
    """Open a plain file, never a link, and never wait for a pipe. Raises `OSError`."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    stream = io.FileIO(handle)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        stream.close()
        raise OSError(errno.EINVAL, "is no file")
    return stream


def _unopened(path: str, error: OSError) -> tuple[Fault, str, str]:
    """The finding for a file that could not be read."""
    if error.errno in (errno.ELOOP, errno.EINVAL):
        return Fault.UNSAFE, path, "is a link or no file"
    return Fault.UNREADABLE, path, error.strerror or str(error)
