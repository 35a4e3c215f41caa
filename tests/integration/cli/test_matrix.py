"""`qualify matrix` on real ledgers: what is shown, how it is filtered, and how it looks."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from qualify.cli import main
from qualify.core.digests import digest_bytes
from qualify.core.status import CheckOutcome, EvidenceClass, TrialOutcome
from qualify.evidence.ledger import Ledger, open_ledger
from qualify.manifests.catalog import load_catalog
from qualify.manifests.configuration import resolve, suite_identity
from support.evidence import SettableClock, trial
from support.projects import SOUND, edited, write_project

ROW = "manifests/matrix/one.yaml"
PASSED = {"direct-inference": CheckOutcome.PASSED, "expected-bytes": CheckOutcome.PASSED}
FAILED = {"direct-inference": CheckOutcome.PASSED, "expected-bytes": CheckOutcome.FAILED}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("QUALIFY_RESULTS", raising=False)
    monkeypatch.delenv("QUALIFY_PROJECT", raising=False)
    folder = write_project(
        tmp_path / "p",
        {
            "manifests/matrix/two.yaml": SOUND[ROW]
            .replace("id: one", "id: two")
            .replace("4096", "2048")
            .replace("platform: here", "platform: there")
            .partition("imported:")[0],
            "manifests/platforms/there.yaml": "id: there\nprovider: them\narchitecture: x86_64\n",
        },
    )
    monkeypatch.chdir(folder)
    return folder


class Output:
    """Runs the command line in this process and keeps what it printed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys
        self.err = ""

    def text(self, *arguments: str, code: int = 0) -> str:
        self._monkeypatch.setattr(sys, "argv", ["qualify", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, self.err = self._capsys.readouterr()
        assert ended.value.code == code, self.err
        return out

    def json(self, *arguments: str) -> Any:
        return json.loads(self.text(*arguments, "--json"))


@pytest.fixture
def qualify(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Output:
    return Output(monkeypatch, capsys)


def run_trials(project: Path, row: str, *outcomes: dict[str, CheckOutcome] | None) -> Ledger:
    """Real ledger entries for trials that ended now; `None` leaves one unfinished."""
    catalog = load_catalog(project)
    configuration, suite = resolve(catalog, row), suite_identity(catalog, "acceptance")
    clock = SettableClock(datetime.now(UTC) - timedelta(seconds=40))
    ledger = open_ledger(project / "results", clock.clock())
    for checks in outcomes:
        reserved = ledger.reserve(
            row=row,
            configuration=configuration.digest,
            suite=suite.id,
            suite_digest=suite.digest,
            scenario="edit",
            evidence_class=EvidenceClass.REAL_MODEL,
            experimental=False,
            required_checks=("direct-inference", "expected-bytes"),
            derive_seed=lambda ordinal: digest_bytes(str(ordinal).encode()),
        )
        clock.advance(seconds=5)
        if checks is not None:
            passed = CheckOutcome.FAILED not in checks.values()
            outcome = TrialOutcome.PASSED if passed else TrialOutcome.FAILED
            usage = {"actions_proposed": 1, "actions_rejected": 0}
            ledger.finish(
                trial(reserved.trial, clock.moment, outcome=outcome, checks=checks, usage=usage)
            )
    return ledger


def by_row(document: Any) -> dict[str, Any]:
    return {line["row"]: line for line in document["lines"]}


def test_without_trials_every_row_is_untested_and_declared_outcomes_stand_apart(
    project: Path, qualify: Output
) -> None:
    document = qualify.json("matrix")
    lines = by_row(document)
    assert set(lines) == {"one", "two", "double"}
    assert {line["status"] for line in lines.values()} == {"untested"}
    assert lines["one"]["declared"]["outcome"] == "unsupported"
    assert lines["two"]["declared"] is None
    assert lines["one"]["reasons"][0]["code"] == "no-trials"
    assert document["automatic_promotion_allowed"] is False
    assert document["counts"] == {"untested": 3}
    assert not (project / "results").exists()


def test_three_passing_trials_qualify_and_a_failed_latest_one_takes_it_away(
    project: Path, qualify: Output
) -> None:
    run_trials(project, "one", PASSED, PASSED, PASSED)
    line = by_row(qualify.json("matrix"))["one"]
    assert (line["status"], line["passed"], line["total"]) == ("qualified", 3, 3)
    assert (line["interval_low_per_mille"], line["interval_high_per_mille"]) == (292, 1000)
    assert "qualified (acceptance)  3/3 (29.2–100 %)" in qualify.text("matrix")
    run_trials(project, "one", FAILED)
    line = by_row(qualify.json("matrix"))["one"]
    assert (line["status"], line["passed"], line["total"]) == ("failed", 3, 4)
    text = qualify.text("matrix")
    assert "failed (acceptance)" in text
    assert "failed-latest-trial: expected-bytes" in text
    assert by_row(qualify.json("matrix"))["two"]["status"] == "untested"


def test_a_changed_configuration_inherits_no_evidence(project: Path, qualify: Output) -> None:
    run_trials(project, "one", PASSED, PASSED, PASSED)
    path = project / ROW
    path.write_text(SOUND[ROW].replace("4096", "1024"))
    line = by_row(qualify.json("matrix"))["one"]
    assert line["status"] == "untested"
    assert "changed-configuration" in [reason["code"] for reason in line["reasons"]]
    path.write_text("# a comment\n" + SOUND[ROW])
    assert by_row(qualify.json("matrix"))["one"]["status"] == "qualified"


def test_a_running_trial_is_not_an_incomplete_one(project: Path, qualify: Output) -> None:
    ledger = run_trials(project, "one", None)
    (only,) = [entry.digest for entry in ledger.entries() if entry.entry.kind == "reservation"]
    with ledger.live_lock(only):
        reasons = by_row(qualify.json("matrix"))["one"]["reasons"]
        assert "running" in [reason["code"] for reason in reasons]
        assert qualify.json("matrix", "show", "one")["trials"][0]["running"] is True
    line = by_row(qualify.json("matrix"))["one"]
    assert line["status"] == "incomplete"


def test_filters_and_order(project: Path, qualify: Output) -> None:
    run_trials(project, "two", PASSED, PASSED, PASSED)
    assert list(by_row(qualify.json("matrix", "--platform", "there"))) == ["two"]
    assert list(by_row(qualify.json("matrix", "--model", "small"))) == ["one", "two"]
    assert list(by_row(qualify.json("matrix", "--status", "qualified"))) == ["two"]
    both = qualify.json("matrix", "--status", "qualified", "--status", "untested")
    assert len(both["lines"]) == 3
    assert next(iter(by_row(qualify.json("matrix", "--sort", "status")))) == "two"
    assert list(by_row(qualify.json("matrix"))) == ["double", "one", "two"]
    assert qualify.text("matrix", "--status", "failed") == ""
    assert qualify.err == "no row matches\n"
    qualify.text("matrix", "--platform", "ther", code=2)
    assert "there is no platform 'ther' (did you mean 'there'?)" in qualify.err
    qualify.text("matrix", "--status", "good", code=2)


def test_show_gives_everything_bound_the_digest_and_the_speed_of_trials(
    project: Path, qualify: Output
) -> None:
    run_trials(project, "one", PASSED, FAILED)
    document = qualify.json("matrix", "show", "one")
    configuration = resolve(load_catalog(project), "one")
    assert document["configuration"] == configuration.digest
    assert document["bound"] == configuration.bound
    assert [trial["outcome"] for trial in document["trials"]] == ["failed", "passed"]
    timings = document["trials"][0]["timings"]
    assert timings["completion_tokens_per_s_milli"] == 21_500
    text = qualify.text("matrix", "show", "one")
    assert configuration.digest in text
    assert "model.files[0].sha256" in text
    assert '"Be brief.\\n"' in text
    for words in ("21.5/s", "0.30 s", "1.90 s", "unsupported 2026-07-21  it was too slow"):
        assert words in text
    qualify.text("matrix", "show", "oen", code=2)
    assert "there is no row 'oen' (did you mean 'one'?)" in qualify.err


def test_diff_says_why_two_digests_differ(project: Path, qualify: Output) -> None:
    document = qualify.json("matrix", "diff", "one", "two")
    assert [each["path"] for each in document["differences"]] == [
        "platform.provider",
        "platform.cpu_features[0]",
        "platform.cpu_features[1]",
        "row.context_tokens",
    ]
    text = qualify.text("matrix", "diff", "one", "two")
    assert "row.context_tokens\n  - 4096\n  + 2048\n" in text
    assert "every bound input is equal" in qualify.text("matrix", "diff", "one", "one")


def test_a_damaged_ledger_is_told_with_file_and_line_and_exit_10(
    project: Path, qualify: Output
) -> None:
    run_trials(project, "one", PASSED)
    log = project / "results/ledger/ledger.log"
    log.write_bytes(log.read_bytes().replace(b'"ordinal":0', b'"ordinal":1'))
    qualify.text("matrix", code=10)
    assert "ledger.log:2" in qualify.err


def test_hostile_text_in_a_manifest_cannot_move_the_cursor(project: Path, qualify: Output) -> None:
    reason = r'"[red]\x1b[2J\u202e{x}[/]\nsecond"'
    (project / ROW).write_text(edited(ROW, "it was too slow", reason)[ROW])
    out = qualify.text("matrix") + qualify.text("matrix", "show", "one")
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "[red]" in out


def on_terminal(columns: int, *arguments: str) -> list[str]:
    """Lines that a terminal of that width shows, colours taken out."""
    terminal, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "qualify", *arguments]
    data = b""
    with subprocess.Popen(command, stdout=inside, stdin=inside, env=environment) as process:
        os.close(inside)
        while True:
            try:
                block = os.read(terminal, 65536)
            except OSError:  # Linux says so when the last writer has gone
                break
            if not block:
                break
            data += block
    os.close(terminal)
    assert process.returncode == 0, data
    return re.sub(r"\x1b\[[0-9;]*m", "", data.decode()).splitlines()


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_on_a_terminal_no_line_is_wider_than_it_and_names_stay_whole(
    project: Path, columns: int
) -> None:
    run_trials(project, "one", PASSED, PASSED, FAILED)
    lines = on_terminal(columns, "matrix")
    shown = "\n".join(lines)
    assert all(len(line) <= columns for line in lines if not line.startswith("3 rows"))
    for name in ("one", "double", "script nod", "failed (acceptance)", "2/3 (9.4–99.2 %)"):
        assert name in shown
    assert lines[-1].startswith("3 rows; by row and suite: 1 failed, 2 untested. Policy release")


def test_a_wide_terminal_gets_a_table_and_a_narrow_one_blocks(project: Path) -> None:
    assert on_terminal(200, "matrix")[0].split() == [
        "ROW", "PLATFORM", "MODEL", "TOOLS", "DECLARED", "STATUS", "PASSED", "REASONS"
    ]  # fmt: skip
    narrow = on_terminal(70, "matrix")
    assert narrow[0] == "double"
    assert narrow[1].strip() == "here · script nod · native"
