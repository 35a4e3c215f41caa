"""`<results>/qualify.duckdb`: made from the ledger, followed after each run, made anew at any time.

The database being locked, missing, corrupt or newer never loses or blocks evidence: each gives one
error that says what to do, and the ledger stays as it is. A database of an older schema is made
anew. A newer one is never touched. Writers of Qualify take turns by a lock file beside it; a
foreign program that holds the file is named.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from qualify.core.errors import EnvironmentFault, QualifyError
from qualify.evidence.ledger import Ledger
from qualify.evidence.records import Reservation
from qualify.results.projection import DECLARED_TABLES, Lines, project
from qualify.storage.folders import fsync_folder
from qualify.storage.locks import file_lock

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SCHEMA_VERSION = 2
_CHUNK = 2000
_TURN_TIMEOUT_S = 60
_REBUILD = "run `qualify results rebuild`: the ledger has everything"
_CONFIG: dict[str, Any] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
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


def rebuild(results: Path, ledger: Ledger, declared: Lines) -> Projected:
    """Make the database anew beside the old one, then put it in its place in one step.

    The old one stays until the new one is complete. Raises `DatabaseLocked`, `DatabaseNewer`
    (nothing is touched), `EnvironmentFault` (no space, read-only folder), and as the ledger's
    `entries`.
    """
    return _undisturbed(lambda: _rebuild_or_refuse(results, ledger, declared))


def _rebuild_or_refuse(results: Path, ledger: Ledger, declared: Lines) -> Projected:
    path = database_path(results)
    with _writing(results, path):
        if path.exists():
            with contextlib.suppress(DatabaseCorrupt, DatabaseOlder), _open(path, read_only=True):
                pass
        return _rebuild(path, ledger, declared)


def follow(results: Path, ledger: Ledger, declared: Lines) -> Projected:
    """Add what the ledger has and the database has not; make it anew if it does not fit.

    Raises `DatabaseLocked`, `DatabaseCorrupt`, `DatabaseNewer`, `EnvironmentFault`, and as the
    ledger's `entries`. Evidence is never at stake: callers report the error and go on.
    """
    return _undisturbed(lambda: _follow_or_rebuild(results, ledger, declared))


def _undisturbed[T](work: Callable[[], T]) -> T:
    """Do `work` in a thread: DuckDB turns a signal that reaches it into an error of its own, and
    Ctrl-C or SIGTERM would be lost. They are obeyed when the work is done.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def _follow_or_rebuild(results: Path, ledger: Ledger, declared: Lines) -> Projected:
    path = database_path(results)
    with _writing(results, path):
        if not path.exists():
            return _rebuild(path, ledger, declared)
        try:
            with _open(path, read_only=False) as connection:
                count, digest = _position(connection)
                done = _follow(connection, ledger, count, digest, declared)
        except DatabaseOlder:
            done = None
        return done or _rebuild(path, ledger, declared)


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
    """An in-memory copy that has everything the ledger has; nothing on disk can be reached from it.

    Taken from the database when that is current, else from the ledger itself. Yields the connection
    and, when the database is in use by another program, that error (for information). `declared`
    replaces what the database knows of the manifests; `None` keeps it. Raises `DatabaseCorrupt`,
    `DatabaseNewer`, and as the ledger's `entries`.
    """
    import duckdb

    memory = duckdb.connect(":memory:", config=_CONFIG)
    try:
        yield memory, _undisturbed(lambda: _take(memory, database_path(results), ledger, declared))
    finally:
        memory.close()


def _take(
    memory: DuckDBPyConnection, path: Path, ledger: Ledger, declared: Lines | None
) -> QualifyError | None:
    """Fill a snapshot from the database or the ledger; the error of a database that is in use."""
    head = ledger.head()
    note: QualifyError | None = None
    copied = False
    if path.exists():
        try:
            copied = _copy_if_current(memory, path, head.count, head.digest)
        except DatabaseLocked as error:
            note = error
        except DatabaseOlder:
            pass
    if not copied:
        _create(memory)
        _fill(memory, ledger)
    if declared is not None:
        _declare(memory, declared)
    _seal(memory)
    return note


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


