"""Runs go on while another program holds the database, and nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qualify.evidence.ledger import open_ledger
from qualify.evidence.records import Trial
from qualify.results.database import database_path
from support import commands
from support.commands import Ended

ROW = "scripted-passes"
HOLD = """
import duckdb, sys
connection = duckdb.connect(sys.argv[1])
connection.execute("CREATE TABLE theirs (a INTEGER)")
print("open", flush=True)
sys.stdin.read()
"""

type Qualify = Callable[..., Ended]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


@pytest.fixture
def qualify(results: Path, tmp_path: Path) -> Qualify:
    """The whole command line; runs use a worker that is forked from this process."""
    from qualify.sessions.construction import preload

    preload()
    places = {"QUALIFY_RESULTS": str(results), "XDG_STATE_HOME": str(tmp_path / "state")}
    project = str(Path(__file__).parents[3])

    def run(*arguments: str) -> Ended:
        options = {"folder": tmp_path / "said", "cwd": tmp_path, "environment": places}
        return commands.run("--project", project, *arguments, **options)

    return run


@pytest.fixture
def holder(results: Path, qualify: Qualify) -> Iterator[subprocess.Popen[bytes]]:
    """Another program that has the database open for writing."""
    assert qualify("results", "rebuild").code == 0
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(database_path(results))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n"
        yield child
        child.kill()


def passed(ended: Ended) -> int:
    return sum(row["passed"] for row in json.loads(ended.out)["rows"])


@pytest.mark.timeout(300)
def test_three_runs_finish_while_another_program_holds_the_database(
    holder: subprocess.Popen[bytes], qualify: Qualify, results: Path
) -> None:
    program = f"{Path(sys.executable).resolve().name} (process {holder.pid})"
    for number in (1, 2, 3):
        ran = qualify("run", ROW, "--trials", "1", "--json")
        assert ran.code == 10, "a scripted double qualifies nothing"
        (line,) = [each for each in ran.err.splitlines() if "not updated" in each]
        assert f"{database_path(results)}: is in use by {program}" in line
        assert "the evidence is safe" in line
        asked = qualify("query", "pass-rates", "--json")
        assert (asked.code, passed(asked)) == (0, number)
        assert f"is in use by {program}" in asked.err
    assert sum(isinstance(each.entry, Trial) for each in open_ledger(results).entries()) == 3
    told = json.loads(qualify("results", "status", "--json").out)["database"]
    assert (told["state"], str(holder.pid) in told["error"]) == ("locked", True)

    assert holder.stdin is not None
    holder.stdin.close()
    holder.wait()
    told = json.loads(qualify("results", "status", "--json").out)["database"]
    assert (told["state"], told["entries"]) == ("behind", 0)
    assert "not updated" not in qualify("run", ROW, "--trials", "1").err
    told = json.loads(qualify("results", "status", "--json").out)["database"]
    assert (told["state"], told["entries"]) == ("current", 9)
    asked = qualify("query", "pass-rates", "--json")
    assert (passed(asked), asked.err) == (4, "")
