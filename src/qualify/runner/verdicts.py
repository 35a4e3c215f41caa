"""Evidence for verdicts: from the ledger itself, or from the database when the ledger is large.

Both give the same verdicts by the same rule. The database answers for verdicts only while it holds
all that the ledger holds, and while it is the very file that Qualify wrote last: a stamp in the
private store says so. Whatever else is found in its place, the ledger is read instead.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from qualify.assessment.cases import (
    NAMED_TRIALS,
    Case,
    CaseTrials,
    EvidenceSource,
    Sequenced,
    Window,
)
from qualify.assessment.grading import (
    GRADING_VERSION,
    Fault,
    Grade,
    Judgement,
    TrialFacts,
    judge,
    judge_open,
    note_codes,
)
from qualify.assessment.matrix import collect
from qualify.core.clock import format_time
from qualify.core.errors import QualifyError
from qualify.core.status import CheckOutcome, EvidenceClass
from qualify.evidence.ledger import Ledger
from qualify.evidence.records import Refusal, Reservation, StartFailure, Trial
from qualify.manifests.catalog import Catalog
from qualify.manifests.configuration import suite_identity
from qualify.manifests.kinds import Scenario
from qualify.results.cases import (
    CaseRows,
    Connection,
    FinishedTrial,
    OpenTrial,
    every_case,
    newest_entries,
    newest_trials,
    read_cases,
)
from qualify.results.database import Projected, database_path, follow, reading, rebuild
from qualify.results.loading import Progress
from qualify.results.projection import Lines
from qualify.storage.folders import private_folder, write_atomic, xdg_state_home

LARGE = 20_000
"""From so many entries on the database is asked."""


@dataclass(frozen=True)
class KnownScenarios:
    """The rule for single records and the project's scenarios (a `results.loading.Judge`)."""

    scenarios: dict[tuple[str, str], Scenario]
    """(suite digest, scenario id) → the scenario."""
    version: int = GRADING_VERSION

    def judge(self, reservation: Reservation, end: Trial) -> dict[str, Any] | None:
        """As `results.loading.Judge`."""
        scenario = self.scenarios.get((reservation.suite_digest, reservation.scenario))
        if scenario is None:
            return None
        made = judge(reservation, end, scenario)
        return {
            "grade": made.grade.value,
            "faults": [
                {"code": f.code, "checks": list(f.checks), "budgets": list(f.budgets)}
                for f in made.faults
            ],
            "checks": [{"check_id": name, "outcome": out.value} for name, out in made.checks],
        }


def known_scenarios(catalog: Catalog) -> KnownScenarios:
    """The scenarios of every suite of the project, under the suite's present digest."""
    found = {}
    for name in catalog.suites:
        suite = suite_identity(catalog, name)
        found.update({(suite.digest, scenario.id): scenario for scenario in suite.scenarios})
    return KnownScenarios(found)


@contextmanager
def evidence_for_verdicts(
    results: Path, ledger: Ledger, known: KnownScenarios
) -> Iterator[EvidenceSource]:
    """The evidence of a results folder, for verdicts on suites of `known`.

    Raises as the ledger's `entries`.
    """
    head = ledger.head()
    if head.count >= LARGE and _is_ours(results, ledger, head.count, head.digest):
        with reading(results) as connection:
            source = DatabaseEvidence(connection, ledger.is_running)
            if not any(key in known.scenarios for key in source.unjudged()):
                yield source
                return
    yield collect(ledger.entries(), ledger.is_running)


def follow_for_verdicts(
    results: Path, ledger: Ledger, declared: Lines, catalog: Catalog
) -> Projected:
    """Let the database follow the ledger, and remember that it is ours. Raises as `follow`."""
    done = follow(results, ledger, declared, known_scenarios(catalog))
    _stamp(results, ledger)
    return done


def rebuild_for_verdicts(
    results: Path,
    ledger: Ledger,
    declared: Lines,
    catalog: Catalog | None,
    progress: Progress | None = None,
) -> Projected:
    """Make the database anew, and remember that it is ours. Raises as `rebuild`."""
    judge = known_scenarios(catalog) if catalog is not None else None
    done = rebuild(results, ledger, declared, judge, progress)
    _stamp(results, ledger)
    return done


