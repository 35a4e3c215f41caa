"""The guard over compiled bytecode: Python runs it without a look at the source beside it."""

from __future__ import annotations

import platform
import re
from collections import Counter
from concurrent.futures.process import BrokenProcessPool

from qualify.images.errors import ImageFault
from qualify.images.guards.result import (
    GuardResult,
    Subject,
    counted,
    failed,
    first_of,
    not_applicable,
    passed,
    unknown,
)
from qualify.images.image import Image
from qualify.images.recompiling import Pair, Verdict, verdicts
from qualify.images.tree import Node, Tree

_NAME = re.compile(r"^(.*?)__pycache__/([^/]+)\.([a-z]+-\d{2,})\.pyc$")
_RELEASE = re.compile(r"^(?:\d+:)?(\d+\.\d+\.\d+)(?![\d.])")
_NO_FAULT = (Verdict.SAME, Verdict.INSTRUCTIONS, Verdict.ANOTHER_PYTHON, Verdict.UNREAD)


def bytecode(subject: Subject) -> GuardResult:
    """Compiled bytecode is what compiling its source gives, and has its source beside it."""
    name, image = "bytecode", subject.image
    if image is None or not subject.expected.ours:
        return not_applicable(name, "not built by this project")
    pairs, wrong = pairs_of(subject.scan.tree)
    wrong = [each for each in wrong if each.split(": ")[0] not in subject.records.owned]
    if not pairs and not wrong:
        return not_applicable(name, "there is no bytecode")
    try:
        found = list(verdicts(image, pairs, subject.progress))
    except (ImageFault, BrokenProcessPool) as error:
        what = error.what if isinstance(error, ImageFault) else "a source ended the compiler"
        return unknown(name, f"it could not be compared: {what}")
    return _concluded(found, wrong, _release(subject), image)


def _concluded(
    found: list[tuple[Pair, Verdict]], wrong: list[str], release: str | None, image: Image
) -> GuardResult:
    name, here = "bytecode", platform.python_version()
    exact = release == here
    for pair, verdict in found:
        if verdict not in _NO_FAULT or (exact and verdict is Verdict.INSTRUCTIONS):
            wrong.append(f"{pair.code_path}: {verdict}")
    if wrong:
        wrong.sort()
        return failed(name, f"{counted(len(wrong), 'file')}: {first_of(wrong)}", wrong)
    count = Counter(verdict for _, verdict in found)
    if unread := sorted(p.code_path for p, verdict in found if verdict is Verdict.UNREAD):
        return unknown(name, f"could not be read: {first_of(unread)}", unread)
    told = f"{len(found):,} have the hash of their sources, {count[Verdict.SAME]:,} their code"
    theirs = f"Python {release}" if release else "another release"
    details = []
    if other := count[Verdict.INSTRUCTIONS]:
        told += f"; the instructions of {other:,} were not compared (of {theirs}, here is {here})"
        details.append(
            f"{other:,} files differ in instructions from what Python {here} makes of their "
            f"sources; names, constants and functions are the same. To compare them to the last "
            f"byte, guard with {theirs}, which is in {image.labels.get('qualify.image', 'it')}"
        )
    if other := count[Verdict.ANOTHER_PYTHON]:
        told += f"; the code of {other:,} was not compared (made by another Python than {here})"
        details.append(f"{other:,} files: guard with the Python of the image to compare their code")
    return passed(name, told, details)


def _release(subject: Subject) -> str | None:
    """The release of the image's Python, by its Debian package."""
    for package, version in subject.debian.items():
        if re.fullmatch(r"libpython3\.\d+-minimal", package) and (m := _RELEASE.match(version)):
            return m[1]
    return None


def pairs_of(tree: Tree) -> tuple[list[Pair], list[str]]:
    """Every bytecode with its source; a sentence for each that has none.

    Bytecode outside of `__pycache__` is imported without a source.
    """
    pairs, wrong = [], []
    for path, node in tree.walk():
        if node.kind == "link" and path.rpartition("/")[2] == "__pycache__":
            wrong.append(f"{path}: leads to the bytecode of other sources")
        if node.kind == "folder" or not path.endswith((".pyc", ".pyo")):
            continue
        made = _pair(tree, path, node)
        if isinstance(made, str):
            wrong.append(f"{path}: {made}")
        else:
            pairs.append(made)
    return pairs, wrong


def _pair(tree: Tree, path: str, node: Node) -> Pair | str:
    if node.kind != "file":
        return "is no file"
    match = _NAME.match(path)
    if match is None:
        return "is bytecode that no build of ours makes"
    source_path = f"{match[1]}{match[2]}.py"
    source = tree.find(source_path)
    if source is None or source.kind != "file":
        return "has no source beside it"
    return Pair(source_path, path, source.digest, node.digest, match[3], (source.layer, node.layer))
