"""The files of the project that its images carry, as the commit of an image has them.

An image names its commit in the label `org.opencontainers.image.revision`. Where the project's
checkout knows that commit, its files are read from git's own store, whatever is checked out at the
moment. Elsewhere (another history, no checkout, a tree with changes) the files that lie in the
folder are taken, and the answer says why.

Promises: reads only, fetches nothing, and runs nothing but git's commands for reading objects.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PARTS = ("LICENSE", "corpora", "locks", "manifests", "src")
"""What an image carries of the project (nix/layers.nix)."""
COMMAND_FILE = "src/qualify/images/building/project_layer.py"
"""Where the text of the image's `/usr/bin/qualify` stands."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SECONDS = 120


@dataclass(frozen=True)
class ProjectSource:
    """Digests of the project's files, by path below the project."""

    files: Mapping[str, str]
    """SHA-256 in hexadecimal."""
    command: str | None
    """SHA-256 of the program `qualify` that goes into an image; `None` when it cannot be told."""
    commit: str | None
    """The commit that they are of; `None` when they are what lies in the folder."""
    why_folder: str | None = None
    """Why they are not those of the image's commit."""


def project_source(project: Path, revision: str | None) -> ProjectSource:
    """The files of `revision` where the project's git knows it, else those of the folder.

    Raises `OSError` when a file of the folder cannot be read.
    """
    if revision is None:
        return _of_folder(project, "it names no commit")
    if not _COMMIT.fullmatch(revision):
        return _of_folder(project, f"it was built from {revision[:60]!a}, which is no commit")
    if not (project / ".git").exists():
        return _of_folder(project, "the project here is no git checkout")
    try:
        return _of_commit(project, revision)
    except (OSError, subprocess.SubprocessError, ValueError):
        return _of_folder(project, f"its commit {revision[:12]} is not known here")


def _of_folder(project: Path, why: str) -> ProjectSource:
    contents = ((name, (project / name).read_bytes()) for name in sorted(_names(project)))
    return _source(contents, None, why)


def _names(project: Path) -> Iterator[str]:
    """Files below the parts that may go into an image; those that git tracks, where it tells."""
    try:
        listed = (
            _git(project, "ls-files", "-z", "--", *PARTS) if (project / ".git").exists() else b""
        )
        names = [os.fsdecode(name) for name in listed.split(b"\0") if name]
    except (OSError, subprocess.SubprocessError):
        names = []
    if names:
        yield from (name for name in names if _goes_in(name) and (project / name).is_file())
        return
    for part in PARTS:
        if (project / part).is_file():
            yield part
        for folder, _, files in os.walk(project / part):
            for file in files:
                path = Path(folder, file)
                name = path.relative_to(project).as_posix()
                if _goes_in(name) and path.is_file():
                    yield name


def _of_commit(project: Path, commit: str) -> ProjectSource:
    listed = _git(project, "ls-tree", "-r", "-z", "--full-tree", commit, "--", *PARTS)
    found: dict[str, str] = {}
    for row in listed.split(b"\0"):
        if row:
            head, _, name = row.partition(b"\t")
            mode, kind, blob = head.decode("ascii").split(" ")
            if kind == "blob" and mode in ("100644", "100755") and _goes_in(os.fsdecode(name)):
                found[os.fsdecode(name)] = blob
    if not found:
        raise ValueError("the commit holds no project")
    return _source(_blobs(project, found), commit, None)


def _goes_in(name: str) -> bool:
    """Whether a file is source: not what Python leaves beside it (nix/layers.nix, `part`)."""
    return "__pycache__" not in name.split("/") and not name.endswith((".pyc", ".pyo"))


def _source(
    contents: Iterator[tuple[str, bytes]], commit: str | None, why: str | None
) -> ProjectSource:
    files: dict[str, str] = {}
    command = None
    for name, data in contents:
        files[name] = hashlib.sha256(data).hexdigest()
        if name == COMMAND_FILE:
            command = _command(data)
    return ProjectSource(files, command, commit, why)


def _command(builder: bytes) -> str | None:
    """Digest of the constant `_COMMAND` of the builder's source, read without running it."""
    try:
        module = ast.parse(builder)
    except (SyntaxError, ValueError):
        return None
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            names = [each.id for each in node.targets if isinstance(each, ast.Name)]
            if names == ["_COMMAND"] and isinstance(node.value.value, bytes):
                return hashlib.sha256(node.value.value).hexdigest()
    return None


def _blobs(project: Path, names: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each blob. Raises `ValueError` for one that git does not have."""
    asked = "".join(f"{blob}\n" for blob in names.values()).encode("ascii")
    answer = memoryview(_git(project, "cat-file", "--batch", given=asked))
    at = 0
    for name, blob in names.items():
        end = bytes(answer[at : at + 200]).index(b"\n")
        said, kind, size = bytes(answer[at : at + end]).decode("ascii").split(" ")
        if (said, kind) != (blob, "blob"):
            raise ValueError("git does not have it")
        start = at + end + 1
        data = bytes(answer[start : start + int(size)])
        at = start + len(data) + 1
        yield name, data


def _git(project: Path, *arguments: str, given: bytes = b"") -> bytes:
    """What git prints. No replaced objects, no fetching of missing ones, no hooks or prompts."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", "--no-replace-objects", "-C", str(project), "-c", "core.fsmonitor=false",
         *arguments],
        input=given,
        env={**kept, "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0",
             "GIT_OPTIONAL_LOCKS": "0"},
        capture_output=True,
        timeout=_SECONDS,
        check=True,
    )  # fmt: skip
    return done.stdout
