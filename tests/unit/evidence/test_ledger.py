"""The ledger as its callers see it: reservations, ends, refusals, and what reading promises."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from qualify.core.digests import digest_bytes
from qualify.core.errors import EnvironmentFault, ExitCode, Refusal
from qualify.core.status import EvidenceClass
from qualify.evidence.ledger import Ledger, NewerLedger, open_ledger
from qualify.evidence.records import Genesis, Reservation, Trial
from qualify.storage.appendlog import ChainBroken, encode_line, read_log
from qualify.storage.locks import LockHeld
from support import evidence
from support.evidence import CONFIGURATION, SettableClock, reserve, trial


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def ledger(tmp_path: Path, clock: SettableClock) -> Ledger:
    return open_ledger(tmp_path / "results", clock.clock())


def test_reading_a_ledger_that_is_not_there_finds_nothing_and_creates_nothing(
    ledger: Ledger, tmp_path: Path
) -> None:
    assert list(ledger.entries()) == []
    assert ledger.head().count == 0
    assert ledger.site() is None
    assert not ledger.is_running(digest_bytes(b"any"))
    assert list(tmp_path.iterdir()) == []


def test_the_first_append_writes_the_genesis_entry_with_a_random_site(
    ledger: Ledger, tmp_path: Path
) -> None:
    reserve(ledger)
    first, second = ledger.entries()
    assert isinstance(first.entry, Genesis)
    assert isinstance(second.entry, Reservation)
    assert ledger.site() == first.entry.site
    other = open_ledger(tmp_path / "elsewhere")
    assert other.prepare() != ledger.site()


def test_a_trial_is_named_by_the_digest_of_its_reservation(ledger: Ledger) -> None:
    reserved = reserve(ledger)
    assert [s.digest for s in ledger.entries()][-1] == reserved.trial


def test_ordinals_count_per_configuration_suite_and_scenario(ledger: Ledger) -> None:
    assert [reserve(ledger).ordinal for _ in range(3)] == [0, 1, 2]
    assert reserve(ledger, configuration=digest_bytes(b"other")).ordinal == 0
    assert reserve(ledger, suite_digest=digest_bytes(b"other")).ordinal == 0
    assert reserve(ledger, scenario="other").ordinal == 0
    assert reserve(ledger).ordinal == 3


def test_two_names_of_one_suite_never_get_one_seed_twice(ledger: Ledger) -> None:
    seeds = {reserve(ledger, suite=name).seed for name in ("acceptance", "smoke", "acceptance")}
    assert len(seeds) == 3


def test_experimental_trials_use_up_no_ordinal(ledger: Ledger) -> None:
    assert reserve(ledger, experimental=True).ordinal == 0
    assert reserve(ledger).ordinal == 0
    assert reserve(ledger, experimental=True).ordinal == 1
    assert reserve(ledger).ordinal == 1
    assert len(list(ledger.entries())) == 5


def test_a_trial_is_finished_once(ledger: Ledger) -> None:
    reserved = reserve(ledger)
    ledger.finish(trial(reserved.trial))
    with pytest.raises(Refusal, match="already finished"):
        ledger.finish(trial(reserved.trial))
    assert sum(isinstance(s.entry, Trial) for s in ledger.entries()) == 1


def test_a_trial_that_was_never_reserved_cannot_be_finished(ledger: Ledger) -> None:
    reserve(ledger)
    before = ledger.path.read_bytes()
    genesis = next(ledger.entries()).digest
    for stranger in (digest_bytes(b"never"), genesis):
        with pytest.raises(Refusal, match="never reserved"):
            ledger.finish(trial(stranger))
    assert ledger.path.read_bytes() == before


def test_a_refusal_and_a_failed_start_are_entries(ledger: Ledger) -> None:
    ledger.append(evidence.refusal())
    stored = ledger.append(evidence.start_failure())
    assert [s.entry.kind for s in ledger.entries()] == ["genesis", "refusal", "start-failure"]
    assert [s.digest for s in ledger.entries()][-1] == stored.digest


def test_trials_cannot_be_smuggled_in_by_append(ledger: Ledger) -> None:
    for entry in (evidence.reservation(), trial(digest_bytes(b"x"))):
        with pytest.raises(TypeError):
            ledger.append(entry)


def test_a_clock_that_steps_back_is_flagged_and_never_refused(
    ledger: Ledger, clock: SettableClock
) -> None:
    reserve(ledger)
    clock.moment -= timedelta(hours=1)
    reserved = reserve(ledger)
    clock.moment += timedelta(minutes=1)
    ledger.finish(trial(reserved.trial, clock.moment))
    assert [s.clock_went_back for s in ledger.entries()] == [False, False, True, False]


def test_a_running_trial_is_known_by_its_lock(ledger: Ledger) -> None:
    reserved = reserve(ledger)
    assert not ledger.is_running(reserved.trial)
    with ledger.live_lock(reserved.trial):
        assert ledger.is_running(reserved.trial)
    assert not ledger.is_running(reserved.trial)
    assert list((ledger.folder / "live").iterdir()) == []


def test_an_error_inside_the_live_lock_passes_through_unchanged(ledger: Ledger) -> None:
    reserved = reserve(ledger)
    with pytest.raises(FileNotFoundError), ledger.live_lock(reserved.trial):
        raise FileNotFoundError("the body's own")
    assert not ledger.is_running(reserved.trial)


HOLD = """
import sys
from pathlib import Path
from qualify.evidence.ledger import Ledger
with Ledger(Path(sys.argv[1])).live_lock(sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_kernel_drops_the_lock_of_a_killed_runner(ledger: Ledger) -> None:
    reserved = reserve(ledger)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(ledger.folder), reserved.trial],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        assert ledger.is_running(reserved.trial)
        child.kill()
    assert not ledger.is_running(reserved.trial)


