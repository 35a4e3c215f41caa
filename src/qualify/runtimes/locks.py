"""Locks: which files of which packages an environment consists of, without naming where they lie.

`locks/SET.json` pins one set of Python packages for one platform: for each package its name, its
version and every file that platform can install, with size and SHA-256. It names no host, so the
same lock works with whichever index, mirror or depot the machine's own clients are set to.

The file has one permitted layout (a canonical JSON document, one package a line) and carries the
digest of its own content. A lock edited by hand is therefore refused, and two resolutions can be
compared byte by byte. Requirements files for installers are generated from locks, never the other
way round.

Nothing here resolves versions, talks to a network or installs: see `lock_resolution`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qualify.core.canonical import NotCanonical, canonical_json
from qualify.core.digests import digest_json
from qualify.core.errors import UsageError

SCHEMA = "qualify-lock/1"
MAX_LOCK_BYTES = 16 << 20
SET_PATTERN = r"^[a-z0-9]+(-[a-z0-9.]+)*$"

_NAME = r"^[a-z0-9]+(-[a-z0-9]+)*$"
_VERSION = r"^[0-9A-Za-z.!+]+$"
_FILE = r"^[0-9A-Za-z._+!-]+\.(whl|tar\.gz|zip)$"
_TIME = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z$"
_FROZEN = ConfigDict(frozen=True, extra="forbid", strict=True)


class LockedFile(BaseModel):
    """One installable file: its name, its size in bytes and its SHA-256 in hexadecimal."""

    model_config = _FROZEN

    file: str = Field(pattern=_FILE, max_length=255)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(gt=0)


class LockedPackage(BaseModel):
    """One package in exactly one version, with every file the platform can install.

    `marker` is set only when some of the lock's Pythons need the package and others do not.
    """

    model_config = _FROZEN

    name: str = Field(pattern=_NAME, max_length=128)
    version: str = Field(pattern=_VERSION, max_length=64)
    files: tuple[LockedFile, ...] = Field(min_length=1, strict=False)
    marker: str | None = Field(default=None, max_length=200)


class LockPlatform(BaseModel):
    """The machines a lock serves."""

    model_config = _FROZEN

    libc: str = Field(pattern=r"^glibc$")
    machine: str = Field(pattern=r"^x86_64$")
    pythons: tuple[str, ...] = Field(min_length=1, strict=False)
    system: str = Field(pattern=r"^linux$")


class Lock(BaseModel):
    """The content of one `locks/SET.json`."""

    model_config = _FROZEN

    set: str = Field(pattern=SET_PATTERN, max_length=64)
    purpose: str = Field(min_length=1, max_length=300)
    together: str | None = Field(default=None, pattern=SET_PATTERN, max_length=64)
    """Sets with the same word here agree on every version they share."""
    cutoff: str = Field(pattern=_TIME)
    """Only files published before this moment were considered."""
    inputs: tuple[str, ...] = Field(min_length=1, strict=False)
    """The requirement lines of `locks/SET.in`, sorted."""
    platform: LockPlatform
    packages: tuple[LockedPackage, ...] = Field(min_length=1, strict=False)

    @property
    def digest(self) -> str:
        """Digest of everything the lock says, independent of layout."""
        return digest_json(_content(self))

    @property
    def versions(self) -> dict[str, str]:
        """Version by package name."""
        return {package.name: package.version for package in self.packages}


def _content(lock: Lock) -> dict[str, Any]:
    return {"schema": SCHEMA, **lock.model_dump(mode="json", exclude_none=True)}


def lock_bytes(lock: Lock) -> bytes:
    """The one permitted form of the file: canonical JSON with one package a line."""
    content = _content(lock)
    packages = content.pop("packages")
    header = {**content, "digest": lock.digest}
    lines = [b'"%s":%s' % (k.encode(), canonical_json(header[k])) for k in sorted(header)]
    position = sum(1 for key in header if key < "packages")
    rows = b",\n".join(canonical_json(package) for package in packages)
    lines.insert(position, b'"packages":[\n' + rows + b"\n]")
    return b"{\n" + b",\n".join(lines) + b"\n}\n"


def parse_lock(data: bytes, where: str) -> Lock:
    """Read a lock and refuse everything that a resolution would not have written.

    Raises `UsageError` when it is too large, no JSON, incomplete (an entry without a hash or a
    size), out of order, in another layout, or does not match its own digest.
    """
    if len(data) > MAX_LOCK_BYTES:
        raise UsageError(f"a lock has at most {MAX_LOCK_BYTES} bytes", where=where, fix=_REMAKE)
    try:
        raw = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise UsageError(f"is not JSON: {error}", where=where, fix=_REMAKE) from error
    if not isinstance(raw, dict) or raw.pop("schema", None) != SCHEMA:
        raise UsageError(f"is not a lock of schema {SCHEMA}", where=where, fix=_REMAKE)
    declared = raw.pop("digest", None)
    try:
        lock = Lock.model_validate(raw)
        found = lock.digest
        canonical = lock_bytes(lock)
    except ValidationError as error:
        raise UsageError(_first_mistake(error, raw), where=where, fix=_REMAKE) from error
    except NotCanonical as error:
        raise UsageError(f"has no canonical form: {error}", where=where, fix=_REMAKE) from error
    _refuse_disorder(lock, where)
    if declared != found:
        raise UsageError(
            f"was edited by hand: it declares {declared} and holds {found}",
            where=where,
            fix=_REMAKE,
        )
    if canonical != data:
        raise UsageError("is not in the layout that locks have", where=where, fix=_REMAKE)
    return lock


_REMAKE = "make it again with `qualify lock resolve`"


def _first_mistake(error: ValidationError, raw: dict[str, Any]) -> str:
    first = error.errors(include_url=False)[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    name = ""
    match first["loc"]:
        case ("packages", int(index), *_) if isinstance(entry := raw["packages"][index], dict):
            name = f" (package {entry.get('name')!r})"
    return f"{place.lstrip('.')}{name}: {first['msg']}"


def _refuse_disorder(lock: Lock, where: str) -> None:
    names = [package.name for package in lock.packages]
    if names != sorted(set(names)):
        raise UsageError("packages are doubled or out of order", where=where, fix=_REMAKE)
    for package in lock.packages:
        files = [entry.file for entry in package.files]
        if files != sorted(set(files)):
            raise UsageError(
                f"files of {package.name} are doubled or out of order", where=where, fix=_REMAKE
            )


def read_lock(path: Path) -> Lock:
    """Read and check `path`. Raises `UsageError` as `parse_lock`, and when it cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror or error}", where=str(path), fix=_REMAKE
        ) from error
    lock = parse_lock(data, str(path))
    if path.stem != lock.set:
        raise UsageError(f"holds the set {lock.set!r}", where=str(path), fix="rename the file")
    return lock


