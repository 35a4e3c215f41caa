"""Debian locks: which packages of one Debian release each image consists of.

`locks/debian.json` pins packages by name, version, place in the archive's pool, size and SHA-256,
and holds *closures*: named lists of packages that are complete in themselves. A pool path names no
host, so that any mirror serves. `locks/debian.in` holds what was asked for:

    # purpose: what the images are made of
    # release: trixie
    [base]
    python3.13-minimal
    !debconf debconf-2.0     not taken although others ask for it (and what it would provide)
    [runner: base]           everything of base, and more
    git

apt cannot go back in time: a lock holds the date of the release it was made from, and when the
archive has moved on, only a mirror that keeps old versions can serve it.

Nothing here resolves or downloads: see `debian_resolution` and `depot`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qualify.core.canonical import NotCanonical
from qualify.core.digests import digest_json
from qualify.core.errors import UsageError
from qualify.pins.layout import (
    REMAKE,
    file_bytes,
    first_mistake,
    parse_object,
    require_own_form,
)

SCHEMA = "qualify-debian-lock/1"
SET = "debian"

_NAME = r"^[a-z0-9][a-z0-9+.-]+$"
_SHA256 = r"^[0-9a-f]{64}$"
_FROZEN = ConfigDict(frozen=True, extra="forbid", strict=True)


class DebianPackage(BaseModel):
    """One .deb: `path` is its place below any mirror's root, `size` is in bytes."""

    model_config = _FROZEN

    file: str = Field(pattern=r"^[A-Za-z0-9.+~%_-]+\.deb$", max_length=255)
    name: str = Field(pattern=_NAME, max_length=128)
    path: str = Field(pattern=r"^pool/([A-Za-z0-9.+~%_-]+/)+[A-Za-z0-9.+~%_-]+\.deb$")
    sha256: str = Field(pattern=_SHA256)
    size: int = Field(gt=0)
    version: str = Field(pattern=r"^[0-9A-Za-z.+:~-]+$", max_length=128)


class Closure(BaseModel):
    """A complete list of packages, what it was made from, and what was left out on purpose."""

    model_config = _FROZEN

    packages: tuple[str, ...] = Field(min_length=1, strict=False)
    seeds: tuple[str, ...] = Field(min_length=1, strict=False)
    without: tuple[str, ...] = Field(default=(), strict=False)


class Busybox(BaseModel):
    """The folder that starts a build: one static program, identified as Nix does."""

    model_config = _FROZEN

    nar_sha256: str = Field(pattern=_SHA256)


class Bootstrap(BaseModel):
    """What a build sandbox needs before it can unpack anything."""

    model_config = _FROZEN

    busybox: Busybox


class Release(BaseModel):
    """The release that was resolved against, as its own index states it."""

    model_config = _FROZEN

    codename: str = Field(pattern=r"^[a-z]+$", max_length=32)
    date: str = Field(max_length=64)
    version: str = Field(pattern=r"^[0-9]+(\.[0-9]+)*$", max_length=16)


class DebianLock(BaseModel):
    """The content of `locks/debian.json`."""

    model_config = _FROZEN

    set: str = Field(pattern=r"^debian$")
    purpose: str = Field(min_length=1, max_length=300)
    architecture: str = Field(pattern=r"^amd64$")
    release: Release
    bootstrap: Bootstrap
    closures: dict[str, Closure] = Field(min_length=1)
    packages: tuple[DebianPackage, ...] = Field(min_length=1, strict=False)

    @property
    def digest(self) -> str:
        """Digest of everything the lock says, independent of layout."""
        return digest_json(_content(self))

    @property
    def files(self) -> tuple[DebianPackage, ...]:
        """Every file of every package."""
        return self.packages

    @property
    def versions(self) -> dict[str, str]:
        """Version by package name."""
        return {package.name: package.version for package in self.packages}

    def closure(self, name: str) -> tuple[DebianPackage, ...]:
        """The packages of one closure, by name. Raises `UsageError` for one that is not there."""
        if name not in self.closures:
            raise UsageError(
                f"there is no Debian closure {name!r}",
                where=f"locks/{SET}.json",
                fix=f"closures: {', '.join(sorted(self.closures))}",
            )
        wanted = set(self.closures[name].packages)
        return tuple(package for package in self.packages if package.name in wanted)

    def closure_digest(self, name: str) -> str:
        """Digest of the files of one closure: what of this lock an image is bound to."""
        return digest_json(sorted(package.sha256 for package in self.closure(name)))


