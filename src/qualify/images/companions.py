"""The files that a build leaves beside the blobs of a layout: bill, provenance and digest.

They are carried on only when they are about this very image. Without the project's locks nobody can
tell whether the pinned files that they name are the right ones; everything else in them follows
from the image, and is compared with it: its digest, its labels, the form of both documents, and
that the two name the same contents.
"""

from __future__ import annotations

from typing import Literal

from qualify.core.errors import UsageError
from qualify.images.attestations import provenance_mistakes, sbom_mistakes
from qualify.images.errors import ImageTampered, damaged
from qualify.images.image import Image
from qualify.images.pinned import ImagePins, Pinned, image_name, lock_digests
from qualify.images.provenance import FILE_NAME as PROVENANCE_FILE
from qualify.images.provenance import parse_statement
from qualify.images.sbom import FILE_NAME as SBOM_FILE
from qualify.images.sbom import read_sbom

DIGEST_FILE = "digest"
COMPANIONS = (SBOM_FILE, PROVENANCE_FILE, DIGEST_FILE)
_MAX_BYTES = 64 << 20
_FIX = "remove the file, or build the image again"


def companion_bytes(image: Image, name: str) -> bytes | None:
    """The file of that name beside the image; `None` when there is none. Raises `ImageFault`."""
    if not image.store.has(name):
        return None
    if image.store.size(name) > _MAX_BYTES:
        raise damaged(f"{name} has more than {_MAX_BYTES} bytes", image.where)
    with image.store.open(name) as stream:
        return stream.read()


def require_own_digest(image: Image) -> None:
    """Refuse a file `digest` that names another image. Raises `ImageTampered`."""
    said = companion_bytes(image, DIGEST_FILE)
    if said is not None and said.removesuffix(b"\n") != image.digest.encode("ascii"):
        shown = ascii(said[:90].decode("utf-8", "replace"))
        raise ImageTampered(
            f"{DIGEST_FILE} says {shown}, the image is {image.digest}", where=image.where, fix=_FIX
        )


def checked_companions(image: Image) -> dict[str, bytes]:
    """Every companion by name. Raises `ImageTampered` for one that is not about this image."""
    require_own_digest(image)
    found = {name: companion_bytes(image, name) for name in COMPANIONS}
    held = {name: data for name, data in found.items() if data is not None}
    contents = {}
    for name, mistakes, named in (
        (SBOM_FILE, sbom_mistakes, _named_by_bill),
        (PROVENANCE_FILE, provenance_mistakes, _named_by_provenance),
    ):
        if (data := held.get(name)) is None:
            continue
        try:
            pins = named(image, data)
            _refuse(image, name, mistakes(data, image, pins))
        except UsageError as error:
            _refuse(image, name, [f"cannot be about it: {error.what}"])
        contents[name] = {(pin.file, pin.sha256) for pin in pins.contents}
    if len(contents) == 2 and (apart := contents[SBOM_FILE] ^ contents[PROVENANCE_FILE]):
        what = f"and {PROVENANCE_FILE} disagree about {min(apart)[0][:200]!a}"
        _refuse(image, SBOM_FILE, [what])
    return held


def _refuse(image: Image, name: str, mistakes: list[str]) -> None:
    if mistakes:
        raise ImageTampered(f"{name} {mistakes[0]}", where=image.where, fix=_FIX)


def _named_by_bill(image: Image, data: bytes) -> ImagePins:
    """The pinned files as a bill names them: all of its components that have a digest."""
    found = []
    for part in read_sbom(data, SBOM_FILE).document["components"]:
        if "hashes" in part:
            try:
                more = {each["name"]: each["value"] for each in part["properties"]}
                file, origin = more["qualify.file"], more["qualify.lock"]
                digest = part["hashes"][0]["content"]
                texts = (part["purl"], part["name"], part["version"], file, digest, origin)
                if not all(isinstance(text, str) for text in texts):
                    raise TypeError("is no text")
                found.append(_pin(*texts))
            except (KeyError, TypeError, IndexError, AttributeError) as error:
                what = f"it does not say which file {part['purl'][:200]!a} is"
                raise damaged(what, "") from error
    return _pins(image, found, [], "")


def _named_by_provenance(image: Image, data: bytes) -> ImagePins:
    """The pinned files as a provenance names them."""
    statement = parse_statement(data, PROVENANCE_FILE)
    named: dict[str, list[Pinned]] = {"contents": [], "build tool": []}
    busybox = ""
    for entry in statement.predicate.build_definition.resolved_dependencies:
        more, digest = entry.annotations or {}, entry.digest or {}
        busybox = digest.get("narSha256", busybox)
        if (role := more.get("role", "")) in named and "sha256" in digest:
            file, sha256 = entry.name or "", digest["sha256"]
            named[role].append(_pin(entry.uri or "", "", "", file, sha256, more.get("lock", "")))
    return _pins(image, named["contents"], named["build tool"], busybox)


def _pin(purl: str, name: str, version: str, file: str, sha256: str, origin: str) -> Pinned:
    kind: Literal["pypi", "deb"] = "deb" if purl.startswith("pkg:deb/") else "pypi"
    return Pinned(kind, name, version, file, sha256, origin, purl)


def _pins(image: Image, contents: list[Pinned], tools: list[Pinned], busybox: str) -> ImagePins:
    """Raises `UsageError` for an image of another maker, `ImageFault` for a lock not of its own."""
    locks = lock_digests(image.labels)
    for pin in contents:
        if pin.origin not in locks:
            raise damaged(
                f"{pin.file[:200]!a} comes from a lock {pin.origin[:90]!a} that no label names", ""
            )
    name = image_name(image.labels, image.where)
    return ImagePins(name, locks, tuple(contents), tuple(tools), busybox)
