"""The pinned files that an image was made of: what its labels and the project's locks say together.

An image names each lock it was built from in a label `qualify.lock.SET` (the lock's digest), and
its Debian closure in `qualify.closure`. Here those labels are resolved to the wheels and Debian
packages of the project's locks, each with name, version, file, SHA-256 and package URL. A lock that
is not the one which the label names is refused: what is said of an image is never read from the
lock of another one. Nothing here opens a layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from qualify.core.errors import UsageError
from qualify.core.identifiers import is_identifier
from qualify.pins.debian import SET as DEBIAN
from qualify.pins.debian import DebianLock, read_debian_lock
from qualify.pins.locks import Lock, read_lock

IMAGE_LABEL = "qualify.image"
RUNTIME_LABEL = "qualify.runtime"
CLOSURE_LABEL = "qualify.closure"
LOCK_LABEL = "qualify.lock."
BUILD_SETS = ("nix-build",)
"""Sets of which no image holds anything: only the builders run them."""
BUILD_CLOSURE = "build"
"""The Debian closure that only the builders use."""


@dataclass(frozen=True)
class Pinned:
    """One pinned file: a wheel or a Debian package. `sha256` is hexadecimal, `origin` its lock."""

    kind: Literal["pypi", "deb"]
    name: str
    version: str
    file: str
    sha256: str
    origin: str
    purl: str
    """Package URL; for a Debian package with its architecture and the release's code name."""


@dataclass(frozen=True)
class ImagePins:
    """What an image holds (`contents`), and what else its builders used (`tools`)."""

    image: str
    locks: dict[str, str]
    """Digest of each lock that the labels name, by set."""
    contents: tuple[Pinned, ...]
    tools: tuple[Pinned, ...]
    busybox: str
    """SHA-256 (hexadecimal) of the NAR of the folder with the program that starts a build."""


def image_name(labels: Mapping[str, str], where: str) -> str:
    """The image's name of `qualify.image`. Raises `UsageError` for an image of another maker."""
    name = labels.get(IMAGE_LABEL, "")
    if not is_identifier(name):
        raise UsageError(
            f"has no label {IMAGE_LABEL}: this is no image of this project",
            where=where,
            fix="build it with `qualify image build`; its contents are not known otherwise",
        )
    return name


def lock_digests(labels: Mapping[str, str]) -> dict[str, str]:
    """Digest of each lock that the labels name, by set, sorted."""
    found = {k.removeprefix(LOCK_LABEL): v for k, v in labels.items() if k.startswith(LOCK_LABEL)}
    return dict(sorted(found.items()))


def image_pins(labels: Mapping[str, str], locks: Path, where: str) -> ImagePins:
    """Resolve an image's labels with the locks in the folder `locks`.

    Raises `UsageError` when a label is missing, a lock is missing or not the one the image was
    built from, or the closure is not in the Debian lock.
    """
    name = image_name(labels, where)
    digests = lock_digests(labels)
    if DEBIAN not in digests:
        raise UsageError(
            f"has no label {LOCK_LABEL}{DEBIAN}", where=where, fix="build the image again"
        )
    debian = read_debian_lock(locks / f"{DEBIAN}.json")
    _require_same(DEBIAN, digests[DEBIAN], debian.digest, where)
    contents = list(_debs(debian, labels.get(CLOSURE_LABEL, ""), where))
    for set_name, digest in digests.items():
        if set_name != DEBIAN and set_name not in BUILD_SETS:
            lock = _named_lock(locks, set_name, where)
            _require_same(set_name, digest, lock.digest, where)
            contents += _wheels(lock)
    tools = list(_debs(debian, BUILD_CLOSURE, where))
    for set_name in BUILD_SETS:
        lock = _named_lock(locks, set_name, where)
        _require_same(set_name, digests.get(set_name, lock.digest), lock.digest, where)
        tools += _wheels(lock)
    held = {pin.sha256 for pin in contents}
    tools = [pin for pin in tools if pin.sha256 not in held]
    busybox = debian.bootstrap.busybox.nar_sha256
    return ImagePins(name, digests, _in_order(contents), _in_order(tools), busybox)


def _in_order(pins: list[Pinned]) -> tuple[Pinned, ...]:
    """Each file once, by kind, name and file."""
    once = {pin.sha256: pin for pin in pins}
    return tuple(sorted(once.values(), key=lambda pin: (pin.kind, pin.name, pin.file)))


def _named_lock(locks: Path, set_name: str, where: str) -> Lock:
    path = locks / f"{set_name}.json"
    if not is_identifier(set_name) or not path.is_file():
        raise UsageError(
            f"was built from a lock {set_name!r} that is not in {locks}",
            where=where,
            fix="use the project of the commit that the image was built from",
        )
    return read_lock(path)


def _require_same(set_name: str, labelled: str, found: str, where: str) -> None:
    if labelled != found:
        raise UsageError(
            f"was built from another lock {set_name!r}: its label says {labelled}, "
            f"locks/{set_name}.json is {found}",
            where=where,
            fix="use the project of the commit that the image was built from, or build it again",
        )


def _wheels(lock: Lock) -> list[Pinned]:
    found = []
    for package in lock.packages:
        if len(package.files) != 1:
            raise UsageError(
                f"{package.name} has {len(package.files)} files: which of them an image holds "
                "is not known",
                where=f"locks/{lock.set}.json",
                fix="make it an image set (`# pythons: 3.13` in its .in file)",
            )
        file = package.files[0]
        purl = f"pkg:pypi/{_quoted(package.name)}@{_quoted(package.version)}"
        found.append(
            Pinned("pypi", package.name, package.version, file.file, file.sha256, lock.set, purl)
        )
    return found


def _quoted(text: str) -> str:
    """As package URLs spell a name or a version: a colon (of a Debian epoch) stands as it is."""
    return quote(text, safe=":")


def _debs(lock: DebianLock, closure: str, where: str) -> list[Pinned]:
    if not closure:
        raise UsageError(f"has no label {CLOSURE_LABEL}", where=where, fix="build the image again")
    found = []
    for package in lock.closure(closure):
        name, version = package.name, package.version
        architecture = package.file.rsplit("_", 1)[-1].removesuffix(".deb")
        purl = (
            f"pkg:deb/debian/{_quoted(name)}@{_quoted(version)}"
            f"?arch={architecture}&distro={lock.release.codename}"
        )
        found.append(Pinned("deb", name, version, package.file, package.sha256, DEBIAN, purl))
    return found
