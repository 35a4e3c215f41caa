"""Sessions on the real agent SDK, imported once, with a chat-completions server of the tests."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from qualify.manifests.catalog import Catalog, load_catalog
from support.chat import ChatServer

if TYPE_CHECKING:
    from qualify.sessions.owner import Session

ROOT = Path(__file__).parents[3]
AGENTS = {"native": "openhands-native-minimal", "prompt": "openhands-prompt-minimal"}

type OpenSession = Callable[..., Session]


@pytest.fixture(scope="session")
def agent_sdk() -> None:
    """The agent SDK, imported in this process so that forks have it."""
    from qualify.sessions.construction import preload

    preload()


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return load_catalog(ROOT)


@pytest.fixture
def server() -> Iterator[ChatServer]:
    chat = ChatServer()
    yield chat
    chat.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The session's private folder."""
    return tmp_path / "session"


@pytest.fixture
def workspace(folder: Path) -> Path:
    return folder / "workspace"


@pytest.fixture
def open_session(
    agent_sdk: None, catalog: Catalog, server: ChatServer, folder: Path,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> OpenSession:  # fmt: skip
    """`open_session(mode="native")` opens, or reopens, the session in `folder`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    session = uuid.uuid4().hex

    def start(mode: str = "native", **limits: Any) -> Session:
        from qualify.sessions.owner import Session, SessionSpec

        agent = catalog.agents[AGENTS[mode]].model_dump(mode="json")
        agent["limits"] |= limits
        return Session(
            SessionSpec(
                folder=str(folder), session=session, agent=agent, tool_mode=mode,
                base_url=server.url, api_key="key-of-the-test", model_name="model-of-the-test",
            )
        )  # fmt: skip

    return start


@pytest.fixture
def no_process_left(tmp_path: Path) -> Iterator[None]:
    """After the test no process has its working folder below the test's."""
    yield
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                place = (entry / "cwd").readlink()
            except OSError:
                continue
            assert tmp_path not in place.parents, entry.name