def requirements_text(lock: Lock) -> str:
    """The lock as a requirements file: `name==version` with the hash of every permitted file."""
    lines = [
        f"# Generated from locks/{lock.set}.json by `qualify lock requirements`; do not edit.",
        f"# {lock.purpose}",
    ]
    for package in lock.packages:
        marker = f" ; {package.marker}" if package.marker else ""
        hashes = sorted(f"    --hash=sha256:{entry.sha256}" for entry in package.files)
        lines.append(" \\\n".join([f"{package.name}=={package.version}{marker}", *hashes]))
    return "\n".join(lines) + "\n"


def disagreements(locks: Iterable[Lock]) -> list[str]:
    """Packages for which sets that belong together hold different versions, one sentence each."""
    seen: dict[tuple[str, str], tuple[str, str]] = {}
    found = []
    for lock in locks:
        if lock.together is None:
            continue
        for name, version in lock.versions.items():
            other_set, other = seen.setdefault((lock.together, name), (lock.set, version))
            if other != version:
                found.append(f"{name} is {other} in {other_set} and {version} in {lock.set}")
    return found


class LockInput(BaseModel):
    """The content of one `locks/SET.in`: what is asked for, before resolution."""

    model_config = _FROZEN

    set: str = Field(pattern=SET_PATTERN, max_length=64)
    purpose: str = Field(min_length=1, max_length=300)
    together: str | None = Field(default=None, pattern=SET_PATTERN, max_length=64)
    requirements: tuple[str, ...] = Field(min_length=1)


_HEADER = re.compile(r"^#\s*(purpose|together):\s*(.+?)\s*$")


def read_input(path: Path) -> LockInput:
    """Read a `.in` file: requirement lines under a `# purpose:` and perhaps a `# together:` line.

    Raises `UsageError` when it cannot be read, lacks its purpose, or holds an option line: options
    could name a host or let in what no hash covers.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be read: {error}", where=str(path), fix="see locks/") from error
    header: dict[str, str] = {}
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        if match := _HEADER.match(line):
            header[match[1]] = match[2]
        elif (bare := line.strip()) and not bare.startswith("#"):
            if bare.startswith("-") or "://" in bare or " @ " in bare:
                raise UsageError(
                    "only plain requirements belong in here",
                    where=f"{path}:{number}",
                    fix="name packages and versions; where they come from is the machine's affair",
                )
            lines.append(bare)
    try:
        return LockInput(set=path.stem, requirements=tuple(sorted(lines)), **header)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UsageError(
            f"{'.'.join(map(str, first['loc']))}: {first['msg']}",
            where=str(path),
            fix="write `# purpose: …` above at least one requirement",
        ) from error


def set_paths(folder: Path, names: Sequence[str], suffix: str) -> list[Path]:
    """The files of the named sets in `folder`; every set there when `names` is empty.

    Raises `UsageError` for a set that does not exist, naming those that do.
    """
    known = sorted(path.stem for path in folder.glob(f"*{suffix}"))
    for name in names:
        if name not in known:
            raise UsageError(
                f"there is no set {name!r}", where=str(folder), fix=f"sets: {', '.join(known)}"
            )
    return [folder / f"{name}{suffix}" for name in (names or known)]
