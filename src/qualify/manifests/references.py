"""Rules between manifests: references, locks, engines, corpora, rows that say the same.

Each rule yields mistakes with the place of the field that breaks it; none stops at the first.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qualify.core.digests import digest_file
from qualify.core.errors import UsageError
from qualify.core.identifiers import nearest
from qualify.core.status import EngineKind
from qualify.manifests.base_layers import LOCK as DEBIAN_LOCK
from qualify.manifests.files import CARD, CORPORA, ManifestFile
from qualify.manifests.kinds import (
    Agent,
    Bundle,
    Corpus,
    Manifest,
    Row,
    Runtime,
    Scenario,
    Suite,
)
from qualify.manifests.loader import Place

type Locate = Callable[[ManifestFile, Place], str]
"""Gives `file:line:column` of a place in a file."""


@dataclass
class Draft:
    """What was read, before the rules between manifests were applied."""

    project: Path
    found: dict[str, dict[str, tuple[Manifest, ManifestFile]]]
    """Kind → id → manifest and file."""
    broken: dict[str, set[str]]
    """Kind → ids whose files have mistakes of their own."""
    locks: dict[str, str]
    """Lock → digest of its file."""
    locate: Locate
    base_layers: dict[str, str] = field(default_factory=dict)
    """Debian closure → its digest."""

    def of(self, kind: str) -> Iterator[tuple[Any, ManifestFile]]:
        """All manifests of a kind with their files."""
        yield from self.found[kind].values()

    def get(self, kind: str, name: str | None) -> Any | None:
        """One manifest, or `None`."""
        return self.found[kind][name][0] if name in self.found[kind] else None


_SINGULAR = {
    "runtimes": "runtime", "models": "model", "platforms": "platform", "agents": "agent",
    "scripts": "script", "matrix": "row", "scenarios": "scenario", "suites": "suite",
    "corpora": "corpus", "policies": "policy", "bundles": "bundle",
}  # fmt: skip


def singular(kind: str) -> str:
    """The word for one manifest of a kind."""
    return _SINGULAR[kind]


def check_references(draft: Draft) -> list[UsageError]:
    """Apply every rule except that of equal rows (see `catalog`)."""
    mistakes: list[UsageError] = []
    for kind, name, target in _REFERENCE_FIELDS:
        for manifest, file in draft.of(kind):
            mistakes += _dangling(draft, manifest, file, name, target)
    for kind in ("runtimes", "agents"):
        for manifest, file in draft.of(kind):
            mistakes += _lock(draft, manifest, file)
    for runtime, file in draft.of("runtimes"):
        mistakes += _base_layer(draft, runtime, file)
    for row, file in draft.of("matrix"):
        mistakes += _engine_and_model(draft, row, file)
        mistakes += _image(draft, row, file)
    for corpus, file in draft.of(CORPORA):
        mistakes += _corpus_files(draft, corpus, file)
    return mistakes


_REFERENCE_FIELDS: tuple[tuple[str, str, str], ...] = (
    ("matrix", "runtime", "runtimes"),
    ("matrix", "model", "models"),
    ("matrix", "script", "scripts"),
    ("matrix", "platform", "platforms"),
    ("matrix", "agent", "agents"),
    ("matrix", "suites", "suites"),
    ("suites", "scenarios", "scenarios"),
    ("scenarios", "corpus", CORPORA),
    ("bundles", "rows", "matrix"),
)


def _dangling(
    draft: Draft, manifest: Row | Suite | Scenario | Bundle, file: ManifestFile,
    field: str, target: str,
) -> Iterator[UsageError]:  # fmt: skip
    value = getattr(manifest, field)
    if value is None:
        return
    names: list[tuple[str, Place]] = (
        [(value, (field,))]
        if isinstance(value, str)
        else [(name, (field, index)) for index, name in enumerate(value)]
    )
    for name, place in names:
        if name in draft.found[target] or name in draft.broken[target]:
            continue
        yield UsageError(
            f"there is no {_SINGULAR[target]} {name!r}",
            where=draft.locate(file, place),
            fix=nearest(name, list(draft.found[target])) or f"add {_home(target, name)}",
        )


def _home(kind: str, name: str) -> str:
    return f"{CORPORA}/{name}/{CARD}" if kind == CORPORA else f"manifests/{kind}/{name}.yaml"


def _lock(draft: Draft, manifest: Runtime | Agent, file: ManifestFile) -> Iterator[UsageError]:
    name = manifest.lock
    if name is None or name in draft.locks:
        return
    known = sorted(path.stem for path in (draft.project / "locks").glob("*.json"))
    yield UsageError(
        f"there is no lock {name!r}",
        where=draft.locate(file, ("lock",)),
        fix=nearest(name, known) or f"make locks/{name}.json with `qualify lock resolve`",
    )


def _base_layer(draft: Draft, runtime: Runtime, file: ManifestFile) -> Iterator[UsageError]:
    name = runtime.base_layer
    if name is None or name in draft.base_layers:
        return
    yield UsageError(
        f"{DEBIAN_LOCK} has no closure {name!r}",
        where=draft.locate(file, ("base_layer",)),
        fix=nearest(name, list(draft.base_layers)) or "add it to locks/debian.in",
    )


def _image(draft: Draft, row: Row, file: ManifestFile) -> Iterator[UsageError]:
    runtime: Runtime | None = draft.get("runtimes", row.runtime)
    if row.placement != "image" or runtime is None or runtime.base_layer is not None:
        return
    yield UsageError(
        f"runtime {runtime.id!r} names no base layer, so nothing says what its image is made of",
        where=draft.locate(file, ("placement",)),
        fix="declare base_layer in the runtime, or placement host",
    )


def _engine_and_model(draft: Draft, row: Row, file: ManifestFile) -> Iterator[UsageError]:
    runtime: Runtime | None = draft.get("runtimes", row.runtime)
    if runtime is None:
        return
    scripted = runtime.engine is EngineKind.SCRIPTED
    if scripted and row.model is not None:
        yield UsageError(
            f"runtime {runtime.id!r} is scripted and plays no model",
            where=draft.locate(file, ("model",)),
            fix="name a script instead",
        )
    if not scripted and row.script is not None:
        yield UsageError(
            f"runtime {runtime.id!r} is no scripted one and plays no script",
            where=draft.locate(file, ("script",)),
            fix="name a model instead",
        )


def _corpus_files(draft: Draft, corpus: Corpus, card: ManifestFile) -> Iterator[UsageError]:
    """The card and the folder say the same: every file, its size and its SHA-256."""
    folder = card.path.parent
    declared = {file.path for file in corpus.files}
    for index, file in enumerate(corpus.files):
        problem = _file_problem(folder / file.path, file.size, file.sha256)
        if problem is not None:
            yield UsageError(
                f"files[{index}]: {file.path} {problem}",
                where=draft.locate(card, ("files", index, "path")),
                fix="restore the file, or describe the new one",
            )
    for name in _data_files(folder):
        if name not in declared:
            yield UsageError(
                f"{name!a} lies in the folder and is not in the card",
                where=draft.locate(card, ("files",)),
                fix="describe it under files, or remove it",
            )


def _file_problem(path: Path, size: int, sha256: str) -> str | None:
    try:
        info = path.lstat()
        if not stat.S_ISREG(info.st_mode):
            return "is not a regular file"
        if info.st_size != size:
            return f"has {info.st_size} bytes, not {size}"
        found = digest_file(path).removeprefix("sha256:")
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    return None if found == sha256 else f"has SHA-256 {found}, not {sha256}"


def _data_files(folder: Path) -> list[str]:
    names = []
    for base, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        links = [name for name in folders if (Path(base) / name).is_symlink()]
        names += [(Path(base) / name).relative_to(folder).as_posix() for name in (*files, *links)]
    return sorted(name for name in names if name != CARD)