def _content(lock: DebianLock) -> dict[str, Any]:
    content = {"schema": SCHEMA, **lock.model_dump(mode="json")}
    for closure in content["closures"].values():
        if not closure["without"]:
            del closure["without"]
    return content


def debian_lock_bytes(lock: DebianLock) -> bytes:
    """The one permitted form of the file: canonical JSON with one package a line."""
    return file_bytes(_content(lock))


def parse_debian_lock(data: bytes, where: str) -> DebianLock:
    """Read a Debian lock and refuse everything that a resolution would not have written.

    Raises `UsageError` when it is too large, no JSON, incomplete, out of order, in another layout,
    does not match its own digest, or has a closure that names what it does not hold.
    """
    raw, declared = parse_object(data, SCHEMA, where)
    try:
        lock = DebianLock.model_validate(raw)
        found = lock.digest
        canonical = debian_lock_bytes(lock)
    except ValidationError as error:
        mistake = first_mistake(error.errors(include_url=False), raw)
        raise UsageError(mistake, where=where, fix=REMAKE) from error
    except NotCanonical as error:
        raise UsageError(f"has no canonical form: {error}", where=where, fix=REMAKE) from error
    _refuse_disorder(lock, where)
    require_own_form(data, canonical, declared, found, where)
    return lock


def _refuse_disorder(lock: DebianLock, where: str) -> None:
    names = [package.name for package in lock.packages]
    if names != sorted(set(names)):
        raise UsageError("packages are doubled or out of order", where=where, fix=REMAKE)
    for package in lock.packages:
        if not package.path.endswith(f"/{package.file}"):
            raise UsageError(f"{package.name}: path and file differ", where=where, fix=REMAKE)
    for name, closure in lock.closures.items():
        if list(closure.packages) != sorted(set(closure.packages)):
            raise UsageError(f"closure {name} is out of order", where=where, fix=REMAKE)
        if missing := set(closure.packages) - set(names):
            raise UsageError(
                f"closure {name} names {min(missing)}, which the lock does not hold",
                where=where,
                fix=REMAKE,
            )


def read_debian_lock(path: Path) -> DebianLock:
    """Read and check `path`. Raises `UsageError` as `parse_debian_lock`, and if unreadable."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror or error}", where=str(path), fix=REMAKE
        ) from error
    return parse_debian_lock(data, str(path))


@dataclass(frozen=True)
class ClosureInput:
    """What one closure asks for: seeds, and packages left out with the names they provide."""

    seeds: tuple[str, ...]
    without: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class DebianInput:
    """The content of `locks/debian.in`."""

    purpose: str
    release: str
    closures: dict[str, ClosureInput]


_HEADER = re.compile(r"^#\s*(purpose|release):\s*(.+?)\s*$")
_SECTION = re.compile(r"^\[([a-z0-9][a-z0-9.-]*)(?::\s*([a-z0-9][a-z0-9.-]*))?\]$")


def read_debian_input(path: Path) -> DebianInput:
    """Read `locks/debian.in`. Raises `UsageError` with the line that is wrong."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be read: {error}", where=str(path), fix="see locks/") from error
    header: dict[str, str] = {}
    closures: dict[str, ClosureInput] = {}
    current = ""
    for number, line in enumerate(lines, 1):
        text = line.split("#", 1)[0].strip()
        where = f"{path}:{number}"
        if match := _HEADER.match(line):
            header[match[1]] = match[2]
        elif match := _SECTION.match(text):
            current, parent = match[1], match[2]
            if current in closures or (parent and parent not in closures):
                raise UsageError("names a closure twice or too early", where=where, fix=_FORM)
            closures[current] = closures[parent] if parent else ClosureInput(())
        elif text:
            closures[current] = _extended(closures.get(current), text, where)
    if not closures or header.keys() != {"purpose", "release"}:
        raise UsageError("lacks purpose, release or closures", where=str(path), fix=_FORM)
    return DebianInput(header["purpose"], header["release"], closures)


_FORM = "the form is described in docs/reference/depot.md"


def _extended(closure: ClosureInput | None, text: str, where: str) -> ClosureInput:
    left_out = text.startswith("!")
    names = text.removeprefix("!").split()
    if closure is None or any(not re.match(_NAME, name) for name in names):
        raise UsageError("is not a package below a [closure]", where=where, fix=_FORM)
    if left_out:
        without = {**closure.without, names[0]: tuple(names[1:])}
        return ClosureInput(closure.seeds, without)
    return ClosureInput(tuple(sorted({*closure.seeds, *names})), closure.without)
