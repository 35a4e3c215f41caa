"""A copy of the project in which one scripted row does what a test wants.

Row `double` runs suite `acceptance` with native tool calls; its script is the one of a model that
does what it is asked, with other replies in front.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
APPEND = r"(?i)append|last line|one more line"
DELETE = r"(?i)delete|remove"
DIRECT = r"(?i)word ready|one word|ready and nothing"
OBEY = "{ cat >> {file} <<'END'\n{line}\nEND\n}"
"""Appends the line as it is, whatever is in it; another command may follow after a semicolon."""


def terminal(command: str) -> dict[str, Any]:
    """A call of the terminal."""
    return {"tool": "terminal", "arguments": {"command": command}}


def replies(command: str = OBEY) -> list[dict[str, Any]]:
    """A model that does what it is asked, with `command` for the line to append."""
    return [
        {"when_message": DIRECT, "text": "ready"},
        {"when_message": DELETE, "calls": [terminal("rm {file}")]},
        {
            "when_message": "exit code",
            "calls": [{"tool": "finish", "arguments": {"message": "Done."}}],
        },
        {"when_message": APPEND, "calls": [terminal(command)]},
    ]


def script(identifier: str, played: Sequence[Mapping[str, Any]]) -> str:
    """A script manifest."""
    captures = {"file": r"\b((?:[a-z]+/)?[a-z]+\.(?:txt|md|log|csv))\b", "line": '"([^"]+)"'}
    return _yaml({"id": identifier, "captures": captures, "replies": list(played)})


def row(identifier: str, *, played: str, **changes: Any) -> str:
    """A row manifest of the scripted runtime."""
    plain: dict[str, Any] = {
        "id": identifier, "runtime": "scripted", "script": played, "platform": "cpu-x86_64",
        "precision": "none", "context_tokens": 16384, "tool_mode": "native",
        "agent": "openhands-native-minimal", "startup_budget_s": 60, "suites": ["acceptance"],
        **changes,
    }  # fmt: skip
    return _yaml({name: value for name, value in plain.items() if value is not None})


def write_project(
    folder: Path,
    played: Sequence[Mapping[str, Any]] | None = None,
    *,
    budgets: Mapping[str, int] | None = None,
    **changes: Any,
) -> Path:
    """Write the project to `folder` and return it. `changes` are fields of the row `double`."""
    for part in ("manifests", "corpora", "locks"):
        shutil.copytree(ROOT / part, folder / part)
    matrix, scripts = folder / "manifests" / "matrix", folder / "manifests" / "scripts"
    (scripts / "played.yaml").write_text(script("played", played or replies()))
    (matrix / "double.yaml").write_text(row("double", played="played", **changes))
    scenario = folder / "manifests" / "scenarios" / "append-and-keep.yaml"
    text = scenario.read_text()
    for name, value in (budgets or {}).items():
        text, count = re.subn(rf"(?m)^  {name}: \d+$", f"  {name}: {value}", text)
        assert count == 1, name
    scenario.write_text(text)
    return folder


def _yaml(value: Any) -> str:
    """JSON in which only strings are quoted: our manifests read numbers from plain scalars."""
    return json.dumps(value, ensure_ascii=False) + "\n"
