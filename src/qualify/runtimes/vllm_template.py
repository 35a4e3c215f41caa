"""The chat template of a safetensors snapshot, and whether it is the one that a server uses.

vLLM tells nobody its template, and for some model types it silently takes one of its own. So the
model's own template is rendered here, and the server is asked to turn both the same messages and
the rendered text into tokens: equal tokens mean that the template in force says the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FILE = "chat_template.jinja"
CONFIG = "tokenizer_config.json"
_LIMIT = 4 << 20
_QUESTION = "Which template is in force? {{ none }}"

type Tokens = Callable[[Mapping[str, Any]], list[int]]
"""Asks the server for the tokens of a body of `/tokenize`."""


def own_template(folder: Path) -> str | None:
    """The model's template: its own file goes before the tokenizer's configuration.

    Raises `OSError`, `ValueError` for a configuration that is no JSON object.
    """
    if (folder / FILE).is_file():
        return _read(folder / FILE)
    found = _configuration(folder).get("chat_template")
    if isinstance(found, list):  # several, by name
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def in_force(folder: Path, template: str, tokens: Tokens) -> bool | None:
    """Whether the server's template says what `template` says; `None`: it cannot be rendered here.

    Raises what `tokens` raises.
    """
    messages: list[dict[str, Any]] = [{"role": "user", "content": _QUESTION}]
    served = tokens({"messages": messages, "add_generation_prompt": True})
    texts = {
        text
        for content in (_QUESTION, [{"type": "text", "text": _QUESTION}])
        if (text := _render(folder, template, [{"role": "user", "content": content}])) is not None
    }
    if not texts:
        return None
    return any(served == tokens({"prompt": t, "add_special_tokens": False}) for t in texts)


def _render(folder: Path, template: str, messages: list[dict[str, Any]]) -> str | None:
    """As the transformers library renders it, as far as a template without tools asks for."""
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        return None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)

    def refuse(message: str) -> str:
        raise TemplateError(message)

    environment.globals["raise_exception"] = refuse
    try:
        return environment.from_string(template).render(
            messages=messages, add_generation_prompt=True, **_special_tokens(folder)
        )
    except (TemplateError, TypeError, ValueError, OSError):
        return None


def _special_tokens(folder: Path) -> dict[str, str]:
    found = {}
    for name, value in _configuration(folder).items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _configuration(folder: Path) -> dict[str, Any]:
    if not (folder / CONFIG).is_file():
        return {}
    value = json.loads(_read(folder / CONFIG))
    if not isinstance(value, dict):
        raise ValueError(f"{CONFIG} is no JSON object")
    return value


def _read(path: Path) -> str:
    with path.open("rb") as stream:
        data = stream.read(_LIMIT + 1)
    if len(data) > _LIMIT:
        raise ValueError(f"{path.name} is larger than {_LIMIT} bytes")
    return data.decode("utf-8")
