"""What a verdict needs of a results database: cases, their newest trials, and counts of the rest.

Answers are plain rows. They are about the local site: what was merged from others is not evidence
for a verdict here. No answer grows with the number of trials, but with the number of cases and of
trials without an end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

type Connection = DuckDBPyConnection
"""An open database."""


@dataclass(frozen=True)
class FinishedTrial:
    """A trial with an end, as far as a verdict looks at it."""

    case_id: int
    trial: str
    seq: int
    ordinal: int
    reserved: datetime
    ended: datetime
    judgement: int | None
    variant: str
    sandbox: str
    remote: bool


@dataclass(frozen=True)
class OpenTrial:
    """A trial without an end."""

    case_id: int
    trial: str
    seq: int
    ordinal: int
    reserved: datetime
    required_checks: tuple[str, ...]


@dataclass(frozen=True)
class CaseRows:
    """What the verdicts of all cases need of their trials, read at once."""

    newest: list[FinishedTrial]
    """Of each case the newest with an end, as many as asked for, and those from the future."""
    open: list[OpenTrial]
    counts: list[tuple[int, int | None, int]]
    """(case, judgement, how many) of the finished trials within the window."""
    judgements: dict[int, dict[str, Any]]


_LOCAL = "site = 0"
_FINISHED = (
    "case_id, trial, seq, ordinal, reserved, ended, judgement, variant, enforcement_sandbox, "
    "engine_remote"
)


def read_cases(
    connection: DuckDBPyConnection, newest: int, oldest: datetime, latest: datetime
) -> CaseRows:
    """Read what verdicts need: the `newest` trials of each case one by one, and counts of all
    finished ones that are no older than `oldest` and no later than `latest`.
    """
    ask = connection.execute
    positions = ask(
        f"SELECT case_id, max(seq, ?) FROM finished WHERE {_LOCAL} GROUP BY case_id",  # noqa: S608
        [newest],
    ).fetchall()
    wanted = [seq for _, seqs in positions for seq in seqs]
    bounds = [_naive(oldest), _naive(latest)]
    rows = ask(
        f"SELECT {_FINISHED} FROM finished WHERE {_LOCAL} AND (seq IN "  # noqa: S608
        "(SELECT unnest(?::BIGINT[])) OR greatest(reserved, ended) > ?) ORDER BY seq DESC",
        [wanted, bounds[1]],
    ).fetchall()
    open_rows = ask(
        "SELECT case_id, trial, seq, ordinal, reserved, required_checks FROM unfinished "  # noqa: S608
        f"WHERE {_LOCAL} ORDER BY seq DESC"
    ).fetchall()
    counts = ask(
        "SELECT case_id, judgement, count(*) FROM finished "  # noqa: S608
        f"WHERE {_LOCAL} AND least(reserved, ended) >= ? AND greatest(reserved, ended) <= ? "
        "GROUP BY ALL",
        bounds,
    ).fetchall()
    return CaseRows(
        newest=[_finished(*row) for row in rows],
        open=[_open(*row) for row in open_rows],
        counts=counts,
        judgements=_by_first(ask("SELECT * FROM judgements")),
    )


def _finished(case: int, trial: str, seq: int, ordinal: int, *rest: Any) -> FinishedTrial:
    reserved, ended, judgement, variant, sandbox, remote = rest
    return FinishedTrial(
        case, trial, seq, ordinal, _aware(reserved), _aware(ended), judgement, variant, sandbox,
        remote,
    )  # fmt: skip


def _open(case: int, trial: str, seq: int, ordinal: int, *rest: Any) -> OpenTrial:
    reserved, required = rest
    return OpenTrial(case, trial, seq, ordinal, _aware(reserved), tuple(required))


def every_case(connection: DuckDBPyConnection) -> dict[int, dict[str, Any]]:
    """Case number → the columns of `cases`, and `newest_seq`: its newest reservation here."""
    return _by_first(
        connection.execute(
            "SELECT c.*, coalesce(t.newest, -1) AS newest_seq FROM cases c LEFT JOIN "  # noqa: S608
            "(SELECT case_id, max(seq) AS newest FROM (SELECT case_id, seq, site FROM finished "
            f"UNION ALL SELECT case_id, seq, site FROM unfinished) WHERE {_LOCAL} "
            "GROUP BY case_id) t USING (case_id)"
        )
    )


def newest_trials(
    connection: DuckDBPyConnection, cases: Sequence[int], limit: int
) -> tuple[str, ...]:
    """Ids of the newest trials of `cases`, at most `limit`, newest first."""
    found = connection.execute(
        "SELECT trial FROM (SELECT seq, trial, case_id, site FROM finished UNION ALL "  # noqa: S608
        f"SELECT seq, trial, case_id, site FROM unfinished) WHERE {_LOCAL} AND case_id IN "
        "(SELECT unnest(?::BIGINT[])) ORDER BY seq DESC LIMIT ?",
        [list(cases), limit],
    ).fetchall()
    return tuple(trial for (trial,) in found)


def newest_entries(connection: DuckDBPyConnection, table: str) -> list[dict[str, Any]]:
    """The newest line for each configuration of `refusals` or `start_failures`."""
    cursor = connection.execute(
        f"SELECT * EXCLUDE (site) FROM {table} WHERE {_LOCAL} "  # noqa: S608 - a name of ours
        "QUALIFY row_number() OVER (PARTITION BY configuration ORDER BY seq DESC) = 1"
    )
    names = [column[0] for column in cursor.description or ()]
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return [{**row, "time": _aware(row["time"])} for row in rows]


def _by_first(cursor: DuckDBPyConnection) -> dict[int, dict[str, Any]]:
    names = [column[0] for column in cursor.description or ()]
    return {row[0]: dict(zip(names[1:], row[1:], strict=True)) for row in cursor.fetchall()}


def _naive(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(tzinfo=None)


def _aware(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC)
