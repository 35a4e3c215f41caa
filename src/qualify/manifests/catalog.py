"""All manifests of a project, read whole and cross-checked.

`load_catalog` returns a `Catalog` in which every reference resolves, or raises one `ErrorList` with
every mistake of every file as `file:line:column: what (fix)`. Files are read and hashed each time;
what they mean comes from the parse cache when their bytes have been seen before.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from qualify.core.digests import digest_file
from qualify.core.errors import ErrorList, QualifyError, UsageError
from qualify.core.identifiers import nearest
from qualify.manifests.base_layers import closure_digests
from qualify.manifests.cache import ParseCache
from qualify.manifests.configuration import Configuration, Part, resolve
from qualify.manifests.files import ManifestFile, find_project, list_files
from qualify.manifests.kinds import (
    KINDS,
    Agent,
    Bundle,
    Corpus,
    Manifest,
    Model,
    Platform,
    Policy,
    Row,
    Runtime,
    Scenario,
    Script,
    Suite,
)
from qualify.manifests.loader import Document, Place, YamlMistake, parse, read_manifest
from qualify.manifests.references import Draft, check_references, singular
from qualify.manifests.validation import place_in, validate

__all__ = ["Catalog", "find_project", "load_catalog"]


@dataclass(frozen=True)
class Catalog:
    """Every manifest of a project by kind and id. Built only by `load_catalog`."""

    project: Path
    runtimes: dict[str, Runtime]
    models: dict[str, Model]
    platforms: dict[str, Platform]
    agents: dict[str, Agent]
    scripts: dict[str, Script]
    rows: dict[str, Row]
    scenarios: dict[str, Scenario]
    suites: dict[str, Suite]
    corpora: dict[str, Corpus]
    policies: dict[str, Policy]
    bundles: dict[str, Bundle]
    locks: dict[str, str]
    """Digest of the file of each lock that a manifest names."""
    files: dict[tuple[str, str], str]
    """Path below the project of each manifest, by kind and id."""
    base_layers: dict[str, str] = field(default_factory=dict)
    """Digest of each Debian closure."""
    parts: dict[tuple[str, str], Part] = field(default_factory=dict, compare=False, repr=False)
    """Bound contents made so far (see `configuration`)."""
    resolved: dict[str, Configuration] = field(default_factory=dict, compare=False, repr=False)
    """Configurations made so far, by row."""

    def row(self, name: str) -> Row:
        """The row of that id. Raises `UsageError` with the nearest one."""
        return _named(self.rows, name, "matrix")

    def suite(self, name: str) -> Suite:
        """The suite of that id. Raises `UsageError` with the nearest one."""
        return _named(self.suites, name, "suites")

    def policy(self, name: str) -> Policy:
        """The policy of that id. Raises `UsageError` with the nearest one."""
        return _named(self.policies, name, "policies")

    def model(self, name: str) -> Model:
        """The model of that id. Raises `UsageError` with the nearest one."""
        return _named(self.models, name, "models")

    def scenario(self, name: str) -> Scenario:
        """The scenario of that id. Raises `UsageError` with the nearest one."""
        return _named(self.scenarios, name, "scenarios")

    def runtime(self, name: str) -> Runtime:
        """The runtime of that id. Raises `UsageError` with the nearest one."""
        return _named(self.runtimes, name, "runtimes")

    def platform(self, name: str) -> Platform:
        """The platform of that id. Raises `UsageError` with the nearest one."""
        return _named(self.platforms, name, "platforms")

    def agent(self, name: str) -> Agent:
        """The agent of that id. Raises `UsageError` with the nearest one."""
        return _named(self.agents, name, "agents")

    def script(self, name: str) -> Script:
        """The script of that id. Raises `UsageError` with the nearest one."""
        return _named(self.scripts, name, "scripts")

    def corpus(self, name: str) -> Corpus:
        """The corpus of that id. Raises `UsageError` with the nearest one."""
        return _named(self.corpora, name, "corpora")

    def bundle(self, name: str) -> Bundle:
        """The bundle of that id. Raises `UsageError` with the nearest one."""
        return _named(self.bundles, name, "bundles")


def _named[M: Manifest](known: dict[str, M], name: str, kind: str) -> M:
    if name in known:
        return known[name]
    raise UsageError(
        f"there is no {singular(kind)} {name[:80]!a}",
        fix=nearest(name[:80], list(known)) or _listing(sorted(known), kind),
    )


def _listing(names: list[str], kind: str) -> str:
    if not names:
        return f"manifests/{kind}/ holds none"
    return "known: " + ", ".join(names[:8]) + (", …" if len(names) > 8 else "")


def load_catalog(project: Path, *, cache_folder: Path | None = None) -> Catalog:
    """Read, type and cross-check every manifest of `project`.

    Raises `ErrorList` with every mistake, `UsageError` when there is no project. `cache_folder`
    replaces the parse cache's place in the user's cache folder.
    """
    if not (project / "manifests").is_dir():
        raise UsageError(
            "holds no manifests/", where=str(project), fix="name a project with --project"
        )
    files, listed = list_files(project)
    mistakes: list[QualifyError] = list(listed)
    reader = _Reader(ParseCache(project, cache_folder))
    draft = Draft(
        project, {kind: {} for kind in KINDS}, {kind: set() for kind in KINDS}, {}, _locate
    )
    for file in files:
        manifest = reader.read(file)
        if isinstance(manifest, list):
            mistakes += manifest
            draft.broken[file.kind].add(file.id)
            continue
        mistakes += _enter(draft, file, manifest)
    reader.cache.save()
    _read_locks(draft)
    mistakes += check_references(draft)
    catalog = _catalog(draft)
    mistakes += _equal_rows(catalog, draft)
    if mistakes:
        raise ErrorList(sorted(mistakes, key=_reading_order))
    return catalog


def _reading_order(mistake: QualifyError) -> tuple[str, tuple[int, ...]]:
    """By file, then by line and column."""
    file, *place = mistake.where.rsplit(":", 2)
    if len(place) == 2 and all(number.isdigit() for number in place):
        return file, tuple(int(number) for number in place)
    return mistake.where, ()


@dataclass
class _Reader:
    """Reads files through the parse cache."""

    cache: ParseCache

    def read(self, file: ManifestFile) -> Manifest | list[UsageError]:
        try:
            data = read_manifest(file.path)
            digest = hashlib.sha256(data).hexdigest()
            kind = KINDS[file.kind]
            stored = self.cache.get(file.kind, digest)
            if stored is not None:
                try:
                    return kind.model_validate(stored)
                except ValidationError:
                    pass
            manifest = validate(parse(data), kind, file.shown)
        except YamlMistake as error:
            place = f":{error.line}:{error.column}" if error.line else ":1:1"
            return [UsageError(error.what, where=file.shown + place, fix=error.fix)]
        if not isinstance(manifest, list):
            self.cache.put(file.kind, digest, manifest.model_dump(mode="json"))
        return manifest


def _enter(draft: Draft, file: ManifestFile, manifest: Manifest) -> list[UsageError]:
    """Put a manifest under its id, which must be the name of its file and stand once."""
    known = draft.found[file.kind]
    if manifest.id != file.id:
        draft.broken[file.kind] |= {file.id, manifest.id}
        named = "folder" if file.kind == "corpora" else "file"
        return [
            UsageError(
                f"id {manifest.id!r} is not the name of its {named}",
                where=_locate(file, ("id",)),
                fix=f"write id: {file.id}, or rename the {named}",
            )
        ]
    if manifest.id in known:
        other = known[manifest.id][1]
        return [
            UsageError(
                f"{singular(file.kind)} {manifest.id!r} is declared twice",
                where=_locate(file, ("id",)),
                fix=f"the other one is {other.shown}",
            )
        ]
    known[manifest.id] = (manifest, file)
    return []


def _locate(file: ManifestFile, place: Place) -> str:
    """`file:line:column`; parses the file again, because only mistakes need places."""
    try:
        document = parse(read_manifest(file.path))
    except YamlMistake:
        document = Document(None, {}, {})
    return place_in(document, place, file.shown)


def _read_locks(draft: Draft) -> None:
    names = {
        manifest.lock
        for kind in ("runtimes", "agents")
        for manifest, _ in draft.of(kind)
        if manifest.lock is not None
    }
    for name in names:
        path = draft.project / "locks" / f"{name}.json"
        if path.is_file():
            draft.locks[name] = digest_file(path)
    if any(runtime.base_layer is not None for runtime, _ in draft.of("runtimes")):
        draft.base_layers = closure_digests(draft.project)


def _catalog(draft: Draft) -> Catalog:
    kinds: dict[str, Any] = {
        ("rows" if kind == "matrix" else kind): {
            name: found[0] for name, found in sorted(draft.found[kind].items())
        }
        for kind in KINDS
    }
    files = {
        (kind, name): found[1].shown
        for kind, known in draft.found.items()
        for name, found in known.items()
    }
    return Catalog(
        project=draft.project,
        locks=draft.locks,
        base_layers=draft.base_layers,
        files=files,
        **kinds,
    )


def _equal_rows(catalog: Catalog, draft: Draft) -> list[UsageError]:
    """Two rows of equal content would share their evidence under two names."""
    first: dict[str, str] = {}
    mistakes = []
    for name in catalog.rows:
        try:
            digest = resolve(catalog, name).digest
        except KeyError:
            continue  # a dangling reference, already reported
        if digest in first:
            mistakes.append(
                UsageError(
                    f"row {name!r} says the same as row {first[digest]!r}",
                    where=_locate(draft.found["matrix"][name][1], ("id",)),
                    fix="remove one; notes, suites and imported outcomes make no other row",
                )
            )
        else:
            first[digest] = name
    return mistakes
