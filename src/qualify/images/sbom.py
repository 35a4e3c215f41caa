"""The bill of materials of an image: CycloneDX 1.6 JSON, made with its own library.

Components are the wheels and Debian packages that the image's locks pin, each with package URL and
SHA-256, with the licences that the packages in the image state, and this project's own code. The
image is the subject (`metadata.component`) with its manifest's digest. The serial number is
derived from that digest and there is no time stamp, so one image has one bill, byte for byte; it
is canonical JSON (RFC 8785).

The library is imported inside the functions: it is not needed for anything else.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from qualify.core.canonical import canonical_json
from qualify.core.digests import is_digest
from qualify.images.errors import damaged
from qualify.images.licences import Key, Stated
from qualify.images.pinned import ImagePins, Pinned

if TYPE_CHECKING:
    from cyclonedx.model import HashType
    from cyclonedx.model.component import Component
    from cyclonedx.model.license import License
    from packageurl import PackageURL

FILE_NAME = "sbom.cdx.json"
MAX_BYTES = 64 << 20
_REVISION = "org.opencontainers.image.revision"
_VERSION = "org.opencontainers.image.version"


def sbom_bytes(
    pins: ImagePins, labels: Mapping[str, str], digest: str, stated: Mapping[Key, Stated]
) -> bytes:
    """The bill of the image with that manifest `digest` (`sha256:…`), as canonical JSON."""
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.output.json import JsonV1Dot6

    subject = _subject(pins, labels, digest)
    parts = [_own_code(labels), *(_component(pin, stated) for pin in pins.contents)]
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"urn:qualify:image:{digest}"),
        metadata=BomMetaData(component=subject),
        components=parts,
    )
    bom.register_dependency(subject, parts)
    document: dict[str, Any] = orjson.loads(JsonV1Dot6(bom).output_as_string())
    # The library always puts the time there; the format does not ask for it.
    del document["metadata"]["timestamp"]
    return canonical_json(document)


def _subject(pins: ImagePins, labels: Mapping[str, str], digest: str) -> Component:
    from cyclonedx.model import Property
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    return Component(
        type=ComponentType.CONTAINER,
        name=pins.image,
        version=labels.get(_VERSION) or None,
        bom_ref=digest,
        purl=PackageURL("oci", None, pins.image, digest),
        hashes=[_sha256(digest.removeprefix("sha256:"))],
        properties=[
            Property(name=key, value=value)
            for key, value in labels.items()
            if key.startswith("qualify.") or key == _REVISION
        ],
    )


def _own_code(labels: Mapping[str, str]) -> Component:
    from cyclonedx.model.component import Component, ComponentType

    version = labels.get(_VERSION) or None
    purl = _own_purl(labels)
    stated = labels.get("org.opencontainers.image.licenses", "")
    return Component(
        type=ComponentType.APPLICATION,
        name="qualify",
        version=version,
        bom_ref=purl.to_string(),
        purl=purl,
        licenses=_licences(Stated(expression=stated) if stated else None),
    )


def _own_purl(labels: Mapping[str, str]) -> PackageURL:
    from packageurl import PackageURL

    return PackageURL("generic", None, "qualify", labels.get(_VERSION) or None)


def _component(pin: Pinned, stated: Mapping[Key, Stated]) -> Component:
    from cyclonedx.model import Property
    from cyclonedx.model.component import Component, ComponentType
    from packageurl import PackageURL

    return Component(
        type=ComponentType.LIBRARY,
        name=pin.name,
        version=pin.version,
        bom_ref=pin.purl,
        purl=PackageURL.from_string(pin.purl),
        hashes=[_sha256(pin.sha256)],
        licenses=_licences(stated.get((pin.kind, pin.name))),
        properties=[
            Property(name="qualify.file", value=pin.file),
            Property(name="qualify.lock", value=pin.origin),
        ],
    )


def _sha256(value: str) -> HashType:
    from cyclonedx.model import HashAlgorithm, HashType

    return HashType(alg=HashAlgorithm.SHA_256, content=value)


def _licences(stated: Stated | None) -> list[License]:
    """As stated: an SPDX expression or identifiers where they are such, else names."""
    from cyclonedx.model.license import (
        DisjunctiveLicense,
        LicenseAcknowledgement,
        LicenseExpression,
    )
    from cyclonedx.spdx import is_expression, is_supported_id

    declared = LicenseAcknowledgement.DECLARED
    if stated is None:
        return []
    names = stated.names
    if stated.expression is not None:
        if is_expression(stated.expression):
            return [LicenseExpression(stated.expression, acknowledgement=declared)]
        names = (stated.expression,)
    return [
        DisjunctiveLicense(id=name, acknowledgement=declared)
        if is_supported_id(name)
        else DisjunctiveLicense(name=name, acknowledgement=declared)
        for name in names
    ]


@dataclass(frozen=True)
class Bill:
    """A bill of materials that was read."""

    subject: str
    """Digest (`sha256:…`) of the image that it is about."""
    parts: tuple[tuple[str, str | None], ...]
    """Package URL and SHA-256 (hexadecimal) of each component, in the order of the bill."""
    document: dict[str, Any]

    @property
    def but_licences(self) -> dict[str, Any]:
        """The document in an order of its own, without what pinned components state as licences."""
        components = [
            {key: value for key, value in part.items() if key != "licenses" or "hashes" not in part}
            for part in self.document["components"]
        ]
        return {**self.document, "components": sorted(components, key=lambda part: part["purl"])}


def read_sbom(data: bytes, where: str) -> Bill:
    """Read a bill. Raises `ImageFault` for what is no CycloneDX 1.6 bill of an image, and for
    licences in another form than the builder's.
    """
    if len(data) > MAX_BYTES:
        raise damaged(f"a bill of materials has at most {MAX_BYTES} bytes", where)
    try:
        document = orjson.loads(data)
        form = (document["bomFormat"], document["specVersion"])
        subject = _first_sha256(document["metadata"]["component"])
        parts = tuple((_text(part["purl"]), _first_sha256(part)) for part in document["components"])
        odd = [part["purl"] for part in document["components"] if not _is_licensed(part)]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise damaged("is no bill of materials of an image", where) from error
    if form != ("CycloneDX", "1.6") or not is_digest(f"sha256:{subject}"):
        raise damaged("is no CycloneDX 1.6 bill of an image with its digest", where)
    if odd:
        raise damaged(f"states the licences of {odd[0][:200]!a} in an unknown form", where)
    return Bill(f"sha256:{subject}", parts, document)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("is no text")
    return value


def _first_sha256(component: dict[str, Any]) -> str | None:
    for entry in component.get("hashes", []):
        if entry["alg"] == "SHA-256":
            return str(entry["content"])
    return None


def _is_licensed(component: dict[str, Any]) -> bool:
    """Whether the licences have one of the three forms that `_licences` gives."""
    for entry in component.get("licenses", []):
        stated = entry.get("license", entry)
        named = (
            stated.keys() & {"expression"} if stated is entry else stated.keys() & {"id", "name"}
        )
        if (
            len(named) != 1
            or stated.keys() - named != {"acknowledgement"}
            or (stated is not entry and len(entry) != 1)
            or not all(isinstance(value, str) for value in stated.values())
        ):
            return False
    return True
