"""Installed distributions against the locked wheels that they came from.

A RECORD in an image says what its files should be; whoever changes a file can change it too. With a
depot at hand, each RECORD is held against the one inside the wheel, and the wheel against the lock.
What installers rightly change (console scripts, files of a wheel's `.data` folder, notes of their
own, bytecode) is left out.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import orjson
from packaging.utils import canonicalize_name

from qualify.core.digests import digest_file
from qualify.images.distributions import Distribution, record_rows
from qualify.pins.depot import FILES, store_name
from qualify.pins.locks import LockedPackage

_NOTES = re.compile(r"\.dist-info/(INSTALLER|REQUESTED|direct_url\.json|RECORD(\.\w+)?)$")
_DATA = re.compile(r"^[^/]+\.data/(?:purelib|platlib)/(.+)$")
_OTHER_DATA = re.compile(r"^[^/]+\.data/")
_OUTSIDE = re.compile(r"^(\.\./|/)|(^|/)__pycache__/")
_MAX_RECORD = 64 << 20


@dataclass
class WheelCheck:
    """What comparing with wheels gave."""

    compared: int = 0
    differing: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """Distributions that could not be compared, each with the reason."""
    built: list[str] = field(default_factory=list)
    """Distributions that the lock pins as source: there is no wheel to compare with."""


def check_wheels(
    installed: Iterable[Distribution], locked: Iterable[LockedPackage], depot: Path
) -> WheelCheck:
    """Compare each installed distribution that a lock names with its wheel in `depot`."""
    result = WheelCheck()
    wheels = {package.name: package for package in locked}
    for each in installed:
        package = wheels.get(canonicalize_name(each.name))
        if package is None or each.record is None:
            continue
        if not any(entry.file.endswith(".whl") for entry in package.files):
            result.built.append(each.name)
            continue
        if isinstance(listed := _wheel_record(package, depot), str):
            result.unknown.append(f"{each.name}: {listed}")
            continue
        there = _rows(each.record)
        if there is None:
            result.unknown.append(f"{each.name}: its RECORD cannot be read")
            continue
        result.compared += 1
        for path in left_out(package.name):
            listed.pop(path, None)
        for path in sorted(listed.keys() | there.keys()):
            if listed.get(path) != there.get(path):
                result.differing.append(f"{path} of {each.name} is not as in its wheel")
    return result


def left_out(package: str) -> tuple[str, ...]:
    """Members of a wheel that our images do not install (`data/left-out.json` says why)."""
    text = resources.files("qualify.images").joinpath("data/left-out.json").read_bytes()
    return tuple(entry["path"] for entry in orjson.loads(text) if entry["package"] == package)


def _wheel_record(package: LockedPackage, depot: Path) -> dict[str, str] | str:
    """Hash by path of a locked wheel, or why it is not known."""
    wheels = [entry for entry in package.files if entry.file.endswith(".whl")]
    if len(wheels) != 1:
        return "its lock names no single wheel"
    path = depot / FILES / store_name(wheels[0].file)
    if not path.is_file():
        return f"{path.name} is not in the depot"
    if digest_file(path) != f"sha256:{wheels[0].sha256}":
        return f"{path.name} in the depot is not the locked file"
    try:
        with zipfile.ZipFile(path) as archive:
            names = [n for n in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/RECORD", n)]
            if len(names) != 1 or archive.getinfo(names[0]).file_size > _MAX_RECORD:
                return "its wheel has no single RECORD"
            return _rows(archive.read(names[0])) or "the RECORD of its wheel cannot be read"
    except (zipfile.BadZipFile, OSError, NotImplementedError) as error:
        return f"its wheel cannot be read: {error}"


def _rows(record: bytes) -> dict[str, str] | None:
    """Hash by path, of the rows that no installer changes; `None` when it is no CSV."""
    rows = record_rows(record)
    if rows is None:
        return None
    found = {}
    for row in rows:
        if not row[1]:
            continue
        moved = _DATA.match(row[0])
        path = moved[1] if moved else row[0]
        if not (_NOTES.search(path) or _OUTSIDE.search(path) or _OTHER_DATA.match(path)):
            found[path] = row[1]
    return found
