"""Provenance of an image: a SLSA v1 predicate in an in-toto Statement v1, not signed here.

It says which image (by its manifest's digest) came from which flake output of which source, and
lists every pinned file that the build could read, by name and SHA-256: what the image holds, what
only the builders ran, and the program that starts a build. Nothing in it comes from a clock, a
machine or a user, so building twice gives the same bytes; they are canonical JSON (RFC 8785).

The models below are the published field rules of both formats, closed: a field that the rules do
not know, or an empty one, is refused. docs/reference/provenance.md describes the build type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from qualify.core.canonical import NotCanonical, canonical_json
from qualify.images.errors import damaged
from qualify.images.pinned import ImagePins, Pinned

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:qualify:build:nix-image:v1"
BUILDER_ID = "urn:qualify:builder:nix-sandbox:v1"
FILE_NAME = "provenance.intoto.json"
MAX_BYTES = 32 << 20

_REVISION = "org.opencontainers.image.revision"
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_HEX_LENGTHS = {"sha256": (64,), "gitCommit": (40, 64), "narSha256": (64,)}

type _Uri = Annotated[
    str, StringConstraints(pattern=r"^[a-z][a-z0-9+.-]*:[!-~]+$", max_length=1000)
]
type _Word = Annotated[str, StringConstraints(min_length=1, max_length=500)]


def _hex_digests(digests: dict[str, str]) -> dict[str, str]:
    if not digests:
        raise ValueError("a digest set needs at least one digest")
    for algorithm, value in digests.items():
        lengths = _HEX_LENGTHS.get(algorithm)
        if lengths is None:
            raise ValueError(f"the algorithm {algorithm!r} is not used here")
        if len(value) not in lengths or not re.fullmatch(r"[0-9a-f]+", value):
            raise ValueError(f"{algorithm} is not lower-case hexadecimal of its length")
    return digests


type _DigestSet = Annotated[dict[str, str], AfterValidator(_hex_digests)]


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ResourceDescriptor(_Closed):
    """in-toto's description of an artifact. Needs a URI or a digest."""

    name: _Word | None = None
    uri: _Uri | None = None
    digest: _DigestSet | None = None
    annotations: dict[str, str] | None = None

    @model_validator(mode="after")
    def _can_be_found(self) -> Self:
        if self.uri is None and self.digest is None:
            raise ValueError("needs a uri or a digest")
        return self


class Subject(_Closed):
    """What the statement is about. Needs a digest."""

    name: _Word
    digest: _DigestSet


class ExternalParameters(_Closed):
    """Everything a caller of the build decides (docs/reference/provenance.md)."""

    flake_output: str = Field(
        alias="flakeOutput", pattern=r"^packages\.x86_64-linux\.image-[a-z0-9][a-z0-9._-]*$"
    )
    revision: _Word


class BuildDefinition(_Closed):
    """SLSA's inputs of a build."""

    build_type: Literal["urn:qualify:build:nix-image:v1"] = Field(alias="buildType")
    external_parameters: ExternalParameters = Field(alias="externalParameters")
    internal_parameters: dict[str, str] | None = Field(None, alias="internalParameters")
    resolved_dependencies: tuple[ResourceDescriptor, ...] = Field(
        alias="resolvedDependencies", min_length=1, strict=False
    )


class Builder(_Closed):
    """Who is trusted to have built as the definition says."""

    id: _Uri


class RunDetails(_Closed):
    """SLSA's account of the execution. No times: they would differ between equal builds."""

    builder: Builder


class Provenance(_Closed):
    """The SLSA provenance v1 predicate."""

    build_definition: BuildDefinition = Field(alias="buildDefinition")
    run_details: RunDetails = Field(alias="runDetails")


class Statement(_Closed):
    """The in-toto statement: what is said (`predicate`) about what (`subject`)."""

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: tuple[Subject, ...] = Field(min_length=1, max_length=1, strict=False)
    predicate_type: Literal["https://slsa.dev/provenance/v1"] = Field(alias="predicateType")
    predicate: Provenance

    @property
    def subject_digest(self) -> str:
        """`sha256:…` of the image's manifest."""
        return f"sha256:{self.subject[0].digest.get('sha256', '')}"

    @property
    def files(self) -> tuple[tuple[str, str | None], ...]:
        """Name and SHA-256 (hexadecimal) of each dependency that is one file."""
        return tuple(
            (entry.name or "", entry.digest["sha256"])
            for entry in self.predicate.build_definition.resolved_dependencies
            if entry.digest and "sha256" in entry.digest
        )


def provenance_bytes(pins: ImagePins, labels: Mapping[str, str], digest: str) -> bytes:
    """The statement about the image with that manifest `digest` (`sha256:…`), as canonical JSON.

    Raises `ImageFault` when a label makes it impossible (no revision, a name that is not ASCII).
    """
    revision = labels.get(_REVISION, "")
    if not revision:
        raise damaged(f"has no label {_REVISION}: its source is not known", f"image {pins.image}")
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": pins.image, "digest": {"sha256": digest.removeprefix("sha256:")}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "flakeOutput": f"packages.x86_64-linux.image-{pins.image}",
                    "revision": revision,
                },
                "internalParameters": {
                    key: labels[key] for key in sorted(labels) if key.startswith("qualify.")
                },
                "resolvedDependencies": [
                    _source(labels, revision),
                    *(_dependency(pin, "contents") for pin in pins.contents),
                    *(_dependency(pin, "build tool") for pin in pins.tools),
                    {"name": "busybox-elf", "digest": {"narSha256": pins.busybox}},
                ],
            },
            "runDetails": {"builder": {"id": BUILDER_ID}},
        },
    }
    try:
        data = canonical_json(statement)
    except NotCanonical as error:
        raise damaged(f"has a label that cannot be told: {error}", f"image {pins.image}") from error
    parse_statement(data, f"image {pins.image}")
    return data


def _source(labels: Mapping[str, str], revision: str) -> dict[str, Any]:
    """The source: found by its commit, or (of a changed tree) only named."""
    place = labels.get("org.opencontainers.image.source", "")
    # A `file:` place is one inside the image: no address of the source.
    uri = place if re.match(r"^(?!file:)[a-z][a-z0-9+.-]*:", place) else "urn:qualify:source"
    entry: dict[str, Any] = {"name": "source", "uri": uri}
    if _COMMIT.fullmatch(revision):
        entry["digest"] = {"gitCommit": revision}
    else:
        entry["annotations"] = {"revision": revision}
    return entry


def _dependency(pin: Pinned, role: str) -> dict[str, Any]:
    return {
        "name": pin.file,
        "uri": pin.purl,
        "digest": {"sha256": pin.sha256},
        "annotations": {"lock": pin.origin, "role": role},
    }


def parse_statement(data: bytes, where: str) -> Statement:
    """Read a statement and refuse what breaks the field rules. Raises `ImageFault`."""
    if len(data) > MAX_BYTES:
        raise damaged(f"provenance has at most {MAX_BYTES} bytes", where)
    try:
        return Statement.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise damaged(
            f"is no SLSA provenance v1: {place or 'JSON'}: {first['msg']}", where
        ) from error
