"""What an offline bundle will hold, decided and checked before anything is written.

The images must be exactly those that the bundle's manifest declares, built from the project's own
locks, manifests and corpora, and serve the rows that it names. Which files of the project go along
is decided in `bundle_project`. Reads no layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qualify.core.digests import digest_bytes
from qualify.core.errors import UsageError
from qualify.images import bundle_format as form
from qualify.images.attestations import pins_of
from qualify.images.bundle_project import Carried, CarriedFile, carried_files
from qualify.images.declarations import FOLDERS as DECLARED
from qualify.images.declarations import LABEL as DECLARATIONS_LABEL
from qualify.images.declarations import digest_of_files
from qualify.images.errors import ImageFault, ImageTampered
from qualify.images.image import Image, open_image
from qualify.images.nix_build import UNKNOWN_REVISION
from qualify.images.pinned import RUNTIME_LABEL, ImagePins, image_name
from qualify.images.sbom import FILE_NAME as SBOM_FILE
from qualify.manifests.kinds import Bundle

_REVISION = "org.opencontainers.image.revision"


@dataclass(frozen=True)
class Blob:
    """One blob to carry: its digest, its size in bytes and the file that should be it."""

    digest: str
    size: int
    path: Path


@dataclass(frozen=True)
class PlannedImage:
    """An image that goes into the bundle, checked against project and locks."""

    name: str
    image: Image
    pins: ImagePins
    blobs: tuple[Blob, ...]

    @property
    def has_bill(self) -> bool:
        """The build left its bill of materials beside it."""
        return (self.image.path / SBOM_FILE).is_file()

    @property
    def entry(self) -> form.BundledImage:
        """What `bundle.json` says of it."""
        return form.BundledImage(
            name=self.name,
            digest=self.image.digest,
            manifest_size=len(self.image.manifest_bytes),
            revision=self.image.labels.get(_REVISION) or UNKNOWN_REVISION,
            runtime=self.image.labels.get(RUNTIME_LABEL) or None,
        )


@dataclass(frozen=True)
class BundlePlan:
    """Everything that a bundle will hold; nothing was written yet."""

    bundle: Bundle
    images: tuple[PlannedImage, ...]
    project_files: Carried
    declarations: str
    blobs: Mapping[str, Blob] = field(repr=False)
    """Every blob once, by digest."""
    total: int
    """Bytes to write, attestations left out."""

    @property
    def files(self) -> Mapping[str, CarriedFile]:
        """Files of the project by their path in the bundle."""
        return self.project_files.files

    @property
    def work(self) -> int:
        """Bytes that will be gone through: written, checked, and layers read for a bill anew."""
        return 2 * self.total + sum(each.image.size for each in self.images if not each.has_bill)


def plan_bundle(
    project: Path,
    bundle: Bundle,
    runtimes: Mapping[str, str],
    layouts: list[Path],
    *,
    changes: bool = False,
) -> BundlePlan:
    """Check that the images in `layouts` are those that `bundle` declares, and list every file.

    `runtimes` gives the runtime that each row of the bundle needs an image for; `changes` is as in
    `carried_files`. Raises `UsageError` and `ImageFault` for everything that does not fit,
    `ImageTampered` for a damaged image.
    """
    carried = carried_files(project, bundle, changes=changes)
    declarations = _declarations(carried)
    planned: dict[str, PlannedImage] = {}
    for layout in layouts:
        image = _planned(layout, project, declarations)
        if image.name in planned:
            raise UsageError(
                f"is the image {image.name!r} a second time", where=str(layout), fix="give it once"
            )
        planned[image.name] = image
    _require_declared(bundle, planned)
    _require_served(bundle, runtimes, planned)
    images = tuple(planned[name] for name in sorted(planned))
    blobs = {blob.digest: blob for image in images for blob in image.blobs}
    total = sum(blob.size for blob in blobs.values())
    total += sum(file.size for file in carried.files.values())
    return BundlePlan(bundle, images, carried, declarations, blobs, total)


def _declarations(carried: Carried) -> str:
    """Digest of the declarations that go along, as the receiving person will compute it."""
    folders = tuple(f"{folder}/" for folder in DECLARED)
    return digest_of_files(
        {path: file.sha256 for path, file in carried.files.items() if path.startswith(folders)}
    )


def _planned(layout: Path, project: Path, declarations: str) -> PlannedImage:
    if not layout.is_dir():
        raise UsageError(
            "is no folder with an OCI layout",
            where=str(layout),
            fix="give what `qualify image build` made (`skopeo copy … oci:FOLDER` for others)",
        )
    image = open_image(layout)
    name = image_name(image.labels, image.where)
    pins = pins_of(image, project / "locks")
    if image.manifest.get("mediaType") != form.MANIFEST_TYPE:
        raise ImageFault("is no OCI image", where=image.where, fix="convert it with skopeo")
    labelled = image.labels.get(DECLARATIONS_LABEL)
    if labelled != declarations:
        raise UsageError(
            f"was built from other manifests and corpora: its label says {labelled}, "
            f"the project's are {declarations}",
            where=image.where,
            fix="build the image again, or use the project of its commit",
        )
    return PlannedImage(name, image, pins, tuple(_blobs(image, layout)))


def _blobs(image: Image, layout: Path) -> Iterator[Blob]:
    """Manifest, configuration and layers, each with the size that its descriptor gives."""
    described = [
        (image.digest, len(image.manifest_bytes)),
        (digest_bytes(image.config_bytes), len(image.config_bytes)),
        *((layer.digest or "", layer.size) for layer in image.layers),
    ]
    for digest, size in described:
        path = layout / "blobs/sha256" / digest.removeprefix("sha256:")
        found = path.stat().st_size if path.is_file() else None
        if found != size:
            raise ImageTampered(
                f"the blob {digest} has {found} bytes instead of {size}"
                if found is not None
                else f"the blob {digest} is missing",
                where=image.where,
                fix="build the image again",
            )
        yield Blob(digest, size, path)


def _require_declared(bundle: Bundle, planned: Mapping[str, PlannedImage]) -> None:
    where = f"bundle {bundle.id}"
    if missing := [name for name in bundle.images if name not in planned]:
        raise UsageError(
            f"holds an image {missing[0]!r}, which was not given",
            where=where,
            fix=f"build it with `qualify image build {missing[0]}` and name it with --image",
        )
    if extra := sorted(planned.keys() - set(bundle.images)):
        raise UsageError(
            f"does not hold an image {extra[0]!r}",
            where=where,
            fix=f"leave it out, or add it to manifests/bundles/{bundle.id}.yaml",
        )


def _require_served(
    bundle: Bundle, runtimes: Mapping[str, str], planned: Mapping[str, PlannedImage]
) -> None:
    served = {image.entry.runtime for image in planned.values()}
    for row in bundle.rows:
        if row in runtimes and runtimes[row] not in served:
            raise UsageError(
                f"holds the row {row!r}, and none of its images serves its runtime "
                f"{runtimes[row]!r}",
                where=f"bundle {bundle.id}",
                fix="add the image, or take the row out",
            )
