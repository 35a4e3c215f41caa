"""The ledger: the append-only, hash-chained sequence of records that is the evidence itself.

It lives in `<results>/ledger/`: `ledger.log` and the sealed segments before it (the lines of
`qualify.storage.segments`), an optional `site.json` with a label for people, and `live/` with one
lock file for each trial that is running now. The folder and the genesis entry come into being with
the first append; reading never writes there.

Promises: an append is durable when it returns; any number of processes may append; a write goes
only onto a chain that this process has verified, or that one of ours verified before and nobody has
touched since (`ledger_memory`); a trial is finished at most once and only after its reservation. A
clock that steps back is flagged on the entry and never refused. Never: editing, removing or
reordering an entry, or guessing a torn one.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from qualify.core.clock import Clock, format_time
from qualify.core.errors import EnvironmentFault, UsageError
from qualify.core.errors import Refusal as Refused
from qualify.core.status import EvidenceClass
from qualify.evidence.ledger_memory import Memory
from qualify.evidence.versions import SCHEMA
from qualify.storage.appendlog import ChainBroken, Head, Line
from qualify.storage.locks import file_lock, is_locked
from qualify.storage.segments import (
    BEGIN,
    SEGMENT_BYTES,
    Build,
    ChainReader,
    Position,
    Progress,
    SegmentedLog,
    head_at,
    verify,
)

if TYPE_CHECKING:
    from qualify.evidence.records import Entry, Refusal, StartFailure, Trial

# The models of records are imported where they are needed: questions to the database need none.
_SCHEMA_VERSION = re.compile(rb'"schema_version":([0-9]{1,9})[,}]')
_NO_TRIALS = ("refusal", "start-failure")
_LIVE_LOCK_WAIT_S = 5
"""A reader that asks whether the trial runs holds its lock for an instant."""


class NewerLedger(UsageError):
    """The ledger holds records of a newer schema than this program knows. It was not touched."""


class InvalidRecord(Refused):
    """A line of an intact chain holds something that no version of Qualify writes."""


@dataclass(frozen=True)
class StoredEntry:
    """One verified and validated entry. `digest` is the line's digest (`sha256:…`)."""

    seq: int
    digest: str
    entry: Entry
    clock_went_back: bool = False
    """Its time is earlier than that of the entry before it."""


@dataclass(frozen=True)
class Reserved:
    """A trial that may start now."""

    trial: str
    """Digest of the reservation entry (`sha256:…`)."""
    ordinal: int
    seed: str


@dataclass
class _Consistency:
    """What the entries read so far allow the next one to be."""

    reserved: set[str] = field(default_factory=set)
    finished: set[str] = field(default_factory=set)
    ordinals: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def fault(self, stored: StoredEntry) -> str:
        """Take in one entry; return what is wrong with it, or an empty string."""
        entry = stored.entry
        if (entry.kind == "genesis") != (stored.seq == 0):
            return "a ledger starts with one genesis entry and holds no other"
        if entry.kind == "reservation":
            key = (entry.configuration, entry.suite_digest, entry.scenario)
            expected = self.ordinals.get(key, 0)
            if not entry.experimental:
                self.ordinals[key] = expected + 1
            self.reserved.add(stored.digest)
            if entry.ordinal != expected:
                return f"has ordinal {entry.ordinal}, expected {expected}"
        if entry.kind == "trial":
            if entry.trial not in self.reserved:
                return "finishes a trial that was never reserved"
            if entry.trial in self.finished:
                return "finishes a trial a second time"
            self.finished.add(entry.trial)
        return ""


