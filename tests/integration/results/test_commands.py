"""The commands over evidence: assess, trial, results, query; on the shipped manifests."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from qualify.cli import main
from qualify.core.clock import format_time
from qualify.core.status import CheckOutcome, TrialOutcome
from qualify.evidence.ledger import Ledger, Reserved, open_ledger
from qualify.evidence.places import trial_folder
from qualify.manifests.catalog import Catalog, load_catalog
from qualify.manifests.configuration import resolve, suite_identity
from qualify.results.database import database_path
from support import evidence
from support.evidence import SettableClock
from support.sites import site

PROJECT = Path(__file__).parents[3]
ROW = "cpu-qwen2.5-coder-1.5b"
SUITE = "acceptance"

type Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return load_catalog(PROJECT, cache_folder=tmp_path_factory.mktemp("cache"))


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    return tmp_path / "results"


@pytest.fixture
def command(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Run the command line; exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        places = ["--project", str(PROJECT), "--results", str(results)]
        monkeypatch.setattr(sys, "argv", ["qualify", *places, *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return int(exit_.value.code), out, err

    return run


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock(datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1))


@pytest.fixture
def ledger(results: Path, clock: SettableClock) -> Ledger:
    return open_ledger(results, clock.clock())


@pytest.fixture
def run_trial(ledger: Ledger, clock: SettableClock, catalog: Catalog) -> Callable[..., Reserved]:
    """A trial of the real row's configuration: clean, unless told otherwise."""
    suite = suite_identity(catalog, SUITE)
    (scenario,) = suite.scenarios

    def run(failing: str | None = None, finish: bool = True, **end: Any) -> Reserved:
        reserved = evidence.reserve(
            ledger,
            row=ROW,
            configuration=resolve(catalog, ROW).digest,
            suite=SUITE,
            suite_digest=suite.digest,
            scenario=scenario.id,
            required_checks=scenario.checks,
        )
        clock.advance(seconds=20)
        checks = dict.fromkeys(scenario.checks, CheckOutcome.PASSED)
        outcome = TrialOutcome.PASSED
        if failing:
            checks[failing], outcome = CheckOutcome.FAILED, TrialOutcome.FAILED
        if finish:
            ledger.finish(
                evidence.trial(reserved.trial, clock.moment, checks=checks, outcome=outcome, **end)
            )
        return reserved

    return run


# ── assess ───────────────────────────────────────────────────────────────────────────────────────


def test_assess_exits_zero_only_when_qualified(
    command: Command, run_trial: Callable[..., Reserved], catalog: Catalog
) -> None:
    code, out, _ = command("assess", ROW, "--suite", SUITE)
    assert (code, out.splitlines()[0]) == (10, f"{ROW} · {SUITE}: untested")
    for _ in range(3):
        run_trial()
    code, out, _ = command("assess", ROW, "--suite", SUITE)
    assert (code, out.splitlines()[0]) == (0, f"{ROW} · {SUITE}: qualified")
    assert "3 of 3 trials in the window passed (95 % interval 29.2 % to 100 %)" in out
    failing = catalog.scenario(suite_identity(catalog, SUITE).scenarios[0].id).checks[0]
    run_trial(failing=failing)
    code, out, _ = command("assess", ROW, "--suite", SUITE)
    assert (code, out.splitlines()[0]) == (10, f"{ROW} · {SUITE}: failed")
    assert "failed-latest-trial" in out
    assert failing in out
    assert "qualify trial show" in out


def test_without_a_suite_all_suites_of_the_row_must_be_qualified(
    command: Command, run_trial: Callable[..., Reserved]
) -> None:
    for _ in range(3):
        run_trial()
    code, out, _ = command("assess", ROW, "--json")
    document = json.loads(out)
    assert code == 10
    assert {a["suite"]: a["status"] for a in document["assessments"]} == {
        "acceptance": "qualified", "repair": "untested",
    }  # fmt: skip
    assert all(a["automatic_promotion_allowed"] is False for a in document["assessments"])


def test_another_time_is_a_what_if_and_never_exits_zero(
    command: Command, run_trial: Callable[..., Reserved], clock: SettableClock
) -> None:
    for _ in range(3):
        run_trial()
    now = format_time(clock.moment + timedelta(minutes=1))
    code, out, _ = command("assess", ROW, "--suite", SUITE, "--at", now)
    assert (code, out.splitlines()[0]) == (
        10, f"{ROW} · {SUITE}: qualified  [what if: not a verdict]",
    )  # fmt: skip
    later = format_time(clock.moment + timedelta(days=40))
    _, out, _ = command("assess", ROW, "--suite", SUITE, "--at", later, "--json")
    assert json.loads(out)["assessments"][0]["status"] == "expired"
    before = format_time(clock.moment - timedelta(seconds=30))
    _, out, _ = command("assess", ROW, "--suite", SUITE, "--at", before, "--json")
    assert json.loads(out)["assessments"][0]["status"] == "incomplete"


