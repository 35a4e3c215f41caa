"""`<results>/qualify.duckdb`: made from the ledger, followed after each run, made anew at any time.

The database being locked, missing, corrupt or newer never loses or blocks evidence: each gives one
error that says what to do, and the ledger stays as it is. A database of an older schema is made
anew. A newer one is never touched. Writers of Qualify take turns by a lock file beside it; a
foreign program that holds the file is named.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from qualify.core.errors import EnvironmentFault, QualifyError
from qualify.evidence.ledger import Ledger
from qualify.results.loading import Judge, Open, Progress, State, insert, load, open_payload, series
from qualify.results.projection import DECLARED_TABLES, Lines
from qualify.storage.appendlog import Line
from qualify.storage.folders import fsync_folder
from qualify.storage.locks import file_lock

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SCHEMA_VERSION = 3
LOCAL = 0
"""The number of the local ledger among the sites."""
_COPIED_BYTES = 16 << 20
"""A database up to this size is copied into memory for questions; a larger one is attached."""
_TURN_TIMEOUT_S = 60
_REBUILD = "run `qualify results rebuild`: the ledger has everything"
_CONFIG: dict[str, Any] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "memory_limit": "1GB",
    "preserve_insertion_order": "false",
}


class DatabaseLocked(EnvironmentFault):
    """Another program has the file open."""


class DatabaseCorrupt(EnvironmentFault):
    """The file is not a results database that can be read."""


class DatabaseNewer(EnvironmentFault):
    """The file was made by a newer version. It was not touched."""


class DatabaseOlder(EnvironmentFault):
    """The file was made by an older version; it can be made anew."""


@dataclass(frozen=True)
class Projected:
    """What a write did: entries in the database now, entries added, whether it was made anew."""

    entries: int
    added: int
    rebuilt: bool


@dataclass(frozen=True)
class DatabaseState:
    """`missing`, `current`, `behind`, `older`, `locked`, `corrupt` or `newer`."""

    state: str
    entries: int | None = None
    schema_version: int | None = None
    fault: QualifyError | None = None


def database_path(results: Path) -> Path:
    """Where the database of a results folder lives."""
    return results / "qualify.duckdb"


def rebuild(
    results: Path,
    ledger: Ledger,
    declared: Lines,
    judge: Judge | None = None,
    progress: Progress | None = None,
) -> Projected:
    """Make the database anew beside the old one, then put it in its place in one step.

    The old one stays until the new one is complete. Raises `DatabaseLocked`, `DatabaseNewer`
    (nothing is touched), `EnvironmentFault` (no space, read-only folder), and as the ledger's
    `entries`.
    """
    return _undisturbed(lambda: _rebuild_or_refuse(results, ledger, declared, judge, progress))


def _rebuild_or_refuse(
    results: Path,
    ledger: Ledger,
    declared: Lines,
    judge: Judge | None,
    progress: Progress | None,
) -> Projected:
    path = database_path(results)
    with _writing(results, path):
        if path.exists():
            with contextlib.suppress(DatabaseCorrupt, DatabaseOlder), _open(path, read_only=True):
                pass
        return _rebuild(path, ledger, declared, judge, progress)


def follow(results: Path, ledger: Ledger, declared: Lines, judge: Judge | None = None) -> Projected:
    """Add what the ledger has and the database has not; make it anew if it does not fit.

    Raises `DatabaseLocked`, `DatabaseCorrupt`, `DatabaseNewer`, `EnvironmentFault`, and as the
    ledger's `entries`. Evidence is never at stake: callers report the error and go on.
    """
    return _undisturbed(lambda: _follow_or_rebuild(results, ledger, declared, judge))


def _undisturbed[T](work: Callable[[], T]) -> T:
    """Do `work` in a thread: DuckDB turns a signal that reaches it into an error of its own, and
    Ctrl-C or SIGTERM would be lost. They are obeyed when the work is done.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def _follow_or_rebuild(
    results: Path, ledger: Ledger, declared: Lines, judge: Judge | None
) -> Projected:
    path = database_path(results)
    with _writing(results, path):
        if not path.exists():
            return _rebuild(path, ledger, declared, judge, None)
        try:
            with _open(path, read_only=False) as connection:
                done = _follow(connection, ledger, declared, judge, path.parent)
        except DatabaseOlder:
            done = None
        return done or _rebuild(path, ledger, declared, judge, None)