def _rebuild(path: Path, ledger: Ledger, declared: Lines) -> Projected:
    import duckdb

    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with contextlib.closing(duckdb.connect(str(temporary), config=_CONFIG)) as connection:
            _create(connection)
            count = _fill(connection, ledger)
            _declare(connection, declared)
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
    connection: DuckDBPyConnection, ledger: Ledger, count: int, digest: str, declared: Lines
) -> Projected | None:
    """Add the entries after `count`; `None` when the database does not belong to this ledger."""
    entries = ledger.entries()
    required: dict[str, tuple[str, ...]] = {}
    last = ""
    for stored in islice(entries, count):
        last = stored.digest
        if isinstance(stored.entry, Reservation):
            required[last] = stored.entry.required_checks
    if last != digest:
        return None
    added = list(entries)
    connection.execute("BEGIN")
    _insert(connection, project(added, required))
    _declare(connection, declared)
    if added:
        _set_position(connection, count + len(added), added[-1].digest)
    connection.execute("COMMIT")
    return Projected(count + len(added), len(added), rebuilt=False)


def _copy_if_current(memory: DuckDBPyConnection, path: Path, count: int, digest: str) -> bool:
    import duckdb

    with _open(path, read_only=True) as connection:
        if _position(connection) != (count, f"sha256:{digest}" if count else ""):
            return False
    place = str(path).replace("'", "''")
    try:
        memory.execute(f"ATTACH '{place}' AS file (READ_ONLY)")
        memory.execute("COPY FROM DATABASE file TO memory")
        memory.execute("DETACH file")
    except duckdb.Error as error:
        raise _database_fault(path, error) from error
    return True


def _create(connection: DuckDBPyConnection) -> None:
    from importlib.resources import files

    connection.execute((files("qualify.results") / "schema.sql").read_text("utf-8"))
    connection.execute("INSERT INTO meta VALUES (?, 0, '')", [SCHEMA_VERSION])


def _fill(connection: DuckDBPyConnection, ledger: Ledger) -> int:
    """Everything in the ledger, in one transaction."""
    entries = ledger.entries()
    required: dict[str, tuple[str, ...]] = {}
    count, last = 0, ""
    connection.execute("BEGIN")
    while chunk := list(islice(entries, _CHUNK)):
        _insert(connection, project(chunk, required))
        count, last = count + len(chunk), chunk[-1].digest
    _set_position(connection, count, last)
    connection.execute("COMMIT")
    return count


def _declare(connection: DuckDBPyConnection, declared: Lines) -> None:
    for table in DECLARED_TABLES:
        connection.execute(f"DELETE FROM {table}")  # noqa: S608 - a name of ours
    _insert(connection, declared)


def _position(connection: DuckDBPyConnection) -> tuple[int, str]:
    found = connection.execute("SELECT ledger_count, ledger_digest FROM meta").fetchone()
    assert found is not None
    return found[0], found[1]


def _set_position(connection: DuckDBPyConnection, count: int, digest: str) -> None:
    connection.execute("UPDATE meta SET ledger_count = ?, ledger_digest = ?", [count, digest])


def _insert(connection: DuckDBPyConnection, lines: Lines) -> None:
    """Insert in bulk: one typed JSON text per line, hundreds of times faster than single rows."""
    for table, rows in lines.items():
        if not rows:
            continue
        columns = _columns(connection, table)
        names = ", ".join(f'"{name}"' for name, _ in columns)
        structure = json.dumps(dict(columns))
        for start in range(0, len(rows), _CHUNK):
            # JSON texts hold no line feeds, so that one parameter can carry all of them.
            texts = b"\n".join(orjson.dumps(row) for row in rows[start : start + _CHUNK])
            connection.execute(
                f"INSERT INTO {table} ({names}) SELECT {names} FROM ("  # noqa: S608 - names of ours
                "SELECT unnest(from_json(text, ?)) FROM "
                "(SELECT unnest(string_split(?, chr(10))) AS text))",
                [structure, texts.decode()],
            )


def _columns(connection: DuckDBPyConnection, table: str) -> list[tuple[str, str]]:
    found = connection.execute(
        "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = ? "
        "ORDER BY column_index",
        [table],
    ).fetchall()
    return [(name, kind) for name, kind in found]


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
