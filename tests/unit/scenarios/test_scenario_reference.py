"""docs/reference/scenarios.md has every check and every reason code that the code can give."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from qualify.scenarios.contract import IDENTITY, KINDS, kind

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/scenarios.md").read_text("utf-8")
SOURCE = ROOT / "src/qualify"
CODE = re.compile(r"^[a-z]+(-[a-z]+)+$")


def strings(node: ast.AST) -> Iterator[str]:
    """Every string constant in `node`."""
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def calls(path: str, *names: str) -> Iterator[ast.Call]:
    """Calls of functions or methods that are called so."""
    for node in ast.walk(ast.parse((SOURCE / path).read_text("utf-8"))):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else None
            name = function.id if isinstance(function, ast.Name) else name
            if name in names:
                yield node


def reasons() -> set[str]:
    """Reason codes written in the code: verdicts, violations, disagreements."""
    found = set()
    for path in ("scenarios/checks.py", "scenarios/acceptance.py", "scenarios/repair.py",
                 "runner/trial.py"):  # fmt: skip
        for call in calls(path, "failed", "unknown"):
            found.update(strings(call))
    for path in ("sessions/projection.py", "sessions/replay.py"):
        for call in calls(path, "append"):
            found.update(strings(call))
    from qualify.scenarios.repair import _REASONS

    found.update(_REASONS.values())
    return {code for code in found if CODE.match(code)}


def table(heading: str) -> list[str]:
    """Lines of the tables below a heading."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| ")]


def test_the_code_gives_reasons_at_all() -> None:
    assert {"other-bytes", "effect-twice", "rejection-differs", "test-fails"} <= reasons()


@pytest.mark.parametrize("code", sorted(reasons()))
def test_every_reason_is_explained(code: str) -> None:
    assert any(f"`{code}`" in line.split("|")[2] for line in table("Checks"))


def test_no_reason_is_explained_that_the_code_does_not_give() -> None:
    lines = [line.split("|") for line in table("Checks") if line.count("|") == 4]
    told = {code for cells in lines for code in re.findall(r"`([a-z-]+)`", cells[2])}
    told -= {"sdk-event-unreadable"}  # returned, not appended
    assert told <= reasons()


def test_every_check_of_every_kind_is_in_the_table_with_its_kind() -> None:
    told: dict[str, str] = {}
    for line in table("Checks"):
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 4 and cells[1].startswith("`"):
            told[cells[1].strip("`")] = cells[3]
    expected: dict[str, set[str]] = {}
    for name in KINDS:
        for check in (*kind(name).CHECKS, IDENTITY):
            expected.setdefault(check, set()).add(name)
    words = {
        check: "both" if len(k) == len(KINDS) else next(iter(k)) for check, k in expected.items()
    }
    assert told == words


def test_every_code_of_an_error_is_a_stop_reason_there() -> None:
    tables = [
        node.value
        for node in ast.walk(ast.parse((SOURCE / "sessions/construction.py").read_text("utf-8")))
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "codes"
    ]
    assert len(tables) == 2
    for codes in tables:
        assert isinstance(codes, ast.Dict)
        for value in codes.values:
            assert isinstance(value, ast.Constant)
            assert f"`{value.value}`" in PAGE
