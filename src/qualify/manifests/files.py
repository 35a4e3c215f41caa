"""Which files of a project are manifests: `manifests/KIND/**.yaml` and `corpora/ID/card.yaml`.

Finds the project by walking up. Follows no links to folders. What lies in these folders and could
be taken for a manifest without being read as one is a mistake, never silently left out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from qualify.core.errors import UsageError
from qualify.core.identifiers import nearest
from qualify.manifests.kinds import KINDS

CORPORA = "corpora"
CARD = "card.yaml"
MAX_FILES = 20_000


@dataclass(frozen=True)
class ManifestFile:
    """One file to read: its kind (a folder name), the id that its name asks for, its path and its
    path below the project, as shown to people.
    """

    kind: str
    id: str
    path: Path
    shown: str


def find_project(start: Path | None = None) -> Path:
    """The folder that holds `manifests/`: `start` itself when given, else `$QUALIFY_PROJECT`, else
    the nearest one from the current folder upwards. Raises `UsageError`.
    """
    if start is not None:
        return _project(start, "--project")
    named = os.environ.get("QUALIFY_PROJECT")
    if named:
        return _project(Path(named), "QUALIFY_PROJECT")
    try:
        here = Path.cwd()
    except OSError as error:
        raise UsageError("the current folder is gone", fix="go to another folder") from error
    for folder in (here, *here.parents):
        if (folder / "manifests").is_dir():
            return folder
    raise UsageError(
        "no project here: neither this folder nor one above it holds manifests/",
        where=str(here),
        fix="go to a project, or name one with --project or QUALIFY_PROJECT",
    )


def _project(folder: Path, source: str) -> Path:
    if not (folder / "manifests").is_dir():
        raise UsageError(
            f"{source} names no project: it holds no manifests/",
            where=str(folder),
            fix="name the folder that holds manifests/",
        )
    return folder.resolve()


def list_files(project: Path) -> tuple[list[ManifestFile], list[UsageError]]:
    """All manifests of a project, sorted by path, and what is in the way."""
    files: list[ManifestFile] = []
    mistakes: list[UsageError] = []
    kinds = [kind for kind in KINDS if kind != CORPORA]
    for entry in _entries(project / "manifests", mistakes, project):
        if entry.is_dir(follow_symlinks=False) and entry.name in kinds:
            _walk(Path(entry.path), entry.name, project, files, mistakes, depth=0)
        elif entry.is_dir() or entry.name.endswith((".yaml", ".yml")):
            mistakes.append(
                UsageError(
                    "is not a kind of manifest",
                    where=_shown(Path(entry.path), project),
                    fix=nearest(entry.name, kinds) or f"use one of {', '.join(kinds)}",
                )
            )
    if (project / CORPORA).is_dir():
        _cards(project, files, mistakes)
    if len(files) > MAX_FILES:
        raise UsageError(f"has more than {MAX_FILES:,} manifests", where=str(project))
    return files, mistakes


def _walk(
    folder: Path, kind: str, project: Path, files: list[ManifestFile],
    mistakes: list[UsageError], depth: int,
) -> None:  # fmt: skip
    for entry in _entries(folder, mistakes, project):
        path = Path(entry.path)
        shown = _shown(path, project)
        if entry.name.endswith(".yaml"):
            files.append(ManifestFile(kind, entry.name.removesuffix(".yaml"), path, shown))
        elif entry.name.endswith(".yml"):
            fix = f"rename it to {path.stem}.yaml"
            mistakes.append(UsageError("would not be read", where=shown, fix=fix))
        elif entry.is_dir(follow_symlinks=False) and depth < 4:
            _walk(path, kind, project, files, mistakes, depth + 1)
        elif entry.is_dir():
            mistakes.append(
                UsageError(
                    "is a link to a folder, or nested too deeply", where=shown, fix="move it"
                )
            )


def _cards(project: Path, files: list[ManifestFile], mistakes: list[UsageError]) -> None:
    for entry in _entries(project / CORPORA, mistakes, project):
        path = Path(entry.path)
        if not entry.is_dir(follow_symlinks=False):
            if entry.name.endswith((".yaml", ".yml")) or entry.is_dir():
                shown, fix = _shown(path, project), f"make it {CORPORA}/ID/{CARD}"
                mistakes.append(UsageError("is not a corpus folder", where=shown, fix=fix))
            continue
        card = path / CARD
        if os.path.lexists(card):
            files.append(ManifestFile(CORPORA, entry.name, card, _shown(card, project)))
        else:
            shown = _shown(path, project)
            mistakes.append(UsageError(f"has no {CARD}", where=shown, fix="describe the corpus"))


def _entries(folder: Path, mistakes: list[UsageError], project: Path) -> list[os.DirEntry[str]]:
    """Sorted entries, hidden ones and bytecode caches left out."""
    try:
        with os.scandir(folder) as found:
            kept = [e for e in found if not e.name.startswith((".", "__pycache__"))]
    except OSError as error:
        what = f"cannot be listed: {error.strerror or error}"
        mistakes.append(
            UsageError(what, where=_shown(folder, project), fix="check its permissions")
        )
        return []
    return sorted(kept, key=lambda entry: entry.name)


def _shown(path: Path, project: Path) -> str:
    """Path below the project; bytes that are no text and line ends cannot disturb a terminal."""
    text = os.fspath(path)[len(os.fspath(project)) + 1 :]
    return text.encode("utf-8", "backslashreplace").decode() if text.isprintable() else ascii(text)
