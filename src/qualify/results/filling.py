"""Ledgers and manifests → the tables of a database, whole or what is new. Opens no file itself.

What is new is added in one transaction, after it was made sure that the entries which are there are
those that the ledger begins with.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from qualify.evidence.ledger import Ledger
from qualify.results.inserting import insert
from qualify.results.loading import Judge, Open, Progress, State, load, open_payload, series
from qualify.results.opening import SCHEMA_VERSION
from qualify.results.projection import DECLARED_TABLES, Lines
from qualify.results.site_loading import Position, forget_sites, load_sites, site_positions
from qualify.results.sites import Site

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

LOCAL = 0
"""The number of the local ledger among the sites."""


@dataclass(frozen=True)
class Projected:
    """What a write did: entries in the database now, entries added, whether it was made anew."""

    entries: int
    added: int
    rebuilt: bool


@dataclass(frozen=True)
class Source:
    """What a database is made from: the local ledger, and those of other sites."""

    ledger: Ledger
    sites: list[Site]

    def positions(self) -> list[Position]:
        """Where each of them ends, as in the table `sites`. Raises as the ledger's `head`."""
        head = self.ledger.head()
        local = (head.count, f"sha256:{head.digest}" if head.count else "")
        return [(LOCAL, *local), *site_positions(self.sites)]


def create(connection: DuckDBPyConnection) -> None:
    """Make the tables, with nothing in them."""
    from importlib.resources import files

    connection.execute((files("qualify.results") / "schema.sql").read_text("utf-8"))
    connection.execute("INSERT INTO meta VALUES (?, NULL)", [SCHEMA_VERSION])
    connection.execute("INSERT INTO sites VALUES (?, NULL, 0, '')", [LOCAL])


def load_all(
    connection: DuckDBPyConnection,
    source: Source,
    judge: Judge | None,
    scratch: Path,
    progress: Progress | None,
) -> int:
    """Everything in the ledgers, in one transaction; the number of entries of the local one."""
    ledger, loaded = source.ledger, State()
    connection.execute("BEGIN")
    load(
        connection,
        ledger.lines(),
        loaded,
        judge,
        site=LOCAL,
        where=ledger.where,
        scratch=scratch,
        progress=progress,
    )
    _set_position(connection, ledger, loaded)
    load_sites(connection, source.sites, judge, scratch, progress)
    version = judge.version if judge is not None else None
    connection.execute("UPDATE meta SET grading_version = ?", [version])
    connection.execute("COMMIT")
    return loaded.count


def follow_source(
    connection: DuckDBPyConnection,
    source: Source,
    declared: Lines | None,
    judge: Judge | None,
    scratch: Path,
) -> Projected | None:
    """Add the entries after those that are there; `None` when the database is to be made anew."""
    ledger = source.ledger
    there = positions(connection)
    if not there or there[0][0] != LOCAL:
        return None
    _, count, digest = there[0]
    made_by = _grading_version(connection)
    if judge is not None and made_by != judge.version:
        return None
    place = ledger.place(count, digest.removeprefix("sha256:"))
    if place is None:
        return None
    lines = ledger.lines(place)
    loaded = _state(connection, count, digest)
    first = next(lines, None)
    connection.execute("BEGIN")
    if first is not None:
        new = chain((first,), lines)
        load(connection, new, loaded, judge, site=LOCAL, where=ledger.where, scratch=scratch)
        _set_position(connection, ledger, loaded)
        if judge is None:
            # These have no judgement: whoever needs one makes the database anew.
            connection.execute("UPDATE meta SET grading_version = NULL")
    _follow_sites(connection, source, judge, scratch, changed=first is not None)
    if declared is not None:
        declare(connection, declared, scratch)
    connection.execute("COMMIT")
    return Projected(loaded.count, loaded.count - count, rebuilt=False)


def _follow_sites(
    connection: DuckDBPyConnection,
    source: Source,
    judge: Judge | None,
    scratch: Path,
    *,
    changed: bool,
) -> None:
    """Take in what has changed of other sites: they are loaded together, because they are compared.

    A copy of the local ledger among them is compared with it, so that it is loaded again when that
    has `changed`.
    """
    expected = site_positions(source.sites)
    again = changed and source.ledger.site() in {site.id for site in source.sites}
    if again or positions(connection)[1:] != expected:
        forget_sites(connection)
        load_sites(connection, source.sites, judge, scratch, None)
        if judge is None:
            connection.execute("UPDATE meta SET grading_version = NULL")


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


def declare(connection: DuckDBPyConnection, declared: Lines, scratch: Path) -> None:
    """Replace what is known of the manifests."""
    with tempfile.TemporaryDirectory(prefix=".declaring-", dir=scratch) as folder:
        for table in DECLARED_TABLES:
            connection.execute(f"DELETE FROM {table}")  # noqa: S608 - a name of ours
            if declared.get(table):
                file = Path(folder) / f"{table}.json"
                file.write_bytes(b"\n".join(orjson.dumps(row) for row in declared[table]))
                insert(connection, table, file)


def positions(connection: DuckDBPyConnection) -> list[Position]:
    """Up to where each ledger is in the database."""
    found = connection.execute(
        "SELECT site, ledger_count, ledger_digest FROM sites ORDER BY site"
    ).fetchall()
    return [(site, count, digest) for site, count, digest in found]


def _grading_version(connection: DuckDBPyConnection) -> int | None:
    found = connection.execute("SELECT grading_version FROM meta").fetchone()
    return found[0] if found else None


def _set_position(connection: DuckDBPyConnection, ledger: Ledger, loaded: State) -> None:
    connection.execute(
        "UPDATE sites SET id = ?, ledger_count = ?, ledger_digest = ? WHERE site = ?",
        [ledger.site(), loaded.count, loaded.digest, LOCAL],
    )
