"""The depot: one folder with every file of some locks, to build from where there is no network.

    DEPOT/files/NAME             the pinned files, under the name that a Nix store takes
    DEPOT/busybox-elf/busybox    what starts a build; taken out of Debian's package
    DEPOT/depot.json             which sets are here and what each file's size and SHA-256 are
    DEPOT/seed                   puts all of it into a Nix store; needs only sh and nix-store

A depot says of every file what it must be, so that it can be checked without the locks, and it
names the lock each set was filled for. What is not listed does not belong in it. Filling, carrying
and seeding are in `depot_fill`, `depot_archive` and `depot_seed`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qualify.core.canonical import NotCanonical, canonical_json
from qualify.core.digests import digest_file, digest_json
from qualify.core.errors import Refusal, UsageError
from qualify.pins.elf import FOLDER, PROGRAM, nar_sha256

SCHEMA = "qualify-depot/1"
INDEX = "depot.json"
FILES = "files"
SEED = "seed"
BUSYBOX = f"{FOLDER}/{PROGRAM}"
MAX_INDEX_BYTES = 64 << 20

_UNSAFE = re.compile(r"[^A-Za-z0-9+._?=-]")
_SHA256 = r"^[0-9a-f]{64}$"
_NAME = r"^[A-Za-z0-9+_?=-][A-Za-z0-9+._?=-]*$"
_FROZEN = ConfigDict(frozen=True, extra="forbid", strict=True)
_READERS = 4


def store_name(file: str) -> str:
    """The name of `file` in a Nix store and in a depot."""
    return _UNSAFE.sub("-", file)


class StoredFile(BaseModel):
    """One file below `files/`; `size` is in bytes, `sha256` in hexadecimal."""

    model_config = _FROZEN

    name: str = Field(pattern=_NAME, max_length=211)
    sha256: str = Field(pattern=_SHA256)
    size: int = Field(gt=0, le=64 << 30)


class StoredSet(BaseModel):
    """One set of a depot: the digest of its lock, and the names of its files."""

    model_config = _FROZEN

    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    files: tuple[str, ...] = Field(min_length=1, strict=False)


class StoredBusybox(BaseModel):
    """The program that starts a build."""

    model_config = _FROZEN

    nar_sha256: str = Field(pattern=_SHA256)
    size: int = Field(gt=0, le=16 << 20)


class DepotIndex(BaseModel):
    """The content of `depot.json`."""

    model_config = _FROZEN

    busybox: StoredBusybox | None = None
    files: tuple[StoredFile, ...] = Field(min_length=1, strict=False)
    sets: dict[str, StoredSet] = Field(min_length=1)

    @property
    def size(self) -> int:
        """Bytes of everything that the index lists."""
        own = self.busybox.size if self.busybox else 0
        return own + sum(file.size for file in self.files)


def index_bytes(index: DepotIndex) -> bytes:
    """The one permitted form of `depot.json`: canonical JSON with its own digest."""
    content = {"schema": SCHEMA, **index.model_dump(mode="json", exclude_none=True)}
    return canonical_json({**content, "digest": digest_json(content)}) + b"\n"


_REFILL = "fill the depot again with `qualify depot fill`"


def parse_index(data: bytes, where: str) -> DepotIndex:
    """Read a depot's index. Raises `Refusal` unless it is exactly what a fill writes."""
    try:
        raw = orjson.loads(data)
        if not isinstance(raw, dict) or raw.pop("schema", None) != SCHEMA:
            raise Refusal(f"is not a depot's index of schema {SCHEMA}", where=where, fix=_REFILL)
        raw.pop("digest", None)
        index = DepotIndex.model_validate(raw)
        own_form = index_bytes(index)
    except (orjson.JSONDecodeError, ValidationError, NotCanonical) as error:
        what = str(error).splitlines()[0]
        raise Refusal(f"is not a depot's index: {what}", where=where, fix=_REFILL) from error
    names = [file.name for file in index.files]
    named = {name for entry in index.sets.values() for name in entry.files}
    if own_form != data or names != sorted(set(names)) or named != set(names):
        raise Refusal("was changed after the depot was filled", where=where, fix=_REFILL)
    return index


