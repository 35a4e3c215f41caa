"""Takes in the ledgers of other sites, whole or not at all.

What lies in a foreign folder is not trusted: it is verified line by line and record by record, in
memory that does not grow with it, before anything is written; then it is copied through a second
verification up to the very digest that the first one ended with. Only plain files with the names
of a ledger are read, and what is written is only what was verified. A newer copy of a site takes
the place of the one kept here when it continues it; a ledger that tells another history of a site
is refused, and nothing of it is kept.

Never: changing the local ledger, or letting a foreign one count for a verdict here.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import orjson

from qualify.core.clock import parse_time
from qualify.core.errors import EnvironmentFault, Refusal, UsageError
from qualify.evidence.ledger import InvalidRecord, Ledger, decode
from qualify.evidence.records import Entry, Genesis, Reservation, Trial
from qualify.results.loading import series
from qualify.results.sites import NEXT, kept_ledger, sites_folder
from qualify.storage.appendlog import Head, Line, encode_line
from qualify.storage.folders import fsync_folder, write_atomic
from qualify.storage.locks import file_lock
from qualify.storage.segments import (
    BEGIN,
    SEGMENT_BYTES,
    ChainReader,
    sealed_path,
    sealed_segments,
)
from qualify.storage.staging import staged_folder

AHEAD = timedelta(minutes=5)
"""What lies further ahead of now than any clock explains counts as unknown."""
_LAST = "ledger.last"
_LOCK_WAIT_S = 60
_OPEN_BYTES = 64 << 20
"""The most that trials without an end may take: they are held until their end is read."""
_LABEL_BYTES = 4096
_CHECKPOINT = re.compile(r"(?:handover-)?[0-9]{12}[0-9a-z.-]{0,60}\.(?:json|sig)")
_STATEMENT = re.compile(r"[0-9]{12}\.json")
_CHECKPOINT_BYTES = 1 << 20
_CHECKPOINTS = 100_000

type Progress = Callable[[int], None]
"""Called with the number of entries that were verified since the last call."""


@dataclass(frozen=True)
class Merged:
    """What became of one foreign folder."""

    site: str
    label: str | None
    """What the site calls itself: text of strangers, to be escaped where it is shown."""
    outcome: str
    """`added`, `extended`, `already-there`, or `own` (a copy of the local ledger)."""
    entries: int
    """Entries of that site that are here now."""
    added: int
    ahead: int
    """Entries of the foreign ledger whose time lies more than five minutes ahead of now."""


@dataclass
class _Facts:
    """What reading a foreign ledger found out."""

    site: str = ""
    head: Head = field(default_factory=lambda: Head(0, ""))
    at_kept: str = ""
    """The digest after as many entries as are kept."""
    ahead: int = 0


def merge_site(
    results: Path, folder: Path, now: datetime, progress: Progress | None = None
) -> Merged:
    """Take in the ledger of the results folder `folder`.

    Raises `UsageError` (no results folder), `ChainBroken`, `InvalidRecord`, `NewerLedger` (the
    foreign ledger, file and line named), `Refusal` (another history of a site) and
    `EnvironmentFault`. Whatever is raised, what is kept stays as it was.
    """
    try:
        source = _source(folder)
        site = _site_of(source)
        own = Ledger(results / "ledger")
        if site == own.site():
            return _own(own, source, now, progress)
        place = sites_folder(results) / site
        place.mkdir(parents=True, exist_ok=True)
        try:
            with file_lock(place.parent / ".lock", timeout_s=_LOCK_WAIT_S):
                _recover(place)
                return _take_in(source, place, now, progress)
        finally:
            with contextlib.suppress(OSError):
                # Only when nothing came into it.
                place.rmdir()
    except OSError as error:
        raise EnvironmentFault(
            f"cannot be merged: {error.strerror or error}",
            where=str(error.filename or folder),
            fix="check the permissions and the free space; what is kept stays as it was",
        ) from error


def _own(own: Ledger, source: Ledger, now: datetime, progress: Progress | None) -> Merged:
    """A copy of the local ledger brings nothing; one that says more or else is refused."""
    facts = _verified(source, now, 0, progress)
    head = own.head()
    if own.digest_at(facts.head.count) != facts.head.digest:
        raise Refusal(
            f"holds entries of this very site ({facts.site[:12]}) that this ledger does not have",
            where=str(source.folder),
            fix="one site has one ledger: find out which of the two goes on, and keep the other "
            "aside",
        )
    return Merged(facts.site, _label(source), "own", head.count, 0, facts.ahead)


def _take_in(source: Ledger, place: Path, now: datetime, progress: Progress | None) -> Merged:
    kept = kept_ledger(place.parents[1], place.name)
    have = kept.head() if kept is not None else Head(0, "")
    facts = _verified(source, now, have.count, progress)
    if facts.head.count >= have.count:
        continues = not have.count or facts.at_kept == have.digest
    else:
        assert kept is not None
        continues = kept.digest_at(facts.head.count) == facts.head.digest
    if not continues:
        raise Refusal(
            f"tells another history of site {facts.site[:12]} than the ledger that is kept here",
            where=str(source.folder),
            fix=f"compare it with {place / 'ledger'}; one of the two was not written by that site",
        )
    label, more = _label(source), facts.head.count - have.count
    signed = _checkpoints(source)
    if kept is not None:
        signed = _joined(_checkpoints(kept), signed, source.folder)
    if more <= 0:
        assert kept is not None
        _write_checkpoints(kept.folder, signed)
        return Merged(facts.site, label, "already-there", have.count, 0, facts.ahead)
    with staged_folder(place / NEXT) as staging:
        _copy(source, staging, facts.head)
        if label is not None:
            (staging / "site.json").write_bytes(orjson.dumps({"label": label}))
        _write_checkpoints(staging, signed)
    _put_in_place(place)
    outcome = "extended" if have.count else "added"
    return Merged(facts.site, label, outcome, facts.head.count, more, facts.ahead)


# ── the foreign folder ───────────────────────────────────────────────────────────────────────────


def _source(folder: Path) -> Ledger:
    """The foreign ledger, if everything that will be read is a plain file."""
    ledger = Ledger(folder / "ledger")
    files = [path for _, path in sealed_segments(ledger.path)]
    if os.path.lexists(ledger.path):
        files.append(ledger.path)
    if not files:
        raise UsageError(
            "holds no ledger", where=str(folder), fix="give a results folder: it holds ledger/"
        )
    for path in files:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise Refusal("is not a plain file", where=str(path), fix="give the folder itself")
    return ledger


def _site_of(source: Ledger) -> str:
    for line in ChainReader(source.path):
        entry = decode(line, source.where(line.seq))
        if isinstance(entry, Genesis):
            return entry.site
        break
    raise InvalidRecord(
        "a ledger starts with one genesis entry", where=source.where(0), fix=_WHOLE_COPY
    )


@dataclass
class _Consistency:
    """What the entries read so far allow the next one to be."""

    open: dict[str, int] = field(default_factory=dict)
    """Trials without an end (64 hex digits), and how long their entries are."""
    open_bytes: int = 0
    ordinals: dict[int, int] = field(default_factory=dict)

    def fault(self, line: Line, entry: Entry) -> str:
        """Take in one entry; return what is wrong with it, or an empty string."""
        if isinstance(entry, Genesis) != (line.seq == 0):
            return "a ledger starts with one genesis entry and holds no other"
        if isinstance(entry, Reservation):
            key = series(entry.configuration, entry.suite_digest, entry.scenario)
            expected = self.ordinals.get(key, 0)
            if entry.ordinal != expected:
                return f"has ordinal {entry.ordinal}, expected {expected}"
            if not entry.experimental:
                self.ordinals[key] = expected + 1
            self.open[line.digest] = len(line.payload)
            self.open_bytes += len(line.payload)
            if self.open_bytes > _OPEN_BYTES:
                return f"more than {_OPEN_BYTES >> 20} MiB of trials have no end"
        if isinstance(entry, Trial):
            held = self.open.pop(entry.trial.removeprefix("sha256:"), None)
            if held is None:
                return "finishes a trial that was never reserved, or a second time"
            self.open_bytes -= held
        return ""


def _verified(source: Ledger, now: datetime, kept: int, progress: Progress | None) -> _Facts:
    """Verify the chain and every record. Raises `ChainBroken`, `InvalidRecord`, `NewerLedger`."""
    facts, known = _Facts(), _Consistency()
    reader = ChainReader(source.path)
    for line in reader:
        where = source.where(line.seq)
        entry = decode(line, where)
        fault = known.fault(line, entry)
        if fault:
            raise InvalidRecord(fault, where=where, fix=_WHOLE_COPY)
        if isinstance(entry, Genesis):
            facts.site = entry.site
        facts.ahead += parse_time(entry.time) - now > AHEAD
        if line.seq == kept - 1:
            facts.at_kept = line.digest
        if progress is not None and line.seq % 1000 == 999:
            progress(1000)
    facts.head = Head(reader.position.seq, reader.position.prev)
    return facts


def _label(source: Ledger) -> str | None:
    """What the site calls itself; `None` when it says nothing that can be shown."""
    try:
        data = _bounded(source.folder / "site.json", _LABEL_BYTES)
        label = orjson.loads(data)["label"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return label if isinstance(label, str) and 0 < len(label) <= 80 else None


def _bounded(path: Path, most: int) -> bytes:
    """The content of a plain file of at most `most` bytes. Raises `OSError` and `ValueError`."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("is not a plain file")
        data = stream.read(most + 1)
    if len(data) > most:
        raise ValueError("is too long")
    return data


