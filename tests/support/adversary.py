"""An engine that misbehaves over real HTTP, one behaviour at a time."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


def chunk(text: str | None = None, reason: str | None = None, **more: Any) -> bytes:
    """One event of a streamed completion."""
    delta = {} if text is None else {"content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return event({"object": "chat.completion.chunk", "choices": [choice], **more})


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


END = event({"choices": [], "usage": USAGE}) + b"data: [DONE]\n\n"
GOOD = chunk("he") + chunk("llo") + chunk(None, "stop") + END


class Adversary:
    """`behaviour` answers each POST; it gets the handler and the request's body."""

    def __init__(self, behaviour: Callable[[Handler, dict[str, Any]], None]) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.broken_off = threading.Event()
        play = self

        class Bound(Handler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                play.requests.append(body)
                play.headers.append(dict(self.headers))
                play.paths.append(self.path)
                try:
                    behaviour(self, body)
                except OSError:
                    play.broken_off.set()

            def do_GET(self) -> None:
                play.paths.append(self.path)
                self.answer(200, b"{}")

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class Handler(BaseHTTPRequestHandler):
    """What a behaviour can do."""

    def log_message(self, *_: Any) -> None:
        """Stay quiet."""

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        """A whole answer, JSON unless said otherwise."""
        self.send_response(status)
        sent = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        for name, value in sent.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def stream(self, *parts: bytes, pause_s: float = 0.0) -> None:
        """Events until the connection is closed."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for part in parts:
            self.wfile.write(part)
            self.wfile.flush()
            time.sleep(pause_s)