def read_index(depot: Path) -> DepotIndex:
    """The index of `depot`.

    Raises `UsageError` when there is none, `Refusal` when it is not what a fill writes.
    """
    path = depot / INDEX
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_INDEX_BYTES + 1)
    except OSError as error:
        unfinished = (depot / FILES).is_dir()
        raise UsageError(
            "the depot was not filled to its end" if unfinished else "is not a depot",
            where=str(depot),
            fix="run the same `qualify depot fill` again: what has arrived is kept"
            if unfinished
            else "make one with `qualify depot fill SET… --to DIR`",
        ) from error
    return parse_index(data, str(path))


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a depot.

    `kind` is `missing`, `changed`, `extra` or `other-lock`; `name` a path in the depot or a set.
    """

    kind: str
    name: str
    detail: str


def verify(
    depot: Path,
    index: DepotIndex,
    sets: Sequence[str] = (),
    progress: Callable[[int], None] = lambda _count: None,
) -> list[Problem]:
    """Read every file of `sets` (of all sets when empty) and say what is missing, changed or extra.

    Extra files are looked for only when all sets are checked. Raises `UsageError` for a set that
    the depot does not have.
    """
    for name in sets:
        if name not in index.sets:
            raise UsageError(
                f"holds no set {name!r}", where=str(depot), fix=f"sets: {', '.join(index.sets)}"
            )
    named = {file for name in (sets or index.sets) for file in index.sets[name].files}
    checked = [file for file in index.files if file.name in named]
    with ThreadPoolExecutor(_READERS, thread_name_prefix="depot-verify") as pool:
        found = [
            problem
            for problem in pool.map(
                lambda file: file_problem(depot / FILES / file.name, file, progress), checked
            )
            if problem
        ]
    if index.busybox and (problem := _busybox_problem(depot, index.busybox)):
        found.append(problem)
    if not sets:
        found += _extras(depot, index)
    return found


def file_problem(
    path: Path, wanted: StoredFile, progress: Callable[[int], None] = lambda _count: None
) -> Problem | None:
    """What is wrong with the file at `path`, which should be `wanted`; None when nothing is."""
    name = f"{FILES}/{wanted.name}"
    if path.is_symlink() or not path.is_file():
        return Problem("missing", name, "a link" if path.is_symlink() else "not there")
    try:
        size = path.stat().st_size
        if size != wanted.size:
            return Problem("changed", name, f"{size} bytes, not {wanted.size}")
        found = digest_file(path, progress)
    except OSError as error:
        return Problem("changed", name, f"cannot be read: {error.strerror}")
    if found != f"sha256:{wanted.sha256}":
        return Problem("changed", name, f"{found}, not sha256:{wanted.sha256}")
    return None


def _busybox_problem(depot: Path, wanted: StoredBusybox) -> Problem | None:
    path = depot / BUSYBOX
    if path.is_symlink() or not path.is_file():
        return Problem("missing", BUSYBOX, "not there")
    if path.stat().st_mode & 0o777 != 0o755 or path.stat().st_size != wanted.size:
        return Problem("changed", BUSYBOX, "another size, or its mode is not 0755")
    if nar_sha256(path.read_bytes()) != wanted.nar_sha256:
        return Problem("changed", BUSYBOX, "not the program of the pinned package")
    return None


def _extras(depot: Path, index: DepotIndex) -> list[Problem]:
    from qualify.pins.depot_seed import seed_script

    listed = {f"{FILES}/{file.name}" for file in index.files} | {INDEX, SEED, ".lock"}
    if index.busybox:
        listed.add(BUSYBOX)
    found = []
    for place, _, names in depot.walk():
        for name in names:
            path = (place / name).relative_to(depot).as_posix()
            if path not in listed:
                found.append(Problem("extra", path, "no set of the depot names it"))
    script = depot / SEED
    if not script.is_file():
        found.append(Problem("missing", SEED, "not there"))
    elif script.read_bytes() != seed_script(index):
        found.append(Problem("changed", SEED, "not the script of this depot"))
    return sorted(found, key=lambda problem: problem.name)


def other_locks(index: DepotIndex, digests: dict[str, str]) -> list[Problem]:
    """The sets that were filled for another lock than the project's; `digests` are the project's.

    A set may be one closure of a lock (`debian:runner`): the lock's name stands before the colon.
    """
    found = []
    for name, entry in sorted(index.sets.items()):
        digest = digests.get(name.partition(":")[0])
        if digest is None:
            found.append(Problem("other-lock", name, "the project has no lock of this name"))
        elif digest != entry.digest:
            what = f"filled for {entry.digest}, the project has {digest}"
            found.append(Problem("other-lock", name, what))
    return found


def first_ten(problems: Iterable[Any]) -> tuple[list[Any], int]:
    """The first ten, and how many more there are."""
    listed = list(problems)
    return listed[:10], max(0, len(listed) - 10)
