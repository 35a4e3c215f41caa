"""The guard over the project's own files in an image: they are those of its commit."""

from __future__ import annotations

from collections.abc import Iterator

from qualify.images.guards.project import COMMAND, HOME
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
from qualify.images.project_source import ProjectSource, project_source


def source(subject: Subject) -> GuardResult:
    """The project's own files in the image are those of its commit, each by its digest."""
    name, expected = "source", subject.expected
    if not expected.ours:
        return not_applicable(name, "not built by this project")
    if expected.project is None:
        return unknown(name, "there is no project here to compare with (name one with --project)")
    try:
        known = project_source(expected.project, expected.revision)
    except OSError as error:
        return unknown(name, f"the project's files cannot be read: {error.strerror or error}")
    wrong = [*_differences(subject, known), *_command(subject, known)]
    if not wrong:
        where = f"commit {known.commit[:12]}" if known.commit else "the project's folder"
        why = f"; {known.why_folder}" if known.why_folder else ""
        return passed(name, f"{len(known.files)} files as in {where}{why}")
    if known.commit is not None:
        what = f"not of commit {known.commit[:12]}: {counted(len(wrong), 'file')}"
        return failed(name, f"{what}, {first_of(wrong)}", wrong)
    what = f"{counted(len(wrong), 'file')} not as in the project's folder, and {known.why_folder}"
    return unknown(name, f"{what}: {first_of(wrong)}", wrong)


def _differences(subject: Subject, known: ProjectSource) -> Iterator[str]:
    embedded = {}
    for path, node in subject.scan.tree.walk():
        if not path.startswith(f"{HOME}/") or node.kind == "folder" or _is_bytecode(path):
            continue
        embedded[path.removeprefix(f"{HOME}/")] = node.digest.hex() if node.kind == "file" else ""
    for path in sorted(embedded.keys() | known.files.keys()):
        if path not in embedded:
            yield f"missing: {path}"
        elif path not in known.files:
            yield f"extra: {path}"
        elif embedded[path] != known.files[path]:
            yield f"differs: {path}"


def _is_bytecode(path: str) -> bool:
    """What the guard over bytecode judges."""
    return path.endswith(".pyc") and path.rpartition("/")[0].endswith("/__pycache__")


def _command(subject: Subject, known: ProjectSource) -> Iterator[str]:
    """The program `qualify`, which the builder writes from a constant of the same commit."""
    node = subject.scan.tree.find(COMMAND, follow_last=False)
    if node is not None and node.digest.hex() != known.command:
        yield f"differs: /{COMMAND}"
