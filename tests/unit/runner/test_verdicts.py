"""Verdicts from the database are those from the ledger, and only from a database of our own."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path

import duckdb
import pytest

from qualify.assessment.matrix import Evidence, collect
from qualify.assessment.rules import assess
from qualify.core.clock import Clock
from qualify.core.digests import digest_bytes
from qualify.core.status import CheckOutcome, EvidenceClass, RowStatus, TrialOutcome
from qualify.evidence.ledger import Ledger, open_ledger
from qualify.results.database import database_path, follow, reading
from qualify.runner import verdicts
from qualify.runner.verdicts import DatabaseEvidence, KnownScenarios, evidence_for_verdicts
from support import evidence
from support.evidence import SettableClock, SuiteStandIn, policy, reserve, scenario, trial

SCENARIOS = (scenario("append"), scenario("other"))
SUITE = SuiteStandIn(scenarios=SCENARIOS)
JUDGE = KnownScenarios({(SUITE.digest, s.id): s for s in SCENARIOS})
ENDS = (
    {}, {}, {},
    {"outcome": TrialOutcome.FAILED, "checks": {"exact-bytes": CheckOutcome.FAILED}},
    {"outcome": TrialOutcome.UNKNOWN, "checks": {}},
    {"usage": {"actions_proposed": 99}},
    {"sandbox": "none", "remote": True},
    {"model": None},
)  # fmt: skip
CONFIGURATIONS = (evidence.CONFIGURATION, digest_bytes(b"former"))
CLASSES = (EvidenceClass.REAL_MODEL, EvidenceClass.REAL_MODEL, EvidenceClass.SCRIPTED)


def filled(folder: Path, seed: int, clock: SettableClock) -> Ledger:
    """A ledger with everything in it, by the seed."""
    draw = random.Random(seed)
    ledger = open_ledger(folder, clock.clock())
    clock.moment -= timedelta(days=draw.choice((1, 35, 60)))
    for _ in range(draw.randint(0, 25)):
        clock.advance(hours=draw.choice((1, 1, 30, 70, -2)))
        kind = draw.random()
        chosen = {"configuration": draw.choice(CONFIGURATIONS)}
        if kind < 0.06:
            ledger.append(evidence.refusal(clock.moment, **chosen))
        elif kind < 0.12:
            ledger.append(evidence.start_failure(clock.moment, **chosen))
        else:
            reserved = reserve(
                ledger,
                scenario=draw.choice(SCENARIOS).id,
                experimental=draw.random() < 0.1,
                evidence_class=draw.choice(CLASSES),
                suite_digest=draw.choice((SUITE.digest, SUITE.digest, digest_bytes(b"older"))),
                **chosen,
            )
            if draw.random() < 0.9:
                moment = clock.moment + timedelta(seconds=20)
                variant = digest_bytes(b"v%d" % draw.randint(0, 20))
                ledger.finish(trial(reserved.trial, moment, variant=variant, **draw.choice(ENDS)))
    return ledger


@pytest.mark.parametrize("seed", range(40))
def test_the_database_gives_the_verdict_of_the_ledger(seed: int, tmp_path: Path) -> None:
    clock = SettableClock()
    ledger = filled(tmp_path, seed, clock)
    follow(tmp_path, ledger, {}, JUDGE)
    from_ledger = collect(ledger.entries(), ledger.is_running)
    with reading(tmp_path) as connection:
        from_database = DatabaseEvidence(connection, ledger.is_running)
        for configuration in (*CONFIGURATIONS, digest_bytes(b"never run")):
            for needed in (1, 3):
                given = (evidence.ROW, configuration, SUITE)
                rules = (policy(trials_needed=needed), evidence.NOW)
                told = assess(*given, from_ledger, *rules)
                assert assess(*given, from_database, *rules) == told


@pytest.fixture
def qualified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """Three clean trials, in a ledger that counts as large, and the database beside it."""
    monkeypatch.setattr(verdicts, "LARGE", 1)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    ledger = open_ledger(tmp_path)
    for _ in range(3):
        ledger.finish(trial(reserve(ledger).trial, Clock().now()))
    follow(tmp_path, ledger, {}, JUDGE)
    verdicts._stamp(tmp_path, ledger)
    return ledger


def status(folder: Path, ledger: Ledger) -> tuple[bool, RowStatus]:
    """Whether the database was asked, and the verdict."""
    with evidence_for_verdicts(folder, ledger, JUDGE) as found:
        verdict = assess(
            evidence.ROW, evidence.CONFIGURATION, SuiteStandIn(), found, policy(), Clock().now()
        )
        return not isinstance(found, Evidence), verdict.status


def test_the_database_is_asked_when_the_ledger_is_large(qualified: Ledger, tmp_path: Path) -> None:
    assert status(tmp_path, qualified) == (True, RowStatus.QUALIFIED)


def test_a_small_ledger_is_read_itself(
    qualified: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "LARGE", 1000)
    assert status(tmp_path, qualified) == (False, RowStatus.QUALIFIED)


def test_a_database_that_somebody_improved_is_not_asked(tmp_path: Path, qualified: Ledger) -> None:
    qualified.finish(
        trial(
            reserve(qualified).trial,
            Clock().now(),
            outcome=TrialOutcome.FAILED,
            checks={"exact-bytes": CheckOutcome.FAILED},
        )
    )
    follow(tmp_path, qualified, {}, JUDGE)
    verdicts._stamp(tmp_path, qualified)
    assert status(tmp_path, qualified) == (True, RowStatus.FAILED)
    with duckdb.connect(str(database_path(tmp_path))) as connection:
        connection.execute(
            "UPDATE finished SET judgement = "
            "(SELECT judgement FROM judgements WHERE grade = 'passed')"
        )
    assert status(tmp_path, qualified) == (False, RowStatus.FAILED)


def test_a_database_that_is_behind_is_not_asked(tmp_path: Path, qualified: Ledger) -> None:
    reserve(qualified)
    assert status(tmp_path, qualified) == (False, RowStatus.INCOMPLETE)


def test_a_database_without_judgements_is_not_asked(tmp_path: Path, qualified: Ledger) -> None:
    database_path(tmp_path).unlink()
    follow(tmp_path, qualified, {}, None)
    verdicts._stamp(tmp_path, qualified)
    assert status(tmp_path, qualified) == (False, RowStatus.QUALIFIED)
