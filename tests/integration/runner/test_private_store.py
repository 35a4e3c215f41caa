"""What a trial leaves beside its record: readable by its owner, and gone when it is purged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner

from qualify.cli import cli
from qualify.evidence.ledger import Ledger
from qualify.runner.run import Result


def _qualify(places: Path, *words: str) -> str:
    done = CliRunner().invoke(cli, ["--results", str(places), *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_logs_of_a_trial_hold_those_of_its_engine_and_its_worker(
    run: Callable[..., Result], places: Path
) -> None:
    (trial,) = run("scripted-passes").trials
    listing = _qualify(places, "trial", "logs", trial.trial)
    assert "run/worker.log" in listing
    assert "journal.log" in listing
    assert "workspace/settings.ini" in listing


def test_a_purged_trial_leaves_its_record_and_nothing_private(
    run: Callable[..., Result], places: Path, ledger: Ledger
) -> None:
    first, second = run("scripted-passes", trials=2).trials
    state = places.parent / "state"
    _qualify(places, "trial", "purge", first.trial)
    assert any(state.glob("qualify/*/runs/*")), "the run's logs still belong to the second trial"
    _qualify(places, "trial", "purge", second.trial)
    assert not any(state.glob("qualify/*/runs/*"))
    assert not any(state.glob("qualify/*/trials/*"))
    assert sum(1 for _ in ledger.entries()) == 5


def test_private_folders_are_closed_to_others(run: Callable[..., Result], places: Path) -> None:
    run("scripted-passes")
    for folder in (places.parent / "state").glob("qualify/*/*/*"):
        assert folder.stat().st_mode & 0o077 == 0
