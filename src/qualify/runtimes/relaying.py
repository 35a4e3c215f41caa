"""How the relay passes one call on: check, forward as a stream, count, answer.

Imports aiohttp, so it is imported by the relay's thread only. Every way in which a call can end is
one `Call` in the relay's account.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import web

from qualify.runtimes.calls import Asked, Call, Kind, Spent, read_request, read_spent, violations
from qualify.runtimes.streams import (
    DONE,
    Assembler,
    BrokenStream,
    EventReader,
    has_token,
    read_chunk,
)

if TYPE_CHECKING:
    from qualify.runtimes.relay import Relay

_ANSWER_LIMIT = 64 << 20
_PASSED_ON = ("Retry-After", "X-Request-Id")
_CLIENT_GONE = 499
_NOTHING_ASKED = Asked(None, None, None, False)

type _Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Failed(Exception):
    """A call that ends without a completion: reason code and what the client is told."""

    def __init__(self, reason: str, status: int, body: bytes | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.status = status
        self.body = body
        self.headers: dict[str, str] = {}


def handlers(relay: Relay) -> list[web.RouteDef]:
    """The allow-list of paths."""

    async def models(request: web.Request) -> web.StreamResponse:
        if not relay.admits(request):
            return _error(401, "invalid-key", "the relay's key is missing or wrong")
        entry = {"id": relay.model_name, "object": "model", "created": 0, "owned_by": "relay"}
        return web.json_response({"object": "list", "data": [entry]})

    async def other(request: web.Request) -> web.StreamResponse:
        if relay.admits(request):
            relay.refuse()
        return _error(404, "path-not-allowed", "the relay passes chat completions on, nothing else")

    def chat(kind: Kind) -> _Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            if not relay.admits(request):
                return _error(401, "invalid-key", "the relay's key is missing or wrong")
            return await _Exchange(relay, kind, request).run()

        return handle

    return [
        web.post("/v1/chat/completions", chat("agent")),
        web.post("/direct/v1/chat/completions", chat("direct")),
        web.get("/v1/models", models),
        web.get("/direct/v1/models", models),
        web.route("*", "/{path:.*}", other),
    ]


class _Exchange:
    """One call on its way."""

    def __init__(self, relay: Relay, kind: Kind, request: web.Request) -> None:
        self._relay = relay
        self._kind = kind
        self._request = request
        self._begun = time.monotonic()
        self._first_token_ms: int | None = None
        self._tokens = 0
        self._asked = _NOTHING_ASKED
        self._spent = Spent()

    async def run(self) -> web.StreamResponse:
        """Pass the call on and account for it, however it ends."""
        self._relay.begin()
        status, failure = 500, "relay-fault"
        try:
            response = await self._pass_on()
            status, failure = response.status, ""
            return response
        except Failed as fault:
            status, failure = fault.status, fault.reason
            if fault.body is None:
                answer = _error(fault.status, fault.reason, f"model call failed: {fault.reason}")
            else:
                answer = web.Response(
                    status=fault.status, body=fault.body, content_type="application/json"
                )
            answer.headers.update(fault.headers)
            return answer
        except asyncio.CancelledError:
            status, failure = _CLIENT_GONE, "client-gone"
            raise
        finally:
            self._account(status, failure)

    def _account(self, status: int, failure: str) -> None:
        expected = self._relay.expected
        known = self._asked is not _NOTHING_ASKED
        self._relay.finish(
            Call(
                kind=self._kind,
                ok=not failure,
                status=status,
                failure=failure or None,
                asked=self._asked,
                model_matches=self._asked.model == expected.model_name,
                violations=violations(self._asked, self._kind, expected) if known else (),
                spent=self._spent,
                first_token_ms=self._first_token_ms,
                total_ms=self._elapsed_ms(),
            )
        )
        self._tell("done")

    def _elapsed_ms(self) -> int:
        return int((time.monotonic() - self._begun) * 1000)

    def _tell(self, phase: str, **counts: int | None) -> None:
        self._relay.tell(self._kind, phase, self._begun, completion_tokens=self._tokens, **counts)

    async def _pass_on(self) -> web.StreamResponse:
        body = await self._body()
        self._asked = read_request(body)
        if self._asked.model != self._relay.expected.model_name:
            raise Failed("model-not-allowed", 403)
        self._tell("waiting")
        url, key = self._relay.target
        headers = {"Accept": "text/event-stream, application/json", "Accept-Encoding": "identity"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        assert self._relay.session is not None
        try:
            async with self._relay.session.post(
                f"{url}/chat/completions",
                json=_as_stream(body, self._relay.extras),
                headers=headers,
                allow_redirects=False,
            ) as answer:
                return await self._answered(body, answer)
        except TimeoutError as error:
            raise Failed("timeout", 504) from error
        except BrokenStream as error:
            raise Failed("garbage", 502) from error
        except aiohttp.ClientPayloadError as error:
            raise Failed("disconnected", 502) from error
        except aiohttp.ServerDisconnectedError as error:
            raise Failed("disconnected", 502) from error
        except aiohttp.ClientResponseError as error:
            raise Failed("garbage", 502) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Failed("no-connection", 502) from error

    async def _body(self) -> dict[str, Any]:
        try:
            body = json.loads(await self._request.read())
        except web.HTTPRequestEntityTooLarge as error:
            raise Failed("body-too-large", 413) from error
        except ValueError as error:
            raise Failed("bad-request", 400) from error
        if not isinstance(body, dict):
            raise Failed("bad-request", 400)
        return body

    async def _answered(
        self, body: Mapping[str, Any], answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        if 300 <= answer.status < 400:
            raise Failed("redirect-refused", 502)
        if answer.status != 200:
            fault = Failed("engine-error", answer.status, await _read(answer))
            fault.headers = {n: answer.headers[n] for n in _PASSED_ON if n in answer.headers}
            raise fault
        if answer.content_type != "text/event-stream":
            return await self._whole(answer)
        if self._asked.stream:
            return await self._stream(body, answer)
        assembler = Assembler()
        async for _, chunk in self._chunks(answer, assembler):
            if "error" in chunk:
                raise _engine_error(chunk)
        if not assembler.complete:
            raise Failed("truncated", 502)
        return web.json_response(assembler.whole())

    async def _chunks(self, answer: aiohttp.ClientResponse, assembler: Assembler) -> Any:
        """Events of the engine's stream as `(data, chunk)`, metered on the way."""
        reader = EventReader()
        size = 0
        async for piece in answer.content.iter_any():
            size += len(piece)
            if size > _ANSWER_LIMIT:
                raise BrokenStream("the answer is too long")
            for data in reader.feed(piece):
                if data == DONE:
                    return
                chunk = read_chunk(data)
                if "error" not in chunk:
                    self._meter(chunk)
                    assembler.add(chunk)
                    self._spent = read_spent(assembler.usage, assembler.timings)
                yield data, chunk

    def _meter(self, chunk: dict[str, Any]) -> None:
        progress = chunk.get("prompt_progress")
        if isinstance(progress, dict):
            self._tell(
                "reading", prompt_done=progress.get("processed"), prompt_total=progress.get("total")
            )
        if has_token(chunk):
            if self._first_token_ms is None:
                self._first_token_ms = self._elapsed_ms()
            self._tokens += 1
            self._tell("writing")

    async def _stream(
        self, body: Mapping[str, Any], answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        """Pass the engine's events on, without those that only we asked for."""
        wants_usage = (body.get("stream_options") or {}).get("include_usage") is True
        wants_progress = body.get("return_progress") is True
        assembler = Assembler()
        response: web.StreamResponse | None = None
        try:
            async for data, chunk in self._chunks(answer, assembler):
                if "error" in chunk:
                    raise _engine_error(chunk)
                if "prompt_progress" in chunk and not wants_progress:
                    continue
                if "usage" in chunk and not chunk.get("choices") and not wants_usage:
                    continue
                response = response or await self._open_stream()
                await response.write(b"data: " + data.encode() + b"\n\n")
            if response is None or not assembler.complete:
                raise Failed("truncated", 502)
        except BaseException:
            # Once events have been sent, breaking the connection is the only honest error.
            if response is not None and self._request.transport is not None:
                self._request.transport.abort()
            raise
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _open_stream(self) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(self._request)
        return response

    async def _whole(self, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        """An engine that does not stream: its answer passes as it is."""
        content = await _read(answer)
        try:
            value = json.loads(content)
        except ValueError as error:
            raise Failed("garbage", 502) from error
        if not isinstance(value, dict) or not value.get("choices"):
            raise Failed("garbage", 502)
        self._spent = read_spent(value.get("usage"), value.get("timings"))
        return web.Response(body=content, content_type="application/json")


def _as_stream(body: Mapping[str, Any], extras: Mapping[str, Any]) -> dict[str, Any]:
    options = body.get("stream_options")
    return {
        **extras,
        **body,
        "stream": True,
        "stream_options": {
            **(options if isinstance(options, dict) else {}),
            "include_usage": True,
        },
    }


def _engine_error(chunk: Mapping[str, Any]) -> Failed:
    error = chunk["error"]
    code = error.get("code") if isinstance(error, dict) else None
    status = code if isinstance(code, int) and 400 <= code < 600 else 502
    return Failed("engine-error", status, json.dumps({"error": error}).encode())


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for piece in answer.content.iter_any():
        content += piece
        if len(content) > _ANSWER_LIMIT:
            raise BrokenStream("the answer is too long")
    return bytes(content)


def _error(status: int, code: str, text: str) -> web.Response:
    body = {"error": {"message": text, "type": "relay_error", "code": code}}
    return web.json_response(body, status=status)