def test_naming_the_projects_own_policy_is_no_what_if(
    command: Command, run_trial: Callable[..., Reserved]
) -> None:
    for _ in range(3):
        run_trial()
    assert command("assess", ROW, "--suite", SUITE, "--policy", "release")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("assess", "cpu-qwen2.5-coder-1.5"), f"did you mean '{ROW}'"),
        (("assess", ROW, "--suite", "acceptence"), "did you mean 'acceptance'"),
        (("assess", ROW, "--policy", "releese"), "did you mean 'release'"),
        (("assess", ROW, "--at", "yesterday"), "write 2026-11-30T20:46:58Z"),
        (("query", "pass-rate"), "did you mean 'pass-rates'"),
        (("query", "trials", "--sql", "SELECT 1"), "give one of them"),
        (("query", "trials", "--json", "--format", "csv"), "give one of them"),
        (("query", "trials", "--format", "parquet"), "give --output FILE"),
        (("query", "trials", "--output", "x"), "give --format json, csv or parquet"),
        (("query", "--format", "csv"), "give NAME or --sql"),
        (("query", "--sql", "SELECT 1", "--param", "a=1"), "name the question"),
        (("query", "trials", "--param", "limit"), "is no NAME=VALUE"),
        (("query", "trials", "--param", "limit=1", "--param", "limit=2"), "is given twice"),
        (("query", "trials", "--param", "limmit=1"), "did you mean 'limit'"),
        (("query", "regressions-since"), "give --param digest="),
        (("query", "trials", "--format", "csv", "--output", "/nowhere/x"), "make it first"),
        (("query", "--sql", "DROP TABLE meta"), "may not run"),
        (("trial", "show", "ab"), "at least 6 digits"),
        (("trial", "show", "abcdef123456"), "qualify trial list"),
        (("trial", "purge"), "--older-than"),
    ],
)
def test_what_cannot_be_used_is_one_line_with_a_fix_and_exit_two(
    command: Command, arguments: tuple[str, ...], words: str, results: Path
) -> None:
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert not results.exists()


# ── trials ───────────────────────────────────────────────────────────────────────────────────────


def test_trials_are_listed_newest_first_with_what_runs_and_what_is_incomplete(
    command: Command, run_trial: Callable[..., Reserved], ledger: Ledger
) -> None:
    done, crashed, live = run_trial(), run_trial(finish=False), run_trial(finish=False)
    with ledger.live_lock(live.trial):
        code, out, _ = command("trial", "list", "--json")
    document = json.loads(out)
    assert code == 0
    assert [(t["trial"], t["state"]) for t in document["trials"]] == [
        (live.trial, "running"), (crashed.trial, "incomplete"), (done.trial, "passed"),
    ]  # fmt: skip
    incomplete = document["trials"][1]
    assert incomplete["ended"] == incomplete["reserved"]
    _, out, _ = command("trial", "list", "--state", "passed", "--row", ROW)
    assert out.count(ROW) == 1
    _, out, err = command("trial", "list", "--limit", "1")
    assert out.count(ROW) == 1
    assert "2 more" in err


def test_a_trial_is_shown_whole_by_the_first_digits_of_its_id(
    command: Command, run_trial: Callable[..., Reserved]
) -> None:
    reserved = run_trial()
    digits = reserved.trial.removeprefix("sha256:")[:10]
    code, out, _ = command("trial", "show", digits)
    assert code == 0
    assert reserved.trial in out
    assert "usage.completion_tokens" in out
    assert "timings.completion_tokens_per_s_milli" in out
    _, out, _ = command("trial", "show", digits.upper(), "--json")
    document = json.loads(out)
    assert document["end"]["outcome"] == "passed"
    assert document["reservation"]["row"] == ROW


def test_the_end_of_an_incomplete_trial_is_said_to_be_its_reservation(
    command: Command, run_trial: Callable[..., Reserved]
) -> None:
    _, out, _ = command("trial", "show", run_trial(finish=False).trial)
    assert "no end was recorded: its end is taken to be the time of its reservation" in out


