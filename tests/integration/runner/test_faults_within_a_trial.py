"""What may break in the middle of a trial: the trial is recorded as it was, the run goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from qualify.assessment.rules import Assessment
from qualify.core.clock import Clock
from qualify.core.status import TrialOutcome
from qualify.evidence.ledger import Ledger
from qualify.evidence.records import Trial
from qualify.manifests.catalog import load_catalog
from qualify.runner.progress import Silent
from qualify.runner.run import Request, Result, execute
from qualify.runner.workers import PipedWorker
from support.forked import fork_worker
from support.scripted_project import APPEND, OBEY, replies, terminal

type Project = Callable[..., Path]
type RunDouble = Callable[..., Result]


class Intruder(Silent):
    """Does something at the first step of the first trial."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act: Callable[[], None] | None = act

    def step(self, number: int, tool: str) -> None:
        """Acts once."""
        if self._act is not None:
            act, self._act = self._act, None
            act()


@pytest.fixture
def run_double(agent_sdk: None, places: Path, project: Project) -> RunDouble:
    """`run_double(replies, trials=1)` runs the row `double` of a project made for it."""

    def start(
        played: list[dict[str, Any]] | None = None,
        *,
        trials: int = 1,
        budgets: dict[str, int] | None = None,
        reporter: Silent | None = None,
        clock: Clock | None = None,
        start_worker: Callable[[Path], PipedWorker] = fork_worker,
    ) -> Result:
        catalog = load_catalog(project(played, budgets=budgets))
        return execute(
            catalog, Request("double", "acceptance", trials, places), reporter or Silent(),
            acquire=lambda *_: None, verify=lambda *_: None, clock=clock,
            start_worker=start_worker,
        )  # fmt: skip

    return start


def records(ledger: Ledger) -> list[Trial]:
    """Every finished trial; reading verifies the whole ledger."""
    return [stored.entry for stored in ledger.entries() if isinstance(stored.entry, Trial)]


def bad(result: Result, number: int = 0) -> dict[str, str | None]:
    """Check → reason of what did not pass."""
    return {c.check: c.reason for c in result.trials[number].checks if c.outcome != "passed"}


# ── processes that die ───────────────────────────────────────────────────────────────────────────


def test_a_killed_worker_costs_its_trial_and_the_next_one_has_a_new_worker(
    run_double: RunDouble, ledger: Ledger
) -> None:
    workers: list[PipedWorker] = []

    def remembered(private: Path) -> PipedWorker:
        workers.append(fork_worker(private))
        return workers[-1]

    killer = Intruder(lambda: os.kill(workers[0]._pid, signal.SIGKILL))
    result = run_double(trials=2, reporter=killer, start_worker=remembered)
    first, second = result.trials
    assert (first.outcome, first.stop_reason) == (TrialOutcome.UNKNOWN, "worker-died")
    assert (second.outcome, second.stop_reason) == (TrialOutcome.PASSED, "completed")
    assert len(workers) == 2
    assert [record.stop_reason for record in records(ledger)] == ["worker-died", "completed"]
    assert records(ledger)[0].agent.fingerprint is None


def test_a_killed_engine_costs_its_trial_and_the_next_one_has_a_new_engine(
    run_double: RunDouble, ledger: Ledger
) -> None:
    killer = Intruder(lambda: [os.kill(pid, signal.SIGKILL) for pid in _engines()] and None)
    result = run_double(trials=2, reporter=killer)
    first, second = result.trials
    assert first.outcome != TrialOutcome.PASSED
    assert first.stop_reason != "completed"
    assert second.outcome == TrialOutcome.PASSED
    assert records(ledger)[0].usage.failed_calls >= 1


def _engines() -> list[int]:
    """Scripted servers that are children of this process."""
    found = []
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            if b"scripted_server" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    assert found
    return found


@pytest.mark.parametrize("fault", ["garbage", "disconnect", "hang", "exit"])
def test_an_engine_that_breaks_in_the_middle_never_makes_a_pass(
    fault: str, run_double: RunDouble, ledger: Ledger
) -> None:
    broken = {"when_message": "exit code", "fault": fault}
    result = run_double([broken, *replies()], budgets={"wall_time_s": 12})
    assert result.trials[0].outcome != TrialOutcome.PASSED
    assert result.trials[0].stop_reason != "completed"
    assert records(ledger)[0].outcome == result.trials[0].outcome


# ── budgets ──────────────────────────────────────────────────────────────────────────────────────


def test_a_trial_past_its_deadline_ends_unknown_and_the_next_one_runs(
    run_double: RunDouble, ledger: Ledger
) -> None:
    late = {"when_message": "exit code", "delay_ms": 600_000, "text": "Done."}
    result = run_double([late, *replies()], trials=2, budgets={"wall_time_s": 6})
    assert [trial.stop_reason for trial in result.trials] == ["deadline", "deadline"]
    for record in records(ledger):
        assert record.outcome == TrialOutcome.UNKNOWN
        assert "wall_time_s" in {use.budget for use in record.budgets_exceeded}
        assert record.timings.wall_ms < 20_000


CALLS_NEEDED = 4
"""The direct question, the action, the finish, the deletion: what an obedient model needs."""


