"""Ctrl-C and SIGTERM at many moments: one line, the right exit code, nobody left, nothing lost."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGINT, SIGTERM
from typing import Any

import pytest

from qualify.evidence.ledger import Ledger
from qualify.evidence.records import Reservation, Trial
from support.commands import Ended, nobody_left
from support.scripted_project import replies

type Qualify = Callable[..., Any]
type Project = Callable[..., Path]

CODES = {SIGINT: 130, SIGTERM: 143}
WORDS = {SIGINT: "interrupted", SIGTERM: "terminated"}
MOMENTS = 16
_SEED = 20261130


def slow(delay_ms: int) -> list[dict[str, Any]]:
    """A model that takes its time over its last word."""
    return [
        {"when_message": "exit code", "delay_ms": delay_ms, "text": "Done."},
        *replies(),
    ]


def ended_by(number: signal.Signals, ended: Ended) -> bool:
    """Whether the command ended as it must after `number`: exit code, one line, no traceback."""
    last = ended.err.strip().splitlines()[-1]
    return (
        ended.code == CODES[number]
        and last == f"{WORDS[number]}; what was reserved stays recorded"
        and "Traceback" not in ended.err
        and "Exception ignored" not in ended.err
    )


def trials(ledger: Ledger) -> tuple[set[str], set[str]]:
    """Reserved and finished trials; reading verifies the whole ledger."""
    reserved, finished = set(), set()
    for stored in ledger.entries():
        if isinstance(stored.entry, Reservation):
            reserved.add(stored.digest)
        elif isinstance(stored.entry, Trial):
            finished.add(stored.entry.trial)
    return reserved, finished


def _never_ready() -> None:
    from qualify.runtimes import scripted

    scripted.ScriptedEngine.program = lambda self: ["/bin/sleep", "600"]


def _hashes_for_ever() -> None:
    from qualify.cli import run

    def verify(_configuration: Any, progress: Callable[[int], None]) -> None:
        while True:
            time.sleep(0.01)
            progress(1 << 20)

    run.verified_files = verify


@pytest.mark.parametrize("number", [SIGINT, SIGTERM], ids=["ctrl-c", "sigterm"])
@pytest.mark.parametrize(
    ("moment", "before"),
    [("starting the engine", _never_ready), ("verifying the model", _hashes_for_ever)],
    ids=["while the engine loads", "while the model is hashed"],
)
def test_an_interruption_before_any_trial_records_nothing(
    moment: str,
    before: Callable[[], None],
    number: signal.Signals,
    project: Project,
    qualify: Qualify,
    ledger: Ledger,
    tmp_path: Path,
) -> None:
    running = qualify("run", "double", cwd=project(), before=before, wait=False)
    running.until_said(moment)
    running.signal(number)
    ended = running.wait(30)
    assert ended_by(number, ended), ended
    assert nobody_left(tmp_path) == {}
    assert trials(ledger) == (set(), set())


@pytest.mark.parametrize("group", [True, False], ids=["whole group", "process"])
@pytest.mark.parametrize("number", [SIGINT, SIGTERM], ids=["ctrl-c", "sigterm"])
def test_an_interrupted_trial_is_incomplete_and_the_finished_one_is_kept(
    number: signal.Signals,
    group: bool,
    project: Project,
    qualify: Qualify,
    ledger: Ledger,
    tmp_path: Path,
) -> None:
    place = project(slow(2500))
    running = qualify("run", "double", "--trials", "3", cwd=place, wait=False)
    running.until_said("trial 2 of 3")
    time.sleep(0.8)
    running.signal(number, group=group)
    ended = running.wait(30)
    assert ended_by(number, ended), ended
    assert nobody_left(tmp_path) == {}
    reserved, finished = trials(ledger)
    (incomplete,) = reserved - finished
    assert len(finished) == 1
    assert not ledger.is_running(incomplete)
    listed = {t["trial"]: t["state"] for t in qualify("trial", "list", "--json").document["trials"]}
    assert listed[incomplete] == "incomplete"
    assert sorted(listed.values()) == ["incomplete", "passed"]
    assert qualify("run", "double", "--trials", "1", cwd=place).code == 10
    assert len(trials(ledger)[1]) == 2


@pytest.mark.parametrize("second", [SIGINT, SIGTERM], ids=["ctrl-c", "sigterm"])
def test_a_second_interruption_during_the_clean_up_leaves_nobody_either(
    second: signal.Signals, project: Project, qualify: Qualify, ledger: Ledger, tmp_path: Path
) -> None:
    running = qualify("run", "double", cwd=project(slow(5000)), wait=False)
    running.until_said("trial 1 of")
    time.sleep(1)
    running.signal(SIGINT)
    time.sleep(0.03)
    running.signal(second)
    ended = running.wait(30)
    assert ended.code in (130, 143), ended
    assert "Traceback" not in ended.err
    assert nobody_left(tmp_path) == {}
    reserved, finished = trials(ledger)
    assert (len(reserved), len(finished)) == (1, 0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_interruptions_at_random_moments_lose_nothing_that_was_finished(
    project: Project, qualify: Qualify, ledger: Ledger, tmp_path: Path
) -> None:
    place, chance = project(), random.Random(_SEED)
    begun = time.monotonic()
    assert qualify("run", "double", "--trials", "2", cwd=place).code == 10
    whole = time.monotonic() - begun
    interrupted = 0
    for _ in range(MOMENTS):
        before = trials(ledger)
        running = qualify("run", "double", "--trials", "2", cwd=place, wait=False)
        number = chance.choice([SIGINT, SIGTERM])
        time.sleep(chance.uniform(0.05, whole))
        running.signal(number, group=chance.random() < 0.5)
        ended = running.wait()
        # Past its last step, a run may still end as if nothing had happened.
        assert ended.code == 10 or ended_by(number, ended), ended
        interrupted += ended.code != 10
        assert nobody_left(tmp_path) == {}
        reserved, finished = trials(ledger)
        assert before[0] <= reserved
        assert before[1] <= finished
        assert len(finished - before[1]) >= ended.err.count("✓ trial")
        assert len((reserved - finished) - (before[0] - before[1])) <= 1
    assert interrupted >= MOMENTS // 2
    assert qualify("run", "double", "--trials", "1", cwd=place).code == 10


def test_a_question_to_the_results_can_be_interrupted(project: Project, qualify: Qualify) -> None:
    place = project()
    endless = "select count(*) from range(1000000000000)"
    for number in (SIGINT, SIGTERM):
        running = qualify("query", "--sql", endless, cwd=place, wait=False)
        time.sleep(3)
        running.signal(number)
        assert ended_by(number, running.wait(20))
    assert qualify("query", "--sql", "select count(*) from range(10)", cwd=place).code == 0
