"""Keys that an SSH agent holds: with a passphrase, on a card, or of another process.

The agent is a service on this machine (`$SSH_AUTH_SOCK`); it is asked for one signature with one
key that the caller named by its public half. Its answers are bounded in size and time, and a
signature is verified before it is used (`SigningKey.sign`). The protocol is
draft-ietf-sshm-ssh-agent, messages 13 and 14.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from qualify.core.errors import EnvironmentFault, UsageError
from qualify.evidence.signing.keys import SigningKey, read_public_key, read_signing_key
from qualify.evidence.signing.sshsig import Fields, NotASignature, public_blob, ssh_string

SOCKET = "SSH_AUTH_SOCK"
_SIGN_REQUEST = 13
_SIGN_RESPONSE = 14
_MAX_ANSWER = 64 << 10
_SECONDS = 60
"""A person may have to touch a card."""


def load_signing_key(path: Path, never_below: Iterable[Path] = ()) -> SigningKey:
    """The key of a file: a private key, or for a public one (`….pub`) the agent's.

    Raises as `read_signing_key` and `agent_key`.
    """
    if path.suffix == ".pub":
        return agent_key(path)
    return read_signing_key(path, never_below)


def agent_key(public: Path) -> SigningKey:
    """The key whose public half lies in a file and whose private half the agent holds.

    Raises `UsageError` for a file that is no public key, and when there is no agent.
    """
    key = read_public_key(public)
    place = os.environ.get(SOCKET, "")
    if not place:
        raise UsageError(
            "is a public key, and there is no SSH agent to sign with its other half",
            where=str(public),
            fix=f"give the private key, or start an agent (${SOCKET})",
        )
    blob = public_blob(key)
    return SigningKey(key, f"the SSH agent ({public})", partial(_ask, place, blob))


def _ask(place: str, blob: bytes, data: bytes) -> bytes:
    message = bytes([_SIGN_REQUEST]) + ssh_string(blob) + ssh_string(data) + (0).to_bytes(4, "big")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_SECONDS)
            connection.connect(place)
            connection.sendall(ssh_string(message))
            size = int.from_bytes(_exactly(connection, 4), "big")
            if not 0 < size <= _MAX_ANSWER:
                raise _refused(f"answered with {size} bytes")
            answer = Fields(_exactly(connection, size))
    except OSError as error:
        raise _refused(f"does not answer: {error.strerror or error}") from error
    try:
        if answer.take(1)[0] != _SIGN_RESPONSE:
            raise _refused("does not hold the key, or did not want to sign")
        signature = Fields(answer.string())
        answer.require_end()
        if signature.string() != b"ssh-ed25519":
            raise _refused("signed with a key of another kind")
        made = signature.string()
        signature.require_end()
    except NotASignature as error:
        raise _refused(f"gave no signature: {error}") from error
    return made


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise _refused("ended in the middle of its answer")
        data += part
    return data


def _refused(what: str) -> EnvironmentFault:
    return EnvironmentFault(what, where="the SSH agent", fix="see `ssh-add -L`, or give a key file")
