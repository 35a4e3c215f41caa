"""Answers as files: CSV and Parquet.

The connection that answers can reach no file; it keeps the lines in a database made for them. A
second one, to which no question is ever put, writes them out. A file appears whole under its name
or not at all, and one that is there already is never replaced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qualify.core.errors import EnvironmentFault, QualifyError, UsageError
from qualify.evidence.ledger import Ledger
from qualify.results.database import quoted, snapshot
from qualify.results.projection import Lines
from qualify.results.queries import Question, interruptible, keep
from qualify.storage.folders import fsync_folder

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

FORMATS = {
    "csv": "FORMAT csv, HEADER, TIMESTAMPFORMAT '%Y-%m-%dT%H:%M:%SZ'",
    "parquet": "FORMAT parquet, COMPRESSION zstd",
}
_CONFIG: dict[str, Any] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "memory_limit": "1GB",
}


@dataclass(frozen=True)
class Exported:
    """What was written: lines, whether there were more, and the error of a database in use."""

    lines: int
    cut: bool
    note: QualifyError | None


def export_answer(
    results: Path,
    ledger: Ledger,
    declared: Lines | None,
    question: Question,
    kind: str,
    target: Path,
) -> Exported:
    """Answer `question` into the new file `target` as `kind` (a key of `FORMATS`).

    Raises `UsageError` when `target` is there already or its folder is not, and for faulty SQL;
    `EnvironmentFault` when it cannot be written; and as `snapshot`.
    """
    require_free(target)
    with tempfile.TemporaryDirectory(prefix="qualify-") as scratch:
        held = Path(scratch) / "answer.duckdb"
        with snapshot(results, ledger, declared, answer=held) as (connection, note):
            keep(connection, question, "answer.answer")
        with _writer() as connection, new_file(target) as file:
            connection.execute(f"ATTACH {quoted(held)} AS answer (READ_ONLY)")
            (found,) = connection.execute("SELECT count(*) FROM answer.answer").fetchall()
            limit = question.limit or found[0]
            interruptible(connection, lambda: _copy(connection, limit, kind, file))
    return Exported(min(found[0], limit), found[0] > limit, note)


@contextlib.contextmanager
def _writer() -> Iterator[DuckDBPyConnection]:
    """A connection that may write files."""
    import duckdb

    with (
        writing_faults(),
        contextlib.closing(duckdb.connect(":memory:", config=_CONFIG)) as connection,
    ):
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


@contextlib.contextmanager
def writing_faults() -> Iterator[None]:
    """DuckDB's errors about a file that it writes become `EnvironmentFault`."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise EnvironmentFault(
            f"the export cannot be written: {str(error).splitlines()[0]}",
            fix="check the free space and the folder's permissions",
        ) from error


def _copy(connection: DuckDBPyConnection, limit: int, kind: str, file: Path) -> None:
    large = connection.execute(
        "SELECT column_name FROM duckdb_columns() WHERE database_name = 'answer' "
        "AND data_type IN ('HUGEINT', 'UHUGEINT')"
    ).fetchall()
    # Parquet has no integers of this size: DuckDB would write floating-point numbers.
    exact = ", ".join(f"{_name(n)}::DECIMAL(38, 0) AS {_name(n)}" for (n,) in large)
    replaced = f" REPLACE ({exact})" if exact else ""
    connection.execute(
        f"COPY (SELECT *{replaced} FROM answer.answer LIMIT {limit}) "  # noqa: S608 - ours
        f"TO {quoted(file)} ({FORMATS[kind]})"
    )


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def require_free(target: Path) -> None:
    """Raise `UsageError` unless a new file can have this name."""
    if not target.parent.is_dir():
        raise UsageError("is no folder", where=str(target.parent), fix="make it first")
    if target.is_symlink() or target.exists():
        raise _taken(target)


@contextlib.contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Yield a file name to write to; it becomes `target` when the block ends without an error.

    Raises `UsageError` when `target` has come into being meanwhile, and `EnvironmentFault`.
    """
    temporary = target.with_name(f".{target.name[:40]}.{secrets.token_hex(6)}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        # A link, unlike a rename, never replaces what is there.
        os.link(temporary, target)
        fsync_folder(target.parent)
    except OSError as error:
        if error.errno == errno.EEXIST:
            raise _taken(target) from error
        raise EnvironmentFault(
            f"cannot be written: {error.strerror or error}",
            where=str(target),
            fix="check the free space and the folder's permissions",
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _taken(target: Path) -> UsageError:
    return UsageError(
        "is there already", where=str(target), fix="name a new file, or remove this one"
    )