# ── the stamp ────────────────────────────────────────────────────────────────────────────────────


def _stamp(results: Path, ledger: Ledger) -> None:
    """Remember the database as it is now: the one that we have just written.

    Where that cannot be written down, the ledger is read instead: slower, and the same verdict.
    """
    site = ledger.site()
    if site is None:
        return
    with suppress(OSError, QualifyError):
        document = {"schema": "qualify-database-stamp/1", **_identity(database_path(results))}
        write_atomic(_stamp_file(site, results), orjson.dumps(document))


def _is_ours(results: Path, ledger: Ledger, count: int, digest: str) -> bool:
    site = ledger.site()
    if site is None:
        return False
    try:
        known = orjson.loads(_stamp_file(site, results).read_bytes())
        same = {**known, **_identity(database_path(results))} == known
    except (OSError, QualifyError, ValueError, TypeError):
        return False
    if not same:
        return False
    try:
        with reading(results) as connection:
            found = connection.execute(
                "SELECT ledger_count, ledger_digest, grading_version FROM sites, meta "
                "WHERE site = 0"
            ).fetchone()
    except QualifyError:
        return False
    return found == (count, f"sha256:{digest}", GRADING_VERSION)


def _identity(path: Path) -> dict[str, Any]:
    info = path.stat()
    return {
        "path": str(path.resolve()),
        "device": info.st_dev,
        "inode": info.st_ino,
        "size": info.st_size,
        "modified_ns": info.st_mtime_ns,
        # Nobody but the kernel sets this one.
        "changed_ns": info.st_ctime_ns,
    }


def _stamp_file(site: str, results: Path) -> Path:
    import hashlib

    place = hashlib.sha256(os.fsencode(results.resolve())).hexdigest()[:16]
    return private_folder(xdg_state_home() / site) / f"database-{place}.json"


# ── from the database ────────────────────────────────────────────────────────────────────────────