@pytest.fixture
def private(run_trial: Callable[..., Reserved], ledger: Ledger) -> tuple[Reserved, Path]:
    """A trial with a private store: logs, a workspace, a link that leads out, a closed folder."""
    reserved = run_trial()
    site = ledger.site()
    assert site is not None
    folder = trial_folder(site, reserved.trial)
    (folder / "workspace" / "closed").mkdir(parents=True)
    (folder / "worker.log").write_bytes(b"line one\n\x1b[2Jcleared\nlast \xff line\n")
    (folder / "workspace" / "notes.txt").write_text("content")
    outside = folder.parents[3] / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (folder / "workspace" / "link").symlink_to(outside)
    (folder / "workspace" / "closed").chmod(0o500)
    return reserved, folder


def test_logs_show_files_and_ends_of_logs_without_moving_the_terminals_cursor(
    command: Command, private: tuple[Reserved, Path]
) -> None:
    reserved, folder = private
    code, out, _ = command("trial", "logs", reserved.trial)
    assert code == 0
    assert str(folder) in out
    assert "workspace/notes.txt" in out
    assert "line one" in out
    assert "\x1b" not in out
    assert "\\x1b[2Jcleared" in out
    _, out, _ = command("trial", "logs", reserved.trial, "workspace/notes.txt")
    assert out == "content\n"


@pytest.mark.parametrize("path", ["../../../outside/kept", "workspace/link/kept", "/etc/passwd"])
def test_logs_reach_nothing_outside_the_trials_folder(
    command: Command, private: tuple[Reserved, Path], path: str
) -> None:
    code, out, err = command("trial", "logs", private[0].trial, path)
    assert (code, out) == (2, "")
    assert "has no file" in err


def test_purging_removes_the_private_store_and_keeps_record_and_outside(
    command: Command, private: tuple[Reserved, Path], ledger: Ledger
) -> None:
    reserved, folder = private
    before = ledger.path.read_bytes()
    code, out, _ = command("trial", "purge", reserved.trial)
    assert code == 0
    assert out.startswith("purged 1 of 1")
    assert not folder.exists()
    assert (folder.parents[3] / "outside" / "kept").read_text() == "kept"
    assert ledger.path.read_bytes() == before
    code, _, err = command("trial", "logs", reserved.trial)
    assert code == 2
    assert "purged" in err
    _, out, _ = command("trial", "purge", "--older-than", "0", "--json")
    assert json.loads(out)["purged"] == []


def test_a_running_trial_is_not_purged(
    command: Command, private: tuple[Reserved, Path], ledger: Ledger, run_trial: Any
) -> None:
    live = run_trial(finish=False)
    with ledger.live_lock(live.trial):
        code, _, err = command("trial", "purge", live.trial)
        assert (code, "is running" in err) == (2, True)
        _, out, _ = command("trial", "purge", "--older-than", "0", "--json")
    assert json.loads(out)["purged"] == [private[0].trial]


# ── results and queries ──────────────────────────────────────────────────────────────────────────


