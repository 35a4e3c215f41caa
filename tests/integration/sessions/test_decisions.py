"""Approval and rejection on the real agent SDK: what was decided happens once, or never."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from qualify.core.errors import EnvironmentFault
from qualify.sessions.journal import Decided, Intent, Outcome, Refused, Seen, read_journal
from qualify.sessions.replay import replay
from qualify.storage.locks import LockHeld
from support.chat import ChatServer, Reply, call, finish, propose, run_command
from support.children import forked

if TYPE_CHECKING:
    from qualify.sessions.owner import Session

type OpenSession = Callable[..., Session]


@pytest.mark.parametrize("mode", ["native", "prompt"])
def test_an_approved_action_happens_once(
    open_session: OpenSession, server: ChatServer, folder: Path, workspace: Path, mode: str
) -> None:
    server.play(run_command("echo done >> effects"), finish())
    with open_session(mode) as session:
        session.send("Do it.")
        assert session.run() == "waiting"
        assert not (workspace / "effects").exists()
        group = session.pending_group()
        assert group is not None
        assert [(a.tool, a.arguments["command"]) for a in group.actions] == [
            ("terminal", "echo done >> effects")
        ]
        assert session.approve(group) == "finished"
        assert session.pending_group() is None
        assert session.usage().model_calls == len(server.requests) == 2
        assert (session.usage().prompt_tokens, session.usage().completion_tokens) == (22, 14)
    assert (workspace / "effects").read_text() == "done\n"
    found = replay(folder)
    assert (found.decisions, found.sizes, found.executed) == (["approved"], [1], [1])
    assert found.violations == found.disagreements == []
    native = [bool(request.get("tools")) for request in server.requests]
    assert native == [mode == "native"] * 2


def test_a_rejected_action_never_happens(
    open_session: OpenSession, server: ChatServer, folder: Path, workspace: Path
) -> None:
    server.play(run_command("echo done >> effects"), Reply(text="Then not."))
    with open_session() as session:
        session.send("Do it.")
        assert session.run() == "waiting"
        group = session.pending_group()
        assert group is not None
        session.reject(group, "It is still needed.")
        assert session.pending_group() is None
        assert session.run() == "finished"
    assert not (workspace / "effects").exists()
    assert "It is still needed." in json.dumps(server.requests[-1])
    found = replay(folder)
    assert (found.decisions, found.executed) == (["rejected"], [0])
    assert found.violations == found.disagreements == []


def test_a_group_is_presented_whole_and_each_action_happens_once(
    open_session: OpenSession, server: ChatServer, folder: Path, workspace: Path
) -> None:
    commands = [f"echo {n} >> effects" for n in range(3)]
    server.play(propose(*(call("terminal", command=c) for c in commands)))
    with open_session() as session:
        session.send("Do it.")
        assert session.run() == "waiting"
        group = session.pending_group()
        assert group is not None
        assert [a.arguments["command"] for a in group.actions] == commands
        assert session.approve(group) == "finished"
    assert (workspace / "effects").read_text() == "0\n1\n2\n"
    assert replay(folder).executed == [3]
    kinds = [type(e) for e in read_journal(folder) if isinstance(e, Decided | Intent | Outcome)]
    # The decision comes first, and each effect is settled before the next begins.
    assert kinds[:7] == [Decided, Intent, Outcome, Intent, Outcome, Intent, Outcome]


def test_a_rejected_group_executes_nothing(
    open_session: OpenSession, server: ChatServer, folder: Path, workspace: Path
) -> None:
    server.play(propose(*(call("terminal", command=f"touch {n}") for n in "abc")))
    with open_session() as session:
        session.send("Do it.")
        session.run()
        group = session.pending_group()
        assert group is not None
        session.reject(group, "No.")
        assert session.run() == "finished"
    assert list(workspace.iterdir()) == []
    assert (replay(folder).executed, replay(folder).sizes) == ([0], [3])


def test_what_follows_a_finish_in_its_group_is_discarded_and_never_happens(
    open_session: OpenSession, server: ChatServer, folder: Path, workspace: Path
) -> None:
    server.play(
        propose(
            call("terminal", command="touch before"),
            call("finish", message="Done."),
            call("terminal", command="touch after"),
        )
    )
    with open_session() as session:
        session.send("Do it.")
        session.run()
        group = session.pending_group()
        assert group is not None
        assert len(group.actions) == 3
        assert session.approve(group) == "finished"
        session.send("And now?")
        assert session.run() == "finished"
    assert [path.name for path in workspace.iterdir()] == ["before"]
    found = replay(folder)
    assert (found.sizes, found.executed, found.unknown_effects) == ([3], [2], 0)
    assert found.violations == found.disagreements == []
    assert [e.reason for e in read_journal(folder) if isinstance(e, Refused)] == ["discarded"]


def test_a_lone_finish_and_a_lone_thought_ask_for_nothing_and_are_journaled_as_free(
    open_session: OpenSession, server: ChatServer, folder: Path
) -> None:
    server.play(finish())
    with open_session() as session:
        session.send("Finish.")
        assert session.run() == "finished"
        assert session.pending_group() is None
    intents = [event for event in read_journal(folder) if isinstance(event, Intent)]
    assert [(i.tool, i.free) for i in intents] == [("finish", True)]
    assert replay(folder).decisions == []
    assert replay(folder).violations == []


def test_a_finish_beside_another_action_is_part_of_the_group(
    open_session: OpenSession, server: ChatServer, folder: Path
) -> None:
    server.play(propose(call("terminal", command="true"), call("finish", message="Done.")))
    with open_session() as session:
        session.send("Do it.")
        assert session.run() == "waiting"
        group = session.pending_group()
        assert group is not None
        assert session.approve(group) == "finished"
    assert [e.free for e in read_journal(folder) if isinstance(e, Intent)] == [False, False]


def test_nothing_is_sent_and_nothing_runs_while_a_group_waits(
    open_session: OpenSession, server: ChatServer, workspace: Path
) -> None:
    server.play(run_command("touch effects"))
    with open_session() as session:
        session.send("Do it.")
        session.run()
        with pytest.raises(EnvironmentFault, match="waits for a decision"):
            session.send("No, do not!")
        with pytest.raises(EnvironmentFault, match="waits for a decision"):
            session.run()
        assert not (workspace / "effects").exists()
        assert len(server.requests) == 1
        group = session.pending_group()
        assert group is not None
        session.approve(group)
        session.send("Thank you.")
        assert session.run() == "finished"
    assert (workspace / "effects").exists()


def test_a_group_is_decided_once(open_session: OpenSession, server: ChatServer) -> None:
    server.play(run_command("true"))
    with open_session() as session:
        session.send("Do it.")
        session.run()
        group = session.pending_group()
        assert group is not None
        session.approve(group)
        with pytest.raises(EnvironmentFault, match="decided already"):
            session.approve(group)
        with pytest.raises(EnvironmentFault, match="decided already"):
            session.reject(group, "No.")


def test_a_second_owner_is_refused_until_the_first_lets_go(
    open_session: OpenSession, tmp_path: Path
) -> None:
    def second() -> str:
        try:
            open_session().close()
        except LockHeld:
            return "refused"
        return "opened"

    with open_session():
        assert second() == "refused"
        assert forked(second, tmp_path / "log").result() == "refused"
    assert forked(second, tmp_path / "log").result() == "opened"
    assert second() == "opened"


def test_closing_twice_seals_once(open_session: OpenSession, folder: Path) -> None:
    session = open_session()
    session.close()
    before = read_journal(folder)
    session.close()
    assert read_journal(folder) == before


def test_a_call_of_an_unknown_tool_is_answered_and_never_presented(
    open_session: OpenSession, server: ChatServer, folder: Path
) -> None:
    server.play(propose(call("launch", target="x")), finish())
    with open_session() as session:
        session.send("Do it.")
        assert session.run() == "finished"
    assert replay(folder).decisions == []
    assert "not found" in json.dumps(server.requests[-1])


@pytest.mark.parametrize(
    ("status", "code"),
    [(500, "model-error"), (503, "model-error"), (400, "model-error"), (200, None)],
)
def test_an_error_of_the_model_has_a_bounded_code(
    open_session: OpenSession, server: ChatServer, status: int, code: str | None
) -> None:
    server.play(Reply(text="Hello.", status=status))
    with open_session() as session:
        session.send("Do it.")
        assert session.run() == ("finished" if code is None else "error")
        assert session.error_code == code


def test_a_model_that_cannot_be_reached_has_a_code_of_its_own(
    open_session: OpenSession, server: ChatServer
) -> None:
    with open_session() as session:
        server.close()
        session.send("Do it.")
        assert session.run() == "error"
        assert session.error_code == "model-unreachable"


def test_a_limit_of_steps_ends_in_an_error(open_session: OpenSession, server: ChatServer) -> None:
    server.play(*[propose(call("launch", target=str(n))) for n in range(5)])
    with open_session(max_iterations=2) as session:
        session.send("Do it.")
        assert session.run() == "error"
    assert len(server.requests) == 2


def test_the_journal_holds_every_event_and_no_content(
    open_session: OpenSession, server: ChatServer, folder: Path
) -> None:
    server.play(run_command("echo secret-of-the-command"), finish("secret-of-the-model"))
    with open_session() as session:
        session.send("secret-of-the-person")
        session.run()
        group = session.pending_group()
        assert group is not None
        session.approve(group)
    stored = b"".join(p.read_bytes() for p in folder.glob("conversation/*/events/*.json"))
    assert stored.count(b"secret-of-the-") >= 3
    assert b"secret" not in (folder / "journal.log").read_bytes()
    seen = [event.event for event in read_journal(folder) if isinstance(event, Seen)]
    files = sorted(folder.glob("conversation/*/events/*.json"))
    assert seen == [json.loads(path.read_bytes())["id"] for path in files]


def test_the_fingerprint_depends_on_the_set_up_alone(
    open_session: OpenSession, folder: Path
) -> None:
    def fingerprint(name: str, **limits: int) -> str:
        with open_session(**limits) as session:
            found = session.fingerprint
        folder.rename(folder.with_name(name))
        return found

    first = fingerprint("first")
    assert fingerprint("again") == first
    assert fingerprint("other", command_timeout_s=5) != first
