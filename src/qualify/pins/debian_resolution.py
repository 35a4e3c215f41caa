"""Resolution of Debian closures: from `locks/debian.in` to `locks/debian.json`, with apt's solver.

Each closure is solved against an empty machine, so that it is complete in itself; essential
packages come in only when something asks for them. The host of every address that apt prints is
dropped. All closures hold a package in one version, that of the release.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from qualify.core.errors import UsageError
from qualify.pins.apt import PrivateApt, helper
from qualify.pins.debian import (
    Bootstrap,
    Busybox,
    Closure,
    ClosureInput,
    DebianInput,
    DebianLock,
    DebianPackage,
    Release,
)
from qualify.pins.elf import busybox_of, nar_sha256

_ROW = re.compile(r"^'(\S+)' (\S+) (\d+) SHA256:([0-9a-f]{64})$", re.MULTILINE)
_BUSYBOX = "busybox-static"


def resolve_debian(asked: DebianInput) -> DebianLock:
    """Solve every closure of `asked` against the release as it is in the archive today.

    Raises `UsageError` when apt finds no solution, `EnvironmentFault` without apt.
    """
    with tempfile.TemporaryDirectory(prefix="qualify-apt-") as folder:
        apt = PrivateApt(Path(folder), asked.release)
        apt.write_sources()
        apt.run("apt-get", "-qq", "update")
        packages: dict[str, DebianPackage] = {}
        closures = {}
        for name, closure in asked.closures.items():
            found = _solve(apt, name, closure)
            packages |= {package.name: package for package in found}
            closures[name] = Closure(
                packages=tuple(sorted(package.name for package in found)),
                seeds=closure.seeds,
                without=tuple(sorted(closure.without)),
            )
        if _BUSYBOX not in packages:
            raise UsageError(f"no closure holds {_BUSYBOX}", fix="name it in one, as in [build]")
        release = Release(
            codename=apt.index_field("Codename"),
            date=apt.index_field("Date"),
            version=apt.index_field("Version"),
        )
        return DebianLock(
            set="debian",
            purpose=asked.purpose,
            architecture="amd64",
            release=release,
            bootstrap=Bootstrap(busybox=Busybox(nar_sha256=_busybox(apt, packages[_BUSYBOX]))),
            closures=closures,
            packages=tuple(packages[name] for name in sorted(packages)),
        )


def _solve(apt: PrivateApt, name: str, closure: ClosureInput) -> list[DebianPackage]:
    apt.write_status(closure.without)
    printed = apt.run(
        "apt-get", "-qq", "install", "--print-uris", "-y", "--no-install-recommends",
        *closure.seeds,
    )  # fmt: skip
    rows = _ROW.findall(printed)
    lines = [line for line in printed.splitlines() if line.startswith("'")]
    if not rows or len(rows) != len(lines):
        raise UsageError(
            f"apt states no SHA-256 for a package of closure {name}",
            where="; ".join(line.rsplit(" ", 1)[0][-60:] for line in lines[:1]),
            fix="use an archive whose index states SHA-256",
        )
    return [_package(uri, file, int(size), sha256) for uri, file, size, sha256 in rows]


def _package(uri: str, file: str, size: int, sha256: str) -> DebianPackage:
    """One of apt's rows without its host. apt's own file name holds the whole version, quoted."""
    path = unquote(urlsplit(uri).path)
    path = path[path.index("pool/") :]
    name, version, _ = unquote(file).rsplit("_", 2)
    return DebianPackage(
        file=path.rsplit("/", 1)[1],
        name=name,
        path=path,
        sha256=sha256,
        size=size,
        version=version,
    )


def _busybox(apt: PrivateApt, package: DebianPackage) -> str:
    target = apt.root / package.file
    archive = apt.archives()[0]
    apt.run(
        helper(), "download-file", archive + package.path, str(target), f"SHA256:{package.sha256}"
    )
    return nar_sha256(busybox_of(target))