def test_status_verifies_the_ledger_and_rebuild_makes_the_database(
    command: Command, run_trial: Callable[..., Reserved], results: Path
) -> None:
    run_trial()
    run_trial(finish=False)
    code, out, _ = command("results", "status", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["database"]["state"] == "missing"
    assert {k: document["ledger"][k] for k in ("trials", "finished", "running", "incomplete")} == {
        "trials": 2, "finished": 1, "running": 0, "incomplete": 1,
    }  # fmt: skip
    code, out, _ = command("results", "rebuild", "--json")
    assert (code, json.loads(out)["entries"]) == (0, 4)
    _, out, _ = command("results", "status")
    assert "database   current, 4 entries" in out
    assert "intact: 4 entries" in out
    assert database_path(results).exists()


def test_status_says_what_is_wrong_with_the_database_and_exits_ten(
    command: Command, run_trial: Callable[..., Reserved], results: Path
) -> None:
    run_trial()
    database_path(results).write_bytes(b"garbage")
    code, out, _ = command("results", "status")
    assert code == 10
    assert "qualify results rebuild" in out
    code, _, err = command("query", "trials")
    assert code == 1
    assert "qualify results rebuild" in err
    assert command("results", "rebuild")[0] == 0
    assert command("query", "trials")[0] == 0


def test_a_damaged_ledger_is_told_with_file_and_line_by_every_command(
    command: Command, run_trial: Callable[..., Reserved], ledger: Ledger
) -> None:
    run_trial()
    raw = ledger.path.read_bytes()
    ledger.path.write_bytes(raw.replace(b'"outcome":"passed"', b'"outcome":"failed"', 1))
    for arguments in (
        ("results", "status"), ("results", "rebuild"), ("assess", ROW), ("trial", "list"),
        ("query", "trials"),
    ):  # fmt: skip
        code, out, err = command(*arguments)
        assert (code, out) == (10, ""), arguments
        assert f"{ledger.path}:3: " in err
        assert err.count("\n") == 1


def test_queries_are_listed_and_answered_as_text_and_json(
    command: Command, run_trial: Callable[..., Reserved]
) -> None:
    run_trial()
    code, out, _ = command("query", "--json")
    names = [query["name"] for query in json.loads(out)["queries"]]
    assert code == 0
    assert {"trials", "pass-rates", "imported", "speed"} <= set(names)
    _, out, _ = command("query", "pass-rates", "--json")
    (row,) = json.loads(out)["rows"]
    assert (row["row"], row["passed"], row["total"]) == (ROW, 1, 1)
    _, out, _ = command("query", "imported", "--json")
    assert len(json.loads(out)["rows"]) > 5


def test_the_list_tells_each_questions_parameters(command: Command) -> None:
    _, out, _ = command("query", "--json")
    known = {query["name"]: query["parameters"] for query in json.loads(out)["queries"]}
    assert known["regressions-since"][0]["default"] is None
    assert {p["name"]: p["default"] for p in known["trials"]} == {"row": "*", "limit": "1000"}
    _, out, _ = command("query")
    assert "row=* limit=1000" in out


def test_a_cut_answer_says_that_there_is_more(
    command: Command, run_trial: Callable[..., Reserved]
) -> None:
    for _ in range(3):
        run_trial()
    for form in ((), ("--json",), ("--format", "csv")):
        _, out, err = command("query", "trials", "--param", "limit=2", *form)
        assert "2 lines; there are more" in err
        assert out.count(ROW) == 2
    _, _, err = command("query", "trials", "--param", "limit=3")
    assert err == ""


def test_csv_is_a_header_and_lines_with_the_times_of_every_other_answer(
    command: Command, run_trial: Callable[..., Reserved], results: Path
) -> None:
    run_trial()
    code, out, _ = command("query", "trials", "--format", "csv")
    _, document, _ = command("query", "trials", "--json")
    (row,) = json.loads(document)["rows"]
    (line,) = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert list(line) == list(row)
    assert (line["row"], line["reserved"], line["trial"]) == (ROW, row["reserved"], row["trial"])
    target = results.parent / "out.csv"
    assert command("query", "trials", "--format", "csv", "--output", str(target))[0] == 0
    assert target.read_text() == out


def test_csv_keeps_commas_quotes_and_the_unknown_apart(command: Command) -> None:
    sql = """SELECT 'a,"b"' AS text, '' AS empty, NULL AS nothing"""
    _, out, _ = command("query", "--sql", sql, "--format", "csv")
    assert out.splitlines() == ["text,empty,nothing", '"a,""b""","",']


def test_an_export_has_the_lines_in_their_order_and_whole_numbers_stay_whole(
    command: Command, run_trial: Callable[..., Reserved], results: Path
) -> None:
    run_trial()
    target = results.parent / "out.parquet"
    sql = (
        "SELECT range AS n, range + 123456789::HUGEINT * 1000000000000000000 AS large, "
        "[range] AS l FROM range(300000) ORDER BY n DESC -- newest"
    )
    code, out, err = command("query", "--sql", sql, "--format", "parquet", "--output", str(target))
    assert (code, out, err) == (0, "", "")
    with duckdb.connect() as connection:
        found = connection.execute("FROM read_parquet(?)", [str(target)]).fetchall()
    assert [n for n, *_ in found] == list(range(299_999, -1, -1))
    assert found[1] == (299_998, 123456789 * 10**18 + 299_998, [299_998])


def test_an_export_never_replaces_a_file_and_leaves_nothing_half_written(
    command: Command, run_trial: Callable[..., Reserved], results: Path
) -> None:
    run_trial()
    folder = results.parent / "out"
    folder.mkdir()
    target = folder / "kept"
    target.write_text("kept")
    (folder / "link").symlink_to(folder / "nowhere")
    for name in ("kept", "link"):
        for form in ("json", "csv", "parquet"):
            place = str(folder / name)
            code, out, err = command("query", "trials", "--format", form, "--output", place)
            assert (code, out) == (2, "")
            assert "is there already" in err
    assert target.read_text() == "kept"
    bad = ("query", "--sql", "SELECT 1 FROM nothing", "--format", "csv")
    assert command(*bad, "--output", str(folder / "new"))[0] == 2
    assert command("query", "--sql", "EXPLAIN SELECT 1", "--format", "csv")[0] == 2
    assert sorted(path.name for path in folder.iterdir()) == ["kept", "link"]


def test_what_exports_reaches_no_more_than_what_answers(
    command: Command, results: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("planted-secret\n")
    for sql in (
        f"SELECT * FROM read_csv('{secret}')",
        f"SELECT 1) TO '{secret}'; SELECT (2",
        "SELECT 1); ATTACH 'x.duckdb'; SELECT (2",
    ):
        code, out, err = command("query", "--sql", sql, "--format", "csv")
        assert (code, out) == (2, "")
        assert "planted" not in err


def test_sql_from_stdin(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    question = io.TextIOWrapper(io.BytesIO(b"SELECT 41 + 1 AS answer"))
    monkeypatch.setattr(sys, "stdin", question)
    code, out, _ = command("query", "--sql", "-", "--json")
    assert (code, json.loads(out)["rows"]) == (0, [{"answer": 42}])


def test_ledgers_of_other_sites_are_merged_and_change_no_verdict(
    command: Command, run_trial: Callable[..., Reserved], tmp_path: Path, results: Path
) -> None:
    for _ in range(3):
        run_trial()
    verdict = command("assess", ROW, "--suite", SUITE, "--json")
    there = site(tmp_path / "there", 2)
    (there.folder / "site.json").write_text('{"label": "lab\\u001b[2J"}')
    code, out, err = command("results", "merge", str(tmp_path / "there"))
    assert (code, err) == (0, "")
    assert out == f"site {str(there.site())[:12]} (lab\\x1b[2J): added, 5 entries, 5 new\n"
    again = command("assess", ROW, "--suite", SUITE, "--json")
    told, before = json.loads(again[1]), json.loads(verdict[1])
    for document in (told, before):
        document["assessments"][0].pop("assessed", None)
    assert again[0] == verdict[0] == 0
    assert told["assessments"][0]["status"] == before["assessments"][0]["status"] == "qualified"
    _, out, _ = command("results", "status", "--json")
    assert json.loads(out)["database"]["state"] == "current"
    _, out, _ = command("query", "sites", "--json")
    assert [row["finished"] for row in json.loads(out)["rows"]] == [3, 2]


def test_what_cannot_be_merged_is_told_and_the_others_come_in(
    command: Command, tmp_path: Path
) -> None:
    good, bad = site(tmp_path / "good"), site(tmp_path / "bad")
    raw = bad.path.read_bytes()
    bad.path.write_bytes(raw.replace(b'"outcome":"passed"', b'"outcome":"failed"', 1))
    folders = [str(tmp_path / name) for name in ("nothing", "bad", "good")]
    code, out, err = command("results", "merge", *folders, "--json")
    document = json.loads(out)
    assert code == 10
    assert [each["site"] for each in document["merged"]] == [good.site()]
    assert len(document["refused"]) == 2
    assert f"{bad.path}:3: " in err
    assert "holds no ledger" in err


def test_evidence_is_exported_as_parquet(
    command: Command, run_trial: Callable[..., Reserved], tmp_path: Path
) -> None:
    run_trial()
    target = tmp_path / "out"
    code, out, _ = command("results", "export", "--to", str(target), "--json")
    document = json.loads(out)
    assert code == 0
    assert document["files"] == len(list(target.rglob("*.parquet")))
    assert command("results", "export", "--to", str(target))[0] == 2
    assert command("results", "export", "--to", str(tmp_path / "x"), "--site", "abcdef")[0] == 2


def test_asking_writes_nothing(
    command: Command, run_trial: Callable[..., Reserved], results: Path
) -> None:
    run_trial()
    before = sorted(results.rglob("*"))
    for arguments in (
        ("query", "trials"),
        ("assess", ROW),
        ("trial", "list"),
        ("results", "status"),
    ):
        command(*arguments)
    assert sorted(results.rglob("*")) == before


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_question_that_takes_for_ever_can_be_interrupted(
    results: Path, sent: signal.Signals, code: int
) -> None:
    sql = "SELECT sum(a.range * b.range) FROM range(100000000) a, range(100000000) b"
    watched = "import duckdb, sys; duckdb.connect; print('ready', flush=True); "
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            watched + "from qualify.cli import main; main()",
            *("--results", str(results), "--project", str(PROJECT), "query", "--sql", sql),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            wait_until_busy(child)
            child.send_signal(sent)
            _, err = child.communicate(timeout=60)
        finally:
            child.kill()
    assert child.returncode == code
    assert "Traceback" not in err


def wait_until_busy(child: subprocess.Popen[str]) -> None:
    """Until the process has used three seconds of processor time: more than its start takes."""
    ticks = os.sysconf("SC_CLK_TCK")
    while child.poll() is None:
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        if (int(fields[11]) + int(fields[12])) / ticks > 3:
            return
        time.sleep(0.05)
