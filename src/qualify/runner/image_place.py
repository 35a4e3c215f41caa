"""The image that a row with placement image runs in: opened, verified, unpacked, and the row's own.

An image says in its labels for which runtime and from which locks it was built. Labels are claims:
they are compared with the row, and then the packages that are really in the image are compared with
the runtime's lock. What does not agree ends the run with one error, before anything is recorded.
The record of a trial names the digest of the image.
"""

from __future__ import annotations

import re
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING

from qualify.core.errors import UsageError
from qualify.runner.installed import compare_with_lock
from qualify.runtimes.contained import ImageRoot, decided_by_image, require_bubblewrap

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from qualify.images.layers import Progress
    from qualify.manifests.catalog import Catalog
    from qualify.manifests.configuration import Configuration

VARIABLE = "QUALIFY_IMAGE"
"""Names an image where `--image` does not; rows on the host do not look at it."""
_METADATA = ("METADATA", "PKG-INFO", "")
"""Where Python looks for name and version, in this order; the last is for a file in the place of a
folder."""
_METADATA_BYTES = 8 << 20
_PYTHON = re.compile(r"python3(\.[0-9]+)?")


def image_place(
    catalog: Catalog,
    configuration: Configuration,
    path: Path | None,
    progress: Progress | None = None,
) -> ImageRoot | None:
    """The unpacked root of the image at `path`; `None` for a row on the host.

    Raises `UsageError` when the row needs an image and none is given, when a row on the host is
    given one, or when the image is not the row's; the errors of `qualify.images` for an image that
    cannot be read or was tampered with; `EnvironmentFault` when bubblewrap or space is missing.
    """
    where = f"row {configuration.row.id}"
    if configuration.row.placement != "image":
        if path is not None:
            raise UsageError(
                "the row does not run in an image",
                where=where,
                fix="leave --image out, or choose a row with placement image",
            )
        return None
    if path is None:
        raise UsageError(
            "the row runs in an image, and none is given",
            where=where,
            fix=f"name it with --image PATH or ${VARIABLE} (make one: `qualify image build NAME`); "
            "nothing was recorded",
        )
    require_bubblewrap()
    from qualify.images.image import open_image
    from qualify.images.unpacking import unpack_image

    image = open_image(path)
    _require_claims(catalog, configuration, image.labels, image.where)
    unpacked = unpack_image(image, progress=progress)
    root = ImageRoot(unpacked.root, image.digest, image.environment, image.labels)
    _require_packages(catalog, configuration, root, image.where)
    return root


def _require_claims(
    catalog: Catalog, configuration: Configuration, labels: Mapping[str, str], where: str
) -> None:
    """The image says that it was built for this runtime, on this base layer, from these locks."""
    from qualify.pins.debian import read_debian_lock
    from qualify.pins.locks import read_lock

    runtime, locks = configuration.runtime, catalog.project / "locks"
    expected = {
        "qualify.runtime": runtime.id,
        "qualify.closure": runtime.base_layer,
        "qualify.lock.debian": read_debian_lock(locks / "debian.json").digest,
    }
    if runtime.lock is not None:
        expected[f"qualify.lock.{runtime.lock}"] = read_lock(locks / f"{runtime.lock}.json").digest
    for name, value in expected.items():
        if labels.get(name) != value:
            raise UsageError(
                f"its label {name} is {labels.get(name, 'missing')}, the row "
                f"{configuration.row.id} needs {value}",
                where=where,
                fix="use an image that was built for this runtime from these locks; nothing was "
                "recorded",
            )


def _require_packages(
    catalog: Catalog, configuration: Configuration, root: ImageRoot, where: str
) -> None:
    name = configuration.runtime.lock
    if name is None:
        return
    match = compare_with_lock(catalog.project, name, _versions_in(root))
    if match.wrong:
        raise UsageError(
            f"the image is not as locked in {name}: {match.shown}",
            where=where,
            fix="build it again from this lock; nothing was recorded",
        )


def _versions_in(root: ImageRoot) -> Callable[[str], str | None]:
    """Tells the version of a distribution that is installed in the image, from its metadata."""
    found: dict[str, str] = {}
    for site in site_folders(root.path):
        here: dict[str, set[str]] = {}
        for known in sorted(site.iterdir()):
            if known.name.lower().endswith((".dist-info", ".egg-info")):
                name, version = _told(root.path, known)
                here.setdefault(_normal(name), set()).add(version)
        for name, versions in here.items():
            # Python imports from the first folder; a later one's copy of that name is never used.
            found.setdefault(name, " and ".join(sorted(versions)))
    return lambda name: found.get(_normal(name))


def site_folders(root: Path) -> list[Path]:
    """The folders of an image in which its Python finds packages, all links followed inside it."""
    found = []
    for lib in ("usr/local/lib", "usr/lib"):
        base = _inside(root, lib)
        names = sorted(each.name for each in base.iterdir()) if base and base.is_dir() else []
        for python in (name for name in names if _PYTHON.fullmatch(name)):
            for site in ("dist-packages", "site-packages"):
                place = _inside(root, f"{lib}/{python}/{site}")
                if place is not None and place.is_dir() and place not in found:
                    found.append(place)
    return found


def _inside(root: Path, path: str) -> Path | None:
    """Where a program in the image finds `path`; `None` where it would not find the image's."""
    from qualify.images.rooted import inside

    place = inside(root, path)
    if place is None or not decided_by_image(str(place.relative_to(root))):
        return None
    return place


def _told(root: Path, known: Path) -> tuple[str, str]:
    """Name and version that the metadata at `known` tell to a program in the image.

    Raises `UsageError` when they are a link to something that the image does not have.
    """
    home = _own(root, known)
    for file in _METADATA:
        place = _own(root, home / file)
        if place.is_file():
            with place.open(encoding="utf-8", errors="replace") as stream:
                headers = HeaderParser().parsestr(stream.read(_METADATA_BYTES))
            if headers["Name"] is not None:
                return str(headers["Name"]), str(headers["Version"] or "without a version")
    return known.name.partition("-")[0], "without metadata"


def _own(root: Path, path: Path) -> Path:
    """Where `path` lies, whose parents are no links: itself, or what it as a link means inside."""
    place = _inside(root, str(path.relative_to(root)))
    if place is None or (path.is_symlink() and not place.exists()):
        raise UsageError(
            f"{path.name}: the metadata of a package is a link that leads out of the image",
            where=str(root),
            fix="do not use this image; nothing was recorded",
        )
    return place


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
