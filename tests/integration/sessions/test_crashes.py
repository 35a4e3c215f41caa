"""kill -9 at every boundary of the journal: what was done is not done again, what waits waits.

The SDK alone runs an approved group again after a crash, forgets what was pending, and asks its
model anew. Each child here is forked from the process that imported the SDK, and really dies.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from qualify.sessions.journal import (
    Decided,
    Intent,
    JournalEvent,
    Refused,
    UnknownOutcome,
    read_journal,
)
from qualify.sessions.replay import replay
from support.chat import ChatServer, Reply, call, finish, propose, run_command
from support.children import forked, until
from support.sessions import waiting

if TYPE_CHECKING:
    from qualify.sessions.owner import Session

type OpenSession = Callable[..., Session]
pytestmark = pytest.mark.usefixtures("no_process_left")


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_was_pending_is_still_pending_without_asking_the_model_again(
    open_session: OpenSession, server: ChatServer, tmp_path: Path, workspace: Path, folder: Path
) -> None:
    server.play(run_command("echo done >> effects"))

    def until_it_waits() -> None:
        waiting(open_session())
        die()

    assert forked(until_it_waits, tmp_path / "log").died_of() == signal.SIGKILL
    with open_session() as session:
        group = session.pending_group()
        assert group is not None
        assert [a.arguments["command"] for a in group.actions] == ["echo done >> effects"]
        assert len(server.requests) == 1
        session.approve(group)
    assert (workspace / "effects").read_text() == "done\n"
    assert replay(folder).violations == replay(folder).disagreements == []


def test_a_kill_between_decision_and_effect_lets_the_effect_happen_exactly_once(
    open_session: OpenSession, server: ChatServer, tmp_path: Path, workspace: Path, folder: Path
) -> None:
    server.play(run_command("echo done >> effects"))

    def until_decided() -> None:
        session = open_session()
        group = waiting(session)
        session._conversation.run = die
        session.approve(group)

    assert forked(until_decided, tmp_path / "log").died_of() == signal.SIGKILL
    assert isinstance(read_journal(folder)[-1], Decided)
    assert not (workspace / "effects").exists()
    with open_session() as session:
        assert session.pending_group() is not None
        with pytest.raises(Exception, match="has not been carried out"):
            session.send("Go on.")
        assert session.run() == "finished"
    with open_session() as session:
        session.send("Again?")
        session.run()
    assert (workspace / "effects").read_text() == "done\n"
    assert (replay(folder).executed, replay(folder).violations) == ([1], [])
    assert replay(folder).disagreements == []


def test_a_kill_between_rejection_and_its_announcement_still_rejects(
    open_session: OpenSession, server: ChatServer, tmp_path: Path, workspace: Path, folder: Path
) -> None:
    server.play(run_command("touch effects"))

    def until_rejected() -> None:
        session = open_session()
        group = waiting(session)
        session._conversation.reject_pending_actions = die
        session.reject(group, "No.")

    assert forked(until_rejected, tmp_path / "log").died_of() == signal.SIGKILL
    with open_session() as session:
        assert session.pending_group() is None
        session.send("Go on.")
        assert session.run() == "finished"
    assert not (workspace / "effects").exists()
    found = replay(folder)
    assert (found.decisions, found.executed) == (["rejected"], [0])
    assert found.violations == found.disagreements == []


def test_a_kill_inside_an_effect_leaves_an_unknown_outcome_that_never_runs_again(
    open_session: OpenSession, server: ChatServer, tmp_path: Path, workspace: Path, folder: Path
) -> None:
    server.play(
        propose(
            call("terminal", command="echo first >> effects"),
            call("terminal", command="echo second >> effects; sleep 0.5; touch late"),
            call("terminal", command="echo third >> effects"),
        )
    )

    def approve() -> None:
        session = open_session()
        session.approve(waiting(session))

    child = forked(approve, tmp_path / "log")
    effects = workspace / "effects"
    until(lambda: effects.exists() and "second" in effects.read_text())
    child.kill()
    with open_session() as session:
        unknown = [e for e in read_journal(folder) if isinstance(e, UnknownOutcome)]
        assert len(unknown) == 1
        # Of the approved group only what never began is left.
        group = session.pending_group()
        assert group is not None
        assert [a.arguments["command"] for a in group.actions] == ["echo third >> effects"]
        assert session.run() == "finished"
    assert effects.read_text() == "first\nsecond\nthird\n"
    found = replay(folder)
    assert found.unknown_effects == 1
    assert found.violations == []
    refusals = [event.reason for event in read_journal(folder) if isinstance(event, Refused)]
    assert refusals == ["already-done", "unknown-outcome"]
    # Reopened once more, it stays as it is: no second unknown, no second run.
    with open_session() as session:
        session.send("Again?")
        session.run()
    assert sum(isinstance(e, UnknownOutcome) for e in read_journal(folder)) == 1
    assert effects.read_text() == "first\nsecond\nthird\n"
    until((workspace / "late").exists)


def drive(session: Session) -> None:
    """Carry a session to its end from wherever it stands: approve all but what says `rejected`."""
    if session.state.messages == 0:
        session.send("Do it.")
    for _ in range(8):
        group = session.pending_group()
        if group is None or session.state.groups[group.number].decision is not None:
            status = session.run()
        elif "rejected" not in str(group.actions):
            status = session.approve(group)
        else:
            session.reject(group, "No.")
            status = session.run()
        if status == "finished":
            return
    raise AssertionError("the session never comes to rest")


def propose_what_is_not_in_the_history(request: dict[str, Any]) -> Reply:
    """A model that proposes again whatever it does not remember to have proposed."""
    history = json.dumps(request["messages"])
    if "echo first" not in history:
        return propose(
            call("terminal", command="echo first >> effects"),
            call("terminal", command="echo second >> effects"),
        )
    if "echo rejected" not in history:
        return run_command("echo rejected >> effects")
    return finish()


def boundaries() -> list[tuple[int, str]]:
    return [(number, side) for number in range(24) for side in ("before", "after")]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_kill_at_any_boundary_of_the_journal_repeats_no_effect(
    open_session: OpenSession, server: ChatServer, tmp_path: Path, workspace: Path, folder: Path
) -> None:
    died = whole = executed = 0
    server.rule = propose_what_is_not_in_the_history
    for number, side in boundaries():

        def until_the_boundary(number: int = number, side: str = side) -> None:
            session = open_session()
            _die_at(session, number, side)
            drive(session)
            session.close()

        died += forked(until_the_boundary, tmp_path / "log").died_of() == signal.SIGKILL
        at_the_crash = read_journal(folder)
        with open_session() as session:
            drive(session)
        executed += _judge(read_journal(folder), workspace)
        found = replay(folder)
        assert found.violations == [], (number, side)
        assert found.disagreements == [], (number, side)
        whole += at_the_crash == read_journal(folder)[: len(at_the_crash)]
        folder.rename(tmp_path / f"{number}-{side}")
    # The controls: nearly all boundaries were hit, effects did happen, no crash rewrote the past.
    assert executed >= 2 * len(boundaries()) - 8
    assert died >= len(boundaries()) - 6
    assert whole == len(boundaries())


def _die_at(session: Session, number: int, side: str) -> None:
    record, count = session.journal.record, 0

    def recording(event: JournalEvent) -> None:
        nonlocal count
        count += 1
        if count > number and side == "before":
            die()
        record(event)
        if count > number:
            die()

    session.journal.record = recording  # type: ignore[method-assign]


def _judge(events: list[JournalEvent], workspace: Path) -> int:
    """Each action was about to happen at most once, and left at most one line."""
    intents = [event.action for event in events if isinstance(event, Intent)]
    assert len(intents) == len(set(intents))
    try:
        lines = (workspace / "effects").read_text().splitlines()
    except FileNotFoundError:
        lines = []
    assert len(lines) == len(set(lines))
    assert "rejected" not in lines
    return len(lines)


def test_a_text_answer_after_a_crash_is_the_only_one(
    open_session: OpenSession, server: ChatServer, tmp_path: Path, folder: Path
) -> None:
    server.play(Reply(text="All done."))

    def finish_and_die() -> None:
        session = open_session()
        session.send("Say it.")
        assert session.run() == "finished"
        die()

    assert forked(finish_and_die, tmp_path / "log").died_of() == signal.SIGKILL
    with open_session() as session:
        assert session.run() == "finished"
    assert len(server.requests) == 1
    assert replay(folder).disagreements == []
