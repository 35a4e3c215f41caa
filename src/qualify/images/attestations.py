"""What is said about an image beside it: its bill of materials and its provenance.

Both are made from the image's labels and the project's locks, and checked against them: that they
are about this image (its manifest's digest) and name every pinned file with its SHA-256.
"""

from __future__ import annotations

from pathlib import Path

from qualify.images.errors import ImageFault
from qualify.images.image import Image
from qualify.images.layers import Progress
from qualify.images.licences import is_wanted, stated_licences
from qualify.images.pinned import ImagePins, image_pins
from qualify.images.provenance import parse_statement, provenance_bytes
from qualify.images.reading import read_files
from qualify.images.sbom import read_sbom, sbom_bytes


def pins_of(image: Image, locks: Path) -> ImagePins:
    """The pinned files of an image. Raises `ImageFault` for one without a manifest, `UsageError` as
    `image_pins`.
    """
    if image.kind == "docker-archive":
        raise ImageFault(
            "is a docker-archive: it has no manifest whose digest could be named",
            where=image.where,
            fix="give the OCI layout that it was made from",
        )
    return image_pins(image.labels, locks, image.where)


def make_sbom(image: Image, pins: ImagePins, progress: Progress | None = None) -> bytes:
    """The image's bill of materials; streams its layers once for the licences stated in it."""
    stated = stated_licences(read_files(image, is_wanted, progress=progress))
    return sbom_bytes(pins, image.labels, image.digest, stated)


def make_provenance(image: Image, pins: ImagePins) -> bytes:
    """The image's provenance; opens no layer."""
    return provenance_bytes(pins, image.labels, image.digest)


def sbom_mistakes(data: bytes, digest: str, pins: ImagePins) -> list[str]:
    """What a bill says wrongly about the image with that manifest digest; empty when right."""
    try:
        subject, parts = read_sbom(data, "")
    except ImageFault as error:
        return [error.what]
    if subject != digest:
        return [f"is about {subject}, the image is {digest}"]
    return [
        f"does not name {pin.purl} with the SHA-256 of locks/{pin.origin}.json"
        for pin in pins.contents
        if parts.get(pin.purl) != pin.sha256
    ]


def provenance_mistakes(data: bytes, digest: str, pins: ImagePins) -> list[str]:
    """What a provenance says wrongly about that image; empty when it is right."""
    try:
        statement = parse_statement(data, "")
    except ImageFault as error:
        return [error.what]
    if statement.subject_digest != digest:
        return [f"is about {statement.subject_digest}, the image is {digest}"]
    if statement.subject[0].name != pins.image:
        return [f"is about an image {statement.subject[0].name!r}, not {pins.image!r}"]
    return [
        f"does not name {pin.file} with the SHA-256 of locks/{pin.origin}.json"
        for pin in (*pins.contents, *pins.tools)
        if statement.files.get(pin.file) != pin.sha256
    ]
