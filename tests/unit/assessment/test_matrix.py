"""Verdicts from a real ledger, for many rows in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from qualify.assessment.matrix import assess_rows, collect
from qualify.core.digests import digest_bytes
from qualify.core.status import CheckOutcome, RowStatus, ToolMode, TrialOutcome
from qualify.evidence.ledger import Ledger, open_ledger
from qualify.manifests.kinds import Row
from support import evidence
from support.evidence import SettableClock, SuiteStandIn, policy, reserve, run, trial

FAILED = {"exact-bytes": CheckOutcome.FAILED, "replay": CheckOutcome.PASSED}


@dataclass(frozen=True)
class ConfigurationStandIn:
    """The two fields of a configuration that the matrix reads."""

    row: Row
    digest: str


def configuration(name: str = evidence.ROW, digest: str = evidence.CONFIGURATION):
    row = Row(
        id=name,
        runtime="r",
        model="m",
        platform="p",
        precision="q4",
        context_tokens=4096,
        tool_mode=ToolMode.PROMPT,
        agent="a",
        suites=("acceptance",),
    )
    return ConfigurationStandIn(row, digest)


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def ledger(tmp_path: Path, clock: SettableClock) -> Ledger:
    return open_ledger(tmp_path, clock.clock())


def status(ledger: Ledger, clock: SettableClock, *configurations: ConfigurationStandIn):
    verdicts = assess_rows(
        configurations or [configuration()],
        {"acceptance": SuiteStandIn()},
        collect(ledger.entries(), ledger.is_running),
        policy(),
        clock.moment,
    )
    return {key: verdict.status for key, verdict in verdicts.items()}


def test_a_row_qualifies_and_a_failed_latest_trial_takes_it_away_again(
    ledger: Ledger, clock: SettableClock
) -> None:
    key = (evidence.ROW, "acceptance")
    seen = [status(ledger, clock)[key]]
    for _ in range(3):
        run(ledger, clock)
        seen.append(status(ledger, clock)[key])
    run(ledger, clock, outcome=TrialOutcome.FAILED, checks=FAILED)
    seen.append(status(ledger, clock)[key])
    assert seen == [
        RowStatus.UNTESTED, RowStatus.INCOMPLETE, RowStatus.INCOMPLETE, RowStatus.QUALIFIED,
        RowStatus.FAILED,
    ]  # fmt: skip


def test_a_qualified_row_expires(ledger: Ledger, clock: SettableClock) -> None:
    for _ in range(3):
        run(ledger, clock)
    clock.advance(days=31)
    assert list(status(ledger, clock).values()) == [RowStatus.EXPIRED]


def test_a_crashed_trial_is_incomplete_and_a_live_one_is_running(
    ledger: Ledger, clock: SettableClock
) -> None:
    reserved = reserve(ledger)
    with ledger.live_lock(reserved.trial):
        (live,) = collect(ledger.entries(), ledger.is_running).all_trials
    (dead,) = collect(ledger.entries(), ledger.is_running).all_trials
    assert (live.running, dead.running) == (True, False)
    assert dead.ended == dead.started == clock.moment
    ledger.finish(trial(reserved.trial, clock.moment))
    (done,) = collect(
        ledger.entries(), lambda _: pytest.fail("asked about a finished trial")
    ).all_trials
    assert done.end is not None


def test_rows_do_not_share_evidence(ledger: Ledger, clock: SettableClock) -> None:
    for _ in range(3):
        run(ledger, clock)
    other = configuration("other-row", digest_bytes(b"other"))
    assert status(ledger, clock, configuration(), other) == {
        (evidence.ROW, "acceptance"): RowStatus.QUALIFIED,
        ("other-row", "acceptance"): RowStatus.UNTESTED,
    }


def test_a_renamed_row_keeps_its_evidence_and_a_changed_one_does_not(
    ledger: Ledger, clock: SettableClock
) -> None:
    for _ in range(3):
        run(ledger, clock)
    renamed = configuration("new-name")
    assert list(status(ledger, clock, renamed).values()) == [RowStatus.QUALIFIED]
    changed = configuration(digest=digest_bytes(b"changed"))
    verdicts = assess_rows(
        [changed],
        {"acceptance": SuiteStandIn()},
        collect(ledger.entries(), ledger.is_running),
        policy(),
        clock.moment,
    )
    (verdict,) = verdicts.values()
    assert verdict.status is RowStatus.UNTESTED
    assert [reason.code for reason in verdict.reasons] == ["changed-configuration"]


def test_a_refusal_in_the_ledger_makes_a_row_unsupported(
    ledger: Ledger, clock: SettableClock
) -> None:
    ledger.append(evidence.refusal())
    assert list(status(ledger, clock).values()) == [RowStatus.UNSUPPORTED]
    run(ledger, clock)
    assert list(status(ledger, clock).values()) == [RowStatus.INCOMPLETE]
    ledger.append(evidence.start_failure(clock.moment))
    assert list(status(ledger, clock).values()) == [RowStatus.INCONCLUSIVE]
