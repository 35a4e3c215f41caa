"""Plays a script manifest: which reply a request gets, in which tool mode, with which usage.

Pure: a request in, an answer as data out; the server in `scripted_server` only sends it. Imports
the standard library alone, because the server's process starts without anything else of Qualify.

The rules:

- The first reply is played whose conditions all hold. None holding is an error of the script
  (status 500), never an invented answer.
- A tool's result is no message of the user. In prompt mode the SDK writes results as user messages
  that begin with `EXECUTION RESULT of [`; they count as results here. Captures are looked for in
  the user's messages first, then in results, the newest first.
- A request with tools gets native tool calls; any other gets the SDK's text format, which carries
  one call, so only the first is written.
- A token is four characters, rounded up; a prompt's characters are those of its messages' texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RESULT_PREFIX = "EXECUTION RESULT of ["
_CAPTURE = re.compile(r"\{([A-Za-z0-9_.-]+)\}")
_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True)
class Answer:
    """What to send: a message, or an error status, after `delay_ms`, unless there is a `fault`."""

    status: int
    message: Mapping[str, Any]
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    delay_ms: int = 0
    fault: str | None = None


def play(script: Mapping[str, Any], request: Mapping[str, Any]) -> Answer:
    """The script's answer to a chat-completions request."""
    messages = [message for message in request.get("messages", []) if isinstance(message, dict)]
    reply = _matching(script["replies"], messages)
    prompt_tokens = _tokens(sum(len(_text(message)) for message in messages))
    if reply is None:
        return Answer(500, {"content": "no reply of the script holds"}, "error", prompt_tokens, 0)
    values = _captures(script.get("captures") or {}, messages)
    text = _fill(reply["text"], values) if reply.get("text") is not None else None
    calls = [
        (call["tool"], {name: _fill(value, values) for name, value in call["arguments"].items()})
        for call in reply.get("calls") or ()
    ]
    message, reason, size = (_native if request.get("tools") else _written)(text, calls, messages)
    return Answer(
        status=reply.get("status") or 200,
        message=message,
        finish_reason=reason,
        prompt_tokens=prompt_tokens,
        completion_tokens=_tokens(size),
        delay_ms=reply.get("delay_ms") or 0,
        fault=reply.get("fault"),
    )


type _Calls = Sequence[tuple[str, Mapping[str, str]]]


def _native(
    text: str | None, calls: _Calls, messages: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], str, int]:
    """A message with structured tool calls; ids are unique within the conversation."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if not calls:
        return {**message, "content": text or ""}, "stop", len(text or "")
    message["tool_calls"] = [
        {
            "id": f"call_{len(messages)}_{index}",
            "type": "function",
            "function": {"name": tool, "arguments": json.dumps(arguments)},
        }
        for index, (tool, arguments) in enumerate(calls)
    ]
    size = sum(len(tool) + len(json.dumps(arguments)) for tool, arguments in calls)
    return message, "tool_calls", len(text or "") + size


def _written(
    text: str | None, calls: _Calls, messages: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], str, int]:
    """A message in the SDK's text format."""
    del messages
    content = text or ""
    if calls:
        tool, arguments = calls[0]
        parameters = [
            f"<parameter={name}>{_block(arguments[name])}</parameter>" for name in arguments
        ]
        call = "\n".join([f"<function={tool}>", *parameters, "</function>"])
        content = f"{content}\n{call}" if content else call
    return {"role": "assistant", "content": content}, "stop", len(content)


def _block(value: str) -> str:
    """The SDK sets a value of several lines apart."""
    return f"\n{value}\n" if "\n" in value else value


def _matching(
    replies: Sequence[Mapping[str, Any]], messages: Sequence[Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    last = _text(messages[-1]) if messages else ""
    turn = _turn(messages)
    for reply in replies:
        pattern, wanted = reply.get("when_message"), reply.get("when_turn")
        if pattern is not None and re.search(pattern, last) is None:
            continue
        if wanted is not None and wanted != turn:
            continue
        return reply
    return None


def _turn(messages: Sequence[Mapping[str, Any]]) -> int:
    """Assistant messages since the last user message."""
    turn = 0
    for message in reversed(messages):
        if _is_user(message):
            break
        turn += message.get("role") == "assistant"
    return turn


def _captures(patterns: Mapping[str, str], messages: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Each capture from the newest message of the user in which its group 1 is found, else from
    the newest result.
    """
    newest = list(reversed(messages))
    users = [_text(message) for message in newest if _is_user(message)]
    results = [_text(message) for message in newest if _is_result(message)]
    found = {}
    for name, pattern in patterns.items():
        for text in (*users, *results):
            match = re.search(pattern, text)
            if match and match.re.groups and match[1] is not None:
                found[name] = match[1]
                break
    return found


def _fill(template: str, values: Mapping[str, str]) -> str:
    """Replace `{name}` by its capture; braces of anything else stay as they are."""
    return _CAPTURE.sub(lambda match: values.get(match[1], match[0]), template)


def _is_user(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "user" and not _is_result(message)


def _is_result(message: Mapping[str, Any]) -> bool:
    role = message.get("role")
    return role == "tool" or (role == "user" and _text(message).startswith(RESULT_PREFIX))


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(part for part in parts if isinstance(part, str))
    return ""


def _tokens(characters: int) -> int:
    return -(-characters // _CHARACTERS_PER_TOKEN)
