"""What a hostile or unlucky user does to `qualify run` and its neighbours, and what they then hear.

One clear error or one recorded outcome, never a traceback; the ledger stays readable.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qualify.core.errors import EnvironmentFault
from qualify.evidence.ledger import Ledger, open_ledger
from qualify.evidence.records import Refusal, Reservation, StartFailure, Trial
from qualify.manifests.catalog import load_catalog
from qualify.runner.preconditions import require_unchanged
from support.commands import Ended, nobody_left
from support.scripted_project import ROOT, replies, row, script

type Qualify = Callable[..., Ended]
type Project = Callable[..., Path]


def kinds(ledger: Ledger) -> list[type]:
    """Types of the entries after the genesis; reading verifies the whole ledger."""
    return [type(stored.entry) for stored in ledger.entries()][1:]


def is_one_error(ended: Ended, code: int) -> bool:
    """Whether a command ended with `code` and one line that says why."""
    lines = ended.err.strip().splitlines()
    return (
        ended.code == code
        and sum(line.startswith("error: ") for line in lines) == 1
        and "Traceback" not in ended.err
        and "internal error" not in ended.err
    )


# ── what does not exist, or is for another machine ───────────────────────────────────────────────

UNKNOWN = [
    (("run", "scripted-pases"), "did you mean 'scripted-passes'"),
    (("run", "scripted-passes", "--suite", "aceptance"), "did you mean 'acceptance'"),
    (("run", "scripted-passes", "--json", "--suite", "no such suite"), "there is no suite"),
    (("run", "scr\udcffipted"), "there is no row"),
    (("plan", "scripted-pases"), "did you mean 'scripted-passes'"),
    (("plan", "scripted-passes", "--suite", "aceptance"), "did you mean 'acceptance'"),
    (("assess", "scripted-pases"), "did you mean 'scripted-passes'"),
    (("assess", "scripted-passes", "--suite", "aceptance"), "did you mean 'acceptance'"),
    (("assess", "scripted-passes", "--policy", "relese"), "did you mean 'release'"),
    (("assess", "scripted-passes", "--at", "yesterday"), "--at"),
    (("matrix", "show", "scripted-pases"), "did you mean 'scripted-passes'"),
    (("matrix", "--platform", "cpu-x86-64"), "did you mean 'cpu-x86_64'"),
    (("doctor", "scripted-pases"), "did you mean 'scripted-passes'"),
    (("query", "trails"), "did you mean 'trials'"),
    (("query", "--sql", "select '\udcff'"), "UTF-8"),
    (("trial", "show", "123456"), "not the id of a trial"),
    (("--results", "~nobody-of-this-name/results", "results", "status"), "user that is not known"),
    (("run", "terra-4xt4-gpt-oss-20b"), "nothing was recorded"),
]


@pytest.mark.parametrize(("arguments", "hint"), UNKNOWN, ids=lambda v: " ".join(v)[:40])
def test_what_does_not_exist_is_named_with_its_nearest_neighbour_and_nothing_is_written(
    arguments: tuple[str, ...], hint: str, qualify: Qualify, places: Path
) -> None:
    ended = qualify(*arguments, cwd=ROOT)
    assert is_one_error(ended, 2), ended
    assert hint in ended.err
    assert ended.out == ""
    assert not places.exists()


def test_the_same_command_with_the_right_name_runs_and_writes(
    qualify: Qualify, places: Path, ledger: Ledger
) -> None:
    ended = qualify("run", "scripted-passes", "--suite", "acceptance", "--trials", "1", cwd=ROOT)
    assert ended.code == 10
    assert kinds(ledger) == [Reservation, Trial]


@pytest.mark.parametrize("trials", ["0", "1001", "many", "-1"])
def test_a_number_of_trials_that_makes_no_sense_is_refused(
    trials: str, qualify: Qualify, places: Path
) -> None:
    ended = qualify("run", "scripted-passes", "--trials", trials, cwd=ROOT)
    assert (ended.code, places.exists()) == (2, False)


def test_a_row_that_contradicts_itself_is_refused_and_the_refusal_recorded(
    project: Project, qualify: Qualify, ledger: Ledger
) -> None:
    place = project()
    (place / "manifests" / "matrix" / "hearsay.yaml").write_text(
        row("hearsay", played="played", runtime="vllm-0.25.1-cu129", script=None,
            model="gpt-oss-20b", precision="mxfp4", agent="openhands-native-declared",
            startup_budget_s=None)
    )  # fmt: skip
    ended = qualify("run", "hearsay", "--json", cwd=place)
    assert ended.code == 10
    assert "accelerator-needed" in {reason["code"] for reason in ended.document["refused"]}
    assert ended.document["status"] == "unsupported"
    assert kinds(ledger) == [Refusal]
    sound = qualify("run", "double", "--trials", "1", "--json", cwd=place)
    assert sound.document["refused"] == []


def test_a_row_that_is_only_known_from_elsewhere_is_told_so_and_nothing_is_recorded(
    project: Project, qualify: Qualify, places: Path
) -> None:
    place = project(agent="openhands-native-declared")
    assert qualify("plan", "double", cwd=place).code == 10
    ended = qualify("run", "double", cwd=place)
    assert is_one_error(ended, 2), ended
    assert "has no lock" in ended.err
    assert not places.exists()


def test_a_model_without_a_chat_template_is_unsupported(qualify: Qualify, ledger: Ledger) -> None:
    plan = qualify("plan", "cpu-gemma-3-270m", cwd=ROOT)
    assert (plan.code, "no-chat-template" in plan.err) == (10, True)
    ended = qualify("run", "cpu-gemma-3-270m", "--json", cwd=ROOT)
    assert (ended.code, ended.document["status"]) == (10, "unsupported")
    assert kinds(ledger) == [Refusal]


# ── places ───────────────────────────────────────────────────────────────────────────────────────


def test_a_project_with_spaces_brackets_and_umlauts_runs_from_a_folder_within(
    project: Project, qualify: Qualify, tmp_path: Path
) -> None:
    place = tmp_path / "Prüfung α [" / "bold]"
    place.parent.mkdir()
    project().rename(place)
    ended = qualify("run", "double", "--trials", "1", cwd=place / "manifests" / "matrix",
                    environment={"QUALIFY_RESULTS": None})  # fmt: skip
    assert ended.code == 10, ended
    assert "[/bold]" in re.sub(r"\s", "", ended.out)
    assert kinds(open_ledger(place / "results")) == [Reservation, Trial]


@pytest.mark.parametrize("how", ["option", "variable"])
def test_a_relative_results_folder_is_taken_from_the_current_folder(
    how: str, project: Project, qualify: Qualify, tmp_path: Path
) -> None:
    place, here = project(), tmp_path / "here"
    here.mkdir()
    options = ["--results", "my results"] if how == "option" else []
    variable = None if how == "option" else "my results"
    ended = qualify("--project", str(place), *options, "run", "double", "--trials", "1", cwd=here,
                    environment={"QUALIFY_RESULTS": variable})  # fmt: skip
    assert ended.code == 10, ended
    assert kinds(open_ledger(here / "my results")) == [Reservation, Trial]


def test_without_home_the_account_s_own_folder_is_used(
    project: Project, qualify: Qualify, ledger: Ledger
) -> None:
    ended = qualify("run", "double", "--trials", "1", cwd=project(), environment={"HOME": None})
    assert ended.code == 10
    assert kinds(ledger) == [Reservation, Trial]


def _become_nobody_known() -> None:
    os.setgroups([])
    os.setgid(54321)
    os.setuid(54321)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_account_without_any_home_hears_what_to_set(qualify: Qualify, tmp_path: Path) -> None:
    (tmp_path / "said").mkdir()
    shutil.chown(tmp_path / "said", 54321)
    tmp_path.chmod(0o755)
    nowhere = {"HOME": None, "XDG_STATE_HOME": None}
    ended = qualify("--project", str(ROOT), "run", "scripted-passes", environment=nowhere,
                    before=_become_nobody_known, cwd=Path("/"))  # fmt: skip
    assert is_one_error(ended, 1)
    assert "HOME" in ended.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("closed", [True, False], ids=["read-only", "writable"])
def test_a_results_folder_that_cannot_be_written_is_said_before_anything_starts(
    closed: bool, qualify: Qualify, places: Path, tmp_path: Path
) -> None:
    _open_to_others(tmp_path)
    for folder in (places, tmp_path / "state", tmp_path / "said"):
        folder.mkdir()
        shutil.chown(folder, 54321)
    places.chmod(0o555 if closed else 0o755)
    ended = qualify("--project", str(ROOT), "run", "cpu-gemma-3-270m",
                    before=_become_nobody_known, cwd=Path("/"))  # fmt: skip
    if not closed:
        assert ended.code == 10, ended
        return
    assert is_one_error(ended, 1), ended
    assert str(places) in ended.err
    assert "permission" in ended.err.lower()
    assert list(places.iterdir()) == []


def _open_to_others(folder: Path) -> None:
    for parent in (folder, *folder.parents[:-1]):
        if parent.stat().st_uid == os.geteuid() and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)


# ── disks that are full ──────────────────────────────────────────────────────────────────────────


def _small_disk(place: Path, size: str, minimum_mib: int | None) -> Callable[[], None]:
    """Mounts a disk of `size` on `place` that only this process sees."""

    def mount() -> None:
        import qualify.runner.preconditions

        os.unshare(os.CLONE_NEWNS | (0 if os.geteuid() == 0 else os.CLONE_NEWUSER))
        subprocess.run(["mount", "--make-rprivate", "/"], check=False)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(place)]
        subprocess.run(command, check=True)
        if minimum_mib is not None:
            qualify.runner.preconditions._MINIMUM_FREE_MIB = minimum_mib

    return mount


def _keep(place: Path, copy: Path) -> Callable[[], None]:
    return lambda: shutil.copytree(place, copy) and None


@pytest.mark.parametrize("which", ["results", "state"])
def test_a_disk_that_is_nearly_full_is_said_before_anything_is_recorded(
    which: str, project: Project, qualify: Qualify, places: Path, tmp_path: Path
) -> None:
    full = tmp_path / which
    full.mkdir()
    ended = qualify("run", "double", cwd=project(), before=_small_disk(full, "8m", None))
    assert is_one_error(ended, 1), ended
    assert str(full) in ended.err
    assert "MiB are free" in ended.err
    assert which == "results" or not places.exists()


@pytest.mark.parametrize("pages", [1, 2, 3, 4, 5, 6, 8, 12])
def test_a_disk_that_fills_up_under_the_ledger_never_damages_it(
    pages: int, project: Project, qualify: Qualify, places: Path, tmp_path: Path
) -> None:
    places.mkdir()
    ended = qualify(
        "run", "double", "--trials", "2", cwd=project(),
        before=_small_disk(places, f"{pages * 4}k", 0), after=_keep(places, tmp_path / "kept"),
    )  # fmt: skip
    assert ended.code in (1, 10), ended
    if ended.code == 1:
        assert is_one_error(ended, 1), ended
        assert "No space left" in ended.err
    found = [stored.entry for stored in open_ledger(tmp_path / "kept").entries()]
    finished = sum(isinstance(entry, Trial) for entry in found)
    assert finished == ended.err.count("✓ trial")
    assert nobody_left(tmp_path) == {}


@pytest.mark.parametrize("size", ["8k", "16k", "40k"])
def test_a_private_store_that_fills_up_leaves_an_honest_record_or_an_incomplete_trial(
    size: str, project: Project, qualify: Qualify, ledger: Ledger, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    full = _small_disk(tmp_path / "state", size, 0)
    ended = qualify("run", "double", "--trials", "1", cwd=project(), before=full)
    trials = [s.entry for s in ledger.entries() if isinstance(s.entry, Trial)]
    if ended.code == 1:
        assert is_one_error(ended, 1), ended
        assert "No space left" in ended.err
        assert not trials
    else:
        assert ended.code == 10, ended
        assert all(trial.outcome != "passed" for trial in trials)
    assert nobody_left(tmp_path) == {}


# ── a model that is not what it should be ────────────────────────────────────────────────────────


def test_a_truncated_model_is_the_error_and_nothing_is_reserved(
    qualify: Qualify, ledger: Ledger, tmp_path: Path
) -> None:
    model = load_catalog(ROOT).models["smollm2-135m-instruct-q4_1"]
    blob = tmp_path / "store" / "blobs" / str(model.files[0].sha256)
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"GGUF\x03\0\0\0" + bytes(100_000))
    store = {"QUALIFY_MODEL_STORE": str(tmp_path / "store")}
    ended = qualify("run", "cpu-smollm2-135m", "--offline", cwd=ROOT, environment=store)
    assert is_one_error(ended, 10), ended
    assert str(model.files[0].path) in ended.err
    assert f"expected {model.files[0].size} bytes, found 100008 bytes" in ended.err
    assert kinds(ledger) == []
    blob.unlink()
    ended = qualify("run", "cpu-smollm2-135m", "--offline", cwd=ROOT, environment=store)
    assert is_one_error(ended, 2)
    assert "nothing is downloaded in an offline run" in ended.err


# ── an engine that does not start ────────────────────────────────────────────────────────────────

SERVERS = {
    "died-at-start": "import sys; print('[/bold] \\x1b[31m no libcuda'); sys.exit(3)",
    "garbage": "import json, os, sys; r = json.load(sys.stdin)['report'];"
               "os.write(r, b'\\0\\xff{]\\n'); sys.stdin.read()",
    "not-ready-in-time": "import time; time.sleep(600)",
}  # fmt: skip


@pytest.mark.parametrize("fault", [*SERVERS, "server-missing"])
def test_a_server_that_does_not_start_is_a_recorded_start_failure(
    fault: str, project: Project, qualify: Qualify, ledger: Ledger, tmp_path: Path
) -> None:
    place = project(startup_budget_s=3)
    server = tmp_path / "server.py"
    if fault in SERVERS:
        server.write_text(SERVERS[fault])

    def replaced() -> None:
        from qualify.runtimes import scripted

        program = str(server) if fault in SERVERS else str(tmp_path / "no-such-server")
        scripted.ScriptedEngine.program = lambda self: [program]

    for json_wanted in (True, False):
        options = ["--json"] if json_wanted else []
        ended = qualify("run", "double", *options, cwd=place, before=replaced)
        assert ended.code == 10, ended
        assert "Traceback" not in ended.err
        if json_wanted:
            assert ended.document["status"] == "inconclusive"
            assert ended.document["trials"] == []
    recorded = [s.entry.reason for s in ledger.entries() if isinstance(s.entry, StartFailure)]
    expected = "died-at-start" if fault == "server-missing" else fault
    assert recorded == [expected, expected]
    assert "INCONCLUSIVE" in ended.out
    assert expected in ended.out
    assert nobody_left(tmp_path) == {}
    assert qualify("run", "double", "--trials", "1", cwd=place).code == 10
    assert kinds(ledger)[2:] == [Reservation, Trial]


# ── two at once ──────────────────────────────────────────────────────────────────────────────────


def test_a_second_run_of_a_row_is_told_which_process_runs_it(
    project: Project, qualify: Any, ledger: Ledger
) -> None:
    place = project([{"when_message": "exit code", "delay_ms": 4000, "text": "Done."}, *replies()])
    first = qualify("run", "double", "--trials", "1", cwd=place, wait=False)
    first.until_said("trial 1 of 1")
    second = qualify("run", "double", cwd=place)
    assert is_one_error(second, 2), second
    assert f"process {first.pid}" in second.err
    assert first.wait().code == 10
    assert kinds(ledger) == [Reservation, Trial]
    assert qualify("run", "double", "--trials", "1", cwd=place).code == 10


def test_two_rows_at_once_leave_one_unbroken_ledger(
    project: Project, qualify: Any, ledger: Ledger
) -> None:
    place = project()
    (place / "manifests/scripts/other.yaml").write_text(script("other", replies(": {file}")))
    (place / "manifests/matrix/other.yaml").write_text(row("other", played="other"))
    running = [
        qualify("run", name, "--trials", "3", cwd=place, wait=False) for name in ("double", "other")
    ]
    assert [command.wait().code for command in running] == [10, 10]
    found = [s.entry for s in ledger.entries()]
    assert sum(isinstance(entry, Reservation) for entry in found) == 6
    assert sum(isinstance(entry, Trial) for entry in found) == 6


# ── a results database that cannot follow ────────────────────────────────────────────────────────

HOLD = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); input()"


@pytest.mark.parametrize("state", ["locked", "corrupt", "newer", "a folder"])
def test_a_database_that_cannot_follow_costs_one_line_and_no_evidence(
    state: str, project: Project, qualify: Qualify, places: Path, ledger: Ledger
) -> None:
    import duckdb

    place = project()
    first = qualify("run", "double", "--trials", "1", "--json", cwd=place)
    assert (first.document["note"], first.err) == (None, "")
    database = places / "qualify.duckdb"
    holder = None
    if state == "locked":
        command = [sys.executable, "-c", HOLD, str(database)]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
    elif state == "newer":
        with duckdb.connect(str(database)) as connection:
            connection.execute("UPDATE meta SET schema_version = 99")
    else:
        database.unlink()
        database.mkdir() if state == "a folder" else database.write_bytes(b"garbage" * 9999)
    try:
        second = qualify("run", "double", "--trials", "1", "--json", cwd=place)
    finally:
        if holder is not None:
            holder.communicate("\n")
    assert second.code == 10
    assert second.document["trials"][0]["outcome"] == "passed"
    assert "the evidence is safe" in second.document["note"]
    assert len(second.err.strip().splitlines()) == 1
    assert holder is None or str(holder.pid) in second.err
    assert kinds(ledger) == [Reservation, Trial] * 2


def test_a_corpus_that_changes_under_a_run_ends_it_before_the_next_trial(
    project: Project, qualify: Qualify, ledger: Ledger
) -> None:
    place = project()
    assert qualify("run", "double", "--trials", "1", cwd=place).code == 10
    catalog = load_catalog(place)
    scenario = next(iter(catalog.scenarios.values()))
    require_unchanged(catalog, scenario)
    with (place / "corpora" / scenario.corpus / "cases.json").open("ab") as stream:
        stream.write(b"\n")
    with pytest.raises(EnvironmentFault, match="was changed while the run was at work"):
        require_unchanged(catalog, scenario)
    assert kinds(ledger) == [Reservation, Trial]
