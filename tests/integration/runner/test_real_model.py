"""Real models from the packages that carry them, through the real server and the real agent SDK."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qualify.core.status import CheckOutcome, EvidenceClass
from qualify.evidence.ledger import open_ledger
from qualify.evidence.records import Reservation, Trial

ROOT = Path(__file__).parents[3]


def _run(row: str, place: Path) -> tuple[int, dict[str, Any], list[Any]]:
    """`qualify run ROW --trials 1 --json` as a user starts it: exit code, document, entries."""
    results = place / "results"
    done = subprocess.run(
        [sys.executable, "-m", "qualify", "--results", str(results), "run", row,
         "--trials", "1", "--json"],
        cwd=ROOT, env={**os.environ, "XDG_STATE_HOME": str(place / "state")},
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode in (0, 10), done.stderr
    return (
        done.returncode,
        json.loads(done.stdout),
        [s.entry for s in open_ledger(results).entries()],
    )


@pytest.mark.real_model
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_small_coding_model_is_run_and_every_check_has_an_answer(tmp_path: Path) -> None:
    code, document, entries = _run("cpu-qwen2.5-coder-1.5b", tmp_path)
    assert code == 10, "one trial is too few to qualify"
    (trial,) = [e for e in entries if isinstance(e, Trial)]
    (reservation,) = [e for e in entries if isinstance(e, Reservation)]
    assert reservation.evidence_class is EvidenceClass.REAL_MODEL
    outcomes = {check.check: check.outcome for check in trial.checks}
    assert CheckOutcome.UNKNOWN not in outcomes.values()
    for certain in ("direct-inference", "structured-action", "tool-mode", "approved-once",
                    "replay", "audit-export", "no-planted-secret", "identity"):  # fmt: skip
        assert outcomes[certain] is CheckOutcome.PASSED, certain
    assert trial.model is not None
    assert trial.model.files is not None
    assert trial.engine.context_tokens_per_slot == 16384
    assert trial.engine.chat_template is not None
    assert trial.agent.temperature_milli_observed == 0
    timings = trial.timings
    for known in (timings.completion_tokens_per_s_milli, timings.first_token_ms_median,
                  timings.engine_start_ms, timings.worker_start_ms):  # fmt: skip
        assert known
    assert "too-few-trials" in {reason["code"] for reason in document["assessment"]["reasons"]}


@pytest.mark.real_model
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_model_that_is_too_small_fails_honestly(tmp_path: Path) -> None:
    code, document, entries = _run("cpu-smollm2-135m", tmp_path)
    assert code == 10
    (trial,) = [e for e in entries if isinstance(e, Trial)]
    assert trial.outcome == "failed"
    assert document["status"] == "failed"
    assert {c.check for c in trial.checks if c.outcome is CheckOutcome.FAILED}
