"""A fresh process without the agent SDK tells the same story, and sees where it was changed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from qualify.sessions.audit import export_audit, verify_audit
from qualify.sessions.replay import Replay
from support.chat import ChatServer, finish, run_command

if TYPE_CHECKING:
    from qualify.sessions.owner import Session

type OpenSession = Callable[..., Session]


@pytest.fixture
def story(open_session: OpenSession, server: ChatServer) -> str:
    """A session with an approved and a rejected group; the digest of its live projection."""
    server.play(run_command("echo done >> effects"), finish(), run_command("rm effects"))
    with open_session() as session:
        session.send("Do it.")
        session.run()
        first = session.pending_group()
        assert first is not None
        session.approve(first)
        session.send("Now delete it.")
        session.run()
        second = session.pending_group()
        assert second is not None
        session.reject(second, "It is still needed.")
    return session.state.digest()


def fresh(folder: Path) -> Replay:
    done = subprocess.run(
        [sys.executable, "-m", "qualify.sessions.replay", str(folder)],
        capture_output=True, check=True,
    )  # fmt: skip
    return Replay(**json.loads(done.stdout))


def change(folder: Path, kind: str, edit: Callable[[dict[str, Any]], object]) -> None:
    """Edit the SDK's first stored event of `kind`."""
    for path in sorted(folder.glob("conversation/*/events/event-*.json")):
        event = json.loads(path.read_bytes())
        if event["kind"] == kind:
            edit(event)
            path.write_text(json.dumps(event))
            return
    raise AssertionError(kind)


def test_a_fresh_process_without_the_agent_sdk_tells_the_same_story(
    story: str, folder: Path
) -> None:
    found = fresh(folder)
    assert not found.sdk_loaded
    assert found.projection == story
    assert found.decisions == ["approved", "rejected"]
    assert (found.requests, found.sizes, found.executed) == ([1, 2], [1, 1], [1, 0])
    assert found.violations == found.disagreements == []


def test_the_export_covers_every_event(story: str, folder: Path) -> None:
    export = export_audit(folder)
    found = fresh(folder)
    assert verify_audit(export.path) == (found.events, found.head) == (export.events, export.head)


def test_a_changed_answer_in_the_store_of_the_sdk_is_seen(story: str, folder: Path) -> None:
    change(folder, "ObservationEvent", lambda event: event["observation"].update(exit_code=1))
    assert fresh(folder).disagreements == ["sdk-store-changed-after-sealing"]


def test_a_vanished_rejection_is_seen(story: str, folder: Path) -> None:
    change(folder, "UserRejectObservation", lambda event: event.update(kind="ObservationEvent"))
    assert set(fresh(folder).disagreements) == {
        "rejection-differs", "observation-without-intent", "sdk-store-changed-after-sealing",
    }  # fmt: skip


def test_a_missing_and_an_added_event_are_seen(story: str, folder: Path) -> None:
    last = sorted(folder.glob("conversation/*/events/event-*.json"))[-1]
    event = json.loads(last.read_bytes())
    last.unlink()
    assert "journal-event-not-in-sdk-store" in fresh(folder).disagreements
    last.write_text(json.dumps({**event, "id": "another"}))
    assert "sdk-event-not-in-journal" in fresh(folder).disagreements


def test_an_unreadable_event_is_a_disagreement_and_no_crash(story: str, folder: Path) -> None:
    last = sorted(folder.glob("conversation/*/events/event-*.json"))[-1]
    last.write_bytes(last.read_bytes()[:-40])
    assert fresh(folder).disagreements == ["sdk-event-unreadable"]


def test_a_changed_journal_cannot_be_replayed(story: str, folder: Path) -> None:
    journal = folder / "journal.log"
    journal.write_bytes(journal.read_bytes().replace(b'"rejected"', b'"approved"'))
    with pytest.raises(subprocess.CalledProcessError):
        fresh(folder)


def test_a_session_that_is_opened_again_is_no_longer_sealed(
    story: str, folder: Path, open_session: OpenSession, server: ChatServer
) -> None:
    with open_session() as session:
        session.send("And now?")
        session.run()
    assert fresh(folder).disagreements == []
    assert fresh(folder).decisions == ["approved", "rejected"]
