"""Signing with a key that a real SSH agent holds, and agents that misbehave."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from qualify.core.errors import EnvironmentFault, UsageError
from qualify.evidence.signing.agent import load_signing_key
from qualify.evidence.signing.dsse import read_envelope, sign_envelope
from qualify.evidence.signing.keys import read_public_key
from qualify.evidence.signing.sshsig import sign_ssh, verify_ssh


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An agent with one key; its public half lies in the file. The private file is gone."""
    started = subprocess.run(
        ["ssh-agent", "-s", "-a", tmp_path / "agent"], check=True, capture_output=True, text=True
    )
    found = re.search(r"SSH_AGENT_PID=([0-9]+)", started.stdout)
    assert found is not None
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "id"], check=True
    )
    subprocess.run(["ssh-add", "-q", tmp_path / "id"], check=True)
    (tmp_path / "id").unlink()
    yield tmp_path / "id.pub"
    os.kill(int(found[1]), signal.SIGTERM)


def test_an_agent_signs_in_both_forms(agent: Path) -> None:
    key = load_signing_key(agent)
    public = read_public_key(agent)
    assert verify_ssh(sign_ssh(key, b"evidence"), b"evidence") == public
    assert read_envelope(sign_envelope(b"{}", [key])).signed_by([public]) == [public]


def test_an_agent_without_the_key_is_named(agent: Path) -> None:
    subprocess.run(["ssh-add", "-q", "-D"], check=True, capture_output=True)
    with pytest.raises(EnvironmentFault, match="does not hold the key"):
        load_signing_key(agent).sign(b"evidence")


def test_without_an_agent_a_public_key_is_refused(
    agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK")
    with pytest.raises(UsageError, match="there is no SSH agent"):
        load_signing_key(agent)
    monkeypatch.setenv("SSH_AUTH_SOCK", "/nowhere")
    with pytest.raises(EnvironmentFault, match="does not answer"):
        load_signing_key(agent).sign(b"evidence")


BLOB = b"\0\0\0\x0bssh-ed25519\0\0\0\x40" + b"x" * 64


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "ended in the middle"),
        (b"\xff\xff\xff\xff", "answered with 4294967295 bytes"),
        (b"\0\0\0\0", "answered with 0 bytes"),
        (b"\0\0\0\x05\x0e\0\0", "ended in the middle"),
        (b"\0\0\0\x01\x05", "does not hold the key"),
        (b"\0\0\0\x05\x0e\xff\xff\xff\xff", "gave no signature"),
        (b"\0\0\0\x58\x0e\0\0\0\x53" + BLOB, "no signature"),
    ],
)
def test_a_double_of_an_agent_that_misbehaves_gets_nothing_signed(
    answer: bytes, message: str, agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "double"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(place))
        listening.listen()

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(place))
        with pytest.raises(EnvironmentFault, match=message):
            load_signing_key(agent).sign(b"evidence")
        thread.join()
