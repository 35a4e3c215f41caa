"""The judge of a repair: right repairs pass, and no module speaks for its own test."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from qualify.core.status import CheckOutcome
from qualify.sandbox.isolation import Isolation, available
from qualify.scenarios import judged_module, repair
from qualify.scenarios.contract import Observed, Variant, Verdict
from qualify.scenarios.judged_module import only_computes, run_test

CORPUS = Path(__file__).parents[3] / "corpora" / "repair"
CASES = json.loads((CORPUS / "cases.json").read_bytes())["cases"]
READABLE = (Path(sys.base_prefix),)
PYTHON = str(Path(sys.base_prefix) / "bin" / "python3")

RIGHT = {
    "def total(": ("-=", "+="),
    "def greet(": ('"?"', '"!"'),
    "def clamp(": ("high\n    if value > high:\n        return low",
                   "low\n    if value > high:\n        return high"),
    "def is_leap(": ("year % 4 == 0", "year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)"),
    "def count_words(": ('split(" ")', "split()"),
    "class Stack": ("pop(0)", "pop()"),
    "def largest(": ("best = 0", "best = values[0]"),
    "def average(": ("//", "/"),
    "def is_palindrome(": ("[::1]", "[::-1]"),
    "def discounted(": ("price - percent", "price - price * percent / 100"),
    "def evens(": ("if value % 2", "if value % 2 == 0"),
    "def factorial(": ("range(1, n)", "range(1, n + 1)"),
}  # fmt: skip
"""The defect of each case and its repair."""


@pytest.fixture(params=["none", "bubblewrap"])
def isolation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Isolation:
    available.cache_clear()
    found = available(READABLE) if request.param == "bubblewrap" else Isolation("none")
    assert found.kind == request.param, "install bubblewrap"
    monkeypatch.setattr("qualify.scenarios.repair.available", lambda _readable: found)
    return found


def variant_of(case: dict[str, str]) -> Variant:
    """The variant of one case, as the corpus has it."""
    seeds = (f"seed-{number}" for number in range(1000))
    found = (repair.vary(CORPUS, seed) for seed in seeds)
    return next(v for v in found if v.files[v.expected["module"]] == case["source"])


def judged(variant: Variant, folder: Path, module: str | None = None) -> Verdict:
    """The verdict on a workspace that holds the variant, with `module` in the module's place."""
    workspace = folder / "workspace"
    workspace.mkdir(exist_ok=True)
    for name, text in variant.files.items():
        (workspace / name).write_text(text)
    if module is not None:
        (workspace / variant.expected["module"]).write_text(module)
    return repair.original_test_passes(observed(variant, folder))


def observed(variant: Variant, folder: Path) -> Observed:
    return Observed(
        variant=variant, folder=folder, stop_reason="completed", direct_answered=True,
        tool_mode="native", tool_modes_sent=frozenset(), projection=None, replay=None,
        audit_events=None, audit_head=None, audit_content=None, python=PYTHON,
        extra={"readable": [str(path) for path in READABLE]},
    )  # fmt: skip


PASSED = Verdict(CheckOutcome.PASSED)


def failed(reason: str) -> Verdict:
    return Verdict(CheckOutcome.FAILED, reason)


@pytest.mark.parametrize("case", CASES, ids=[case["words"]["name"][0] for case in CASES])
def test_every_case_has_a_failing_test_that_a_right_repair_makes_pass(
    case: dict[str, str], tmp_path: Path, isolation: Isolation
) -> None:
    variant = variant_of(case)
    assert judged(variant, tmp_path) == failed("test-fails")
    defect, right = next(pair for key, pair in RIGHT.items() if key in case["source"])
    assert case["source"].count(defect) == 1
    assert judged(variant, tmp_path, case["source"].replace(defect, right)) == PASSED


@pytest.fixture
def variant() -> Variant:
    return variant_of(CASES[0])


GOOD = "def total(values):\n    return sum(values)\n"


def test_what_the_agent_did_to_the_test_does_not_count(
    variant: Variant, tmp_path: Path, isolation: Isolation
) -> None:
    test = tmp_path / "workspace" / variant.expected["test"]
    judged(variant, tmp_path)
    test.write_text("import unittest\n")
    (tmp_path / "workspace" / "unittest.py").write_text("raise SystemExit(0)\n")
    (tmp_path / "workspace" / "sitecustomize.py").write_text("import os; os._exit(0)\n")
    assert repair.original_test_passes(observed(variant, tmp_path)) == failed("test-fails")
    # The control: with a right module the same surroundings do no harm either.
    (tmp_path / "workspace" / variant.expected["module"]).write_text(GOOD)
    assert repair.original_test_passes(observed(variant, tmp_path)) == PASSED


FORGED = {
    "ends the process": "import os\nos._exit(0)\n",
    "prints a report": "import sys\nsys.stderr.write('test_a ... ok\\n' * 2)\nsys.exit(0)\n",
    "leaves quietly": "raise SystemExit(0)\n",
    "breaks on import": "raise ValueError\n",
    "half right": "def total(values):\n    return 6\n",
    "no function": "",
}


