"""A chat-completions server of the tests' own: plays a list of replies and keeps the requests.

Real HTTP and the real wire format, so that the agent SDK is driven exactly as by an engine.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

type Call = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Reply:
    """What the model answers: text, a group of tool calls, or an HTTP error."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    status: int = 200


def call(tool: str, **arguments: Any) -> Call:
    return tool, arguments


def propose(*calls: Call) -> Reply:
    """One group of tool calls."""
    return Reply(calls=calls)


def run_command(command: str, **arguments: Any) -> Reply:
    return propose(call("terminal", command=command, **arguments))


def finish(message: str = "Done.") -> Reply:
    return propose(call("finish", message=message))


@dataclass
class ChatServer:
    """Answers in order; when the list is used up, by `rule`: it finishes unless told otherwise."""

    replies: deque[Reply] = field(default_factory=deque)
    rule: Callable[[dict[str, Any]], Reply] = lambda _request: finish()
    requests: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        play = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = play.answer(request)
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Stay quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def play(self, *replies: Reply) -> None:
        """Answer the next requests with these."""
        self.replies.extend(replies)

    def answer(self, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.requests.append(request)
        reply = self.replies.popleft() if self.replies else self.rule(request)
        if reply.status != 200:
            return reply.status, {"error": {"message": "out of order", "code": reply.status}}
        native = bool(request.get("tools"))
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
        if reply.calls and native:
            message["tool_calls"] = [
                {
                    "id": f"call-{len(self.requests)}-{number}", "type": "function",
                    "function": {"name": tool, "arguments": json.dumps(arguments)},
                }
                for number, (tool, arguments) in enumerate(reply.calls)
            ]  # fmt: skip
        elif reply.calls:
            message["content"] = "\n".join(_as_text(*item) for item in reply.calls)
        return 200, {
            "id": f"reply-{len(self.requests)}", "object": "chat.completion", "created": 0,
            "model": request["model"],
            "choices": [{
                "index": 0, "message": message,
                "finish_reason": "tool_calls" if reply.calls and native else "stop",
            }],
            "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18},
        }  # fmt: skip

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _as_text(tool: str, arguments: dict[str, Any]) -> str:
    lines = [f"<parameter={name}>{value}</parameter>" for name, value in arguments.items()]
    return "\n".join([f"<function={tool}>", *lines, "</function>"])
