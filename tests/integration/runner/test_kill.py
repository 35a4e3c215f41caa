"""kill -9 at random moments: nothing is lost, nothing happens twice, the next run works."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qualify.assessment.rules import Assessment
from qualify.evidence.ledger import Ledger
from qualify.evidence.records import Reservation, Trial
from qualify.runner.run import Result
from qualify.sessions.journal import Intent, read_journal

KILLS = 50
_SEED = 20261130
_LATEST_S = 2.5


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fifty_kills_lose_nothing_and_do_nothing_twice(
    run: Callable[..., Result],
    ledger: Ledger,
    places: Path,
    verdict: Callable[[Result], Assessment],
) -> None:
    moments = random.Random(_SEED)
    killed_while_reserved = finished = 0
    for _ in range(KILLS):
        before = _states(ledger)
        runner = os.fork()
        if runner == 0:
            _run_and_leave(run)
        time.sleep(moments.uniform(0.02, _LATEST_S))
        whole_group = moments.random() < 0.5
        _kill(runner, whole_group)
        after = _states(ledger)
        assert before.items() <= after.items()
        new = set(after) - set(before)
        assert len(new) <= 1
        killed_while_reserved += any(not after[trial] for trial in new)
        finished += any(after[trial] for trial in new)
        for trial in new:
            assert not ledger.is_running(trial)
            _nothing_happened_twice(places.parent / "state", trial)
        assert _no_process_left(places.parent)
    # The moments must have hit both sides, or this test has shown nothing.
    assert killed_while_reserved >= 2
    assert finished >= 1
    result = run("scripted-passes")
    assert result.trials[0].outcome == "passed"
    # Every trial that was killed is incomplete, and stays in the denominator.
    assessment = verdict(result)
    assert assessment.passed == finished + 1
    assert assessment.total == finished + 1 + killed_while_reserved


def _run_and_leave(run: Callable[..., Result]) -> None:
    try:
        os.setsid()
        run("scripted-passes")
    finally:
        os._exit(0)


def _kill(runner: int, whole_group: bool) -> None:
    try:
        if whole_group:
            os.killpg(runner, signal.SIGKILL)
        else:
            os.kill(runner, signal.SIGKILL)
    except ProcessLookupError:
        pass
    os.waitpid(runner, 0)


def _states(ledger: Ledger) -> dict[str, bool]:
    """Trial → whether it is finished; reading verifies the whole ledger."""
    states: dict[str, bool] = {}
    for stored in ledger.entries():
        if isinstance(stored.entry, Reservation):
            states[stored.digest] = False
        elif isinstance(stored.entry, Trial):
            states[stored.entry.trial] = True
    return states


def _nothing_happened_twice(state: Path, trial: str) -> None:
    (folder,) = [*state.glob(f"qualify/*/trials/{trial.removeprefix('sha256:')}")] or [None]
    if folder is None:
        return
    intents = [e.action for e in read_journal(folder) if isinstance(e, Intent)]
    assert len(intents) == len(set(intents))
    for path in (p for p in (folder / "workspace").rglob("*") if p.is_file()):
        lines = path.read_text().splitlines()
        assert len(lines) == len(set(lines))


def _no_process_left(place: Path) -> bool:
    """Whether every process that names this test's folder is gone, after a bounded wait."""
    needle = str(place).encode()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if not any(needle in _command(pid) for pid in _others()):
            return True
        time.sleep(0.05)
    return False


def _others() -> list[str]:
    names = [path.name for path in Path("/proc").iterdir()]
    return [name for name in names if name.isdigit() and int(name) != os.getpid()]


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
