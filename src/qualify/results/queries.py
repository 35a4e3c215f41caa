"""Questions to the results: named ones (one `.sql` file each) and read-only SQL of an analyst.

Every query runs on an in-memory copy (`database.snapshot`) from which no file, network or setting
can be reached. A new question is one file in `queries/` (see `named`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from qualify.core.clock import format_time
from qualify.core.errors import UsageError
from qualify.results.named import NamedQuery, named_queries, named_query

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


_ALL = 2**62


@dataclass(frozen=True)
class Answer:
    """Column names and lines; values are text, integers, floats, booleans, `None`, and lists and
    objects of these.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    kinds: tuple[str, ...] = ()
    """DuckDB's type of each column."""
    cut: bool = False
    """There are more lines than were asked for."""

    def as_json(self) -> dict[str, Any]:
        """One document: `columns`, `rows` as objects, and `cut`."""
        return {
            "columns": list(self.columns),
            "rows": [dict(zip(self.columns, row, strict=True)) for row in self.rows],
            "cut": self.cut,
        }


@dataclass(frozen=True)
class Question:
    """One reading statement, the values of its parameters, and the most lines to answer."""

    sql: str
    values: Mapping[str, Any] = field(default_factory=dict)
    where: str = "--sql"
    """How a message names it."""
    limit: int | None = None


def named_question(name: str, given: Mapping[str, str], now: datetime) -> Question:
    """The question of that name with its parameters. Raises `UsageError` for what does not fit."""
    query = named_query(name)
    values = query.values(given, now)
    limit = query.limit(values)
    bound = {
        # One more than is wanted, to see whether there are more.
        parameter.name: (limit + 1 if limit else _ALL)
        if parameter.kind == "rows"
        else values[parameter.name]
        for parameter in query.parameters
    }
    return Question(query.sql, bound, query.name, limit)


def answer(connection: DuckDBPyConnection, question: Question) -> Answer:
    """Answer a question, with no more lines than it wants. Raises as `ask`."""
    found = ask(connection, question.sql, question.values, question.where)
    if question.limit and len(found.rows) > question.limit:
        return Answer(found.columns, found.rows[: question.limit], found.kinds, cut=True)
    return found


def ask(
    connection: DuckDBPyConnection,
    sql: str,
    values: Mapping[str, Any] | None = None,
    where: str = "--sql",
) -> Answer:
    """Run one reading statement. Raises `UsageError` for anything else and for faulty SQL."""
    with _faults(where):
        statement = _reading(connection, sql, where)
        columns, found = interruptible(connection, lambda: _run(connection, statement, values))
    rows = tuple(tuple(_plain(value) for value in row) for row in found)
    return Answer(_unique([name for name, _ in columns]), rows, tuple(kind for _, kind in columns))


def keep(connection: DuckDBPyConnection, question: Question, table: str) -> None:
    """As `ask`, but the lines go into a new table of a database that is attached for it."""
    import duckdb

    where = question.where
    with _faults(where):
        if _reading(connection, question.sql, where).type != duckdb.StatementType.SELECT:
            raise UsageError(
                "an explanation is text to read", where=where, fix="leave out the format"
            )
        # It parsed as one whole statement above; a line of its own ends its last comment.
        body = question.sql.rstrip().rstrip(";")
        made = connection.extract_statements(f"CREATE TABLE {table} AS (\n{body}\n)")
        interruptible(connection, lambda: _run(connection, made[0], question.values))


@contextlib.contextmanager
def _faults(where: str) -> Iterator[None]:
    """DuckDB's errors about a statement become ours, in one line."""
    import duckdb

    try:
        yield
    except UnicodeError as error:
        raise UsageError("is not UTF-8 text", where=where, fix="check its encoding") from error
    except duckdb.Error as error:
        raise UsageError(
            " ".join(str(error).split()), where=where, fix="see docs/reference/queries.md"
        ) from error


def _reading(connection: DuckDBPyConnection, sql: str, where: str) -> Any:
    """The statement, if it is one and reads."""
    import duckdb

    sql.encode()
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise UsageError(f"holds {len(statements)} statements", where=where, fix="give exactly one")
    if statements[0].type not in (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN):
        kind = str(statements[0].type).rpartition(".")[2]
        raise UsageError(
            f"a {kind} statement may not run", where=where, fix="only reading is possible"
        )
    return statements[0]


def _run(
    connection: DuckDBPyConnection, statement: Any, values: Mapping[str, Any] | None
) -> tuple[list[tuple[str, str]], list[Any]]:
    cursor = (
        connection.execute(statement, dict(values)) if values else connection.execute(statement)
    )
    columns = [(column[0], str(column[1])) for column in cursor.description or ()]
    return columns, cursor.fetchall()


def interruptible[T](connection: DuckDBPyConnection, work: Callable[[], T]) -> T:
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


def _unique(names: list[str]) -> tuple[str, ...]:
    """Column names made distinct, so that lines can be objects."""
    seen: dict[str, int] = {}
    made = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        made.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return tuple(made)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return _plain_single(value)


def _plain_single(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, datetime):
        return format_time(value if value.tzinfo else value.replace(tzinfo=UTC))
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float | Decimal):
        # JSON has no number for what is not finite.
        return float(value) if math.isfinite(value) else str(value)
    return value.hex() if isinstance(value, bytes) else str(value)


__all__ = [
    "Answer",
    "NamedQuery",
    "Question",
    "answer",
    "ask",
    "interruptible",
    "keep",
    "named_queries",
    "named_query",
    "named_question",
]
