"""The ledgers of other sites → lines of the evidence tables, beside those of the local one.

A trial that several ledgers tell of is kept once. Where they tell different ends of it, it goes
into `conflicts` and counts nowhere; the local ledger's own trials stay as it tells them, whatever
others say.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qualify.results.loading import Judge, Progress, State, load
from qualify.results.sites import Site

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

type Position = tuple[int, int, str]
"""Number of a site, entries, and the digest of the last one."""

_WITH_SITE = (
    "sites", "entries", "unfinished", "finished", "conflicts", "refusals", "start_failures",
)  # fmt: skip


def site_positions(sites: Sequence[Site]) -> list[Position]:
    """Where each ledger ends, under the number that its site has here. Raises as `position`."""
    found = [site.position() for site in sites]
    return [(number, count, digest) for number, (_, count, digest) in enumerate(found, 1)]


def load_sites(
    connection: DuckDBPyConnection,
    sites: Sequence[Site],
    judge: Judge | None,
    scratch: Path,
    progress: Progress | None,
) -> None:
    """Load them all; none is there yet, and the local ledger is. The caller holds the transaction.

    Raises as `loading.load`.
    """
    for number, site in enumerate(sites, 1):
        site.position()
        state = State()
        load(
            connection,
            site.ledger.lines(),
            state,
            judge,
            site=number,
            where=site.ledger.where,
            scratch=scratch,
            progress=progress,
        )
        connection.execute(
            "INSERT INTO sites VALUES (?, ?, ?, ?)", [number, site.id, state.count, state.digest]
        )
    if sites:
        _settle(connection)


def forget_sites(connection: DuckDBPyConnection) -> None:
    """Take out what was loaded of other sites, and what nothing refers to any more."""
    for table in _WITH_SITE:
        connection.execute(f"DELETE FROM {table} WHERE site > 0")  # noqa: S608 - a name of ours
    connection.execute(
        "DELETE FROM cases WHERE case_id NOT IN "
        "(SELECT case_id FROM finished UNION SELECT case_id FROM unfinished)"
    )
    connection.execute(
        "DELETE FROM judgements WHERE judgement NOT IN "
        "(SELECT judgement FROM finished WHERE judgement IS NOT NULL)"
    )


def _settle(connection: DuckDBPyConnection) -> None:
    """Keep each trial once; take out those of which different ends are told."""
    connection.execute(
        "CREATE TEMP TABLE told AS SELECT trial, min(site) AS first FROM "
        "(SELECT trial, site FROM finished UNION ALL SELECT trial, site FROM unfinished) "
        "GROUP BY trial HAVING count(*) > 1"
    )
    connection.execute(
        "CREATE TEMP TABLE differing AS SELECT trial FROM (SELECT DISTINCT * EXCLUDE "
        "(site, end_seq, judgement) FROM finished SEMI JOIN told USING (trial)) "
        "GROUP BY trial HAVING count(*) > 1"
    )
    connection.execute(
        "INSERT INTO conflicts SELECT f.site, f.seq, f.trial, f.case_id, f.reserved, f.ended, "
        "f.outcome, o.ended, o.outcome FROM finished f JOIN differing USING (trial) "
        "JOIN told USING (trial) JOIN finished o ON o.trial = f.trial AND o.site = told.first "
        "WHERE f.site > told.first"
    )
    for table in ("finished", "unfinished"):
        connection.execute(
            f"DELETE FROM {table} WHERE site > 0 AND (trial IN (FROM differing) "  # noqa: S608
            "OR EXISTS (FROM told WHERE told.trial = "
            f"{table}.trial AND told.first < {table}.site))"
        )
    connection.execute("DROP TABLE told")
    connection.execute("DROP TABLE differing")