class Ledger:
    """Reader and writer of one ledger folder."""

    def __init__(
        self, folder: Path, clock: Clock | None = None, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self.folder = folder
        self.path = folder / "ledger.log"
        self._clock = clock or Clock()
        self._memory = Memory(self.path)
        self._log = SegmentedLog(
            self.path, self._observe, self._memory.sealed, segment_bytes=segment_bytes
        )
        self._remembered = False

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    def entries(self) -> Iterator[StoredEntry]:
        """Yield every entry in order, verified and validated; a missing ledger is empty.

        Raises `ChainBroken` or `InvalidRecord` (damage, exit 10, `where` names file and line),
        `NewerLedger` (exit 2), `EnvironmentFault` when the file cannot be read.
        """
        known = _Consistency()
        before = ""
        try:
            for line in ChainReader(self.path):
                entry = decode(line, self.where(line.seq))
                stored = StoredEntry(line.seq, f"sha256:{line.digest}", entry, entry.time < before)
                fault = known.fault(stored)
                if fault:
                    raise InvalidRecord(fault, where=self.where(line.seq), fix=_KEEP)
                before = entry.time
                yield stored
        except OSError as error:
            raise _unreadable(self.path, error) from error

    def verify(self, progress: Progress | None = None) -> Head:
        """Verify every byte of the chain now, and return where it ends. Raises as `entries`.

        Records are not looked into: `entries` does that.
        """
        try:
            return verify(self.path, progress)
        except OSError as error:
            raise _unreadable(self.path, error) from error

    def head(self) -> Head:
        """Where the chain ends: verified now, or before and untouched since. Raises as `entries`.

        For what decides about evidence from outside, `verify` is the one to ask.
        """
        try:
            return head_at(self.path, self._catch_up())
        except OSError as error:
            raise _unreadable(self.path, error) from error

    def lines(self, after: Position | None = None) -> Iterator[Line]:
        """Yield the lines after a place, verified. Raises `ChainBroken` and `NewerLedger`.

        Read whole, they are remembered: the next question need not verify them again.
        """
        learned = Memory(self.path)
        remembering = after is None and learned.load() == BEGIN
        sealed = learned.sealed if remembering else None
        for line in ChainReader(self.path, after or BEGIN, sealed):
            _refuse_newer(line, self.where(line.seq))
            if remembering:
                self._learn(learned, line)
            yield line
        learned.save()

    def place(self, count: int, digest: str) -> Position | None:
        """The place after the first `count` lines, the last of which must have `digest` (64 hex
        digits); `None` when this ledger has no such place. Raises as `head`.
        """
        if not count:
            return BEGIN
        self.head()
        reader = ChainReader(self.path, self._memory.segment_of(count))
        if reader.position.seq == count:
            return reader.position if reader.position.prev == digest else None
        for line in reader:
            if line.seq == count - 1:
                return reader.position if line.digest == digest else None
        return None

    def digest_at(self, count: int) -> str | None:
        """The digest (64 hex digits) of the chain after `count` lines; `None` when it is shorter.

        Raises as `head`.
        """
        if count > self.head().count:
            return None
        reader = ChainReader(self.path, self._memory.segment_of(count))
        while reader.position.seq < count:
            for line in reader:
                if line.seq == count - 1:
                    break
        return reader.position.prev

    def site(self) -> str | None:
        """The site's id (32 hex digits) from the genesis entry; `None` before the first append."""
        if self._memory.site is None:
            for line in ChainReader(self.path):
                if b'"kind":"genesis"' in line.payload:
                    entry = decode(line, self.where(line.seq))
                    self._memory.site = entry.site if entry.kind == "genesis" else None
                break
        return self._memory.site

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    def prepare(self) -> str:
        """Create folder and genesis entry if they are missing; return the site id.

        Finds out early whether evidence can be written at all. Raises `EnvironmentFault` (read-only
        folder, full disk), and as `entries`.
        """
        if self._memory.site is not None and self.path.exists():
            return self._memory.site
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentFault(
                f"cannot be made the ledger's folder: {error.strerror or error}",
                where=str(self.folder),
                fix="check its permissions and the free space, or give another --results",
            ) from error
        site = self.site()
        if site is not None:
            return site
        from qualify.evidence.records import Genesis

        genesis = Genesis(time=self._now(), site=secrets.token_hex(16))
        self._append(lambda seq, _prev: [] if seq else [encode(genesis)])
        site = self.site()
        assert site is not None
        return site

    def reserve(
        self,
        *,
        row: str,
        configuration: str,
        suite: str,
        suite_digest: str,
        scenario: str,
        evidence_class: EvidenceClass,
        experimental: bool,
        required_checks: tuple[str, ...],
        derive_seed: Callable[[int], str],
    ) -> Reserved:
        """Reserve a trial before any model work; ordinal and seed are settled under the lock.

        The ordinal counts the earlier, not experimental reservations of (configuration, suite
        digest, scenario): no two trials of a case ever get one seed. Raises as `prepare`.
        """
        from qualify.evidence.records import Reservation

        self.prepare()
        made: list[tuple[int, str]] = []

        def build(_seq: int, _prev: str) -> list[bytes]:
            ordinal = self._memory.ordinals.get((configuration, suite_digest, scenario), 0)
            seed = derive_seed(ordinal)
            made.append((ordinal, seed))
            return [
                encode(
                    Reservation(
                        time=self._now(),
                        row=row,
                        configuration=configuration,
                        suite=suite,
                        suite_digest=suite_digest,
                        scenario=scenario,
                        ordinal=ordinal,
                        seed=seed,
                        evidence_class=evidence_class,
                        experimental=experimental,
                        required_checks=required_checks,
                    )
                )
            ]

        (line,) = self._append(build)
        ordinal, seed = made[-1]
        return Reserved(f"sha256:{line.digest}", ordinal, seed)

    def finish(self, trial: Trial) -> StoredEntry:
        """Append the end of a reserved trial.

        Raises `core.errors.Refusal` when the trial was never reserved here or is already finished
        (nothing is written), and as `prepare`.
        """
        self.prepare()

        def build(_seq: int, _prev: str) -> list[bytes]:
            if trial.trial.removeprefix("sha256:") not in self._memory.open:
                raise self._not_open(trial.trial)
            return [encode(trial)]

        # A finished trial is worth any wait: giving up would turn it into an incomplete one.
        (line,) = self._append(build, lock_timeout_s=None)
        return self._stored(line, trial)

    def append(self, entry: Refusal | StartFailure) -> StoredEntry:
        """Append an entry that is no trial. Raises as `prepare`."""
        if entry.kind not in _NO_TRIALS:
            raise TypeError(f"{type(entry).__name__} is appended by reserve, finish or prepare")
        self.prepare()
        (line,) = self._append(lambda _seq, _prev: [encode(entry)])
        return self._stored(line, entry)

    def append_many(self, payloads: Sequence[bytes], *, validated: bool = False) -> int:
        """Append entries that are no trials, as canonical JSON, in one durable step: all or none.

        `validated` says that the caller has just made them from records. Returns how many entries
        the ledger has now. Raises `InvalidRecord` for what is no such record, and as `prepare`.
        """
        for number, payload in enumerate(payloads):
            if not validated:
                entry = decode(Line(0, "", "", payload), f"entry {number + 1} of the batch")
                if entry.kind not in _NO_TRIALS:
                    raise TypeError(f"{type(entry).__name__} is appended by reserve or finish")
        self.prepare()
        self._append(lambda _seq, _prev: payloads)
        return self._log.position.seq

    # ── what runs now ────────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def live_lock(self, trial: str) -> Iterator[None]:
        """Hold the lock that says "this trial is running"; the kernel drops it if we die.

        Raises `LockHeld` when another process runs the trial.
        """
        path = self._live(trial)
        with contextlib.ExitStack() as stack:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                handle = stack.enter_context(file_lock(path, timeout_s=_LIVE_LOCK_WAIT_S))
                os.fchmod(handle, 0o644)
            except OSError as error:
                raise EnvironmentFault(
                    f"cannot be locked: {error.strerror or error}",
                    where=str(path),
                    fix=_PERMISSIONS,
                ) from error
            # Removed while it is held: ids are unique, nobody will lock this name again.
            stack.callback(_remove, path)
            yield

    def is_running(self, trial: str) -> bool:
        """Tell whether a process holds the trial's live lock at this moment."""
        return is_locked(self._live(trial))

    def _live(self, trial: str) -> Path:
        return self.folder / "live" / f"{trial.removeprefix('sha256:')}.lock"

    # ── within ───────────────────────────────────────────────────────────────────────────────────

    def _now(self) -> str:
        return format_time(self._clock.now())

    def where(self, seq: int) -> str:
        """How a message names a line: the log, and the line's number in the chain from 1."""
        return f"{self.path}:{seq + 1}"

    def _append(self, build: Build, lock_timeout_s: float | None = 30) -> list[Line]:
        self._remember()
        try:
            lines = self._log.append(build, lock_timeout_s=lock_timeout_s)
        finally:
            self._memory.save()
        return lines

    def _catch_up(self) -> Position:
        self._remember()
        position = self._log.catch_up()
        self._memory.save()
        return position

    def _remember(self) -> None:
        """Once for each object: begin where one of ours verified before, if nobody touched it."""
        if not self._remembered:
            self._log.position = self._memory.load()
            self._remembered = True

    def _observe(self, line: Line) -> None:
        _refuse_newer(line, self.where(line.seq))
        self._learn(self._memory, line)

    def _learn(self, memory: Memory, line: Line) -> None:
        try:
            memory.take(line)
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidRecord(
                "is not a record of this schema", where=self.where(line.seq), fix=_KEEP
            ) from error

    def _not_open(self, trial: str) -> Refused:
        """Why a trial cannot be finished. Looks through the whole ledger: the case is rare."""
        for line in self.lines():
            if f"sha256:{line.digest}" == trial and b'"kind":"reservation"' in line.payload:
                return Refused("is already finished", where=trial, fix=_SEE_TRIAL)
        return Refused("was never reserved in this ledger", where=trial)

    @staticmethod
    def _stored(line: Line, entry: Entry) -> StoredEntry:
        return StoredEntry(line.seq, f"sha256:{line.digest}", entry)


def open_ledger(results: Path, clock: Clock | None = None) -> Ledger:
    """The ledger of a results folder. Creates nothing."""
    return Ledger(results / "ledger", clock)


_KEEP = "keep the file as it is, and restore the ledger from a copy that verifies"
_PERMISSIONS = "check the free space and the folder's permissions"
_SEE_TRIAL = "a trial is finished once; run another one"


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def encode(entry: Entry) -> bytes:
    """The canonical JSON of an entry: its strings and keys are ASCII, and it holds no floats."""
    return orjson.dumps(orjson.loads(entry.model_dump_json()), option=orjson.OPT_SORT_KEYS)


def decode(line: Line, where: str) -> Entry:
    """The entry of a line. Raises `InvalidRecord` and `NewerLedger`."""
    from pydantic import ValidationError

    from qualify.evidence.records import ENTRY

    _refuse_newer(line, where)
    try:
        if orjson.dumps(orjson.loads(line.payload), option=orjson.OPT_SORT_KEYS) != line.payload:
            raise InvalidRecord("is not canonical JSON", where=where, fix=_KEEP)
        return ENTRY.validate_json(line.payload)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise InvalidRecord(
            f"is not a record of this schema ({place}: {first['msg']})", where=where, fix=_KEEP
        ) from error
    except orjson.JSONDecodeError as error:
        raise InvalidRecord("is not JSON", where=where, fix=_KEEP) from error


def _refuse_newer(line: Line, where: str) -> None:
    match = _SCHEMA_VERSION.search(line.payload)
    if match is not None and int(match[1]) > SCHEMA:
        raise NewerLedger(
            f"was written with record schema {int(match[1])}, this program knows {SCHEMA}",
            where=where,
            fix="use the newer Qualify that wrote it; nothing was changed",
        )


def _unreadable(path: Path, error: OSError) -> EnvironmentFault:
    return EnvironmentFault(
        f"cannot be read: {error.strerror or error}", where=str(path), fix=_PERMISSIONS
    )


__all__ = [
    "ChainBroken",
    "Head",
    "InvalidRecord",
    "Ledger",
    "NewerLedger",
    "Reserved",
    "StoredEntry",
    "open_ledger",
]
