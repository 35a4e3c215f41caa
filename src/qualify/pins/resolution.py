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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote, urlsplit

from qualify.core.errors import EnvironmentFault, UsageError
from qualify.pins.locks import Lock, LockedFile, LockedPackage, LockInput, LockPlatform
from qualify.pins.tags import best, fits

PYTHONS = ("3.12", "3.13", "3.14")
IMAGE_GLIBC = "2.41"
"""The glibc of the images: Debian 13's."""
_NEWEST_GLIBC_MINOR = 39
_DEADLINE_SECONDS = 600


@dataclass(frozen=True)
class Target:
    """What a lock is resolved for.

    Without `glibc`: every file that one of `pythons` takes on a usual machine. With it: an image
    set, the one best file of each package, and a source distribution only for named `sdists`.
    """

    pythons: tuple[str, ...] = PYTHONS
    glibc: str | None = None
    sdists: frozenset[str] = frozenset()

    @property
    def glibc_minor(self) -> int:
        """Newest minor release of glibc 2 whose wheels are taken."""
        return int(self.glibc.split(".")[1]) if self.glibc else _NEWEST_GLIBC_MINOR

    def takes_source(self, name: str, wheels: Mapping[str, Any]) -> bool:
        """Whether a source distribution may stand for `name`, of which there are `wheels`."""
        return name in self.sdists if self.glibc else not wheels


ANY_PYTHON = Target()


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
        shared = _solve_together(members, cutoff)
        pins = [f"{package['name']}=={package['version']}" for package in shared]
        for member in members:
            alone = len(members) == 1 and not member.pythons
            solved = shared if alone else _solve_one(member, pins, cutoff)
            locks.append(_lock(member, solved, member.cutoff or cutoff))
    return sorted(locks, key=lambda lock: lock.set)


def _solve_together(members: Sequence[LockInput], cutoff: str) -> list[dict[str, Any]]:
    """What the members without a Python of their own need, solved as one."""
    wanted = sorted({line for m in members if not m.pythons for line in m.requirements})
    return _solve(wanted, cutoff, _universal()) if wanted else []


def _solve_one(member: LockInput, pins: Sequence[str], cutoff: str) -> list[dict[str, Any]]:
    if not member.pythons:
        return _solve(member.requirements, cutoff, _universal(), {"constraint": pins})
    sdists = [part for name in member.sdists for part in ("--no-binary", name)]
    options = [
        "--python", sys.executable, "--python-version", member.pythons[0],
        "--python-platform", "x86_64-manylinux_2_40", "--only-binary", ":all:", *sdists,
    ]  # fmt: skip
    files = {"constraint": pins, "overrides": member.overrides, "excludes": member.excludes}
    return _solve(member.requirements, member.cutoff or cutoff, options, files)


def _universal() -> list[str]:
    return [
        "--universal", "--fork-strategy", "fewest", "--python", sys.executable,
        "--python-version", PYTHONS[0],
    ]  # fmt: skip


def _solve(
    wanted: Sequence[str],
    cutoff: str,
    options: Sequence[str],
    files: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Run uv in a folder of its own and return the `packages` of the document it writes.

    `files` are the lines of the files that uv takes with `--KEY FILE`.
    """
    with tempfile.TemporaryDirectory(prefix="qualify-lock-") as folder:
        place = Path(folder)
        (place / "wanted.in").write_text("\n".join(wanted) + "\n", "utf-8")
        listed = []
        for key, lines in files.items():
            (place / f"{key}.txt").write_text("\n".join(lines) + "\n", "utf-8")
            listed += [f"--{key}", f"{key}.txt"]
        command = [
            _uv(), "pip", "compile", "--quiet", "--no-config", *options, *listed,
            "--exclude-newer", cutoff, "--no-header", "--no-annotate", "--format", "pylock.toml",
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
    target = ANY_PYTHON
    if asked.pythons:
        target = Target(asked.pythons, IMAGE_GLIBC, frozenset(map(_normal, asked.sdists)))
    packages: dict[str, LockedPackage] = {}
    for entry in solved:
        package = locked_package(entry, target)
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
        overrides=asked.overrides or None,
        excludes=asked.excludes or None,
        sdists=asked.sdists or None,
        platform=LockPlatform(
            glibc=target.glibc,
            libc="glibc",
            machine="x86_64",
            pythons=target.pythons,
            system="linux",
        ),
        packages=tuple(packages[name] for name in sorted(packages)),
    )


def locked_package(entry: Mapping[str, Any], target: Target = ANY_PYTHON) -> LockedPackage | None:
    """One package of uv's document as a lock holds it; None when the platform does not need it.

    Raises `UsageError` when a kept file has no SHA-256 or no size, or when a Python that needs the
    package could install none of its files.
    """
    name, version = _normal(entry["name"]), entry.get("version")
    pythons = [python for python in target.pythons if _applies(entry.get("marker"), python)]
    if not pythons:
        return None
    if version is None:
        raise UsageError(f"{name} has no version", fix="only released packages can be locked")
    wheels = {_file_name(file): file for file in entry.get("wheels", [])}
    kept = {wheel: wheels[wheel] for wheel in _chosen(wheels, pythons, target)}
    if not kept and "sdist" in entry and target.takes_source(name, wheels):
        kept = {_file_name(entry["sdist"]): entry["sdist"]}
    else:
        _require_each_python(f"{name} {version}", kept, pythons, target)
    files = tuple(_locked_file(f"{name} {version}", file, kept[file]) for file in sorted(kept))
    marker = entry.get("marker") if len(pythons) < len(target.pythons) else None
    return LockedPackage(name=name, version=version, files=files, marker=marker)


def _chosen(wheels: Iterable[str], pythons: Sequence[str], target: Target) -> list[str]:
    if target.glibc is None:
        return [
            wheel
            for wheel in wheels
            if any(fits(wheel, python, target.glibc_minor) for python in pythons)
        ]
    chosen = best(wheels, pythons[0], target.glibc_minor)
    return [] if chosen is None else [chosen]


def _require_each_python(
    package: str, wheels: Iterable[str], pythons: Sequence[str], target: Target
) -> None:
    kind = f"no wheel for glibc {target.glibc} and" if target.glibc else "no file for"
    for python in pythons:
        if not any(fits(wheel, python, target.glibc_minor) for wheel in wheels):
            raise UsageError(
                f"{package} has {kind} Python {python} on Linux x86_64",
                fix="require another version",
            )


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
