"""One bounded HTTP exchange with an engine: no redirects, no proxies, no retries.

For reading back what a server says of itself and for the readiness completion. The standard library
is enough and costs next to nothing to import while an engine starts. Traffic of a trial goes
through the relay, never through here.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

_LIMIT = 8 << 20
_CHUNK = 1 << 16


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
        connection.request("GET" if data is None else "POST", parts.path or "/", data, headers)
        answer = connection.getresponse()
        content = _read(connection, answer, deadline)
    except TimeoutError as error:
        raise Unanswered("timeout") from error
    except http.client.HTTPException as error:
        raise Unanswered("garbage") from error
    except OSError as error:
        raise Unanswered("no-connection") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise Unanswered("refused", answer.status)
    try:
        return json.loads(content)
    except ValueError as error:
        raise Unanswered("garbage", 200) from error


def _read(
    connection: http.client.HTTPConnection, answer: http.client.HTTPResponse, deadline: float
) -> bytes:
    content = bytearray()
    while True:
        if connection.sock is not None:
            connection.sock.settimeout(_left(deadline))
        chunk = answer.read1(_CHUNK)
        if not chunk:
            return bytes(content)
        content += chunk
        if len(content) > _LIMIT:
            raise http.client.HTTPException("answer too large")


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