@pytest.mark.parametrize(
    ("budgets", "stop_reason", "exceeded"),
    [
        ({"model_calls": CALLS_NEEDED}, "completed", set()),
        ({"model_calls": CALLS_NEEDED - 1}, "budget-used-up", set()),
        ({"model_calls": 1}, "budget-used-up", set()),
        ({"actions": 2}, "completed", set()),
        ({"actions": 1}, "completed", {"actions"}),
        ({"prompt_tokens": 1}, "budget-used-up", {"prompt_tokens"}),
    ],
    ids=str,
)
def test_a_budget_reached_is_kept_and_a_budget_exceeded_is_recorded(
    budgets: dict[str, int],
    stop_reason: str,
    exceeded: set[str],
    run_double: RunDouble,
    ledger: Ledger,
) -> None:
    result = run_double(budgets=budgets)
    (record,) = records(ledger)
    assert {use.budget for use in record.budgets_exceeded} == exceeded, record.usage
    assert record.usage.model_calls <= budgets.get("model_calls", 99)
    assert result.trials[0].stop_reason == stop_reason
    passed = stop_reason == "completed"
    assert (result.trials[0].outcome == TrialOutcome.PASSED) == passed


def test_more_actions_than_the_limit_are_rejected_as_a_whole_and_recorded(
    run_double: RunDouble, ledger: Ledger, places: Path
) -> None:
    many = {"when_message": APPEND, "calls": [terminal(f"touch f{i}") for i in range(20)]}
    result = run_double([many, *replies()], budgets={"actions": 5})
    (record,) = records(ledger)
    assert result.trials[0].stop_reason == "action-limit"
    assert record.usage.actions_proposed == 20
    assert record.usage.actions_executed == 0
    assert {use.budget for use in record.budgets_exceeded} == {"actions"}
    assert not list(places.parent.glob("state/**/workspace/f*"))


# ── what a model says and what a command leaves ──────────────────────────────────────────────────

ODD = {
    "control characters": "\u001b[31m\u001b]0;title\u0007 \u0000 \r\b",
    "a flood": "x" * 20_000,
    "half a tag": "<function=terminal>\n<parameter=command>",
    "nothing": "",
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD.keys())
def test_odd_words_of_a_model_are_a_failure_and_nothing_worse(
    text: str, run_double: RunDouble, ledger: Ledger
) -> None:
    result = run_double([{"when_message": APPEND, "text": text}, *replies()])
    assert result.trials[0].outcome != TrialOutcome.PASSED
    assert len(records(ledger)) == 1


LEFT: dict[str, tuple[str, dict[str, str]]] = {
    "nothing else": (OBEY, {}),
    "five megabytes of output": (
        f"{OBEY}; head -c 5000000 /dev/zero; printf '\\033]0;x\\007\\377'", {},
    ),
    "a process in the background": (f"{OBEY}; (setsid sleep 600 &)", {}),
    "fifo, links in circles": (
        f"{OBEY}; mkfifo pipe; ln -s loop loop; mkdir -p d/e; ln -s .. d/e/up",
        {"only-the-project": "other-file-changed"},
    ),
    "closed folder": (
        f"{OBEY}; mkdir d; touch d/x; chmod 000 d", {"only-the-project": "other-file-changed"},
    ),
    "a socket": (
        f"{OBEY}; python3 -c 'import socket as s; s.socket(s.AF_UNIX).bind(chr(115))'",
        {"only-the-project": "other-file-changed"},
    ),
    "ten thousand files": (
        f"{OBEY}; seq 10000 | xargs touch", {"only-the-project": "other-file-changed"},
    ),
    "odd names": (
        f"{OBEY}; touch \"$(printf 'a\\nb')\" \"$(printf '\\377')\" \"$(printf '\\033[31m')\"",
        {"only-the-project": "other-file-changed"},
    ),
    "a file of five terabytes": (
        f"{OBEY}; truncate -s 5T big", {"only-the-project": "other-file-changed"},
    ),
    "a fifo instead of the file": ("rm {file}; mkfifo {file}", {"expected-bytes": "not-a-file"}),
    "a link instead of the file": (
        "rm {file}; ln -s /dev/zero {file}", {"expected-bytes": "not-a-file"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("command", "reasons"), LEFT.values(), ids=LEFT.keys())
def test_whatever_a_command_leaves_behind_is_judged_without_waiting_for_it(
    command: str, reasons: dict[str, str], run_double: RunDouble, ledger: Ledger
) -> None:
    result = run_double(replies(command))
    assert bad(result) == reasons
    assert result.trials[0].outcome == ("failed" if reasons else "passed")
    assert len(records(ledger)) == 1


def test_files_in_the_caller_s_folder_are_never_imported(
    run_double: RunDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for name in ("orjson", "pydantic", "json", "qualify"):
        (here / f"{name}.py").write_text("raise SystemExit('imported from the wrong place')\n")
    monkeypatch.chdir(here)
    assert bad(run_double()) == {}


# ── clocks ───────────────────────────────────────────────────────────────────────────────────────


def test_a_clock_that_steps_back_is_flagged_and_loses_nothing(
    run_double: RunDouble, ledger: Ledger, verdict: Callable[[Result], Assessment]
) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    steps = iter(range(10_000))
    result = run_double(trials=2, clock=Clock(now=lambda: now - timedelta(minutes=next(steps))))
    assert [trial.outcome for trial in result.trials] == [TrialOutcome.PASSED] * 2
    assert any(stored.clock_went_back for stored in ledger.entries())
    assert verdict(result).total == 2


def test_a_trial_from_the_future_is_no_evidence_yet(
    run_double: RunDouble, verdict: Callable[[Result], Assessment], ledger: Ledger
) -> None:
    ahead = datetime.now(UTC).replace(microsecond=0) + timedelta(days=3)
    result = run_double(clock=Clock(now=lambda: ahead))
    assert result.trials[0].outcome == TrialOutcome.PASSED
    assert "future-time" in {reason.code for reason in verdict(result).reasons}
    assert not any(stored.clock_went_back for stored in ledger.entries())
