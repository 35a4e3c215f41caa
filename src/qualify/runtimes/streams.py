"""Server-sent events of a chat completion, and the whole answer that they make up.

The relay always asks an engine for a stream, so that progress shows token by token, and gives a
client that asked for one answer exactly what the engine would have sent: content, tool calls,
finish reason, usage and every field besides, put together again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

DONE = "[DONE]"
_EVENT_LIMIT = 4 << 20


class BrokenStream(ValueError):
    """The engine's stream is no stream of chat-completion chunks."""


class EventReader:
    """Cuts bytes into the data of server-sent events (WHATWG HTML, section 9.2.6).

    Comments and fields other than `data` are skipped.
    """

    def __init__(self) -> None:
        self._pending = b""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Yield the data of every event that `chunk` completes. Raises `BrokenStream`."""
        self._pending += chunk
        *lines, self._pending = self._pending.split(b"\n")
        if len(self._pending) > _EVENT_LIMIT:
            raise BrokenStream("an event is too long")
        for raw in lines:
            line = raw.rstrip(b"\r")
            if not line:
                if self._data:
                    yield "\n".join(self._data)
                self._data = []
            elif line.startswith(b"data:"):
                try:
                    self._data.append(line[5:].removeprefix(b" ").decode())
                except UnicodeDecodeError as error:
                    raise BrokenStream("an event is not UTF-8") from error


def read_chunk(data: str) -> dict[str, Any]:
    """The chunk that an event holds. Raises `BrokenStream`."""
    try:
        chunk = json.loads(data)
    except ValueError as error:
        raise BrokenStream("an event is not JSON") from error
    if not isinstance(chunk, dict) or not isinstance(chunk.get("choices", []), list):
        raise BrokenStream("an event is no chunk of a chat completion")
    return chunk


def has_token(chunk: dict[str, Any]) -> bool:
    """Whether a chunk carries a piece of what the model wrote."""
    for choice in chunk.get("choices", ()):
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if isinstance(delta, dict) and any(
            value for name, value in delta.items() if name != "role"
        ):
            return True
    return False


class Assembler:
    """Puts the chunks of one stream together."""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}

    @property
    def usage(self) -> Any:
        """The usage that the engine has told so far."""
        return self._head.get("usage")

    @property
    def timings(self) -> Any:
        """llama.cpp's times, when it is llama.cpp."""
        return self._head.get("timings")

    @property
    def complete(self) -> bool:
        """Whether there is a choice and every choice has ended."""
        return bool(self._choices) and all(
            choice.get("finish_reason") is not None for choice in self._choices.values()
        )

    def add(self, chunk: dict[str, Any]) -> None:
        """Take a chunk in. Raises `BrokenStream`."""
        for name, value in chunk.items():
            if name not in ("choices", "prompt_progress") and value is not None:
                self._head[name] = value
        for part in chunk.get("choices", ()):
            if not isinstance(part, dict) or not isinstance(part.get("index", 0), int):
                raise BrokenStream("a choice is not understood")
            index = part.get("index", 0)
            choice = self._choices.setdefault(
                index, {"index": index, "message": {"role": "assistant", "content": None}}
            )
            for name, value in part.items():
                if name == "delta":
                    _merge_message(choice["message"], value)
                elif name == "logprobs":
                    _merge_logprobs(choice, value)
                elif name != "index" and value is not None:
                    choice[name] = value

    def whole(self) -> dict[str, Any]:
        """The answer as one chat completion."""
        choices = []
        for _, choice in sorted(self._choices.items()):
            message = choice["message"]
            if message["content"] is None and not message.get("tool_calls"):
                message["content"] = ""
            choices.append({"finish_reason": None, **choice})
        return {**self._head, "object": "chat.completion", "choices": choices}


def _merge_message(message: dict[str, Any], delta: Any) -> None:
    if delta is None:
        return
    if not isinstance(delta, dict):
        raise BrokenStream("a delta is not understood")
    for name, value in delta.items():
        if value is None:
            continue
        if name == "tool_calls":
            _merge_calls(message.setdefault("tool_calls", []), value)
        elif isinstance(value, str) and name != "role":
            before = message.get(name)
            message[name] = before + value if isinstance(before, str) else value
        else:
            message[name] = value


def _merge_calls(calls: list[dict[str, Any]], parts: Any) -> None:
    """Pieces of tool calls: the index says whose piece it is, arguments are appended."""
    if not isinstance(parts, list):
        raise BrokenStream("tool calls are not understood")
    for part in parts:
        index = part.get("index", len(calls)) if isinstance(part, dict) else None
        if not isinstance(index, int) or not 0 <= index <= len(calls):
            raise BrokenStream("a tool call is not understood")
        if index == len(calls):
            calls.append({})
        call = calls[index]
        for name, value in part.items():
            if name == "function" and isinstance(value, dict):
                _merge_function(call.setdefault("function", {}), value)
            elif name != "index" and value is not None:
                call[name] = value


def _merge_function(function: dict[str, Any], part: dict[str, Any]) -> None:
    for name, value in part.items():
        if name == "name" and function.get("name") == value:
            continue  # some engines say the name in every piece
        if isinstance(value, str) and isinstance(function.get(name), str):
            function[name] += value
        elif value is not None:
            function[name] = value


def _merge_logprobs(choice: dict[str, Any], part: Any) -> None:
    if not isinstance(part, dict):
        return
    whole = choice.setdefault("logprobs", {})
    for name, value in part.items():
        if isinstance(value, list) and isinstance(whole.get(name), list):
            whole[name] += value
        else:
            whole[name] = value