@pytest.mark.parametrize("module", FORGED.values(), ids=FORGED.keys())
def test_no_module_speaks_for_its_test(
    variant: Variant, tmp_path: Path, isolation: Isolation, module: str
) -> None:
    """The harness alone, without the look at the source that comes before it."""
    files = {variant.expected["module"]: module,
             variant.expected["test"]: variant.files[variant.expected["test"]]}  # fmt: skip
    options = {"python": PYTHON, "isolation": isolation, "private": tmp_path}
    assert run_test(files, variant.expected["test"], **options) == "failed"  # type: ignore[arg-type]
    right = {**files, variant.expected["module"]: GOOD}
    assert run_test(right, variant.expected["test"], **options) == "passed"  # type: ignore[arg-type]


REACHING = [
    "import os",
    "import sys, math",
    "import os.path",
    "from unittest import TestCase",
    "from . import x",
    "from math import *",
    "from itertools import _grouper",
    "from collections import abc",
    "import re\nre.enum.sys.exit(0)",
    "import re\nx = re",
    "import functools\nfunctools.wraps",
    "__import__('os')._exit(0)",
    "eval('1')",
    "exec('')",
    "open('x')",
    "getattr(total, 'x')",
    "globals()",
    "().__class__.__base__.__subclasses__()",
    "f = total.__globals__",
    "f = total.__init__.__globals__",
    "f = (x for x in []).gi_frame.f_back",
    "def g(e):\n    return e.__traceback__.tb_frame",
    "__builtins__",
    "type('X', (), {})",
    "class Always:\n    def __eq__(self, other):\n        return True",
    "class Always:\n    __eq__ = lambda self, other: True",
    "match total:\n    case object(__globals__=g):\n        pass",
    "[x for x in [1] if __loader__]",
    "class Always:\n    from math import isqrt as __eq__",
    "class Always:\n    class __eq__:\n        pass",
    "class Always:\n    try:\n        pass\n    except ValueError as __eq__:\n        pass",
    "class Always:\n    match 1:\n        case __eq__:\n            pass",
    "def g():\n    global __builtins__",
]


@pytest.mark.parametrize("lines", REACHING)
def test_a_module_that_reaches_outside_is_not_run(
    variant: Variant, tmp_path: Path, lines: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: object, **__: object) -> str:
        raise AssertionError("it was run")

    monkeypatch.setattr("qualify.scenarios.repair.run_test", started)
    assert judged(variant, tmp_path, f"{GOOD}\n{lines}\n") == failed("module-reaches-outside")


@pytest.mark.parametrize(
    "lines",
    [
        "from __future__ import annotations",
        "import math\nx = math.isqrt(4)",
        "import math as m\nx = m.pi",
        "import re\nx = re.split(' ', 'a b')",
        "from collections import Counter, deque",
        "from functools import reduce",
        "import calendar\nx = calendar.isleap(2000)",
        "from typing import Any, List, Optional",
        "class Stack:\n    def __init__(self):\n        self._items = []\n        self.__top = 0",
        "class Stack:\n    def __len__(self):\n        return 1",
        "print('done')\nif __name__ == '__main__':\n    pass",
        "x = [y for y in range(3)]\ntry:\n    pass\nexcept ValueError as e:\n    x = str(e)",
    ],
)
def test_an_ordinary_module_only_computes(lines: str) -> None:
    assert only_computes(f"{lines}\n{GOOD}")


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (Path.unlink, failed("module-missing")),
        (lambda path: (path.unlink(), path.symlink_to("/etc/passwd")), failed("module-missing")),
        (lambda path: (path.unlink(), path.mkdir()), failed("module-missing")),
        (lambda path: path.write_bytes(b"\xff\xfe"), failed("module-missing")),
        (lambda path: path.write_text("#" * 300_000), failed("module-missing")),
        (lambda path: path.write_text("def total(:"), failed("module-unreadable")),
        (lambda path: path.write_text("x = 1\0"), failed("module-unreadable")),
        (lambda path: path.write_text("x = " + "(" * 900 + ")" * 900),
         failed("module-unreadable")),
    ],
)  # fmt: skip
def test_what_is_no_module_fails(
    variant: Variant, tmp_path: Path, change: Callable[[Path], object], verdict: Verdict
) -> None:
    judged(variant, tmp_path)
    change(tmp_path / "workspace" / variant.expected["module"])
    assert repair.original_test_passes(observed(variant, tmp_path)) == verdict


def test_an_endless_module_runs_into_the_time_limit(
    variant: Variant, tmp_path: Path, isolation: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judged_module, "_TIMEOUT_S", 2)
    endless = "def total(values):\n    while True:\n        pass\n"
    assert judged(variant, tmp_path, endless) == failed("test-timed-out")


def test_a_test_that_could_not_be_started_is_unknown(
    variant: Variant, tmp_path: Path, isolation: Isolation
) -> None:
    judged(variant, tmp_path, GOOD)
    no_python = replace(observed(variant, tmp_path), python="/nowhere/python3")
    verdict = repair.original_test_passes(no_python)
    assert verdict == Verdict(CheckOutcome.UNKNOWN, "test-not-started")


def test_the_judge_leaves_nothing_behind(
    variant: Variant, tmp_path: Path, isolation: Isolation
) -> None:
    assert judged(variant, tmp_path, GOOD) == PASSED
    assert [path.name for path in tmp_path.iterdir()] == ["workspace"]
    assert {path.name for path in (tmp_path / "workspace").iterdir()} == set(variant.files)
