"""A verdict that nobody has read is no pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def _exit_code(*, close: bool) -> int:
    process = subprocess.Popen(
        [sys.executable, "-m", "qualify", "matrix", "--json"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    if close:
        process.stdout.close()
    else:
        process.stdout.read()
    told = process.stderr.read()
    assert told == b""
    return process.wait(60)


def test_a_reader_that_went_away_is_told_apart_from_success() -> None:
    assert _exit_code(close=True) == 141
    assert _exit_code(close=False) == 0
