"""Files of JSON lines → tables: DuckDB takes every field out itself, as the table's columns say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_PARTS = (
    "engine", "model", "machine", "agent", "client", "harness", "enforcement", "usage", "timings",
    "audit",
)  # fmt: skip
_OWN = frozenset(
    {
        "seq", "trial", "case_id", "reserved", "ordinal", "seed", "end_seq", "ended", "judgement",
        "recorded_checks", "kind", "time", "clock_went_back", "required_checks", "row",
        "configuration", "suite", "suite_digest", "scenario", "evidence_class", "experimental",
        "grade", "faults", "checks",
    }
)  # fmt: skip
"""Columns that are written down beside the record; the others are taken out of it."""
_WITH_RECORD = frozenset({"finished", "refusals", "start_failures"})


def insert(
    connection: DuckDBPyConnection, table: str, file: Path, *, site: int | None = None
) -> None:
    """Load a file of JSON lines into a table whose columns say how each field is read."""
    columns = [c for c in columns_of(connection, table) if c[0] != "site"]
    record = table in _WITH_RECORD
    beside = [c for c in columns if not record or (c[0] in _OWN and table == "finished")]
    beside = beside or [c for c in columns if c[0] == "seq"]
    inside = [c for c in columns if c not in beside]
    structure = dict(beside)
    values = [f'"{name}"' for name, _ in beside]
    if inside:
        structure["e"] = _structure(inside)
        values += [f"e.{_path(name)}" for name, _ in inside]
    names = [f'"{name}"' for name, _ in (*beside, *inside)]
    if site is not None and table not in ("cases", "judgements"):
        names, values = ["site", *names], [str(site), *values]
    shown = ", ".join(f"'{name}': '{kind}'" for name, kind in structure.items())
    place = str(file).replace("'", "''")
    connection.execute(
        f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(values)} "  # noqa: S608 - ours
        f"FROM read_json('{place}', format = 'newline_delimited', columns = {{{shown}}}, "
        "maximum_object_size = 4194304)"
    )


def columns_of(connection: DuckDBPyConnection, table: str) -> list[tuple[str, str]]:
    """Names and types of a table's columns, in order."""
    found = connection.execute(
        "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = ? "
        "AND database_name = current_database() ORDER BY column_index",
        [table],
    ).fetchall()
    return [(name, kind) for name, kind in found]


def _structure(columns: list[tuple[str, str]]) -> str:
    """The type of the record: its fields as far as they are columns."""
    flat: list[str] = []
    nested: dict[str, list[str]] = {}
    for name, kind in columns:
        part, _, rest = name.partition("_")
        if part in _PARTS:
            nested.setdefault(part, []).append(f'"{rest}" {kind}')
        else:
            flat.append(f'"{name}" {kind}')
    flat += [f'"{part}" STRUCT({", ".join(fields)})' for part, fields in nested.items()]
    return f"STRUCT({', '.join(flat)})".replace("'", "''")


def _path(column: str) -> str:
    part, _, rest = column.partition("_")
    return f'"{part}"."{rest}"' if part in _PARTS else f'"{column}"'