class DatabaseEvidence:
    """Evidence as the database has it (an `EvidenceSource`)."""

    def __init__(self, connection: Connection, running: Callable[[str], bool]) -> None:
        self._connection = connection
        self._running = running
        self._windows: dict[Window, _Read] = {}
        self._numbers: dict[Case, int] = {}
        self._by_row: dict[str, set[Case]] = defaultdict(set)
        self._by_configuration: dict[str, set[Case]] = defaultdict(set)
        self._newest: dict[str, int] = {}
        for number, fields in every_case(connection).items():
            newest = fields.pop("newest_seq")
            if newest < 0:
                continue
            case = Case(**{**fields, "evidence_class": EvidenceClass(fields["evidence_class"])})
            self._numbers[case] = number
            self._by_row[case.row].add(case)
            self._by_configuration[case.configuration].add(case)
            known = self._newest.get(case.configuration, -1)
            self._newest[case.configuration] = max(known, newest)
        self._refusals = {
            row["configuration"]: _sequenced(row, Refusal, reasons=tuple(row["reasons"]))
            for row in newest_entries(connection, "refusals")
        }
        self._start_failures = {
            row["configuration"]: _sequenced(row, StartFailure)
            for row in newest_entries(connection, "start_failures")
        }

    def unjudged(self) -> set[tuple[str, str]]:
        """(suite digest, scenario) of finished trials on which the database has no judgement."""
        found = self._connection.execute(
            "SELECT DISTINCT suite_digest, scenario FROM cases JOIN finished USING (case_id) "
            "WHERE site = 0 AND judgement IS NULL"
        ).fetchall()
        return {(suite, scenario) for suite, scenario in found}

    def cases(self, row: str, configuration: str) -> Sequence[Case]:
        """As `EvidenceSource`."""
        own = self._by_configuration.get(configuration, set())
        return [*self._by_row.get(row, set()) | own]

    def trials(self, cases: Sequence[Case], scenario: Scenario, window: Window) -> CaseTrials:
        """As `EvidenceSource`."""
        read = self._rows(window)
        numbers = [self._numbers[case] for case in cases]
        others: Counter[Judgement] = Counter()
        for number in numbers:
            others.update(read.counts.get(number, {}))
        single: list[TrialFacts] = []
        newest = 0
        finished = [row for number in numbers for row in read.finished.get(number, ())]
        for row in sorted(finished, key=lambda each: each.seq, reverse=True):
            newest += 1
            known = _finished_facts(row, read.judgements, scenario)
            future = max(known.started, known.ended) > window.latest
            if newest > window.newest and not future:
                continue
            single.append(known)
            if not future and min(known.started, known.ended) >= window.oldest:
                others[known.judgement] -= 1
        for number in numbers:
            for waiting in read.open.get(number, ()):
                single.append(self._open_facts(waiting, scenario))
        single.sort(key=lambda each: each.seq, reverse=True)
        return CaseTrials(tuple(single), tuple((j, n) for j, n in others.items() if n))

    def _open_facts(self, row: OpenTrial, scenario: Scenario) -> TrialFacts:
        return TrialFacts(
            row.trial,
            row.seq,
            row.ordinal,
            row.reserved,
            row.reserved,
            judge_open(row.required_checks, scenario),
            running=self._running(row.trial),
            wall_time_s=scenario.budgets.wall_time_s,
        )

    def named(self, cases: Sequence[Case]) -> tuple[str, ...]:
        """As `EvidenceSource`."""
        numbers = [self._numbers[case] for case in cases]
        return newest_trials(self._connection, numbers, NAMED_TRIALS)

    def newest_seq(self, configuration: str) -> int:
        """As `EvidenceSource`."""
        return self._newest.get(configuration, -1)

    def refusal(self, configuration: str) -> Sequenced[Refusal] | None:
        """As `EvidenceSource`."""
        return self._refusals.get(configuration)

    def start_failure(self, configuration: str) -> Sequenced[StartFailure] | None:
        """As `EvidenceSource`."""
        return self._start_failures.get(configuration)

    def _rows(self, window: Window) -> _Read:
        if window not in self._windows:
            rows = read_cases(self._connection, window.newest, window.oldest, window.latest)
            self._windows[window] = _Read(rows)
        return self._windows[window]


class _Read:
    """The rows of a window, in an index."""

    def __init__(self, rows: CaseRows) -> None:
        self.judgements = {number: _judgement(row) for number, row in rows.judgements.items()}
        self.finished: dict[int, list[FinishedTrial]] = defaultdict(list)
        self.open: dict[int, list[OpenTrial]] = defaultdict(list)
        self.counts: dict[int, dict[Judgement, int]] = defaultdict(dict)
        for trial in rows.newest:
            self.finished[trial.case_id].append(trial)
        for waiting in rows.open:
            self.open[waiting.case_id].append(waiting)
        for case, judgement, count in rows.counts:
            if judgement is None:
                # Of a suite that the project no longer has: no verdict is about it.
                continue
            self.counts[case][self.judgements[judgement]] = count


def _judgement(row: dict[str, Any]) -> Judgement:
    return Judgement(
        Grade(row["grade"]),
        tuple(Fault(f["code"], tuple(f["checks"]), tuple(f["budgets"])) for f in row["faults"]),
        tuple((c["check_id"], CheckOutcome(c["outcome"])) for c in row["checks"]),
    )


def _finished_facts(
    row: FinishedTrial, judgements: dict[int, Judgement], scenario: Scenario
) -> TrialFacts:
    assert row.judgement is not None
    return TrialFacts(
        row.trial,
        row.seq,
        row.ordinal,
        row.reserved,
        row.ended,
        judgements[row.judgement],
        variant=row.variant,
        notes=note_codes(row.sandbox, row.remote),
        wall_time_s=scenario.budgets.wall_time_s,
    )


def _sequenced[E: (Refusal, StartFailure)](
    row: dict[str, Any], kind: type[E], **changes: Any
) -> Sequenced[E]:
    fields = {**row, "time": format_time(row["time"]), **changes}
    return Sequenced(fields.pop("seq"), kind(**fields))
