"""`qualify manifest` as it is used: output, exit codes, files written."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from qualify.cli import main
from support.projects import SOUND, edited, write_project

ROW = "manifests/matrix/one.yaml"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("QUALIFY_PROJECT", raising=False)


def qualify(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["qualify", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    code = ended.value.code
    assert isinstance(code, int)
    return code


def test_a_sound_project_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = write_project(tmp_path / "p")
    monkeypatch.chdir(project / "manifests/matrix")
    assert qualify(monkeypatch, "manifest", "check") == 0
    out, err = capsys.readouterr()
    files = sum(name.endswith(".yaml") for name in SOUND)
    assert out.startswith(f"{files} manifests are sound: ")
    assert "matrix 2" in out
    assert err == ""


def test_every_mistake_is_a_line_with_its_place_and_the_exit_code_is_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {
        **edited(ROW, "precision: q4", "precision: no"),
        **edited("manifests/agents/coder.yaml", "lock: agent", "lock: agnt"),
        "manifests/scripts/binary.yaml": b"\x00\x01",
    }
    project = write_project(tmp_path / "p", changes)
    assert qualify(monkeypatch, "--project", str(project), "manifest", "check") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "manifests/agents/coder.yaml:3:7: there is no lock 'agnt' (did you mean 'agent'?)",
        f"{ROW}:6:12: precision: 'no' is read as a boolean by some YAML readers (quote it)",
        'manifests/scripts/binary.yaml:1:1: is binary (write it as an escape in "…", or remove it)',
        "3 mistakes in 3 files",
    ]


def test_the_json_report_has_places_as_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = write_project(
        tmp_path / "p", edited(ROW, "context_tokens: 4096", "context_tokens: 1")
    )
    assert qualify(monkeypatch, "--project", str(project), "manifest", "check", "--json") == 2
    document = json.loads(capsys.readouterr().out)
    assert document["sound"] is False
    assert document["mistakes"] == [
        {
            "file": ROW,
            "line": 7,
            "column": 17,
            "what": "context_tokens: is too small",
            "fix": "at least 256",
        }
    ]
    write_project(project)
    assert qualify(monkeypatch, "--project", str(project), "manifest", "check", "--json") == 0
    assert json.loads(capsys.readouterr().out)["manifests"]["matrix"] == 2


def test_outside_a_project_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert qualify(monkeypatch, "manifest", "check") == 2
    err = capsys.readouterr().err
    assert "no project here" in err
    assert "--project" in err


def test_other_commands_report_the_same_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = write_project(tmp_path / "p", edited(ROW, "precision: q4", "precision: no"))
    assert qualify(monkeypatch, "--project", str(project), "matrix") == 2
    assert f"{ROW}:6:12: " in capsys.readouterr().err


def test_schemas_are_listed_printed_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert qualify(monkeypatch, "manifest", "schema") == 0
    assert len(capsys.readouterr().out.splitlines()) == 11
    assert qualify(monkeypatch, "manifest", "schema", "row") == 0
    assert json.loads(capsys.readouterr().out)["$id"] == "urn:qualify:manifest:row"
    folder = tmp_path / "schemas"
    assert qualify(monkeypatch, "manifest", "schema", "--write", str(folder)) == 0
    assert len(list(folder.iterdir())) == 11
    capsys.readouterr()
    assert qualify(monkeypatch, "manifest", "schema", "rows") == 2
    assert "did you mean 'row'?" in capsys.readouterr().err
    assert qualify(monkeypatch, "manifest", "schema", "row", "--write", str(folder)) == 2
    (tmp_path / "file").write_text("")
    assert qualify(monkeypatch, "manifest", "schema", "--write", str(tmp_path / "file")) == 1