def state(results: Path, ledger: Ledger) -> DatabaseState:
    """How the database stands to the ledger. Changes nothing. Raises as the ledger's `head`."""
    path = database_path(results)
    head = ledger.head()
    if not path.exists():
        return DatabaseState("missing")
    try:
        with _open(path, read_only=True) as connection:
            count, digest = _position(connection)
    except DatabaseLocked as error:
        return DatabaseState("locked", fault=error)
    except DatabaseNewer as error:
        return DatabaseState("newer", fault=error)
    except DatabaseOlder as error:
        return DatabaseState("older", fault=error)
    except DatabaseCorrupt as error:
        return DatabaseState("corrupt", fault=error)
    current = count == head.count and digest == (f"sha256:{head.digest}" if count else "")
    return DatabaseState("current" if current else "behind", count, SCHEMA_VERSION)


@contextlib.contextmanager
def snapshot(
    results: Path, ledger: Ledger, declared: Lines | None
) -> Iterator[tuple[DuckDBPyConnection, QualifyError | None]]:
    """A connection that has everything the ledger has and can reach nothing else on disk.

    Taken from the database when that is current, from a copy of it that follows the ledger when it
    is behind or in use by another program, else from the ledger itself. Yields the connection and,
    when the database is in use, that error (for information). `declared` replaces what the database
    knows of the manifests; `None` keeps it. Raises `DatabaseCorrupt`, `DatabaseNewer`, and as the
    ledger's `entries`.
    """
    import duckdb

    with contextlib.ExitStack() as stack:
        memory = stack.enter_context(contextlib.closing(duckdb.connect(":memory:", config=_CONFIG)))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qualify-")))
        note = _undisturbed(
            lambda: _take(memory, database_path(results), ledger, declared, scratch)
        )
        yield memory, note


def _take(
    memory: DuckDBPyConnection,
    path: Path,
    ledger: Ledger,
    declared: Lines | None,
    scratch: Path,
) -> QualifyError | None:
    """Fill a snapshot from the database or the ledger; the error of a database that is in use."""
    note: QualifyError | None = None
    source: Path | None = None
    if path.exists():
        try:
            with _open(path, read_only=True) as connection:
                source = path if _is_current(connection, ledger) else None
        except DatabaseLocked as error:
            note = error
        except DatabaseOlder:
            pass
        else:
            source = source or _followed_copy(path, ledger, scratch)
        if note is not None:
            source = _followed_copy(path, ledger, scratch)
    if source is None:
        _create(memory)
        _load_all(memory, ledger, None, scratch, None)
    else:
        _attach(memory, source)
    if declared is not None:
        _declare(memory, declared, scratch)
    _seal(memory)
    return note


def _followed_copy(path: Path, ledger: Ledger, scratch: Path) -> Path | None:
    """A copy of the database that has followed the ledger; `None` when that cannot be had.

    The file may be read while another program holds it. Should that program write at this very
    moment, the copy does not open or does not fit, and is not used.
    """
    copy = scratch / "copy.duckdb"
    try:
        shutil.copyfile(path, copy)
        with _open(copy, read_only=False) as connection:
            done = _follow(connection, ledger, None, None, scratch)
    except (OSError, DatabaseCorrupt, DatabaseOlder):
        return None
    return copy if done is not None else None


def _attach(memory: DuckDBPyConnection, source: Path) -> None:
    """Make the tables of `source` those of `memory`: copied when small, else read in place."""
    import duckdb

    place = str(source).replace("'", "''")
    try:
        memory.execute(f"ATTACH '{place}' AS results (READ_ONLY)")
        if source.stat().st_size <= _COPIED_BYTES:
            memory.execute("COPY FROM DATABASE results TO memory")
            memory.execute("DETACH results")
        else:
            memory.execute("USE results")
    except duckdb.Error as error:
        raise _database_fault(source, error) from error


def _is_current(connection: DuckDBPyConnection, ledger: Ledger) -> bool:
    head = ledger.head()
    return _position(connection) == (head.count, f"sha256:{head.digest}" if head.count else "")


@contextlib.contextmanager
def reading(results: Path) -> Iterator[DuckDBPyConnection]:
    """The database itself, to read from. Raises `DatabaseLocked` and its like."""
    with _open(database_path(results), read_only=True) as connection:
        yield connection


# ── opening ──────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _writing(results: Path, path: Path) -> Iterator[None]:
    """Take the turn among Qualify's own processes, and turn the system's errors into ours."""
    try:
        results.mkdir(parents=True, exist_ok=True)
        with file_lock(path.with_name(path.name + ".lock"), timeout_s=_TURN_TIMEOUT_S):
            yield
    except OSError as error:
        raise _not_written(path, error.strerror or str(error)) from error