# ── the copy ─────────────────────────────────────────────────────────────────────────────────────


def _copy(source: Ledger, target: Path, head: Head) -> None:
    """Write the lines up to `head`, in sealed segments as a ledger has them, durably."""
    active = target / source.path.name
    first = written = 0
    stream = active.open("xb")
    try:
        for line in _up_to(source, head):
            raw, _ = encode_line(line.seq, line.prev, line.payload)
            if written and written + len(raw) > SEGMENT_BYTES:
                _close(stream)
                sealed = sealed_path(active, first)
                active.rename(sealed)
                sealed.chmod(0o444)
                first, written = line.seq, 0
                stream = active.open("xb")
            stream.write(raw)
            written += len(raw)
    finally:
        _close(stream)
    fsync_folder(target)


def _close(stream: object) -> None:
    with stream:  # type: ignore[attr-defined]
        stream.flush()  # type: ignore[attr-defined]
        os.fsync(stream.fileno())  # type: ignore[attr-defined]


def _up_to(source: Ledger, head: Head) -> Iterator[Line]:
    """The lines up to `head`: exactly those that were verified."""
    reader = ChainReader(source.path, BEGIN)
    for line in reader:
        if line.seq == head.count - 1 and line.digest != head.digest:
            break
        yield line
        if line.seq == head.count - 1:
            return
    raise Refusal(
        "was changed while it was read", where=str(source.folder), fix="merge a copy at rest"
    )


