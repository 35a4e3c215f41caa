"""Every text in a DuckDB or Parquet file, whoever made it, for those who search it.

The file is copied first, so that nobody who holds or writes it is in the way. Only tables are read,
never views or macros, and no file but the copy can be reached. Memory and time are bounded: a file
that needs more than 1 GB or a minute counts as one that cannot be read.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_BATCH = 500
_LONGEST_S = 60.0
_WITHOUT_TEXT = (
    "BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT",
    "UINTEGER", "UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE", "DATE", "TIME", "INTERVAL", "UUID",
)  # fmt: skip
_CONFIG: dict[str, Any] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "memory_limit": "1GB",
    "threads": "1",
    "max_temp_directory_size": "1GB",
}


def table_strings(stream: IO[bytes], kind: str) -> Iterator[tuple[str, str]]:
    """Pairs of `TABLE.COLUMN` and up to 500 lines `TABLE.COLUMN: VALUE`, equal values once.

    `kind` is `DuckDB` or `Parquet`. Raises `ValueError` for a file that DuckDB cannot read.
    """
    import duckdb

    with tempfile.TemporaryDirectory(prefix="qualify-") as scratch:
        copy = Path(scratch) / "copy"
        with copy.open("wb") as target:
            shutil.copyfileobj(stream, target, 1 << 20)
        try:
            config = {**_CONFIG, "temp_directory": str(Path(scratch) / "spilled")}
            with contextlib.closing(duckdb.connect(":memory:", config=config)) as connection:
                alarm = threading.Timer(_LONGEST_S, connection.interrupt)
                alarm.start()
                try:
                    yield from _strings(connection, copy, kind)
                finally:
                    alarm.cancel()
                    alarm.join()
        except duckdb.Error as error:
            raise ValueError(f"DuckDB cannot read it ({type(error).__name__})") from error


def _strings(connection: DuckDBPyConnection, copy: Path, kind: str) -> Iterator[tuple[str, str]]:
    if kind == "Parquet":
        connection.execute("CREATE TABLE parquet AS FROM read_parquet(?)", [str(copy)])
    else:
        connection.execute(f"ATTACH '{_escaped(str(copy))}' AS looked_at (READ_ONLY)")
    connection.execute("SET enable_external_access = false")
    database = "memory" if kind == "Parquet" else "looked_at"
    yield from _definitions(connection, database)
    columns = connection.execute(
        "SELECT schema_name, table_name, column_name, data_type FROM duckdb_columns() c"
        " WHERE database_name = ? AND EXISTS"
        " (FROM duckdb_tables() t WHERE t.table_oid = c.table_oid"
        " AND t.database_name = c.database_name) ORDER BY ALL",
        [database],
    ).fetchall()
    for schema, table, column, type_name in columns:
        if type_name.split("(")[0] in _WITHOUT_TEXT or type_name.startswith(
            ("DECIMAL(", "TIMESTAMP")
        ):
            continue
        values = connection.execute(
            f"SELECT DISTINCT CAST({_quoted(column)} AS VARCHAR) AS value"  # noqa: S608
            f" FROM {_quoted(database)}.{_quoted(schema)}.{_quoted(table)} WHERE value IS NOT NULL"
        )
        while batch := values.fetchmany(_BATCH):
            yield f"{table}.{column}", "\n".join(f"{table}.{column}: {value}" for (value,) in batch)


def _definitions(connection: DuckDBPyConnection, database: str) -> Iterator[tuple[str, str]]:
    """What the tables and views are made of, with their comments."""
    for kind in ("table", "view"):
        found = connection.execute(
            f"SELECT {kind}_name, sql, comment FROM duckdb_{kind}s() WHERE database_name = ?"  # noqa: S608
            " AND NOT internal",
            [database],
        ).fetchall()
        for name, *texts in found:
            yield f"{name}", "\n".join(filter(None, texts))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _escaped(text: str) -> str:
    return text.replace("'", "''")
