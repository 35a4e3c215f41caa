"""`<results>/qualify.duckdb`: made from the ledger, followed after each run, made anew at any time.

The database being locked, missing, corrupt or newer never loses or blocks evidence: each gives one
error that says what to do, and the ledger stays as it is. A database of an older schema is made
anew. A newer one is never touched. Writers of Qualify take turns by a lock file beside it; a
foreign program that holds the file is named.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qualify.core.errors import QualifyError
from qualify.evidence.ledger import Ledger
from qualify.results.filling import (
    Projected,
    Source,
    create,
    declare,
    follow_source,
    load_all,
    positions,
)
from qualify.results.loading import Judge, Progress
from qualify.results.opening import (
    CONFIG,
    SCHEMA_VERSION,
    DatabaseCorrupt,
    DatabaseLocked,
    DatabaseNewer,
    DatabaseOlder,
    database_fault,
    database_path,
    open_database,
    quoted,
    writing,
)
from qualify.results.projection import DECLARED_TABLES, Lines
from qualify.results.sites import kept_sites
from qualify.storage.folders import fsync_folder

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_COPIED_BYTES = 16 << 20
"""A database up to this size is copied into memory for questions; a larger one is attached."""


@dataclass(frozen=True)
class DatabaseState:
    """`missing`, `current`, `behind`, `older`, `locked`, `corrupt` or `newer`."""

    state: str
    entries: int | None = None
    schema_version: int | None = None
    fault: QualifyError | None = None


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
    with writing(results, path):
        if path.exists():
            with (
                contextlib.suppress(DatabaseCorrupt, DatabaseOlder),
                open_database(path, read_only=True),
            ):
                pass
        return _rebuild(path, Source(ledger, kept_sites(results)), declared, judge, progress)


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
    source = Source(ledger, kept_sites(results))
    with writing(results, path):
        if not path.exists():
            return _rebuild(path, source, declared, judge, None)
        try:
            with open_database(path, read_only=False) as connection:
                done = follow_source(connection, source, declared, judge, path.parent)
        except DatabaseOlder:
            done = None
        return done or _rebuild(path, source, declared, judge, None)


def _rebuild(
    path: Path,
    source: Source,
    declared: Lines,
    judge: Judge | None,
    progress: Progress | None,
) -> Projected:
    import duckdb

    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with contextlib.closing(duckdb.connect(str(temporary), config=CONFIG)) as connection:
            create(connection)
            count = load_all(connection, source, judge, path.parent, progress)
            declare(connection, declared, path.parent)
        # A journal of the old file must not be replayed into the new one.
        path.with_name(path.name + ".wal").unlink(missing_ok=True)
        temporary.replace(path)
        fsync_folder(path.parent)
    except duckdb.Error as error:
        raise database_fault(path, error) from error
    finally:
        for leftover in (temporary, temporary.with_name(temporary.name + ".wal")):
            leftover.unlink(missing_ok=True)
    return Projected(count, count, rebuilt=True)


def state(results: Path, ledger: Ledger) -> DatabaseState:
    """How the database stands to the ledger. Changes nothing. Raises as the ledger's `head`."""
    path = database_path(results)
    source = Source(ledger, kept_sites(results))
    expected = source.positions()
    if not path.exists():
        return DatabaseState("missing")
    try:
        with open_database(path, read_only=True) as connection:
            found = positions(connection)
    except DatabaseLocked as error:
        return DatabaseState("locked", fault=error)
    except DatabaseNewer as error:
        return DatabaseState("newer", fault=error)
    except DatabaseOlder as error:
        return DatabaseState("older", fault=error)
    except DatabaseCorrupt as error:
        return DatabaseState("corrupt", fault=error)
    count = found[0][1] if found else 0
    return DatabaseState("current" if found == expected else "behind", count, SCHEMA_VERSION)


