"""Opening `qualify.duckdb`: taking turns, versions, and what DuckDB's errors mean here."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qualify.core.errors import EnvironmentFault
from qualify.storage.locks import file_lock

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

SCHEMA_VERSION = 5
_TURN_TIMEOUT_S = 60
_REBUILD = "run `qualify results rebuild`: the ledger has everything"
CONFIG: dict[str, Any] = {
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


def database_path(results: Path) -> Path:
    """Where the database of a results folder lives."""
    return results / "qualify.duckdb"


def quoted(path: Path) -> str:
    """A path as a string in SQL: where DuckDB takes no parameter."""
    text = str(path).replace("'", "''")
    return f"'{text}'"


@contextlib.contextmanager
def writing(results: Path, path: Path) -> Iterator[None]:
    """Take the turn among Qualify's own processes, and turn the system's errors into ours."""
    try:
        results.mkdir(parents=True, exist_ok=True)
        with file_lock(path.with_name(path.name + ".lock"), timeout_s=_TURN_TIMEOUT_S):
            yield
    except OSError as error:
        raise _not_written(path, error.strerror or str(error)) from error


@contextlib.contextmanager
def open_database(path: Path, *, read_only: bool) -> Iterator[DuckDBPyConnection]:
    """A connection to a database of our schema version; DuckDB's errors become ours."""
    import duckdb

    try:
        connection = duckdb.connect(str(path), read_only=read_only, config=CONFIG)
        try:
            _check_version(connection, path)
            yield connection
        finally:
            connection.close()
    except duckdb.Error as error:
        raise database_fault(path, error) from error


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


def database_fault(path: Path, error: Exception) -> EnvironmentFault:
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
