"""Questions to the results: named ones (one `.sql` file each) and read-only SQL of an analyst.

Every query runs on an in-memory copy (`database.snapshot`) from which no file, network or setting
can be reached. A new question is one file in `queries/`: its first line `-- …` describes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from qualify.core.clock import format_time
from qualify.core.errors import UsageError
from qualify.core.identifiers import nearest

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


@dataclass(frozen=True)
class NamedQuery:
    """A question that ships with Qualify."""

    name: str
    description: str
    sql: str


@dataclass(frozen=True)
class Answer:
    """Column names and lines; values are text, integers, floats, booleans or `None`."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def as_json(self) -> dict[str, Any]:
        """One document: `columns`, and `rows` as objects."""
        return {
            "columns": list(self.columns),
            "rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows],
        }


def named_queries() -> dict[str, NamedQuery]:
    """Every named query by name, sorted."""
    found = {}
    for file in (files("qualify.results") / "queries").iterdir():
        if file.name.endswith(".sql"):
            name = file.name.removesuffix(".sql")
            sql = file.read_text("utf-8")
            found[name] = NamedQuery(name, sql.partition("\n")[0].removeprefix("-- "), sql)
    return dict(sorted(found.items()))


def named_query(name: str) -> NamedQuery:
    """The query of that name. Raises `UsageError` with the nearest one."""
    known = named_queries()
    if name not in known:
        raise UsageError(
            f"there is no query {name!r}",
            fix=nearest(name, list(known)) or "run `qualify query` for the list",
        )
    return known[name]


def ask(connection: DuckDBPyConnection, sql: str) -> Answer:
    """Run one reading statement. Raises `UsageError` for anything else and for faulty SQL."""
    import duckdb

    try:
        sql.encode()
        statements = connection.extract_statements(sql)
        if len(statements) != 1:
            raise UsageError(
                f"holds {len(statements)} statements", where="--sql", fix="give exactly one"
            )
        if statements[0].type not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
            kind = str(statements[0].type).rpartition(".")[2]
            raise UsageError(
                f"a {kind} statement may not run", where="--sql", fix="only reading is possible"
            )
        names, found = _interruptible(connection, lambda: _run(connection, statements[0]))
    except UnicodeError as error:
        raise UsageError("is not UTF-8 text", where="--sql", fix="check its encoding") from error
    except duckdb.Error as error:
        raise UsageError(
            " ".join(str(error).split()), where="--sql", fix="see docs/reference/queries.md"
        ) from error
    rows = tuple(tuple(_plain(value) for value in row) for row in found)
    return Answer(_unique(names), rows)


def _run(connection: DuckDBPyConnection, statement: Any) -> tuple[tuple[str, ...], list[Any]]:
    cursor = connection.execute(statement)
    return tuple(column[0] for column in cursor.description or ()), cursor.fetchall()


def _interruptible[T](connection: DuckDBPyConnection, work: Callable[[], T]) -> T:
    """Do `work` in a thread, so that Ctrl-C and SIGTERM reach us while DuckDB computes.

    DuckDB holds the calling thread until it has an answer; only `interrupt` ends it early.
    """
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        try:
            return future.result()
        except BaseException:
            connection.interrupt()
            raise


def _unique(names: tuple[str, ...]) -> tuple[str, ...]:
    """Column names made distinct, so that lines can be objects."""
    seen: dict[str, int] = {}
    made = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        made.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return tuple(made)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, datetime):
        return format_time(value if value.tzinfo else value.replace(tzinfo=UTC))
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float | Decimal):
        # JSON has no number for what is not finite.
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return value.hex()
    return str(value)
