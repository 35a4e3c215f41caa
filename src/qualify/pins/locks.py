"""Locks: which files of which packages an environment consists of, without naming where they lie.

`locks/SET.json` pins one set of Python packages for one platform: for each package its name, its
version and every file that platform can install, with size and SHA-256. It names no host, so the
same lock works with whichever index, mirror or depot the machine's own clients are set to.

The file has one permitted layout (a canonical JSON document, one package a line) and carries the
digest of its own content. A lock edited by hand is therefore refused, and two resolutions can be
compared byte by byte. Requirements files for installers are generated from locks, never the other
way round.

An *image set* is a lock for one Python on one release of glibc: it holds exactly one file of each
package, the best that this Python takes there, so that the set is one environment.

Nothing here resolves versions, talks to a network or installs: see `resolution` and `depot`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
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

SCHEMA = "qualify-lock/1"
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

    glibc: str | None = Field(default=None, pattern=r"^2\.[0-9]{1,2}$")
    """Set for an image set only: the one release of glibc that its files are chosen for."""
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
    overrides: tuple[str, ...] | None = Field(default=None, min_length=1, strict=False)
    """Requirements that stood in place of what packages ask for themselves."""
    excludes: tuple[str, ...] | None = Field(default=None, min_length=1, strict=False)
    """Packages that were left out although others ask for them."""
    sdists: tuple[str, ...] | None = Field(default=None, min_length=1, strict=False)
    """Packages of an image set that ship no wheel and are built from their source."""
    platform: LockPlatform
    packages: tuple[LockedPackage, ...] = Field(min_length=1, strict=False)

    @property
    def digest(self) -> str:
        """Digest of everything the lock says, independent of layout."""
        return digest_json(_content(self))

    @property
    def files(self) -> tuple[LockedFile, ...]:
        """Every file of every package."""
        return tuple(file for package in self.packages for file in package.files)

    @property
    def is_image_set(self) -> bool:
        """Whether this is one environment: one Python, one file of each package."""
        return self.platform.glibc is not None

    @property
    def versions(self) -> dict[str, str]:
        """Version by package name."""
        return {package.name: package.version for package in self.packages}


def _content(lock: Lock) -> dict[str, Any]:
    return {"schema": SCHEMA, **lock.model_dump(mode="json", exclude_none=True)}


def lock_bytes(lock: Lock) -> bytes:
    """The one permitted form of the file: canonical JSON with one package a line."""
    return file_bytes(_content(lock))


def parse_lock(data: bytes, where: str) -> Lock:
    """Read a lock and refuse everything that a resolution would not have written.

    Raises `UsageError` when it is too large, no JSON, incomplete (an entry without a hash or a
    size), out of order, in another layout, or does not match its own digest.
    """
    raw, declared = parse_object(data, SCHEMA, where)
    try:
        lock = Lock.model_validate(raw)
        found = lock.digest
        canonical = lock_bytes(lock)
    except ValidationError as error:
        mistake = first_mistake(error.errors(include_url=False), raw)
        raise UsageError(mistake, where=where, fix=REMAKE) from error
    except NotCanonical as error:
        raise UsageError(f"has no canonical form: {error}", where=where, fix=REMAKE) from error
    _refuse_disorder(lock, where)
    _refuse_choice(lock, where)
    require_own_form(data, canonical, declared, found, where)
    return lock


def _refuse_disorder(lock: Lock, where: str) -> None:
    names = [package.name for package in lock.packages]
    if names != sorted(set(names)):
        raise UsageError("packages are doubled or out of order", where=where, fix=REMAKE)
    for package in lock.packages:
        files = [entry.file for entry in package.files]
        if files != sorted(set(files)):
            raise UsageError(
                f"files of {package.name} are doubled or out of order", where=where, fix=REMAKE
            )


def _refuse_choice(lock: Lock, where: str) -> None:
    """An image set leaves nothing to choose."""
    if not lock.is_image_set:
        return
    if len(lock.platform.pythons) != 1:
        raise UsageError("an image set is for one Python", where=where, fix=REMAKE)
    for package in lock.packages:
        if len(package.files) != 1:
            raise UsageError(
                f"{package.name} has {len(package.files)} files; an image set holds one of each",
                where=where,
                fix=REMAKE,
            )
        if not package.files[0].file.endswith(".whl") and package.name not in (lock.sdists or ()):
            raise UsageError(f"{package.name} is no wheel", where=where, fix=REMAKE)


def read_lock(path: Path) -> Lock:
    """Read and check `path`. Raises `UsageError` as `parse_lock`, and when it cannot be read."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"cannot be read: {error.strerror or error}", where=str(path), fix=REMAKE
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
    pythons: tuple[str] | None = None
    """Given: an image set for this one Python."""
    cutoff: str | None = Field(default=None, pattern=_TIME)
    """A cut-off of the set's own, stronger than the one the resolution is given."""
    overrides: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    sdists: tuple[str, ...] = ()


_HEADER = re.compile(r"^#\s*(purpose|together|pythons|cutoff|override|exclude|sdist):\s*(.+?)\s*$")
_REPEATED = {"override": "overrides", "exclude": "excludes", "sdist": "sdists"}
_OF_IMAGE_SETS = ("cutoff", *_REPEATED.values())


def read_input(path: Path) -> LockInput:
    """Read a `.in` file: requirement lines under a `# purpose:` and perhaps further header lines.

    `# together: WORD` is for sets that agree on versions. `# pythons: 3.13` makes it an image set,
    which may have a `# cutoff: DATE` of its own and, repeated, `# override: REQUIREMENT`,
    `# exclude: NAME` and `# sdist: NAME`.

    Raises `UsageError` when it cannot be read, lacks its purpose, or holds an option line: options
    could name a host or let in what no hash covers.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be read: {error}", where=str(path), fix="see locks/") from error
    header: dict[str, Any] = {}
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        match = _HEADER.match(line)
        if not match and (not bare or bare.startswith("#")):
            continue
        asked = match[2] if match else bare
        if asked.startswith("-") or "://" in asked or " @ " in asked:
            raise UsageError(
                "only plain requirements belong in here",
                where=f"{path}:{number}",
                fix="name packages and versions; where they come from is the machine's affair",
            )
        if match:
            _add_header(header, match[1], asked)
        else:
            lines.append(bare)
    if "pythons" not in header and any(name in header for name in _OF_IMAGE_SETS):
        raise UsageError(
            "only an image set can have a cut-off, overrides or exclusions of its own",
            where=str(path),
            fix="add `# pythons: 3.13`, or leave the line out",
        )
    try:
        return LockInput(set=path.stem, requirements=tuple(sorted(lines)), **header)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UsageError(
            f"{'.'.join(map(str, first['loc']))}: {first['msg']}",
            where=str(path),
            fix="write `# purpose: …` above at least one requirement",
        ) from error


def _add_header(header: dict[str, Any], key: str, value: str) -> None:
    if key in _REPEATED:
        name = _REPEATED[key]
        header[name] = tuple(sorted({*header.get(name, ()), value}))
    elif key == "pythons":
        header[key] = tuple(re.split(r"[,\s]+", value))
    elif key == "cutoff" and "T" not in value:
        header[key] = f"{value}T00:00:00Z"
    else:
        header[key] = value


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