@contextlib.contextmanager
def _open(path: Path, *, read_only: bool) -> Iterator[DuckDBPyConnection]:
    """A connection to a database of our schema version; DuckDB's errors become ours."""
    import duckdb

    try:
        connection = duckdb.connect(str(path), read_only=read_only, config=_CONFIG)
        try:
            _check_version(connection, path)
            yield connection
        finally:
            connection.close()
    except duckdb.Error as error:
        raise _database_fault(path, error) from error


def _check_version(connection: DuckDBPyConnection, path: Path) -> None:
    found = connection.execute("SELECT schema_version FROM meta").fetchone()
    version = found[0] if found else 0
    if version > SCHEMA_VERSION:
        raise DatabaseNewer(
            f"has schema version {version}, this program knows {SCHEMA_VERSION}",
            where=str(path),
            fix="use the newer Qualify, or move the file away and run `qualify results rebuild`",
        )
    if version < SCHEMA_VERSION:
        raise DatabaseOlder(f"has schema version {version}", where=str(path), fix=_REBUILD)


def _database_fault(path: Path, error: Exception) -> EnvironmentFault:
    """What an error of DuckDB means here, by its text (DuckDB has no codes for these)."""
    import duckdb

    text = str(error)
    if isinstance(error, duckdb.ConstraintException | duckdb.ConversionException):
        # Our own lines do not fit our own tables: a defect, not a damaged file.
        raise error
    first = text.splitlines()[0] if text else type(error).__name__
    if "Could not set lock" in text:
        holder = re.search(r"lock is held in (.+?) \(PID (\d+)\)", text)
        who = f"{Path(holder[1]).name} (process {holder[2]})" if holder else "another program"
        return DatabaseLocked(
            f"is in use by {who}", where=str(path), fix="close it there, then try again"
        )
    if "with version number" in text:
        return DatabaseNewer(
            "was written in a newer file format of DuckDB",
            where=str(path),
            fix="use the newer Qualify, or move the file away and run `qualify results rebuild`",
        )
    if "No space left" in text:
        return _not_written(path, "No space left on device")
    if "Permission denied" in text or "Read-only file system" in text:
        return _not_written(path, "permission denied or read-only")
    return DatabaseCorrupt(f"is not a results database ({first})", where=str(path), fix=_REBUILD)


def _not_written(path: Path, reason: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"cannot be written: {reason}",
        where=str(path),
        fix="check the free space and the folder's permissions; no evidence is lost",
    )


# ── filling ──────────────────────────────────────────────────────────────────────────────────────


def _rebuild(
    path: Path,
    ledger: Ledger,
    declared: Lines,
    judge: Judge | None,
    progress: Progress | None,
) -> Projected:
    import duckdb

    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with contextlib.closing(duckdb.connect(str(temporary), config=_CONFIG)) as connection:
            _create(connection)
            count = _load_all(connection, ledger, judge, path.parent, progress)
            _declare(connection, declared, path.parent)
        # A journal of the old file must not be replayed into the new one.
        path.with_name(path.name + ".wal").unlink(missing_ok=True)
        temporary.replace(path)
        fsync_folder(path.parent)
    except duckdb.Error as error:
        raise _database_fault(path, error) from error
    finally:
        for leftover in (temporary, temporary.with_name(temporary.name + ".wal")):
            leftover.unlink(missing_ok=True)
    return Projected(count, count, rebuilt=True)


def _follow(
    connection: DuckDBPyConnection,
    ledger: Ledger,
    declared: Lines | None,
    judge: Judge | None,
    scratch: Path,
) -> Projected | None:
    """Add the entries after those that are there; `None` when the database is to be made anew."""
    count, digest = _position(connection)
    made_by = _grading_version(connection)
    if judge is not None and made_by != judge.version:
        return None
    lines = _lines(ledger)
    before = deque(islice(lines, count), maxlen=1)
    if count and (not before or f"sha256:{before[0].digest}" != digest):
        return None
    loaded = _state(connection, count, digest)
    first = next(lines, None)
    connection.execute("BEGIN")
    if first is not None:
        new = chain((first,), lines)
        load(connection, new, loaded, judge, site=LOCAL, where=_where(ledger), scratch=scratch)
        _set_position(connection, ledger, loaded)
        if judge is None:
            # These have no judgement: whoever needs one makes the database anew.
            connection.execute("UPDATE meta SET grading_version = NULL")
    if declared is not None:
        _declare(connection, declared, scratch)
    connection.execute("COMMIT")
    return Projected(loaded.count, loaded.count - count, rebuilt=False)


