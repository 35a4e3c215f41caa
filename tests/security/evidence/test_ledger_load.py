"""Many writers on one ledger: one unbroken chain, nothing acknowledged is lost, whoever dies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from qualify.evidence.ledger import Ledger

TESTS = Path(__file__).parents[2]
APPEND = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[4])
from support import evidence
from qualify.evidence.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]), segment_bytes=int(sys.argv[3]))
entry = evidence.refusal()
for _ in range(int(sys.argv[2])):
    # Acknowledged: what is printed after an append has returned.
    os.write(1, b"%d\\n" % ledger.append(entry).seq)
"""
PROCESSES = 8


def writers(folder: Path, each: int, segment_bytes: int) -> list[subprocess.Popen[bytes]]:
    arguments = [str(folder), str(each), str(segment_bytes), str(TESTS)]
    return [
        subprocess.Popen([sys.executable, "-c", APPEND, *arguments], stdout=subprocess.PIPE)
        for _ in range(PROCESSES)
    ]


def acknowledged(writer: subprocess.Popen[bytes]) -> list[int]:
    said = writer.communicate()[0].splitlines(keepends=True)
    return [int(line) for line in said if line.endswith(b"\n")]


@pytest.mark.parametrize("each", [1000, pytest.param(10_000, marks=pytest.mark.full)])
@pytest.mark.timeout(900)
def test_eight_processes_leave_one_unbroken_chain(
    each: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    given = [acknowledged(w) for w in writers(tmp_path / "ledger", each, 1 << 20)]
    assert [len(found) for found in given] == [each] * PROCESSES
    assert sorted(seq for found in given for seq in found) == list(range(1, PROCESSES * each + 1))
    ledger = Ledger(tmp_path / "ledger")
    assert ledger.verify().count == PROCESSES * each + 1
    assert sum(1 for _ in ledger.entries()) == PROCESSES * each + 1


@pytest.mark.timeout(300)
def test_writers_killed_in_turn_lose_nothing_that_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    running = writers(tmp_path / "ledger", 1_000_000, 64 << 10)
    given: list[int] = []
    for writer in running:
        # Each is at work when it dies.
        assert writer.stdout is not None
        heard = [writer.stdout.readline() for _ in range(150)]
        writer.kill()
        given += [int(line) for line in heard] + acknowledged(writer)
    ledger = Ledger(tmp_path / "ledger")
    count = ledger.verify().count
    assert len(given) == len(set(given))
    assert max(given) < count
    # Each writer may have died between an entry and its word: no more than one for each.
    assert count - 1 - len(given) <= PROCESSES
    assert sum(1 for _ in ledger.entries()) == count
