"""docs/release-criteria.md: each capability once, and nothing is called met without a test."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/release-criteria.md").read_text("utf-8")
COUNTS = {
    "M": 4, "B": 7, "R": 5, "A": 8, "S": 9, "E": 8, "T": 2, "Q": 5, "G": 8, "L": 9, "D": 2, "F": 1,
}  # fmt: skip
CAPABILITIES = [
    f"{letter}{number}" for letter, count in COUNTS.items() for number in range(1, count + 1)
]
TEST = re.compile(r"`(tests/[a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`")


class Row(NamedTuple):
    """One line of the page's tables."""

    id: str
    what: str
    release: str
    state: str
    proof: str

    @property
    def tests(self) -> list[tuple[str, str]]:
        """File and name of each test it names."""
        return TEST.findall(self.proof)


def rows(page: str) -> list[Row]:
    """Every capability's line."""
    lines = [line for line in page.splitlines() if re.match(r"\| [A-Z]\d+ \|", line)]
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines]


def faults(row: Row) -> list[str]:
    """What a row claims without saying what it must say."""
    found = []
    if not row.what:
        found.append("says nothing")
    if row.release not in ("required", "later"):
        found.append("neither required nor later")
    if row.state in ("met", "partly") and not row.tests:
        found.append("names no test")
    if row.state in ("partly", "unmet") and not re.search(r"owner: [a-z]+ engineer\b", row.proof):
        found.append("names no owner")
    if row.state == "partly" and "missing: " not in row.proof:
        found.append("does not say what is missing")
    if row.state == "met" and re.search(r"missing|owner", row.proof):
        found.append("is met and something is missing")
    if row.state == "unmet" and row.tests:
        found.append("is unmet and names a test")
    if row.state not in ("met", "partly", "unmet"):
        found.append("has no known state")
    return found


@cache
def defined_in(file: str) -> frozenset[str]:
    """Names of the tests that a file defines."""
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text("utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


ROWS = rows(PAGE)


def test_every_capability_has_exactly_one_row():
    assert [row.id for row in ROWS] == CAPABILITIES


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_a_row_claims_no_more_than_it_shows(row):
    assert faults(row) == []


@pytest.mark.parametrize("row", [row for row in ROWS if row.tests], ids=lambda row: row.id)
def test_every_named_test_exists(row):
    missing = [f"{file}::{name}" for file, name in row.tests if name not in defined_in(file)]
    assert missing == []


@pytest.mark.parametrize(
    "line",
    [
        "| M1 | x | required | met | by and large |",
        "| M1 | x | required | unmet | |",
        "| M1 | x | required | partly | `tests/unit/test_x.py::test_x` (owner: gate engineer) |",
        "| M1 | x | sometime | met | `tests/unit/test_x.py::test_x` |",
        "| M1 | x | required | nearly | owner: gate engineer |",
        "| M1 | x | required | met | `tests/unit/test_x.py::test_x`<br>missing: y |",
    ],
)
def test_a_dishonest_row_is_noticed(line):
    assert faults(*rows(line)) != []


def test_a_test_that_does_not_exist_is_noticed():
    assert "test_every_named_test_exists" in defined_in("tests/unit/test_release_criteria.py")
    assert "test_gone" not in defined_in("tests/unit/test_release_criteria.py")
    assert defined_in("tests/unit/test_no_such_file.py") == frozenset()
