"""Ledger lines → lines of the evidence tables, in bulk.

Every record is validated before it is loaded; two processes share that work when there is much of
it. DuckDB takes the fields out of the canonical JSON itself, so that nothing is built in Python for
each field. Memory does not grow with the ledger: what is kept is open trials and one counter for
each case.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import orjson

from qualify.core.canonical import canonical_json
from qualify.core.clock import format_time
from qualify.core.status import EvidenceClass
from qualify.evidence.ledger import InvalidRecord, decode
from qualify.results.inserting import insert
from qualify.storage.appendlog import Line

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from qualify.evidence.records import Reservation, Trial

CHUNK = 2000
"""Ledger lines that are validated together."""
_FILE_BYTES = 64 << 20
"""So much is handed to DuckDB at once."""
_CHUNK_BYTES = 8 << 20
"""Chunks are cut earlier where lines are long: records of other sites may be so."""
_PROCESSES = 2
_WORTH_PROCESSES = 20_000
_WORTH_BYTES = 64 << 20

type Progress = Callable[[int], None]
"""Called with the number of ledger entries that were loaded since the last call."""


class Judge(Protocol):
    """The rule for single records, handed in by whoever knows it. It can be pickled."""

    @property
    def version(self) -> int:
        """Of the rule: kept judgements of another version are made anew."""

    def judge(self, reservation: Reservation, end: Trial) -> dict[str, Any] | None:
        """`grade`, `faults` and `checks` as in the table `judgements`; `None`: not known here."""


@dataclass(frozen=True)
class Open:
    """A reservation without an end."""

    seq: int
    digest: str
    payload: bytes


@dataclass(frozen=True)
class _Item:
    line: Line
    reservation: Open | None
    clock_went_back: bool


@dataclass
class _Rows:
    """What a chunk of lines gives: JSON lines for each table, and what they have in common."""

    entries: bytes = b""
    finished: bytes = b""
    refusals: bytes = b""
    start_failures: bytes = b""
    cases: dict[int, dict[str, Any]] = field(default_factory=dict)
    judgements: dict[int, dict[str, Any]] = field(default_factory=dict)
    reserved: list[tuple[int, int, int, bool]] = field(default_factory=list)
    """Of each reservation: its position, its series, its ordinal, whether it is experimental."""
    kinds: list[str] = field(default_factory=list)


@dataclass
class State:
    """What has been loaded of a ledger, as far as the next entries depend on it."""

    count: int = 0
    digest: str = ""
    time: str = ""
    open: dict[str, Open] = field(default_factory=dict)
    ordinals: dict[int, int] = field(default_factory=dict)
    """Series (configuration, suite digest, scenario) → the ordinal that comes next."""


def series(configuration: str, suite_digest: str, scenario: str) -> int:
    """A number for what ordinals count."""
    return _number([configuration, suite_digest, scenario])


def open_payload(case: dict[str, Any], held: dict[str, Any]) -> bytes:
    """The canonical JSON of a reservation, from its lines in `cases` and `unfinished`."""
    from qualify.evidence.records import Reservation

    entry = Reservation(
        time=format_time(held["reserved"].replace(tzinfo=UTC)),
        ordinal=held["ordinal"],
        seed=held["seed"],
        required_checks=tuple(held["required_checks"]),
        **{**case, "evidence_class": EvidenceClass(case["evidence_class"])},
    )
    return canonical_json(entry.model_dump(mode="json"))


def load(
    connection: DuckDBPyConnection,
    lines: Iterable[Line],
    state: State,
    judge: Judge | None,
    *,
    site: int,
    where: Callable[[int], str],
    scratch: Path | None = None,
    progress: Progress | None = None,
) -> None:
    """Load `lines`, which continue `state`, and bring `state` up to date.

    `scratch` is the folder for temporary files. The caller holds the transaction. Raises
    `InvalidRecord` and `NewerLedger` as the ledger's `entries` (for what concerns single records:
    of entries that contradict each other it says only where).
    """
    with tempfile.TemporaryDirectory(prefix=".loading-", dir=scratch) as folder:
        loader = _Loader(connection, Path(folder), site)
        for rows, read in _made(_items(lines, state, where), judge, where):
            _check_ordinals(rows, state, where)
            loader.take(rows)
            if progress is not None:
                progress(read)
        loader.flush()
        loader.leave_open(state.open)


def _items(lines: Iterable[Line], state: State, where: Callable[[int], str]) -> Iterator[_Item]:
    """Pair each end with its reservation, by looking at the canonical bytes alone."""
    for line in lines:
        reservation = None
        payload = line.payload
        if b'"kind":"reservation"' in payload:
            state.open[line.digest] = Open(line.seq, line.digest, payload)
        elif b'"kind":"trial"' in payload:
            at = payload.rfind(b'"trial":"sha256:') + 16
            reservation = state.open.pop(payload[at : at + 64].decode("ascii", "replace"), None)
            if reservation is None:
                raise InvalidRecord(
                    "finishes a trial that was never reserved, or a second time",
                    where=where(line.seq),
                    fix=_KEEP,
                )
        at = payload.rfind(b'"time":"') + 8
        time = payload[at : at + 20].decode("ascii", "replace")
        yield _Item(line, reservation, time < state.time)
        state.time = time
        state.count, state.digest = line.seq + 1, f"sha256:{line.digest}"


def _made(
    items: Iterator[_Item], judge: Judge | None, where: Callable[[int], str]
) -> Iterator[tuple[_Rows, int]]:
    """The rows of all items, in order. Processes are started only when there is enough for them."""
    first = _some(items, _WORTH_PROCESSES, _WORTH_BYTES)
    rest = next(items, None)
    if rest is None:
        for part in _chunks(iter(first)):
            yield _rows(part, judge, _names(part, where)), len(part)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(_PROCESSES, context) as pool:
        yield from _in_turn(pool, _chunks(chain(first, (rest,), items)), judge, where)


def _some(items: Iterator[_Item], most: int, most_bytes: int) -> list[_Item]:
    """The next items, up to that many or so many bytes."""
    found: list[_Item] = []
    for item in islice(items, most):
        found.append(item)
        most_bytes -= len(item.line.payload)
        if most_bytes <= 0:
            break
    return found


def _chunks(items: Iterator[_Item]) -> Iterator[list[_Item]]:
    while part := _some(items, CHUNK, _CHUNK_BYTES):
        yield part


def _in_turn(
    pool: Executor,
    chunks: Iterator[list[_Item]],
    judge: Judge | None,
    where: Callable[[int], str],
) -> Iterator[tuple[_Rows, int]]:
    waiting: list[tuple[Future[_Rows], int]] = []
    for part in chunks:
        waiting.append((pool.submit(_rows, part, judge, _names(part, where)), len(part)))
        if len(waiting) > 2 * _PROCESSES:
            future, read = waiting.pop(0)
            yield future.result(), read
    for future, read in waiting:
        yield future.result(), read


def _names(part: list[_Item], where: Callable[[int], str]) -> list[str]:
    return [where(item.line.seq) for item in part]


def _rows(part: list[_Item], judge: Judge | None, places: list[str]) -> _Rows:
    """Validate a chunk of lines and write down what they give."""
    made = _Rows()
    entries, finished, refusals, failures = [], [], [], []
    held: dict[str, Reservation] = {}
    for item, place in zip(part, places, strict=True):
        line = item.line
        entry = decode(line, place)
        made.kinds.append(entry.kind)
        entries.append(
            b'{"seq":%d,"kind":"%s","time":"%s","clock_went_back":%s}'
            % (
                line.seq,
                entry.kind.encode(),
                entry.time.encode(),
                b"true" if item.clock_went_back else b"false",
            )
        )
        if (entry.kind == "genesis") != (line.seq == 0):
            raise InvalidRecord(
                "a ledger starts with one genesis entry and holds no other", where=place, fix=_KEEP
            )
        if entry.kind == "reservation":
            held[line.digest] = entry
            key = series(entry.configuration, entry.suite_digest, entry.scenario)
            made.reserved.append((line.seq, key, entry.ordinal, entry.experimental))
            _case(entry, made.cases)
        elif entry.kind == "trial":
            assert item.reservation is not None
            reservation = held.get(item.reservation.digest) or _reservation(item, place)
            finished.append(_finished(item, reservation, entry, judge, made))
        elif entry.kind == "refusal":
            refusals.append(b'{"seq":%d,"e":%s}' % (line.seq, line.payload))
        elif entry.kind == "start-failure":
            failures.append(b'{"seq":%d,"e":%s}' % (line.seq, line.payload))
    made.entries = _joined(entries)
    made.finished = _joined(finished)
    made.refusals = _joined(refusals)
    made.start_failures = _joined(failures)
    return made


def _joined(rows: list[bytes]) -> bytes:
    return b"\n".join(rows) + b"\n" if rows else b""


def _reservation(item: _Item, place: str) -> Reservation:
    held = item.reservation
    assert held is not None
    entry = decode(Line(held.seq, "", held.digest, held.payload), place)
    if entry.kind != "reservation" or f"sha256:{held.digest}" != _trial_of(item.line):
        raise InvalidRecord("finishes what is no reservation", where=place, fix=_KEEP)
    return entry


def _trial_of(line: Line) -> str:
    found: str = orjson.loads(line.payload)["trial"]
    return found


def _finished(
    item: _Item, reservation: Reservation, end: Trial, judge: Judge | None, made: _Rows
) -> bytes:
    held = item.reservation
    assert held is not None
    if end.trial != f"sha256:{held.digest}":
        raise InvalidRecord("finishes another trial than it names", where=end.trial, fix=_KEEP)
    judgement: int | None = None
    if judge is not None and (kept := judge.judge(reservation, end)) is not None:
        judgement = _number(kept)
        made.judgements.setdefault(judgement, {"judgement": judgement, **kept})
    recorded = {check.check for check in end.checks}
    required = set(reservation.required_checks)
    checks = [
        {
            "check_id": c.check,
            "required": c.check in required,
            "outcome": c.outcome,
            "reason": c.reason,
        }
        for c in end.checks
    ] + [
        {"check_id": name, "required": True, "outcome": None, "reason": None}
        for name in reservation.required_checks
        if name not in recorded
    ]
    row = {
        "seq": held.seq,
        "trial": end.trial,
        "case_id": _case(reservation, made.cases),
        "reserved": reservation.time,
        "ordinal": reservation.ordinal,
        "seed": reservation.seed,
        "end_seq": item.line.seq,
        "ended": end.time,
        "judgement": judgement,
        "recorded_checks": checks,
    }
    return orjson.dumps(row)[:-1] + b',"e":' + item.line.payload + b"}"


def case_fields(entry: Reservation) -> dict[str, Any]:
    """What a reservation has in common with the others of its case."""
    return {
        "row": entry.row,
        "configuration": entry.configuration,
        "suite": entry.suite,
        "suite_digest": entry.suite_digest,
        "scenario": entry.scenario,
        "evidence_class": entry.evidence_class,
        "experimental": entry.experimental,
    }


def _case(entry: Reservation, cases: dict[int, dict[str, Any]]) -> int:
    fields = case_fields(entry)
    number = _number(list(fields.values()))
    cases.setdefault(number, {"case_id": number, **fields})
    return number


def _number(value: Any) -> int:
    """63 bits of a digest: the same for equal values, without asking anybody."""
    text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    return int.from_bytes(hashlib.sha256(text).digest()[:8]) >> 1


def _check_ordinals(rows: _Rows, state: State, where: Callable[[int], str]) -> None:
    for seq, key, ordinal, experimental in rows.reserved:
        expected = state.ordinals.get(key, 0)
        if not experimental:
            state.ordinals[key] = expected + 1
        if ordinal != expected:
            raise InvalidRecord(
                f"has ordinal {ordinal}, expected {expected}", where=where(seq), fix=_KEEP
            )


class _Loader:
    """Collects rows in files and hands them to DuckDB."""

    def __init__(self, connection: DuckDBPyConnection, folder: Path, site: int) -> None:
        self._connection = connection
        self._folder = folder
        self._site = site
        self._files: dict[str, BinaryIO] = {}
        self._bytes = 0
        self._cases = _known(connection, "cases", "case_id")
        self._judgements = _known(connection, "judgements", "judgement")

    def take(self, rows: _Rows) -> None:
        for table in ("entries", "finished", "refusals", "start_failures"):
            self._write(table, getattr(rows, table))
        self._new("cases", rows.cases, self._cases)
        self._new("judgements", rows.judgements, self._judgements)
        if self._bytes >= _FILE_BYTES:
            self.flush()

    def _new(self, table: str, rows: dict[int, dict[str, Any]], known: set[int]) -> None:
        fresh = {number: row for number, row in rows.items() if number not in known}
        known.update(fresh)
        self._write(table, _joined([orjson.dumps(row) for row in fresh.values()]))

    def _write(self, table: str, data: bytes) -> None:
        if not data:
            return
        if table not in self._files:
            self._files[table] = (self._folder / f"{table}.json").open("wb")
        self._files[table].write(data)
        self._bytes += len(data)

    def flush(self) -> None:
        """Load what was collected."""
        for table, stream in self._files.items():
            stream.close()
            insert(self._connection, table, self._folder / f"{table}.json", site=self._site)
        self._files, self._bytes = {}, 0

    def leave_open(self, trials: dict[str, Open]) -> None:
        """Bring the table of trials without an end up to date."""
        self._connection.execute("DELETE FROM unfinished WHERE site = ?", [self._site])
        cases: dict[int, dict[str, Any]] = {}
        rows = []
        for held in trials.values():
            entry = decode(Line(held.seq, "", held.digest, held.payload), held.digest)
            assert entry.kind == "reservation"
            rows.append(
                orjson.dumps(
                    {
                        "seq": held.seq,
                        "trial": f"sha256:{held.digest}",
                        "case_id": _case(entry, cases),
                        "reserved": entry.time,
                        "ordinal": entry.ordinal,
                        "seed": entry.seed,
                        "required_checks": entry.required_checks,
                    }
                )
            )
        self._write("unfinished", _joined(rows))
        self.flush()


def _known(connection: DuckDBPyConnection, table: str, column: str) -> set[int]:
    found = connection.execute(f"SELECT {column} FROM {table}").fetchall()  # noqa: S608 - ours
    return {number for (number,) in found}


_KEEP = "keep the file as it is, and restore the ledger from a copy that verifies"
