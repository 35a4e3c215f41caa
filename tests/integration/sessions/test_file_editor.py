"""The file editor works below the project folder and nowhere else, however a path is spelled."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from qualify.sessions.journal import Intent, Outcome, read_journal
from support.chat import ChatServer, call, propose, run_command

if TYPE_CHECKING:
    from qualify.sessions.owner import Session

type OpenSession = Callable[..., Session]
type Edit = Callable[..., str]


@pytest.fixture
def edit(open_session: OpenSession, server: ChatServer, folder: Path, tmp_path: Path) -> Edit:
    """`edit(command=…, path=…)` approves one edit; returns how the journal says it ended."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "private.txt").write_text("secret-of-the-user\n")
    (folder / "workspace").mkdir(parents=True)
    (folder / "workspace" / "notes.txt").write_text("alpha\n")
    (folder / "workspace" / "linked").symlink_to(tmp_path / "outside")
    (folder / "workspace" / "linked.txt").symlink_to(tmp_path / "outside" / "private.txt")
    (folder / "workspace" / "dangling").symlink_to(tmp_path / "outside" / "new.txt")
    (folder / "workspace" / "loop").symlink_to(folder / "workspace" / "loop")

    def start(**arguments: Any) -> str:
        server.play(propose(call("file_editor", **arguments)))
        with open_session() as session:
            session.send("Do it.")
            assert session.run() == "waiting"
            group = session.pending_group()
            assert group is not None
            session.approve(group)
        outcomes = [event for event in read_journal(folder) if isinstance(event, Outcome)]
        return outcomes[0].result

    return start


OUTSIDE = [
    "{tmp}/outside/private.txt",
    "{work}/../../outside/private.txt",
    "{work}/linked/private.txt",
    "{work}/linked.txt",
    "../../outside/private.txt",
    "linked/private.txt",
    "{work}/../journal.key",
    "{work}/../home",
    "/etc/passwd",
    "//etc/passwd",
    "/proc/self/environ",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_nothing_outside_is_read(
    edit: Edit, server: ChatServer, folder: Path, workspace: Path, tmp_path: Path, path: str
) -> None:
    key = (folder / "journal.key").name
    spelled = path.format(tmp=tmp_path, work=workspace)
    assert edit(command="view", path=spelled) == "error", key
    answer = json.dumps(server.requests[-1]["messages"][-1])
    assert "outside the project folder" in answer
    assert "secret-of-the-user" not in answer


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": "str_replace", "old_str": "secret", "new_str": "other"},
        {"command": "insert", "insert_line": 0, "new_str": "other"},
        {"command": "create", "file_text": "other"},
    ],
)
@pytest.mark.parametrize("path", ["linked.txt", "linked/private.txt", "dangling"])
def test_nothing_outside_is_written(
    edit: Edit, tmp_path: Path, workspace: Path, path: str, arguments: dict[str, Any]
) -> None:
    assert edit(path=str(workspace / path), **arguments) == "error"
    outside = tmp_path / "outside"
    assert [item.name for item in outside.iterdir()] == ["private.txt"]
    assert (outside / "private.txt").read_text() == "secret-of-the-user\n"


@pytest.mark.parametrize("path", ["loop", "missing/notes.txt", "x" * 5000])
def test_a_path_that_cannot_be_is_an_error_and_no_crash(
    edit: Edit, workspace: Path, path: str
) -> None:
    assert edit(command="view", path=f"{workspace}/{path}") == "error"


def test_a_path_that_no_system_can_take_never_becomes_an_effect(
    edit: Edit, folder: Path, workspace: Path
) -> None:
    edit(command="create", path=f"{workspace}/no\0name", file_text="x")
    assert [e.tool for e in read_journal(folder) if isinstance(e, Intent)] == ["finish"]
    assert not any("name" in path.name for path in workspace.iterdir())


@pytest.mark.parametrize("path", ["{work}/notes.txt", "notes.txt", "{work}/./x/../notes.txt"])
def test_a_file_of_the_project_is_read_and_changed(
    edit: Edit, server: ChatServer, workspace: Path, path: str
) -> None:
    spelled = path.format(work=workspace)
    assert edit(command="str_replace", path=spelled, old_str="alpha", new_str="beta") == "done"
    assert (workspace / "notes.txt").read_text() == "beta\n"


def test_a_new_file_is_made_in_the_project(edit: Edit, workspace: Path) -> None:
    assert edit(command="create", path=str(workspace / "new.txt"), file_text="x\n") == "done"
    assert (workspace / "new.txt").read_text() == "x\n"


def test_a_command_that_no_system_can_take_is_an_error_and_no_crash(
    open_session: OpenSession, server: ChatServer, folder: Path
) -> None:
    server.play(run_command("printf a\0b"))
    with open_session() as session:
        session.send("Do it.")
        session.run()
        group = session.pending_group()
        assert group is not None
        assert session.approve(group) == "finished"
    (outcome, _) = [event for event in read_journal(folder) if isinstance(event, Outcome)]
    assert (outcome.result, outcome.exit_code) == ("error", None)
