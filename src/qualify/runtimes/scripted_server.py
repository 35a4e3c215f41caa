"""The child process of the scripted engine: a chat-completions server that plays a script.

Started as a script by `watched`. Instructions come as JSON on standard input (key, model name,
script); one JSON line on the descriptor `report` says the address. The kernel chooses the port. It
looks like an engine from outside: key, `/v1/models`, `/v1/chat/completions` with and without
streaming, usage; and it breaks on request: `garbage`, `hang`, `disconnect`, `exit`.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiohttp import web

    from qualify.runtimes.scripted_play import Answer

_BODY_LIMIT = 32 << 20
_READY = "Reply with the word ready."


class Server:
    """Answers requests as the script says."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._key = str(order["key"])
        self._model = str(order["name"])
        self._script = order["script"]
        self._count = 0

    async def models(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/models."""
        from aiohttp import web

        if (refusal := self._refusal(request)) is not None:
            return refusal
        return web.json_response(
            {"object": "list", "data": [{"id": self._model, "object": "model", "created": 0}]}
        )

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        from aiohttp import web

        from qualify.runtimes.scripted_play import Answer, play

        if (refusal := self._refusal(request)) is not None:
            return refusal
        body = await _body(request)
        if body is None or body.get("model") not in (None, self._model):
            return _error(400, "no JSON object, or another model")
        self._count += 1
        if _is_readiness(body):
            answer = Answer(200, {"role": "assistant", "content": "ready"}, "stop", 7, 2)
        else:
            answer = play(self._script, body)
        if answer.delay_ms:
            await asyncio.sleep(answer.delay_ms / 1000)
        if answer.fault is not None:
            return await _break(request, answer.fault)
        if answer.status >= 400:
            return _error(answer.status, str(answer.message.get("content") or "scripted status"))
        if not body.get("stream"):
            return web.json_response(self._whole(answer), status=answer.status)
        return await self._stream(request, body, answer)

    def _refusal(self, request: web.Request) -> web.Response | None:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if hmac.compare_digest(given.encode(), self._key.encode()):
            return None
        return _error(401, "Invalid API Key")

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"scripted-{self._count}",
            "object": kind,
            "created": 0,
            "model": self._model,
        }

    def _whole(self, answer: Answer) -> dict[str, Any]:
        choice = {
            "index": 0,
            "message": dict(answer.message),
            "finish_reason": answer.finish_reason,
        }
        return {**self._head("chat.completion"), "choices": [choice], "usage": _usage(answer)}

    async def _stream(
        self, request: web.Request, body: Mapping[str, Any], answer: Answer
    ) -> web.StreamResponse:
        from aiohttp import web

        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        head = self._head("chat.completion.chunk")
        for delta, reason in _deltas(answer):
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            await response.write(_event({**head, "choices": [choice]}))
        if (body.get("stream_options") or {}).get("include_usage"):
            await response.write(_event({**head, "choices": [], "usage": _usage(answer)}))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


async def _body(request: web.Request) -> dict[str, Any] | None:
    try:
        body = await request.json()
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _is_readiness(body: Mapping[str, Any]) -> bool:
    """The engine's own readiness completion is not part of any script."""
    messages = body.get("messages")
    return (
        isinstance(messages, list)
        and len(messages) == 1
        and isinstance(messages[0], dict)
        and messages[0].get("content") == _READY
        and body.get("max_tokens") == 2
    )


def _deltas(answer: Answer) -> list[tuple[dict[str, Any], str | None]]:
    """The message in pieces, as an engine streams it."""
    message = answer.message
    pieces: list[tuple[dict[str, Any], str | None]] = [
        ({"role": "assistant", "content": None if message.get("content") is None else ""}, None)
    ]
    text = message.get("content") or ""
    pieces += [({"content": text[at : at + 4]}, None) for at in range(0, len(text), 4)]
    for index, call in enumerate(message.get("tool_calls") or ()):
        arguments = call["function"]["arguments"]
        opening = {**call, "index": index, "function": {**call["function"], "arguments": ""}}
        pieces.append(({"tool_calls": [opening]}, None))
        for at in range(0, len(arguments), 16):
            part = {"index": index, "function": {"arguments": arguments[at : at + 16]}}
            pieces.append(({"tool_calls": [part]}, None))
    return [*pieces, ({}, answer.finish_reason)]


async def _break(request: web.Request, fault: str) -> web.StreamResponse:
    from aiohttp import web

    if fault == "garbage":
        return web.Response(body=b"\x00\xff{]not json", content_type="application/json")
    if fault == "exit":
        os._exit(3)
    if fault == "hang":
        await asyncio.Event().wait()
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _usage(answer: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


def _error(status: int, text: str) -> web.Response:
    from aiohttp import web

    body = {"error": {"message": text, "type": "scripted_error", "code": status}}
    return web.json_response(body, status=status)


async def _serve(order: Mapping[str, Any]) -> None:
    from aiohttp import web

    server = Server(order)
    application = web.Application(client_max_size=_BODY_LIMIT)
    application.router.add_get("/v1/models", server.models)
    application.router.add_post("/v1/chat/completions", server.chat)
    runner = web.AppRunner(application, access_log=None, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    _tell(order["report"], address=f"http://127.0.0.1:{port}")
    await asyncio.Event().wait()


def _tell(report: int, **message: Any) -> None:
    os.write(report, json.dumps(message).encode() + b"\n")


def main() -> int:
    """Serve until a signal comes."""
    order = json.load(sys.stdin)
    sys.path.append(order["packages"])
    try:
        import aiohttp.web  # noqa: F401
    except ImportError:
        _tell(order["report"], fault="server-missing")
        return 1
    asyncio.run(_serve(order))
    return 0


if __name__ == "__main__":
    sys.exit(main())
