"""Filling a depot: fetch what is missing, check every byte, publish file by file.

A file enters `files/` by a rename, after its size and SHA-256 were found to be the lock's; a wrong
one is named and never enters. What has arrived stays when a fill is interrupted or the disk fills
up, and the next fill begins there; `depot.json` is written last. Several clients work at a time,
biggest files first. One fill at a time works on a depot.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

from qualify.core.errors import EnvironmentFault, ErrorList, QualifyError, Refusal
from qualify.pins.apt import SOURCES_VARIABLE
from qualify.pins.clients import ClientError
from qualify.pins.depot import (
    BUSYBOX,
    FILES,
    INDEX,
    SEED,
    DepotIndex,
    StoredBusybox,
    StoredFile,
    StoredSet,
    file_problem,
    index_bytes,
    read_index,
)
from qualify.pins.depot_seed import seed_script
from qualify.pins.elf import busybox_of, nar_sha256
from qualify.pins.fetching import AptFetcher, PipFetcher
from qualify.pins.portions import Portion, portions
from qualify.pins.wanted import BUSYBOX_PACKAGE, WantedFile, WantedSet, refuse_conflicts
from qualify.storage.folders import write_atomic
from qualify.storage.locks import file_lock

FETCH = ".fetch"
_MAX_FAILURES = 10
_NO_SPACE = "No space left on device"
_FULL_BYTES = 1 << 20
_WRONG_BYTES = ("DO NOT MATCH THE HASHES", "Hash Sum mismatch", "Hashes of received file")

type Fetcher = PipFetcher | AptFetcher


@dataclass(frozen=True)
class Progress:
    """How far a fill is: files and bytes that are in place or on their way, of all."""

    phase: str
    files: int
    all_files: int
    size: int
    all_size: int


type Report = Callable[[Progress], None]


@dataclass
class Filled:
    """What a fill did. Sizes in bytes; `replaced` and `removed` are names below `files/`."""

    kept: int = 0
    fetched: int = 0
    fetched_size: int = 0
    replaced: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    index: DepotIndex | None = None


def fill(wanted: Sequence[WantedSet], depot: Path, jobs: int, report: Report) -> Filled:
    """Bring every file of `wanted` into `depot`, beside the sets that it holds already.

    Raises `Refusal` for a file that is not the lock's, `EnvironmentFault` when a client does not
    deliver or the disk is full, `UsageError` for sets that cannot share a depot. What arrived
    stays.
    """
    try:
        (depot / FILES).mkdir(parents=True, exist_ok=True)
        with file_lock(depot / ".lock"):
            return _Fill(wanted, depot, jobs, report).run()
    except OSError as error:
        raise _disk_fault(error, depot) from error


def _disk_fault(error: OSError, depot: Path) -> EnvironmentFault:
    where = str(error.filename or depot)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _disk_full(depot)
    return EnvironmentFault(
        f"the depot cannot be written: {error.strerror or error}",
        where=where,
        fix="choose a folder that you may write to",
    )


def _disk_full(depot: Path) -> EnvironmentFault:
    return EnvironmentFault(
        "the disk filled up; what arrived before is kept",
        where=str(depot),
        fix="free some space and run the same command again, or choose a folder on a larger disk",
    )


class _Fill:
    """One fill, from the look at what is there to the index."""

    def __init__(self, wanted: Sequence[WantedSet], depot: Path, jobs: int, report: Report) -> None:
        self._wanted = wanted
        self._depot = depot
        self._jobs = jobs
        self._report = report
        self._files = {file.stored: file for entry in wanted for file in entry.files}
        self._all_size = sum(file.size for file in self._files.values())
        self._guard = threading.Lock()
        self._have: set[str] = set()
        self._under_way: dict[Path, int] = {}
        self._stop = threading.Event()
        self._failures: list[QualifyError] = []
        self._done = Filled()

    def run(self) -> Filled:
        """Do it all. Raises as `fill`."""
        index = self._previous()
        self._take_leftovers()
        missing = self._check_present()
        self._require_space(missing)
        if missing:
            self._fetch(missing)
        busybox = self._busybox(index)
        self._publish(index, busybox)
        return self._done

    def _previous(self) -> DepotIndex | None:
        """The index of an earlier fill. Its other sets must go together with the wanted ones."""
        if not (self._depot / INDEX).exists():
            return None
        try:
            index = read_index(self._depot)
        except Refusal as error:
            fix = "remove it and fill the depot again with every set that it should hold"
            raise Refusal(error.what, where=error.where, fix=fix) from error
        hashes = {file.name: file.sha256 for file in index.files}
        mine = {entry.name for entry in self._wanted}
        entries = [
            (name, (file, hashes[file]))
            for name, entry in index.sets.items()
            if name not in mine
            for file in entry.files
        ]
        entries += [(e.name, (f.stored, f.sha256)) for e in self._wanted for f in e.files]
        refuse_conflicts(entries)
        return index

    def _take_leftovers(self) -> None:
        """What an earlier fill had fetched when it was ended may be whole."""
        left = self._depot / FETCH
        if left.exists():
            self._take(left, list(self._files.values()))
            shutil.rmtree(left, ignore_errors=True)

    def _check_present(self) -> list[WantedFile]:
        """The files that are not there; a wrong one is removed and named in the result."""
        missing = []
        with ThreadPoolExecutor(max(2, self._jobs), thread_name_prefix="depot-check") as pool:
            for file, problem in pool.map(self._present, self._files.values()):
                if problem is None:
                    self._note_have(file, "checking")
                    self._done.kept += 1
                    continue
                if problem == "changed":
                    (self._depot / FILES / file.stored).unlink()
                    self._done.replaced.append(file.stored)
                missing.append(file)
        return missing

    def _present(self, file: WantedFile) -> tuple[WantedFile, str | None]:
        problem = file_problem(self._depot / FILES / file.stored, _stored(file))
        return file, problem.kind if problem else None

    def _require_space(self, missing: Sequence[WantedFile]) -> None:
        needed = sum(file.size for file in missing)
        free = shutil.disk_usage(self._depot).free
        if needed > free:
            raise EnvironmentFault(
                f"not enough space for the depot: {needed} bytes are missing, {free} are free",
                where=str(self._depot),
                fix="free some space, or choose a folder on a larger disk",
            )

    def _fetch(self, missing: Sequence[WantedFile]) -> None:
        work = self._depot / FETCH
        work.mkdir()
        fetchers = self._fetchers(missing, work)
        pool = ThreadPoolExecutor(self._jobs, thread_name_prefix="depot-fetch")
        try:
            pending: set[Future[list[Portion]]] = {
                pool.submit(self._fetch_portion, fetchers[portion.kind], portion, work)
                for portion in portions(missing)
            }
            while pending:
                done, pending = wait(pending, timeout=0.3, return_when=FIRST_COMPLETED)
                for future in done:
                    for again in future.result():
                        fetcher = fetchers[again.kind]
                        pending.add(pool.submit(self._fetch_portion, fetcher, again, work))
                self._tell("fetching")
        finally:
            self._stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            shutil.rmtree(work, ignore_errors=True)
        if self._failures:
            raise self._failure()

    def _fetchers(self, missing: Sequence[WantedFile], work: Path) -> dict[str, Fetcher]:
        kinds = {portion.kind for portion in portions(missing)}
        found: dict[str, Fetcher] = {}
        if "deb" in kinds:
            release = next(entry.release for entry in self._wanted if entry.release)
            found["deb"] = AptFetcher(work / "apt", release)
        if "python" in kinds:
            found["python"] = PipFetcher(work / "bytecode")
        return found

    def _fetch_portion(self, fetcher: Fetcher, portion: Portion, folder: Path) -> list[Portion]:
        """Fetch one portion; returns the portions to try again, one for each file that is missing.

        A portion of several files that failed says little: its files are tried one by one.
        """
        missing, said = list(portion.files), ""
        attempts = fetcher.attempts if len(portion.files) == 1 else 1
        for attempt in range(attempts):
            if self._stop.is_set():
                return []
            missing, said = self._attempt(fetcher, portion, attempt, folder)
            if not missing or _NO_SPACE in said:
                break
        with self._guard:
            self._done.fetched += len(portion.files) - len(missing)
            self._done.fetched_size += portion.size - sum(file.size for file in missing)
        if not missing or self._stop.is_set():
            return []
        if _NO_SPACE in said:
            self._fail(_disk_full(self._depot), last=True)
            return []
        if len(portion.files) > 1:
            return [Portion(portion.kind, (file,)) for file in missing]
        self._fail(self._not_delivered(missing[0], said))
        return []

    def _attempt(
        self, fetcher: Fetcher, portion: Portion, attempt: int, folder: Path
    ) -> tuple[list[WantedFile], str]:
        """Ask one client; returns what is missing still, and the client's last lines."""
        work = Path(tempfile.mkdtemp(prefix="portion-", dir=folder))
        said = ""
        try:
            fetcher.fetch(
                portion.files,
                work,
                attempt,
                self._stop.is_set,
                lambda size: self._note_under_way(work, size),
            )
        except ClientError as error:
            said = str(error)
        missing = self._take(work, portion.files)
        if missing and shutil.disk_usage(self._depot).free < _FULL_BYTES:
            # A client that finds no space may not even have been able to say so.
            said = _NO_SPACE
        if missing and not said and (delivered := list((work / "target").iterdir())):
            said = f"delivered {', '.join(sorted(path.name for path in delivered))[:200]}"
        self._note_under_way(work, 0)
        shutil.rmtree(work, ignore_errors=True)
        return missing, said

    def _take(self, place: Path, files: Sequence[WantedFile]) -> list[WantedFile]:
        """Publish those of `files` that lie below `place` and are right; return the others."""
        names = {file.name: file for file in files}
        for folder, _, entries in place.walk():
            for entry in entries:
                file = names.get(entry)
                if file is None or file.stored in self._have:
                    continue
                if file_problem(folder / entry, _stored(file)) is None:
                    (folder / entry).chmod(0o644)
                    (folder / entry).replace(self._depot / FILES / file.stored)
                    self._note_have(file, "fetching")
        return [file for file in files if file.stored not in self._have]

    def _not_delivered(self, file: WantedFile, said: str) -> QualifyError:
        last = "\n".join(f"    {line}" for line in said.splitlines())
        if any(sign in said for sign in _WRONG_BYTES) or said.startswith("delivered"):
            return Refusal(
                f"what came is not what the lock says (sha256 {file.sha256}); it was not taken\n"
                f"{last}\n",
                where=file.title,
                fix="ask whoever runs the mirror; a lock is never adapted to what a mirror has",
            )
        dated = next((entry.dated for entry in self._wanted if entry.dated), "")
        moved = (
            f"the archive may have moved on since {dated}: set {SOURCES_VARIABLE} to one that "
            "keeps old versions, or make the lock again with `qualify lock resolve debian`"
        )
        return EnvironmentFault(
            f"could not be fetched\n{last}\n",
            where=file.title,
            fix=moved if file.path else "check which index this machine's pip asks",
        )

    def _fail(self, error: QualifyError, *, last: bool = False) -> None:
        with self._guard:
            self._failures.append(error)
            if last or len(self._failures) >= _MAX_FAILURES:
                self._stop.set()

    def _failure(self) -> QualifyError:
        return self._failures[0] if len(self._failures) == 1 else ErrorList(self._failures)

    def _note_have(self, file: WantedFile, phase: str) -> None:
        with self._guard:
            self._have.add(file.stored)
        self._tell(phase)

    def _note_under_way(self, work: Path, size: int) -> None:
        with self._guard:
            self._under_way[work] = size

    def _tell(self, phase: str) -> None:
        with self._guard:
            size = sum(self._files[name].size for name in self._have)
            size = min(size + sum(self._under_way.values()), self._all_size)
            told = Progress(phase, len(self._have), len(self._files), size, self._all_size)
        self._report(told)

    def _busybox(self, before: DepotIndex | None) -> StoredBusybox | None:
        """Take the first program of a build out of its package, when a set holds it."""
        nar = next((entry.busybox_nar for entry in self._wanted if entry.busybox_nar), None)
        if nar is None:
            return before.busybox if before else None
        package = next(f for f in self._files.values() if f.package == BUSYBOX_PACKAGE)
        program = busybox_of(self._depot / FILES / package.stored)
        if nar_sha256(program) != nar:
            raise Refusal(
                "the program in the package is not the one that the lock names",
                where=package.title,
                fix="make the lock again with `qualify lock resolve debian`",
            )
        target = self._depot / BUSYBOX
        target.parent.mkdir(exist_ok=True)
        write_atomic(target, program, mode=0o755)
        return StoredBusybox(nar_sha256=nar, size=len(program))

    def _publish(self, before: DepotIndex | None, busybox: StoredBusybox | None) -> None:
        """Write the index and the script, and remove what no set names any more."""
        sets = dict(before.sets) if before else {}
        known = {file.name: file for file in before.files} if before else {}
        for entry in self._wanted:
            names = tuple(sorted(file.stored for file in entry.files))
            sets[entry.name] = StoredSet(digest=entry.digest, files=names)
        known |= {name: _stored(file) for name, file in self._files.items()}
        named = sorted({name for entry in sets.values() for name in entry.files})
        index = DepotIndex(
            busybox=busybox,
            files=tuple(known[name] for name in named),
            sets=dict(sorted(sets.items())),
        )
        write_atomic(self._depot / SEED, seed_script(index), mode=0o755)
        write_atomic(self._depot / INDEX, index_bytes(index))
        for name in sorted(known.keys() - set(named)):
            (self._depot / FILES / name).unlink(missing_ok=True)
            self._done.removed.append(name)
        self._done.index = index


def _stored(file: WantedFile) -> StoredFile:
    return StoredFile(name=file.stored, sha256=file.sha256, size=file.size)
