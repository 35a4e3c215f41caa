"""What a depot is to hold: the pinned files of the named sets, with what fetching each one takes.

A set is a lock of `locks/`, or one closure of the Debian lock, written `debian:runner`. Two sets
that pin different bytes under one file name cannot share a depot and are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from qualify.core.errors import UsageError
from qualify.pins.debian import SET as DEBIAN
from qualify.pins.debian import DebianLock, read_debian_lock
from qualify.pins.depot import DepotIndex, Problem, other_locks, store_name
from qualify.pins.locks import Lock, LockedFile, LockedPackage, read_lock, set_paths
from qualify.pins.tags import fits, parsed

BUSYBOX_PACKAGE = "busybox-static"
_GLIBC_MINOR = 39
_EXACT_ABI = re.compile(r"^cp(3)(\d+)$")


@dataclass(frozen=True)
class WantedFile:
    """One pinned file. `python` is set for a wheel, `path` for a .deb, neither for a source."""

    name: str
    package: str
    version: str
    sha256: str
    size: int
    python: str | None = None
    """A Python that takes this wheel, `3.13`."""
    path: str | None = None
    """Place below an archive's root."""

    @property
    def stored(self) -> str:
        """Its name in a depot."""
        return store_name(self.name)

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.name} of {self.package} {self.version}"


@dataclass(frozen=True)
class WantedSet:
    """One set: the digest of its lock, its files, and of busybox what it has to become."""

    name: str
    digest: str
    files: tuple[WantedFile, ...]
    release: str | None = None
    """Debian's release, for a Debian set."""
    dated: str = ""
    busybox_nar: str | None = None


def wanted_sets(locks: Path, names: Sequence[str]) -> list[WantedSet]:
    """Read the named sets (`SET` or `debian:CLOSURE`) of the folder `locks`.

    Raises `UsageError` for an unknown set, a bad lock, a file for another platform, or two files
    of one name with different hashes.
    """
    set_paths(locks, [name.partition(":")[0] for name in names], ".json")
    found = []
    for name in dict.fromkeys(names):
        base, _, closure = name.partition(":")
        if base == DEBIAN:
            lock = read_debian_lock(locks / f"{DEBIAN}.json")
            found.append(_debian_set(name, lock, closure))
        elif closure:
            raise UsageError(f"only {DEBIAN} has closures", where=name, fix=f"name {base}")
        else:
            found.append(_python_set(read_lock(locks / f"{base}.json")))
    refuse_conflicts((entry.name, (f.stored, f.sha256)) for entry in found for f in entry.files)
    return found


def lock_digests(locks: Path) -> dict[str, str]:
    """The digest of every lock in the folder, by set."""
    return {
        path.stem: (
            read_debian_lock(path).digest if path.stem == DEBIAN else read_lock(path).digest
        )
        for path in sorted(locks.glob("*.json"))
    }


def not_as_locked(index: DepotIndex, locks: Path, names: Iterable[str]) -> list[Problem]:
    """What the named sets of a depot's index hold otherwise than the locks in the folder `locks`.

    An index can name the right lock and list other files: whoever changes a depot can rewrite its
    index. A set of another lock, or of none, is one problem.
    """
    chosen = set(names)
    others = [each for each in other_locks(index, lock_digests(locks)) if each.name in chosen]
    stored = {file.name: (file.size, file.sha256) for file in index.files}
    same = sorted((chosen & index.sets.keys()) - {each.name for each in others})
    for wanted in wanted_sets(locks, same) if same else ():
        right = {file.stored: (file.size, file.sha256) for file in wanted.files}
        there = {name: stored[name] for name in index.sets[wanted.name].files}
        others += [
            Problem("not-as-locked", name, f"the lock {wanted.name} pins other bytes, or none")
            for name in sorted(right.keys() | there.keys())
            if right.get(name) != there.get(name)
        ]
    return others


def refuse_conflicts(entries: Iterable[tuple[str, tuple[str, str]]]) -> None:
    """Raise `UsageError` when two sets pin different bytes under one name.

    `entries` are a set's name with a stored name and its SHA-256.
    """
    seen: dict[str, tuple[str, str]] = {}
    for set_name, (stored, sha256) in entries:
        other_set, other = seen.setdefault(stored, (set_name, sha256))
        if other != sha256:
            raise UsageError(
                f"{other_set} and {set_name} pin different files of this name: "
                f"sha256 {other[:12]}… and {sha256[:12]}…",
                where=stored,
                fix="resolve both again at one cut-off, or use two depots",
            )


def _debian_set(name: str, lock: DebianLock, closure: str) -> WantedSet:
    packages = lock.closure(closure) if closure else lock.packages
    return WantedSet(
        name=name,
        digest=lock.digest,
        files=tuple(
            WantedFile(p.file, p.name, p.version, p.sha256, p.size, path=p.path) for p in packages
        ),
        release=lock.release.codename,
        dated=lock.release.date,
        busybox_nar=(
            lock.bootstrap.busybox.nar_sha256
            if any(package.name == BUSYBOX_PACKAGE for package in packages)
            else None
        ),
    )


def _python_set(lock: Lock) -> WantedSet:
    files = tuple(
        _python_file(lock, package, file) for package in lock.packages for file in package.files
    )
    return WantedSet(lock.set, lock.digest, files)


def _python_file(lock: Lock, package: LockedPackage, file: LockedFile) -> WantedFile:
    python = _python_for(file.file, lock) if file.file.endswith(".whl") else None
    return WantedFile(
        file.file, package.name, package.version, file.sha256, file.size, python=python
    )


def _python_for(wheel: str, lock: Lock) -> str:
    """One of the lock's Pythons that takes the wheel; the newest where several do."""
    glibc = lock.platform.glibc
    minor = int(glibc.split(".")[1]) if glibc else _GLIBC_MINOR
    exact = {f"3.{match[2]}" for tag in parsed(wheel)[3] if (match := _EXACT_ABI.match(tag.abi))}
    for python in reversed(lock.platform.pythons):
        if (python in exact or not exact) and fits(wheel, python, minor):
            return python
    raise UsageError(
        f"{wheel} is for another platform than the lock's "
        f"(Python {', '.join(lock.platform.pythons)} on Linux x86_64)",
        where=f"locks/{lock.set}.json",
        fix="make it again with `qualify lock resolve`",
    )
