"""`qualify scan`: what it looks at, what it says, and that it never says the value."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from qualify.cli import cli

ROOT = Path(__file__).parents[3]
MAIL = "lindqvist@" + "uni-west.edu"
SECRET = "x8Jk2" + "mQp77zR"

type Ask = Callable[..., Result]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a tracked file, one that is not tracked, and results."""
    root = tmp_path / "project"
    (root / "manifests").mkdir(parents=True)
    (root / "results").mkdir()
    (root / "tracked.md").write_text(f"one\nask {MAIL}\n")
    (root / ".gitignore").write_text("/results\n")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    subprocess.run(["git", "-C", str(root), "add", "."], check=True)
    (root / "untracked.md").write_text(f"ask {MAIL}\n")
    return root


@pytest.fixture
def ask(project: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    monkeypatch.chdir(project)
    monkeypatch.delenv("QUALIFY_RESULTS", raising=False)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(
            cli, ["--project", str(project), "scan", *arguments], standalone_mode=False
        )

    return run


def test_tracked_files_and_results_are_looked_at(ask: Ask, project: Path) -> None:
    (project / "results" / "log.txt").write_text(f"password: {SECRET}\n")
    done = ask()
    assert done.return_value == 10
    assert done.stdout.splitlines() == [
        *(line for line in done.stdout.splitlines() if line.startswith("results/log.txt:1:")),
        *(line for line in done.stdout.splitlines() if line.startswith("tracked.md:2:5: e-mail")),
        "3 files: 1 e-mail, 1 password",
    ]


def test_a_named_path_is_looked_at_whether_tracked_or_not(ask: Ask, project: Path) -> None:
    done = ask("untracked.md")
    assert done.return_value == 10
    assert done.stdout.startswith("untracked.md:1:5: e-mail")
    (project / "clean.md").write_text("nothing here\n")
    assert ask("clean.md").return_value == 0


def test_the_value_is_said_nowhere(ask: Ask, project: Path) -> None:
    name = f"results/{MAIL}.txt"
    (project / name).write_text(f"password: {SECRET}\n")
    for arguments in ((), ("--json",), (name,)):
        done = ask(*arguments)
        assert done.return_value == 10
        for value in (MAIL, SECRET, MAIL[:9], SECRET[:6]):
            assert value not in done.output, arguments
    assert "‹e-mail›" in ask().stdout


def test_the_document_has_what_the_text_has(ask: Ask) -> None:
    document = json.loads(ask("--json").stdout)
    assert document["schema"] == "qualify-scan/1"
    assert document["clean"] is False
    assert document["kinds"] == {"e-mail": 1}
    (found,) = document["findings"]
    assert (found["place"], found["line"], found["column"]) == ("tracked.md", 2, 5)
    assert (found["characters"], found["offset"], found["why"]) == (len(MAIL), None, None)


def entry(until: str, files: str = "tracked.md") -> str:
    return (
        f"schema: qualify-scan/1\nallow:\n  - files: {files}\n    kind: e-mail\n"
        f"    until: {until}\n    reason: the author of this text\n"
    )


def test_what_scan_yaml_allows_stays(ask: Ask, project: Path) -> None:
    (project / "scan.yaml").write_text(entry("2999-12-31"))
    done = ask()
    assert done.return_value == 0
    assert done.stdout == "2 files: nothing found, 1 allowed\n"


def test_an_allow_file_can_be_named(ask: Ask, project: Path) -> None:
    (project / "other.yaml").write_text(entry("2999-12-31"))
    assert ask("--allow", "other.yaml").return_value == 0
    with_gone = ask("--allow", "gone.yaml")
    assert with_gone.exception is not None
    assert "gone.yaml: cannot be read" in str(with_gone.exception)


def test_an_expired_and_an_unused_entry_are_named(ask: Ask, project: Path) -> None:
    (project / "scan.yaml").write_text(entry("2020-01-01"))
    done = ask()
    assert done.return_value == 10
    assert "scan.yaml:3:5: expired on 2020-01-01" in done.stderr
    (project / "scan.yaml").write_text(entry("2999-12-31", "gone.md"))
    assert "nothing needs it" in ask().stderr


def test_a_mistake_in_the_allow_file_ends_it_with_its_place(project: Path) -> None:
    (project / "scan.yaml").write_text(entry("soon"))
    done = CliRunner().invoke(cli, ["--project", str(project), "scan"], standalone_mode=False)
    assert done.exception is not None
    assert "scan.yaml:5:12: is no day (write one like 2027-06-30)" in str(done.exception)


def test_a_path_that_does_not_exist_is_an_input_error(ask: Ask) -> None:
    done = ask("gone.md")
    assert done.exception is not None
    assert getattr(done.exception, "exit_code", None) == 2
    assert "gone.md: there is no such file or folder" in str(done.exception)


def test_what_cannot_be_looked_into_is_no_success(ask: Ask, project: Path) -> None:
    (project / "results" / "x.7z").write_bytes(b"7z\xbc\xaf\x27\x1c" + bytes(90))
    done = ask("results")
    assert done.return_value == 10
    assert done.stdout.startswith("results/x.7z: unread: is a 7z archive")


def test_a_project_without_git_is_looked_at_whole(ask: Ask, project: Path) -> None:
    (project / ".git").rename(project.parent / "elsewhere")
    assert json.loads(ask("--json").stdout)["kinds"] == {"e-mail": 2}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="Git says which files are ours")
def test_our_own_tree_is_clean() -> None:
    done = CliRunner().invoke(
        cli, ["--project", str(ROOT), "scan", "--json"], standalone_mode=False
    )
    document = json.loads(done.stdout)
    found = [(f["place"], f["line"], f["kind"], f["why"]) for f in document["findings"]]
    assert found == [], "remove it, or see docs/reference/scan.md for what may stay"
    assert (document["expired"], document["unused"]) == ([], [])
    assert document["files"] > 600