def _checkpoints(ledger: Ledger) -> dict[str, bytes]:
    """Checkpoints with their signatures, by file name. Who signed them is another question."""
    folder = ledger.folder / "checkpoints"
    try:
        found = os.scandir(folder)
    except OSError:
        return {}
    with found:
        names = sorted(entry.name for entry in found if _CHECKPOINT.fullmatch(entry.name))
    if len(names) > _CHECKPOINTS:
        raise Refusal(
            f"has more than {_CHECKPOINTS} checkpoints",
            where=str(folder),
            fix="move what does not belong there",
        )
    read = {}
    for name in names:
        try:
            read[name] = _bounded(folder / name, _CHECKPOINT_BYTES)
        except ValueError as error:
            raise Refusal(str(error), where=str(folder / name), fix="move it away") from error
    return read


def _joined(kept: dict[str, bytes], new: dict[str, bytes], folder: Path) -> dict[str, bytes]:
    """Both: what is kept is not lost because a later copy lacks it. A statement never changes."""
    for name in kept.keys() & new.keys():
        if _STATEMENT.fullmatch(name) and kept[name] != new[name]:
            raise Refusal(
                f"has another checkpoint {name} than the one that is kept here",
                where=str(folder),
                fix="compare the two: one of them was not signed by that site",
            )
    return kept | new


def _write_checkpoints(ledger: Path, files: dict[str, bytes]) -> None:
    folder = ledger / "checkpoints"
    if not files:
        return
    folder.mkdir(exist_ok=True)
    # Signatures first: where a statement is, its signatures are.
    for name in sorted(files, key=lambda name: _STATEMENT.fullmatch(name) is not None):
        path = folder / name
        if not path.exists() or path.read_bytes() != files[name]:
            write_atomic(path, files[name])
    fsync_folder(folder)


def _put_in_place(place: Path) -> None:
    """`ledger.next` becomes `ledger`. Whoever looks in between finds it under its first name."""
    if (place / "ledger").exists():
        (place / "ledger").rename(place / _LAST)
    (place / NEXT).rename(place / "ledger")
    fsync_folder(place)
    shutil.rmtree(place / _LAST, ignore_errors=True)


def _recover(place: Path) -> None:
    """Finish what a killed merge left half done."""
    for name in (NEXT, _LAST):
        if (place / name).exists():
            if (place / "ledger").exists():
                shutil.rmtree(place / name)
            else:
                (place / name).rename(place / "ledger")


_WHOLE_COPY = "ask that site for a copy of its ledger that verifies"
