"""What is said about an image beside it: its bill of materials and its provenance.

Both are made from the image's labels and the project's locks, and checked against them: they must
be about this image (its manifest's digest), name every pinned file with its SHA-256 and no other,
and say of source, revision and build what the labels say. Nothing else may stand in them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import orjson

from qualify.core.canonical import NotCanonical, canonical_json
from qualify.images.errors import ImageFault
from qualify.images.image import Image
from qualify.images.layers import Progress
from qualify.images.licences import is_wanted, stated_licences
from qualify.images.pinned import ImagePins, image_pins
from qualify.images.provenance import parse_statement, provenance_bytes
from qualify.images.reading import read_files
from qualify.images.sbom import read_sbom, sbom_bytes

_NAMED = 10
"""Mistakes of a kind that are named; the rest are counted."""
_ABSENT = object()


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
    """What a bill says wrongly about that image, each thing in one line; empty when it is right.

    Only the licences of pinned files are believed: they stand in the image's layers.
    """
    try:
        said = read_sbom(data, "")
        if said.subject != image.digest:
            return [f"is about {said.subject}, the image is {image.digest}"]
        due = read_sbom(sbom_bytes(pins, image.labels, image.digest, {}), "")
    except ImageFault as error:
        return [error.what]
    except ValueError as error:
        return [f"cannot be compared: the image's labels make no bill: {str(error)[:200]!a}"]
    found = _wrong_parts(
        Counter(said.parts), Counter(due.parts), {pin.purl: pin.origin for pin in pins.contents}
    )
    return found or _otherwise(data, said.document, said.but_licences, due.but_licences)


def provenance_mistakes(data: bytes, image: Image, pins: ImagePins) -> list[str]:
    """What a provenance says wrongly about that image, as `sbom_mistakes`."""
    try:
        said = parse_statement(data, "")
        if said.subject_digest != image.digest:
            return [f"is about {said.subject_digest}, the image is {image.digest}"]
        if said.subject[0].name != pins.image:
            return [f"is about an image {said.subject[0].name!a}, not {pins.image!a}"]
        due = parse_statement(made := make_provenance(image, pins), "")
        document = orjson.loads(data)
    except ImageFault as error:
        return [error.what]
    except ValueError as error:
        return [f"is not JSON: {str(error)[:200]!a}"]
    origins = {pin.file: pin.origin for pin in (*pins.contents, *pins.tools)}
    found = _wrong_parts(Counter(said.files), Counter(due.files), origins)
    return found or _otherwise(data, document, document, orjson.loads(made))


type _Parts = Counter[tuple[str, str | None]]


def _wrong_parts(said: _Parts, due: _Parts, origins: dict[str, str]) -> list[str]:
    """The first ten that are missing and the first ten that are too many, in turn."""
    missing = sorted({name for name, _ in due - said})
    extra = sorted({name for name, _ in said - due} - set(missing))
    without = [
        f"does not name {name} "
        + (f"with the SHA-256 of locks/{origins[name]}.json" if name in origins else "rightly")
        for name in missing
    ]
    beyond = [
        f"names {name[:200]!a} "
        + ("more than once" if name in {each for each, _ in due} else "which no lock of it holds")
        for name in extra
    ]
    shown = [
        line for pair in zip_longest(without[:_NAMED], beyond[:_NAMED]) for line in pair if line
    ]
    for lines, what in ((without, "does not name {} more"), (beyond, "names {} more")):
        if len(lines) > _NAMED:
            shown.append(what.format(len(lines) - _NAMED))
    return shown


def _otherwise(data: bytes, document: Any, said: Any, due: Any) -> list[str]:
    """The first ten places where a document says something else than it should; else, that it is
    not spelled as the build spells it.
    """
    found = list(_differing(said, due, ""))
    if len(found) > _NAMED:
        return [*found[:_NAMED], f"differs in {len(found) - _NAMED} more places"]
    if found:
        return found
    try:
        return [] if canonical_json(document) == data else ["is not written as the build writes it"]
    except (NotCanonical, RecursionError):
        return ["is not written as the build writes it"]


def _differing(said: Any, due: Any, place: str) -> Iterator[str]:
    if isinstance(said, dict) and isinstance(due, dict):
        for key in sorted(said.keys() | due.keys()):
            inner = f"{place}.{ascii(key)[1:-1][:100]}".lstrip(".")
            yield from _differing(said.get(key, _ABSENT), due.get(key, _ABSENT), inner)
    elif isinstance(said, list) and isinstance(due, list) and len(said) == len(due):
        for number, pair in enumerate(zip(said, due, strict=True)):
            yield from _differing(*pair, f"{place}[{number}]")
    elif type(said) is not type(due) or said != due:
        yield f"says {place}: {_shown(said)}; of this image it is {_shown(due)}"


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "nothing"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return "an object" if isinstance(value, dict) else ascii(value)[:100]
