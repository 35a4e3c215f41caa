"""The form of an offline bundle: which files lie where, and the two lists of them.

    README.md       for the person who receives it
    SHA256SUMS      every other file, for `sha256sum -c`
    bundle.json     what the bundle is and every file but these two, canonical JSON
    images/         one OCI layout that holds all images by name (`oci:images:NAME`)
    attestations/NAME/{sbom.cdx.json,provenance.intoto.json}
    locks/ manifests/ corpora/ docs/ LICENSE    as in the project

A bundle is itself a project: `--project` takes it. `SHA256SUMS` follows from the bytes of
`bundle.json` alone, so the two cannot say different things unnoticed. The bundle's digest is that
of `bundle.json`: whoever knows it knows every byte. Nothing is signed here, so without the digest
a bundle proves that it is whole, not who made it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal
from unicodedata import normalize

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from qualify.core.canonical import NotCanonical, canonical_json
from qualify.core.digests import DIGEST_PATTERN, digest_bytes
from qualify.core.identifiers import ID_PATTERN
from qualify.images import provenance, sbom
from qualify.images.errors import damaged

SCHEMA: Literal["qualify-bundle/1"] = "qualify-bundle/1"
INDEX = "bundle.json"
SUMS = "SHA256SUMS"
README = "README.md"
LAYOUT = "images"
ATTESTATIONS = "attestations"
FOLDERS = ("corpora", "locks", "manifests")
"""Folders of the project that every bundle holds."""
DOCUMENTATION = "docs"
LICENCE = "LICENSE"
MAX_INDEX_BYTES = 64 << 20
MAX_FILES = 200_000
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
REFERENCE = "org.opencontainers.image.ref.name"

_PART = re.compile(r'[^\x00-\x1f\x7f/\\<>:"|?*]{0,254}[^\x00-\x20\x7f/\\<>:"|?*.]')
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
_REVISION = r"^(unknown|([0-9a-f]{40}|[0-9a-f]{64})(-dirty)?)$"


def is_safe_path(path: str) -> bool:
    """Tell whether `path` stays below its folder, reads the same for `sha256sum` and people, and is
    a name on every medium (FAT and NTFS have none with `:` or a full stop at its end, nor `con`).
    """
    return len(path) <= 1000 and all(
        _PART.fullmatch(part) and part.isprintable() and not _DEVICE.fullmatch(part)
        for part in path.split("/")
    )


def collision(paths: Iterable[str]) -> tuple[str, str] | None:
    """Two paths, or folders on their way, that are one where neither case nor the composition of
    characters counts; `None` when there are none.
    """
    seen: dict[str, str] = {}
    for path in paths:
        for end in (*(slash.start() for slash in re.finditer("/", path)), len(path)):
            folded = normalize("NFC", normalize("NFD", path[:end]).casefold())
            other = seen.setdefault(folded, path[:end])
            if other != path[:end]:
                return other, path[:end]
    return None


def _safe(path: str) -> str:
    if not is_safe_path(path):
        raise ValueError("is not a plain path below the bundle")
    return path


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class BundledFile(_Closed):
    """One file: its path below the bundle, its size in bytes, its SHA-256 in hexadecimal."""

    path: Annotated[str, AfterValidator(_safe)]
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(ge=0)


class BundledImage(_Closed):
    """One image: its name in the layout, its manifest's digest and size, the runtime it serves."""

    name: str = Field(pattern=ID_PATTERN)
    digest: str = Field(pattern=DIGEST_PATTERN)
    manifest_size: int = Field(gt=0)
    revision: str = Field(min_length=1, max_length=200)
    runtime: str | None = Field(pattern=ID_PATTERN)

    @property
    def sbom(self) -> str:
        """Path of its bill of materials."""
        return f"{ATTESTATIONS}/{self.name}/{sbom.FILE_NAME}"

    @property
    def provenance(self) -> str:
        """Path of its provenance."""
        return f"{ATTESTATIONS}/{self.name}/{provenance.FILE_NAME}"


class BundleIndex(_Closed):
    """The content of `bundle.json`."""

    format: Literal["qualify-bundle/1"] = Field(alias="schema")
    bundle: str = Field(pattern=ID_PATTERN)
    revision: str = Field(pattern=_REVISION)
    declarations: str = Field(pattern=DIGEST_PATTERN)
    rows: tuple[str, ...] = Field(strict=False)
    images: tuple[BundledImage, ...] = Field(min_length=1, strict=False)
    files: tuple[BundledFile, ...] = Field(min_length=1, max_length=MAX_FILES, strict=False)


def index_bytes(index: BundleIndex) -> bytes:
    """The one permitted form of `bundle.json`: canonical JSON and a line end."""
    return canonical_json(index.model_dump(mode="json", by_alias=True)) + b"\n"


def parse_index(data: bytes, where: str) -> BundleIndex:
    """Read `bundle.json` and refuse every form that `index_bytes` does not write.

    Raises `ImageFault`.
    """
    try:
        index = BundleIndex.model_validate_json(data)
        canonical = index_bytes(index)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "it"
        raise damaged(f"{place}: {first['msg']}", where) from error
    except NotCanonical as error:
        raise damaged(f"has no canonical form: {error}", where) from error
    if canonical != data:
        raise damaged("is not in the form that bundles have", where)
    for what, names in (
        ("files", [file.path for file in index.files]),
        ("images", [image.name for image in index.images]),
    ):
        if names != sorted(set(names)):
            raise damaged(f"{what} are doubled or out of order", where)
    if {INDEX, SUMS} & {file.path for file in index.files}:
        raise damaged("lists itself", where)
    if pair := collision([INDEX, SUMS, *(file.path for file in index.files)]):
        what = f"lists {pair[0]!a} and {pair[1]!a}, which are one where case does not count"
        raise damaged(what, where)
    return index


def sums_text(index: BundleIndex) -> bytes:
    """`SHA256SUMS`, as `sha256sum` reads it: every file and `bundle.json` itself, by path."""
    sums = {file.path: file.sha256 for file in index.files}
    sums[INDEX] = digest_bytes(index_bytes(index)).removeprefix("sha256:")
    return "".join(f"{sums[path]}  {path}\n" for path in sorted(sums)).encode()


def layout_index(images: Iterable[BundledImage]) -> bytes:
    """`images/index.json`: each image by its name, canonical JSON."""
    entries: list[dict[str, Any]] = [
        {
            "annotations": {REFERENCE: image.name},
            "digest": image.digest,
            "mediaType": MANIFEST_TYPE,
            "platform": {"architecture": "amd64", "os": "linux"},
            "size": image.manifest_size,
        }
        for image in images
    ]
    return canonical_json(
        {
            "manifests": entries,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "schemaVersion": 2,
        }
    )


LAYOUT_FILE = b'{"imageLayoutVersion":"1.0.0"}'
"""The content of `images/oci-layout`."""


def declaration_path(bundle: str, paths: Iterable[str]) -> str | None:
    """The one of `paths` that is the manifest of that bundle, in the project and in the bundle."""
    for path in paths:
        if path.startswith("manifests/bundles/") and path.endswith(f"/{bundle}.yaml"):
            return path
    return None


def blob_path(digest: str) -> str:
    """Path of a blob below the bundle."""
    return f"{LAYOUT}/blobs/sha256/{digest.removeprefix('sha256:')}"
