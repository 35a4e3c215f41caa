"""Run a test on a module that an agent wrote, without letting the module speak for the test.

Test and module share one interpreter, so a module could print a green report, end the process or
reach into the test framework. Two things keep it from that: a module that does more than compute
(imports outside a short list, reflection, equality of its own) is not run at all, and the result
is said by a harness of ours under a word that only it knows, not by an exit code or a report.
"""

from __future__ import annotations

import ast
import secrets
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Literal

from qualify.sandbox.isolation import Isolation

_TIMEOUT_S = 60
_LARGEST = 1 << 18

_PURE: Mapping[str, frozenset[str] | None] = {
    "__future__": frozenset({"annotations"}),
    "bisect": frozenset({"bisect", "bisect_left", "bisect_right", "insort"}),
    "calendar": frozenset({"isleap", "leapdays", "monthrange"}),
    "collections": frozenset({"Counter", "OrderedDict", "defaultdict", "deque"}),
    "collections.abc": frozenset({"Iterable", "Iterator", "Mapping", "Sequence"}),
    "datetime": frozenset({"date", "datetime", "timedelta"}),
    "decimal": frozenset({"Decimal"}),
    "fractions": frozenset({"Fraction"}),
    "functools": frozenset({"cache", "lru_cache", "reduce"}),
    "itertools": None,
    "math": None,
    "re": frozenset({"compile", "escape", "findall", "fullmatch", "match", "search", "split",
                     "sub"}),
    "typing": frozenset({"Any", "Iterable", "List", "Optional", "Sequence", "TypeVar", "Union"}),
}  # fmt: skip
"""Modules that only compute, with the names that may be used; `None`: every public name."""

_REFLECTIVE = frozenset({
    "breakpoint", "compile", "delattr", "dir", "eval", "exec", "exit", "getattr", "globals", "help",
    "input", "locals", "open", "quit", "setattr", "type", "vars",
})  # fmt: skip
_FRAMES = frozenset({
    "ag_frame", "cr_frame", "f_back", "f_builtins", "f_globals", "f_locals", "gi_frame", "tb_frame",
    "tb_next",
})  # fmt: skip
_PLAIN_DUNDERS = frozenset({"__init__", "__len__", "__name__", "__repr__", "__str__"})
"""Not among them: reflection, and equality of a module's own, which would answer for the test."""

_HARNESS = """
import os, sys, unittest
word = sys.stdin.readline().strip()
answers = os.dup(1)
nowhere = os.open(os.devnull, os.O_WRONLY)
os.dup2(nowhere, 1), os.dup2(nowhere, 2)
def say(*words):
    os.write(answers, (" ".join([word, *map(str, words)]) + chr(10)).encode())
class Result(unittest.TestResult):
    passed = 0
    def addSuccess(self, test):
        self.passed += 1
say("started")
sys.path.insert(0, os.getcwd())
result = Result()
unittest.defaultTestLoader.loadTestsFromName(sys.argv[1]).run(result)
say("ended", result.testsRun, result.passed, result.wasSuccessful())
"""

type Result = Literal["passed", "failed", "timed-out", "not-started"]


def only_computes(source: str) -> bool:
    """Whether the module cannot reach beyond itself. Raises `SyntaxError` for what is no module."""
    tree = ast.parse(source)
    imported = {
        name.asname or name.name: name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for name in node.names
    }
    used = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return all(_harmless(node, imported, used) for node in ast.walk(tree))


def _harmless(node: ast.AST, imported: Mapping[str, str], used: set[int]) -> bool:
    if not all(_plain(name) for name in _identifiers(node)):
        return False
    match node:
        case ast.Import():
            return all(name.name in _PURE and "." not in name.name for name in node.names)
        case ast.ImportFrom():
            module = node.module or ""
            return node.level == 0 and all(_pure(module, name.name) for name in node.names)
        case ast.Attribute(value=ast.Name(id=name)) if name in imported:
            return _pure(imported[name], node.attr)
        case ast.Name() if node.id in imported:
            return id(node) in used and isinstance(node.ctx, ast.Load)
        case _:
            return not isinstance(node, ast.Name) or node.id not in _REFLECTIVE


def _identifiers(node: ast.AST) -> Iterator[str]:
    """Every name that `node` uses or binds, in whatever place Python's grammar has for one."""
    if isinstance(node, ast.Constant):
        return
    for field, value in ast.iter_fields(node):
        if field != "module":
            yield from (item for item in (value if isinstance(value, list) else [value])
                        if isinstance(item, str))  # fmt: skip


def _plain(name: str) -> bool:
    dunder = name.startswith("__") and name.endswith("__") and name not in _PLAIN_DUNDERS
    return not dunder and name not in _FRAMES


def _pure(module: str, name: str) -> bool:
    if module not in _PURE:
        return False
    offered = _PURE[module]
    if offered is not None:
        return name in offered
    value = getattr(__import__(module), name, None)
    return value is not None and not name.startswith("_") and not isinstance(value, ModuleType)


def readable_source(path: Path) -> str | None:
    """The module's text, or `None` when it is no plain text file of a sensible size."""
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _LARGEST:
            return None
        return path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return None


def run_test(
    files: Mapping[str, str], test: str, *, python: str, isolation: Isolation, private: Path
) -> Result:
    """Run the unittest file `test` among `files`, alone in a folder below `private`.

    `passed`: every one of its cases ran and passed, and there was at least one.
    """
    word = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="judge-", dir=private) as name:
        folders = {part: Path(name) / part for part in ("project", "home", "tmp")}
        for folder in folders.values():
            folder.mkdir()
        for file, text in files.items():
            (folders["project"] / file).write_text(text, encoding="utf-8")
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8",
            "HOME": str(folders["home"]), "TMPDIR": str(folders["tmp"]),
        }  # fmt: skip
        argv = isolation.wrap(
            [python, "-I", "-B", "-c", _HARNESS, test.removesuffix(".py")],
            workspace=folders["project"], home=folders["home"], temporary=folders["tmp"],
            environment=environment,
        )  # fmt: skip
        try:
            done = subprocess.run(
                argv, cwd=folders["project"], env=environment, input=f"{word}\n".encode(),
                capture_output=True, timeout=_TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return "timed-out"
        except OSError:
            return "not-started"
    said = [line.split()[1:] for line in done.stdout.decode().splitlines() if line.startswith(word)]
    cases = str(files[test].count("    def test_"))
    if ["started"] not in said:
        return "not-started"
    return "passed" if cases != "0" and ["ended", cases, cases, "True"] in said else "failed"
