"""The image that a row with placement image runs in: opened, verified, unpacked, and the row's own.

An image says in its labels for which runtime and from which locks it was built. Labels are claims:
they are compared with the row, and then the packages that are really in the image are compared with
the runtime's lock. What does not agree ends the run with one error, before anything is recorded.
The record of a trial names the digest of the image.
"""

from __future__ import annotations

import contextlib
import os
import re
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from qualify.core.errors import UsageError
from qualify.runner.installed import compare_with_lock
from qualify.runtimes.contained import ImageRoot, require_bubblewrap

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from qualify.images.layers import Progress
    from qualify.manifests.catalog import Catalog
    from qualify.manifests.configuration import Configuration

VARIABLE = "QUALIFY_IMAGE"
"""Names an image where `--image` does not; rows on the host do not look at it."""
_METADATA = ("METADATA", "PKG-INFO", "RECORD")
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
    folders = site_folders(root.path)
    _require_own_metadata(root.path, folders)
    for each in metadata.distributions(path=[str(p) for p in folders]):
        # Python imports the first that it finds; a later one of the same name is never used.
        found.setdefault(_normal(each.name), each.version)
    return lambda name: found.get(_normal(name))


def site_folders(root: Path) -> list[Path]:
    """The folders of an image in which its Python finds packages."""
    from qualify.images.rooted import LeadsOut, inside

    found = []
    for lib in ("usr/local/lib", "usr/lib"):
        base = inside(root, lib)
        names = sorted(each.name for each in base.iterdir()) if base.is_dir() else []
        for python in (name for name in names if _PYTHON.fullmatch(name)):
            for site in ("dist-packages", "site-packages"):
                with contextlib.suppress(LeadsOut):
                    place = inside(root, f"{lib}/{python}/{site}")
                    if place.is_dir() and place not in found:
                        found.append(place)
    return found


def _require_own_metadata(root: Path, folders: list[Path]) -> None:
    """What says which packages are installed lies in the image, not behind a link on this host."""
    own = os.path.realpath(root) + os.sep
    for folder in folders:
        for known in folder.iterdir():
            if known.suffix not in (".dist-info", ".egg-info"):
                continue
            for each in (known, *(known / file for file in _METADATA)):
                if os.path.lexists(each) and not os.path.realpath(each).startswith(own):
                    raise UsageError(
                        f"{known.name}: its metadata is a link that leads out of the image",
                        where=str(root),
                        fix="do not use this image; nothing was recorded",
                    )


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