def test_two_processes_cannot_run_one_trial(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qualify.evidence.ledger._LIVE_LOCK_WAIT_S", 0)
    reserved = reserve(ledger)
    with (
        ledger.live_lock(reserved.trial),
        pytest.raises(LockHeld, match=str(os.getpid())),
        ledger.live_lock(reserved.trial),
    ):
        pass
    with ledger.live_lock(reserved.trial):
        pass


def test_a_newer_ledger_is_refused_and_not_touched(ledger: Ledger) -> None:
    reserve(ledger)
    *_, last = read_log(ledger.path)
    newer = last.payload.replace(b'"schema_version":1', b'"schema_version":3')
    raw, _ = encode_line(last.seq + 1, last.digest, newer)
    with ledger.path.open("ab") as stream:
        stream.write(raw)
    before = ledger.path.read_bytes()
    attempts = [
        lambda: list(ledger.entries()),
        lambda: reserve(ledger),
        lambda: ledger.append(evidence.refusal()),
        lambda: ledger.finish(trial(f"sha256:{last.digest}")),
    ]
    for attempt in attempts:
        with pytest.raises(NewerLedger, match="record schema 3") as caught:
            attempt()
        assert caught.value.where == f"{ledger.path}:3"
        assert caught.value.exit_code == ExitCode.USAGE
    assert ledger.path.read_bytes() == before


def test_a_results_path_that_is_a_file_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("")
    with pytest.raises(EnvironmentFault, match="ledger's folder"):
        reserve(open_ledger(tmp_path))


def test_a_ledger_that_cannot_be_read_is_one_clear_error(ledger: Ledger) -> None:
    ledger.folder.mkdir(parents=True)
    ledger.path.symlink_to(ledger.path)
    with pytest.raises(EnvironmentFault, match="cannot be read"):
        list(ledger.entries())
    with pytest.raises(EnvironmentFault):
        ledger.head()


def test_a_folder_in_the_place_of_the_ledger_is_damage(ledger: Ledger) -> None:
    ledger.path.mkdir(parents=True)
    for read in (ledger.head, ledger.verify, lambda: list(ledger.entries())):
        with pytest.raises(ChainBroken, match="no plain file"):
            read()


def test_the_class_of_evidence_is_kept_as_reserved(ledger: Ledger) -> None:
    reserve(ledger, evidence_class=EvidenceClass.SCRIPTED)
    *_, stored = ledger.entries()
    assert isinstance(stored.entry, Reservation)
    assert stored.entry.evidence_class is EvidenceClass.SCRIPTED
    assert stored.entry.configuration == CONFIGURATION
