"""One bounded HTTP exchange with an engine: no redirects, no proxies, no retries.

For reading back what a server says of itself and for the readiness completion. The standard library
is enough and costs next to nothing to import while an engine starts. Traffic of a trial goes
through the relay, never through here.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

_LIMIT = 8 << 20


class Unanswered(Exception):
    """No usable answer. `reason` is `no-connection`, `timeout`, `garbage` or `refused`.

    `status` is the HTTP status when there was one. The server's text is not kept.
    """

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason if status is None else f"{reason} (status {status})")
        self.reason = reason
        self.status = status


def ask(
    url: str,
    key: str,
    body: Mapping[str, Any] | None = None,
    *,
    deadline: float,
) -> Any:
    """GET `url`, or POST `body`, and return the JSON answer of status 200.

    `deadline` is on `time.monotonic()` and bounds the whole exchange. Raises `Unanswered`.
    """
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = connect(parts.hostname or "", parts.port, timeout=_left(deadline))
    headers = {"Accept": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    data = None
    if body is not None:
        data = json.dumps(body).encode()
        headers["Content-Type"] = "application/json"
    try:
        connection.connect()
        # A socket's timeout bounds one read; a server that trickles would never end.
        with _broken_off_at(deadline, connection.sock):
            connection.request("GET" if data is None else "POST", parts.path or "/", data, headers)
            answer = connection.getresponse()
            content = _read(answer)
    except (OSError, http.client.HTTPException) as error:
        raise _unanswered(error, deadline) from error
    finally:
        connection.close()
    if time.monotonic() >= deadline:
        raise Unanswered("timeout")
    if answer.status != 200:
        raise Unanswered("refused", answer.status)
    try:
        return json.loads(content)
    except ValueError as error:
        raise Unanswered("garbage", 200) from error


def _unanswered(error: Exception, deadline: float) -> Unanswered:
    if isinstance(error, TimeoutError) or time.monotonic() >= deadline:
        return Unanswered("timeout")
    if isinstance(error, OSError):  # a disconnection is both kinds of error
        return Unanswered("no-connection")
    return Unanswered("garbage")


@contextlib.contextmanager
def _broken_off_at(deadline: float, connection: socket.socket) -> Iterator[None]:
    def break_off() -> None:
        with contextlib.suppress(OSError, ValueError):
            connection.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(_left(deadline), break_off)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _read(answer: http.client.HTTPResponse) -> bytes:
    content = answer.read(_LIMIT + 1)
    if len(content) > _LIMIT:
        raise http.client.HTTPException("the answer is too large")
    return content


def _left(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise Unanswered("timeout")
    return remaining


def completed(answer: Any) -> bool:
    """Whether `answer` is a chat completion: a choice with an assistant's message."""
    try:
        message = answer["choices"][0]["message"]
    except (TypeError, KeyError, IndexError):
        return False
    return isinstance(message, dict) and (
        isinstance(message.get("content"), str) or bool(message.get("tool_calls"))
    )


READINESS: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Reply with the word ready."}],
    "max_tokens": 2,
    "temperature": 0,
    "stream": False,
}
"""Body of the readiness completion, without the model's name."""
