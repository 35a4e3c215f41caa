"""What is said about an image beside it: its bill of materials and its provenance.

Both are made from the image's labels and the project's locks, and checked against them: that they
are about this image (its manifest's digest) and name every pinned file with its SHA-256.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from qualify.images.errors import ImageFault
from qualify.images.image import Image
from qualify.images.layers import Progress
from qualify.images.licences import is_wanted, stated_licences
from qualify.images.pinned import ImagePins, image_pins
from qualify.images.provenance import parse_statement, provenance_bytes
from qualify.images.reading import read_files
from qualify.images.sbom import own_purl, read_sbom, sbom_bytes


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


def sbom_mistakes(data: bytes, image: Image, pins: ImagePins) -> list[str]:
    """What a bill says wrongly about that image; empty when it is right."""
    try:
        subject, parts = read_sbom(data, "")
    except ImageFault as error:
        return [error.what]
    if subject != image.digest:
        return [f"is about {subject}, the image is {image.digest}"]
    pinned = {own_purl(image.labels), *(pin.purl for pin in pins.contents)}
    return [
        *(
            f"does not name {pin.purl} with the SHA-256 of locks/{pin.origin}.json"
            for pin in pins.contents
            if parts.get(pin.purl) != pin.sha256
        ),
        *(
            f"names {purl[:200]!a}, which no lock of the image holds"
            for purl in sorted(parts.keys() - pinned)
        ),
    ]


def provenance_mistakes(data: bytes, image: Image, pins: ImagePins) -> list[str]:
    """What a provenance says wrongly about that image; empty when it is right."""
    try:
        statement = parse_statement(data, "")
    except ImageFault as error:
        return [error.what]
    if statement.subject_digest != image.digest:
        return [f"is about {statement.subject_digest}, the image is {image.digest}"]
    if statement.subject[0].name != pins.image:
        return [f"is about an image {statement.subject[0].name!r}, not {pins.image!r}"]
    found = [
        f"does not name {pin.file} with the SHA-256 of locks/{pin.origin}.json"
        for pin in (*pins.contents, *pins.tools)
        if statement.files.get(pin.file) != pin.sha256
    ]
    if not found and data != (due := make_provenance(image, pins)):
        # The build writes one text for one image: labels, locks and digest leave no choice.
        found = _differing(orjson.loads(data), orjson.loads(due), "")
        return found or ["is not written as the build writes it"]
    return found


def _differing(said: Any, due: Any, place: str) -> list[str]:
    """Each place where a document says something else than it should."""
    if isinstance(said, dict) and isinstance(due, dict):
        return [
            line
            for key in sorted(said.keys() | due.keys())
            for line in _differing(said.get(key), due.get(key), f"{place}.{key}".lstrip("."))
        ]
    if isinstance(said, list) and isinstance(due, list) and len(said) == len(due):
        pairs = enumerate(zip(said, due, strict=True))
        return [line for n, (a, b) in pairs for line in _differing(a, b, f"{place}[{n}]")]
    if said == due:
        return []
    return [f"says {place}: {str(said)[:100]!a}; of this image it is {str(due)[:100]!a}"]
