"""Resolution: from `locks/SET.in` to `locks/SET.json`, the only way a lock comes into being.

The solving is uv's. Sets that belong together are first solved as one, and each is then solved
under the versions found, so that they agree wherever they meet. Of what uv reports, the host of
every file is dropped and only files that the platform can install are kept; a file without a
SHA-256 or a size ends the resolution. For a given cut-off moment the result is the same every time.

Only the default index is asked (the machine's own, when it is set to another one): wheels lying
on one machine's disk do not get into a lock. Nothing is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from qualify.core.errors import EnvironmentFault, UsageError
from qualify.runtimes.locks import Lock, LockedFile, LockedPackage, LockInput, LockPlatform

PYTHONS = ("3.12", "3.13", "3.14")
_NEWEST_GLIBC_MINOR = 39
_DEADLINE_SECONDS = 600


def resolve(inputs: Sequence[LockInput], cutoff: str) -> list[Lock]:
    """Solve `inputs` as of `cutoff` (UTC, `2026-11-30T00:00:00Z`) and return a lock for each.

    `inputs` must hold every set of each group they touch. Raises `UsageError` when there is no
    solution or an entry lacks hash, size or an installable file, `EnvironmentFault` without uv.
    """
    groups: dict[str, list[LockInput]] = {}
    for entry in inputs:
        groups.setdefault(entry.together or f"={entry.set}", []).append(entry)
    locks = []
    for members in groups.values():
        wanted = sorted({line for member in members for line in member.requirements})
        shared = _solve(wanted, [], cutoff)
        pins = [f"{package['name']}=={package['version']}" for package in shared]
        for member in members:
            solved = _solve(member.requirements, pins, cutoff) if len(members) > 1 else shared
            locks.append(_lock(member, solved, cutoff))
    return sorted(locks, key=lambda lock: lock.set)


def _solve(wanted: Sequence[str], pins: Sequence[str], cutoff: str) -> list[dict[str, Any]]:
    """Run uv in a folder of its own and return the `packages` of the document it writes."""
    with tempfile.TemporaryDirectory(prefix="qualify-lock-") as folder:
        place = Path(folder)
        (place / "wanted.in").write_text("\n".join(wanted) + "\n", "utf-8")
        (place / "pins.txt").write_text("\n".join(pins) + "\n", "utf-8")
        command = [
            _uv(), "pip", "compile", "--quiet", "--no-config", "--universal",
            "--fork-strategy", "fewest", "--python", sys.executable,
            "--python-version", PYTHONS[0], "--exclude-newer", cutoff, "--no-header",
            "--no-annotate", "--format", "pylock.toml", "--constraint", "pins.txt",
            "--output-file", "pylock.solved.toml", "wanted.in",
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, cwd=place, env=_environment(os.environ), capture_output=True, text=True,
                timeout=_DEADLINE_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise EnvironmentFault(
                f"uv did not answer within {_DEADLINE_SECONDS} s", fix="is the index reachable?"
            ) from error
        if done.returncode != 0:
            raise UsageError(
                f"no resolution: {done.stderr.strip()[-2000:]}",
                where=", ".join(wanted),
                fix="relax the requirements in locks/*.in, or choose another --cutoff",
            )
        document = tomllib.loads((place / "pylock.solved.toml").read_text("utf-8"))
    packages: list[dict[str, Any]] = document.get("packages", [])
    return packages


def _uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    if beside.exists():
        return str(beside)
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if folder and os.access(candidate := Path(folder) / "uv", os.X_OK):
            return str(candidate)
    raise EnvironmentFault("uv is not installed here", fix="start this command with ./qualify")


def _environment(outer: Mapping[str, str]) -> dict[str, str]:
    """What uv sees: the machine's default index and certificates, no further sources."""
    kept = {name: value for name, value in outer.items() if not name.startswith("UV_")}
    for name in ("UV_DEFAULT_INDEX", "UV_CACHE_DIR", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS"):
        if name in outer:
            kept[name] = outer[name]
    return kept


def _lock(asked: LockInput, solved: Sequence[dict[str, Any]], cutoff: str) -> Lock:
    packages: dict[str, LockedPackage] = {}
    for entry in solved:
        package = locked_package(entry)
        if package is None:
            continue
        if package.name in packages:
            raise UsageError(
                f"{package.name} would be needed in two versions: "
                f"{packages[package.name].version} and {package.version}",
                where=asked.set,
                fix="require one version in the .in file",
            )
        packages[package.name] = package
    return Lock(
        set=asked.set,
        purpose=asked.purpose,
        together=asked.together,
        cutoff=cutoff,
        inputs=asked.requirements,
        platform=LockPlatform(libc="glibc", machine="x86_64", pythons=PYTHONS, system="linux"),
        packages=tuple(packages[name] for name in sorted(packages)),
    )


def locked_package(entry: Mapping[str, Any]) -> LockedPackage | None:
    """One package of uv's document as a lock holds it; None when the platform does not need it.

    Raises `UsageError` when a kept file has no SHA-256 or no size, or when a Python that needs the
    package could install none of its files.
    """
    name, version = entry["name"], entry.get("version")
    pythons = [python for python in PYTHONS if _applies(entry.get("marker"), python)]
    if not pythons:
        return None
    if version is None:
        raise UsageError(f"{name} has no version", fix="only released packages can be locked")
    wheels = {_file_name(file): file for file in entry.get("wheels", [])}
    tags = {wheel: _wheel_tags(wheel) for wheel in wheels}
    kept = {
        wheel: file
        for wheel, file in wheels.items()
        if any(tags[wheel] & _supported(python) for python in pythons)
    }
    if not wheels and "sdist" in entry:
        kept = {_file_name(entry["sdist"]): entry["sdist"]}
    else:
        for python in pythons:
            if not any(tags[wheel] & _supported(python) for wheel in kept):
                raise UsageError(
                    f"{name} {version} has no file for Python {python} on Linux x86_64",
                    fix="require another version",
                )
    files = tuple(_locked_file(f"{name} {version}", file, kept[file]) for file in sorted(kept))
    marker = entry.get("marker") if len(pythons) < len(PYTHONS) else None
    return LockedPackage(name=_normal(name), version=version, files=files, marker=marker)


def _normal(name: str) -> str:
    from packaging.utils import canonicalize_name

    return str(canonicalize_name(name))


def _locked_file(package: str, file: str, entry: Mapping[str, Any]) -> LockedFile:
    sha256, size = entry.get("hashes", {}).get("sha256"), entry.get("size")
    if not sha256 or not size:
        missing = "SHA-256" if not sha256 else "size"
        raise UsageError(
            f"{file} of {package} comes without a {missing}",
            fix="resolve against an index that states both",
        )
    return LockedFile(file=file, sha256=sha256, size=size)


def _file_name(entry: Mapping[str, Any]) -> str:
    """The bare file name; the host and path it came from end here."""
    if "name" in entry:
        return str(entry["name"])
    return unquote(urlsplit(entry.get("url") or entry.get("path") or "").path.rsplit("/", 1)[-1])


def _applies(marker: str | None, python: str) -> bool:
    if not marker:
        return True
    from packaging.markers import Marker

    return Marker(marker).evaluate(
        {
            "implementation_name": "cpython",
            "implementation_version": f"{python}.0",
            "os_name": "posix",
            "platform_machine": "x86_64",
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_full_version": f"{python}.0",
            "python_version": python,
            "sys_platform": "linux",
            "extra": "",
        }
    )


def _wheel_tags(file: str) -> frozenset[Any]:
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        return parse_wheel_filename(file)[3]
    except InvalidWheelFilename as error:
        raise UsageError(
            f"{file!r} is not the name of a wheel", fix="report it upstream"
        ) from error


@cache
def _supported(python: str) -> frozenset[Any]:
    """The wheel tags a CPython of this version takes on x86_64 Linux with glibc (PEP 425, 600)."""
    from packaging.tags import compatible_tags, cpython_tags

    version = tuple(int(part) for part in python.split("."))
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(_NEWEST_GLIBC_MINOR, 4, -1)]
    platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
    interpreter = "cp" + python.replace(".", "")
    tags = {*cpython_tags(version, [interpreter], platforms)}
    tags |= {*compatible_tags(version, interpreter, platforms)}
    return frozenset(tags)
