"""What asks the model is bound before it works, read again before it goes on, and at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from qualify.manifests.catalog import Catalog
from qualify.sessions import observation
from qualify.sessions.journal import Bound, ClientSeen, Decided, Paused, Reread, Sent, read_journal
from qualify.sessions.replay import replay
from support.chat import ChatServer, finish, run_command
from support.sessions import waiting

if TYPE_CHECKING:
    from qualify.sessions.owner import Session

type OpenSession = Callable[..., Session]


def test_it_is_bound_before_and_read_before_each_continuation_and_at_the_end(
    open_session: OpenSession, server: ChatServer, folder: Path, catalog: Catalog
) -> None:
    server.play(run_command("true"), finish())
    with open_session() as session:
        assert session.approve(waiting(session)) == "finished"
    told = [
        type(event).__name__ + (f" {event.at}" if isinstance(event, Reread) else "")
        for event in read_journal(folder)
        if isinstance(event, Bound | Reread | Sent | Decided | Paused)
    ]
    assert told == [
        "Bound", "Sent", "Reread continuation", "Paused", "Reread continuation", "Decided",
        "Paused", "Reread end",
    ]  # fmt: skip
    found = replay(folder)
    assert (found.client_readings, found.client_changed, found.client_read_at_end) == (3, [], True)
    assert found.client is not None
    client = ClientSeen.model_validate(found.client)
    assert client.confirmation_policy == "AlwaysConfirm"
    assert (client.analyzer, client.sdk_version) == (None, "1.58.2")
    limits = catalog.agents["openhands-native-minimal"].limits
    assert client.max_input_tokens == limits.max_input_tokens
    assert client.max_output_tokens == limits.max_output_tokens
    assert found.violations == []


def other_temperature(session: Any) -> None:
    session._agent.llm.temperature = 0.9


def other_model(session: Any) -> None:
    session._agent.llm.model = "openai/another"


def longer_context(session: Any) -> None:
    session._agent.llm.max_input_tokens = 99


def no_confirmation(session: Any) -> None:
    from openhands.sdk.security import NeverConfirm

    session._conversation.state.confirmation_policy = NeverConfirm()


def an_analyzer(session: Any) -> None:
    from openhands.sdk.security.llm_analyzer import LLMSecurityAnalyzer

    session._conversation.state.security_analyzer = LLMSecurityAnalyzer()


CHANGES = [
    (other_temperature, ["options"]),
    (other_model, ["requested-model", "options"]),
    (longer_context, ["max-input-tokens", "options"]),
    (no_confirmation, ["confirmation-policy", "security"]),
    (an_analyzer, ["analyzer", "security"]),
]


@pytest.mark.parametrize(("change", "names"), CHANGES, ids=[each.__name__ for each, _ in CHANGES])
def test_nothing_goes_on_with_another_client(
    open_session: OpenSession, server: ChatServer, folder: Path, workspace: Path, change, names
) -> None:
    server.play(run_command("echo done >> effects"), finish())
    with open_session() as session:
        group = waiting(session)
        change(session)
        assert session.approve(group) == "error"
        assert session.error_code == "client-changed"
    assert len(server.requests) == 1
    assert not (workspace / "effects").exists()
    found = replay(folder)
    assert found.client_changed == names
    assert found.decisions == [None]
    assert found.violations == []


def test_a_session_that_is_opened_again_with_another_client_does_not_go_on(
    open_session: OpenSession, server: ChatServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.play(run_command("true"))
    with open_session() as session:
        waiting(session)
    monkeypatch.setattr(observation, "sdk_version", lambda: "1.99.0")
    with open_session() as session:
        group = session.pending_group()
        assert group is not None
        assert (session.approve(group), session.error_code) == ("error", "client-changed")
    assert len(server.requests) == 1
    assert replay(folder).client_changed == ["sdk-version"]


def test_a_change_that_is_seen_only_at_the_end_is_told(
    open_session: OpenSession, server: ChatServer, folder: Path
) -> None:
    server.play(finish())
    with open_session() as session:
        session.send("Do it.")
        assert session.run() == "finished"
        other_temperature(session)
    found = replay(folder)
    assert (found.client_changed, found.client_read_at_end) == (["options"], True)


@pytest.mark.parametrize("limit", ["max_input_tokens", "max_output_tokens"])
def test_a_limit_that_nobody_said_keeps_the_model_from_being_asked(
    open_session: OpenSession, server: ChatServer, folder: Path, limit: str
) -> None:
    with open_session(**{limit: None}) as session:
        session.send("Do it.")
        assert (session.run(), session.error_code) == ("error", "implicit-context-limit")
    assert server.requests == []
    client = replay(folder).client
    assert client is not None
    assert client[limit] is None