@contextlib.contextmanager
def snapshot(
    results: Path,
    ledger: Ledger,
    declared: Lines | None,
    *,
    answer: Path | None = None,
    exporting: bool = False,
) -> Iterator[tuple[DuckDBPyConnection, QualifyError | None]]:
    """A connection that has everything the ledger has and can reach nothing else on disk.

    Taken from the database when that is current, from a copy of it that follows the ledger when it
    is behind or in use by another program, else from the ledger itself. Yields the connection and,
    when the database is in use, that error (for information). `declared` replaces what the database
    knows of the manifests; `None` keeps it. `answer` is a new file that is attached as the database
    `answer`, for one answer to be kept in. `exporting` leaves the connection able to write files:
    for statements of ours alone. Raises `DatabaseCorrupt`, `DatabaseNewer`, and as the ledger's
    `entries`.
    """
    import duckdb

    with contextlib.ExitStack() as stack:
        memory = stack.enter_context(contextlib.closing(duckdb.connect(":memory:", config=CONFIG)))
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qualify-")))
        note = _undisturbed(
            lambda: _take(
                memory,
                database_path(results),
                Source(ledger, kept_sites(results)),
                declared,
                scratch,
            )
        )
        if answer is not None:
            memory.execute(f"ATTACH {quoted(answer)} AS answer")
        if exporting:
            memory.execute(f"SET temp_directory = {quoted(scratch)}")
        else:
            _seal(memory)
        yield memory, note


def _take(
    memory: DuckDBPyConnection,
    path: Path,
    evidence: Source,
    declared: Lines | None,
    scratch: Path,
) -> QualifyError | None:
    """Fill a snapshot from the database or the ledger; the error of a database that is in use."""
    note: QualifyError | None = None
    source: Path | None = None
    if path.exists():
        try:
            with open_database(path, read_only=True) as connection:
                current = positions(connection) == evidence.positions()
                source = path if current else None
        except DatabaseLocked as error:
            note = error
        except DatabaseOlder:
            pass
        else:
            source = source or _followed_copy(path, evidence, scratch)
        if note is not None:
            source = _followed_copy(path, evidence, scratch)
    if source is None:
        create(memory)
        load_all(memory, evidence, None, scratch, None)
    elif _attach(memory, source) and declared is not None:
        for table in DECLARED_TABLES:
            # Found before the table of the file, which cannot be written to.
            memory.execute(f"CREATE TEMP TABLE {table} AS FROM {table} LIMIT 0")
    if declared is not None:
        declare(memory, declared, scratch)
    return note


def _followed_copy(path: Path, evidence: Source, scratch: Path) -> Path | None:
    """A copy of the database that has followed the ledger; `None` when that cannot be had.

    The file may be read while another program holds it. Should that program write at this very
    moment, the copy does not open or does not fit, and is not used.
    """
    copy = scratch / "copy.duckdb"
    try:
        shutil.copyfile(path, copy)
        with open_database(copy, read_only=False) as connection:
            done = follow_source(connection, evidence, None, None, scratch)
    except (OSError, DatabaseCorrupt, DatabaseOlder):
        return None
    return copy if done is not None else None


def _attach(memory: DuckDBPyConnection, source: Path) -> bool:
    """Make the tables of `source` those of `memory`: copied when small, else read in place.

    Whether they are read in place.
    """
    import duckdb

    try:
        memory.execute(f"ATTACH {quoted(source)} AS results (READ_ONLY)")
        if source.stat().st_size <= _COPIED_BYTES:
            memory.execute("COPY FROM DATABASE results TO memory")
            memory.execute("DETACH results")
            return False
        memory.execute("USE results")
    except duckdb.Error as error:
        raise database_fault(source, error) from error
    return True


@contextlib.contextmanager
def reading(results: Path) -> Iterator[DuckDBPyConnection]:
    """The database itself, to read from. Raises `DatabaseLocked` and its like."""
    with open_database(database_path(results), read_only=True) as connection:
        yield connection


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


__all__ = [
    "SCHEMA_VERSION",
    "DatabaseCorrupt",
    "DatabaseLocked",
    "DatabaseNewer",
    "DatabaseOlder",
    "DatabaseState",
    "Projected",
    "Source",
    "database_path",
    "follow",
    "quoted",
    "reading",
    "rebuild",
    "snapshot",
    "state",
]