def _state(connection: DuckDBPyConnection, count: int, digest: str) -> State:
    """What the entries that are there mean for the next ones."""
    found = State(count, digest)
    newest = connection.execute(
        "SELECT time FROM entries WHERE site = 0 AND seq = ?", [count - 1]
    ).fetchone()
    if newest is not None:
        found.time = newest[0].strftime("%Y-%m-%dT%H:%M:%SZ")
    open_ones = connection.execute(
        "SELECT u.seq, u.trial, u.reserved, u.ordinal, u.seed, u.required_checks, "
        "c.row, c.configuration, c.suite, c.suite_digest, c.scenario, c.evidence_class, "
        "c.experimental FROM unfinished u JOIN cases c USING (case_id) WHERE u.site = 0"
    )
    names = [column[0] for column in open_ones.description or ()]
    for row in open_ones.fetchall():
        held = dict(zip(names, row, strict=True))
        case = {name: held[name] for name in names[6:]}
        digits = held["trial"].removeprefix("sha256:")
        found.open[digits] = Open(held["seq"], digits, open_payload(case, held))
    for configuration, suite, scenario, ordinal in connection.execute(
        "SELECT c.configuration, c.suite_digest, c.scenario, count(*) FROM "
        "(SELECT case_id FROM finished WHERE site = 0 UNION ALL "
        "SELECT case_id FROM unfinished WHERE site = 0) "
        "JOIN cases c USING (case_id) WHERE NOT c.experimental GROUP BY ALL"
    ).fetchall():
        found.ordinals[series(configuration, suite, scenario)] = ordinal
    return found


def _lines(ledger: Ledger) -> Iterator[Line]:
    return ledger.lines()


def _where(ledger: Ledger) -> Callable[[int], str]:
    return ledger.where


def _create(connection: DuckDBPyConnection) -> None:
    from importlib.resources import files

    connection.execute((files("qualify.results") / "schema.sql").read_text("utf-8"))
    connection.execute("INSERT INTO meta VALUES (?, NULL)", [SCHEMA_VERSION])
    connection.execute("INSERT INTO sites VALUES (?, NULL, 0, '')", [LOCAL])


def _load_all(
    connection: DuckDBPyConnection,
    ledger: Ledger,
    judge: Judge | None,
    scratch: Path,
    progress: Progress | None,
) -> int:
    """Everything in the ledger, in one transaction."""
    loaded = State()
    connection.execute("BEGIN")
    load(
        connection,
        _lines(ledger),
        loaded,
        judge,
        site=LOCAL,
        where=_where(ledger),
        scratch=scratch,
        progress=progress,
    )
    _set_position(connection, ledger, loaded)
    version = judge.version if judge is not None else None
    connection.execute("UPDATE meta SET grading_version = ?", [version])
    connection.execute("COMMIT")
    return loaded.count


def _declare(connection: DuckDBPyConnection, declared: Lines, scratch: Path) -> None:
    """Replace what is known of the manifests."""
    with tempfile.TemporaryDirectory(prefix=".declaring-", dir=scratch) as folder:
        for table in DECLARED_TABLES:
            connection.execute(f"DELETE FROM {table}")  # noqa: S608 - a name of ours
            if declared.get(table):
                file = Path(folder) / f"{table}.json"
                file.write_bytes(b"\n".join(orjson.dumps(row) for row in declared[table]))
                insert(connection, table, file)


def _position(connection: DuckDBPyConnection) -> tuple[int, str]:
    found = connection.execute(
        "SELECT ledger_count, ledger_digest FROM sites WHERE site = ?", [LOCAL]
    ).fetchone()
    assert found is not None
    return found[0], found[1]


def _grading_version(connection: DuckDBPyConnection) -> int | None:
    found = connection.execute("SELECT grading_version FROM meta").fetchone()
    return found[0] if found else None


def _set_position(connection: DuckDBPyConnection, ledger: Ledger, loaded: State) -> None:
    connection.execute(
        "UPDATE sites SET id = ?, ledger_count = ?, ledger_digest = ? WHERE site = ?",
        [ledger.site(), loaded.count, loaded.digest, LOCAL],
    )


def _seal(memory: DuckDBPyConnection) -> None:
    """From here on no statement can reach a file, the network or these settings."""
    for setting in (
        "temp_directory = ''",
        "secret_directory = ''",
        "TimeZone = 'UTC'",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        memory.execute(f"SET {setting}")
