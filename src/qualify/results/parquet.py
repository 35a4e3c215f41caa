"""Every evidence table as Parquet, partitioned by site and month, with the digest of each file.

`TABLE/site=<site id>/month=2026-11/part-0.parquet` for what has a time, `TABLE/part-0.parquet` for
what lines of several partitions share. `manifest.json` lists every file with its lines, size and
SHA-256, and up to which entry each ledger is in them. The folder appears whole or not at all.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from qualify.core.errors import EnvironmentFault, QualifyError, UsageError
from qualify.evidence.ledger import Ledger
from qualify.results.database import SCHEMA_VERSION, quoted, snapshot
from qualify.results.exporting import FORMATS, writing_faults
from qualify.results.projection import EVIDENCE_TABLES
from qualify.results.queries import interruptible
from qualify.storage.folders import fsync_folder
from qualify.storage.staging import staged_folder

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_TIME = {
    "entries": "time", "unfinished": "reserved", "finished": "reserved", "conflicts": "reserved",
    "refusals": "time", "start_failures": "time",
}  # fmt: skip
"""The column that says to which month a line belongs; the other tables are shared."""
_KEY = {"cases": "case_id", "judgements": "judgement"}


@dataclass(frozen=True)
class Written:
    """What an export holds."""

    files: int
    lines: int
    note: QualifyError | None
    """The error of a database that is in use."""


def export_tables(results: Path, ledger: Ledger, target: Path, sites: Sequence[str]) -> Written:
    """Write every evidence table below the new folder `target`.

    `sites` are ids, or six or more of their first digits; none means all. Raises `UsageError` for a
    site that is not here and for a folder that is not free, `EnvironmentFault`, and as `snapshot`.
    """
    with (
        staged_folder(target) as folder,
        snapshot(results, ledger, None, exporting=True) as (connection, note),
    ):
        chosen = _chosen(connection, sites)
        with writing_faults():
            files = interruptible(connection, lambda: _write(connection, folder, chosen))
        manifest = {
            "schema": "qualify-results-export/1",
            "schema_version": SCHEMA_VERSION,
            "sites": [
                {"site": each, "entries": count, "head": digest}
                for each, (_, count, digest) in chosen.items()
            ],
            "files": files,
        }
        data = orjson.dumps(manifest, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        _durably(folder, data)
    return Written(len(files), sum(each["lines"] for each in files), note)


def _chosen(
    connection: DuckDBPyConnection, asked: Sequence[str]
) -> dict[str, tuple[int, int, str]]:
    """Site id → its number here, its entries, and the digest of the last one."""
    known: dict[str, tuple[int, int, str]] = {}
    for number, name, count, digest in connection.execute(
        "SELECT site, id, ledger_count, ledger_digest FROM sites WHERE id IS NOT NULL ORDER BY site"
    ).fetchall():
        # A copy of the local ledger among those of other sites brings what the local one has not.
        known[name if name not in known else f"{name}-{number}"] = (number, count, digest)
    if not asked:
        return known
    found = {}
    for text in asked:
        matching = [name for name in known if len(text) >= 6 and name.startswith(text.lower())]
        if len(matching) != 1:
            what = "several sites begin" if matching else "no site here begins"
            raise UsageError(
                f"{what} with {text!r}",
                where="--site",
                fix="give the first digits (six at least) of an id from `qualify query sites`",
            )
        found[matching[0]] = known[matching[0]]
    return found


def _write(
    connection: DuckDBPyConnection, folder: Path, chosen: dict[str, tuple[int, int, str]]
) -> list[dict[str, Any]]:
    made = []
    numbers = [number for number, _, _ in chosen.values()]
    for table in EVIDENCE_TABLES:
        if table in _KEY:
            used = " UNION ".join(
                f"SELECT {_KEY[table]} FROM {each} WHERE site IN (SELECT unnest($numbers))"  # noqa: S608
                for each in (("finished", "unfinished", "conflicts") if table == "cases" else
                             ("finished",))
            )  # fmt: skip
            select = f"FROM {table} WHERE {_KEY[table]} IN ({used}) ORDER BY ALL"
            made.append(_file(connection, folder, Path(table), select, {"numbers": numbers}))
            continue
        for site, (number, _, _) in chosen.items():
            for month in _months(connection, table, number):
                select = (
                    f"SELECT * EXCLUDE (site) FROM {table} WHERE site = $site "  # noqa: S608 - ours
                    f"AND strftime({_TIME[table]}, '%Y-%m') = $month ORDER BY seq"
                )
                place = Path(table) / f"site={site}" / f"month={month}"
                values = {"site": number, "month": month}
                made.append(_file(connection, folder, place, select, values))
    return made


def _months(connection: DuckDBPyConnection, table: str, site: int) -> list[str]:
    found = connection.execute(
        f"SELECT DISTINCT strftime({_TIME[table]}, '%Y-%m') FROM {table} "  # noqa: S608 - ours
        "WHERE site = ? ORDER BY 1",
        [site],
    ).fetchall()
    return [month for (month,) in found]


def _file(
    connection: DuckDBPyConnection,
    folder: Path,
    place: Path,
    select: str,
    values: dict[str, Any],
) -> dict[str, Any]:
    """Write one file, and tell what is in it."""
    path = folder / place / "part-0.parquet"
    path.parent.mkdir(parents=True)
    (lines,) = connection.execute(
        f"COPY ({select}) TO {quoted(path)} ({FORMATS['parquet']})", values
    ).fetchone() or (0,)
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        os.fsync(stream.fileno())
    return {
        "path": path.relative_to(folder).as_posix(),
        "lines": lines,
        "size": path.stat().st_size,
        "sha256": digest,
    }


def _durably(folder: Path, manifest: bytes) -> None:
    try:
        with (folder / "manifest.json").open("xb") as stream:
            stream.write(manifest)
            stream.flush()
            os.fsync(stream.fileno())
        for path in folder.rglob("*"):
            if path.is_dir():
                fsync_folder(path)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot be written: {error.strerror or error}",
            where=str(folder),
            fix="check the free space and the folder's permissions",
        ) from error
