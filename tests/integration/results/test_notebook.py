"""The notebook for analysts runs from its first cell to its last, and changes nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.sites import site

NOTEBOOK = Path(__file__).parents[3] / "notebooks" / "results.py"


def test_the_notebook_runs_as_a_script_and_tells_what_the_ledger_holds(tmp_path: Path) -> None:
    there = site(tmp_path / "results", 3)
    before = sorted(path for path in (tmp_path / "results").rglob("*"))
    ran = subprocess.run(
        [sys.executable, str(NOTEBOOK), "--results", str(tmp_path / "results")],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert f"id={there.site()}, entries=7, finished=3" in ran.stdout
    assert "passed=3, total=3" in ran.stdout
    assert "state=passed, trials=3" in ran.stdout
    assert sorted(path for path in (tmp_path / "results").rglob("*")) == before


def test_the_notebook_has_no_fault_that_marimo_knows() -> None:
    words = [sys.executable, "-m", "marimo", "check", "--strict", str(NOTEBOOK)]
    ran = subprocess.run(words, check=False, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
