"""What the parts of a bundle say of each other, once their bytes are known to be right.

A bundle whose lists were written anew after a change still has to be of one mind: images are named
by the digest of their manifest, labels name locks and declarations, the bundle's own manifest names
images and rows, bill and provenance say of each image what its labels and the locks say, and no
more. Reads small documents only; layers are known by their digest.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qualify.core.digests import digest_bytes
from qualify.core.errors import QualifyError, UsageError
from qualify.images import bundle_format as form
from qualify.images.attestations import pins_of, provenance_mistakes, sbom_mistakes
from qualify.images.declarations import FOLDERS as DECLARED
from qualify.images.declarations import LABEL as DECLARATIONS_LABEL
from qualify.images.declarations import digest_of_files
from qualify.images.image import Image, open_image
from qualify.images.pinned import IMAGE_LABEL, RUNTIME_LABEL
from qualify.images.sbom import MAX_BYTES as MAX_BILL_BYTES
from qualify.manifests.kinds import Bundle
from qualify.manifests.loader import YamlMistake, parse, read_manifest
from qualify.manifests.validation import validate

_REVISION = "org.opencontainers.image.revision"
_BLOBS = f"{form.LAYOUT}/blobs/sha256/"

type Contradiction = tuple[str, str]
"""A path of the bundle and what is wrong with what it says."""


def contradictions(
    folder: Path, index: form.BundleIndex, right: set[str]
) -> Iterator[Contradiction]:
    """Every contradiction between parts whose files are all in `right`; the others are passed over,
    because they have been reported already.
    """
    listed = {file.path: file.sha256 for file in index.files}
    yield from _declarations(index, listed)
    yield from _manifest(folder, index, listed, right)
    if not _whole(f"{form.LAYOUT}/", listed, right):
        return
    yield from _layout(index, listed)
    held: set[str] = set()
    for entry in index.images:
        try:
            image = open_image(folder / form.LAYOUT, reference=entry.name)
        except QualifyError as error:
            yield f"{form.LAYOUT}/index.json", f"image {entry.name}: {error.what}"
            return
        held |= _blobs(image)
        yield from _image(index, entry, image)
        if _whole("locks/", listed, right):
            yield from _attested(folder, entry, image, listed, right)
    for path in sorted(listed):
        if path.startswith(_BLOBS) and path not in held:
            yield path, "belongs to no image of the bundle"
    for path in sorted(held - listed.keys()):
        yield path, "belongs to an image and is not listed"


def _whole(prefix: str, listed: dict[str, str], right: set[str]) -> bool:
    return all(path in right for path in listed if path.startswith(prefix))


def _declarations(index: form.BundleIndex, listed: dict[str, str]) -> Iterator[Contradiction]:
    folders = tuple(f"{folder}/" for folder in DECLARED)
    declared = {path: sha256 for path, sha256 in listed.items() if path.startswith(folders)}
    try:
        found = digest_of_files(declared)
    except UsageError as error:
        yield "manifests", error.what
        return
    if found != index.declarations:
        yield form.INDEX, f"declares manifests and corpora {index.declarations}; they are {found}"


def _manifest(
    folder: Path, index: form.BundleIndex, listed: dict[str, str], right: set[str]
) -> Iterator[Contradiction]:
    """The bundle is the one that its own manifest declares."""
    path = form.declaration_path(index.bundle, listed)
    if path is None:
        yield (
            form.INDEX,
            f"is of a bundle {index.bundle} that no file of manifests/bundles declares",
        )
        return
    if path not in right:
        return
    try:
        declared = validate(parse(read_manifest(folder / path)), Bundle, path)
    except YamlMistake as error:
        yield path, error.what
        return
    if isinstance(declared, list):
        yield path, declared[0].what
        return
    assert isinstance(declared, Bundle)
    for what, said, due in (
        ("id", [index.bundle], [declared.id]),
        ("images", [image.name for image in index.images], sorted(declared.images)),
        ("rows", list(index.rows), list(declared.rows)),
    ):
        if said != due:
            yield path, f"declares the {what} {', '.join(due)}; {form.INDEX} says {', '.join(said)}"
    documents = f"{form.DOCUMENTATION}/"
    if declared.documentation and not any(name.startswith(documents) for name in listed):
        yield path, f"declares that {documents} goes along; it does not"


def _layout(index: form.BundleIndex, listed: dict[str, str]) -> Iterator[Contradiction]:
    """The layout's own documents are what follows from the list of images."""
    for path, data in (
        (f"{form.LAYOUT}/oci-layout", form.LAYOUT_FILE),
        (f"{form.LAYOUT}/index.json", form.layout_index(index.images)),
    ):
        if f"sha256:{listed.get(path)}" != digest_bytes(data):
            yield path, f"does not hold the images that {form.INDEX} names"
    for path, sha256 in sorted(listed.items()):
        if path.startswith(_BLOBS) and path != _BLOBS + sha256:
            yield path, f"is named for another digest than its own, {sha256}"


def _blobs(image: Image) -> set[str]:
    digests = [image.digest, digest_bytes(image.config_bytes)]
    digests += [layer.digest for layer in image.layers if layer.digest is not None]
    return {form.blob_path(digest) for digest in digests}


def _image(
    index: form.BundleIndex, entry: form.BundledImage, image: Image
) -> Iterator[Contradiction]:
    path, labels = form.blob_path(image.digest), image.labels
    if image.digest != entry.digest:
        yield path, f"lies under the name {entry.name}, whose digest is {entry.digest}"
        return
    for label, said in (
        (IMAGE_LABEL, entry.name),
        (DECLARATIONS_LABEL, index.declarations),
        (RUNTIME_LABEL, entry.runtime),
        (_REVISION, entry.revision),
    ):
        found = labels.get(label) or None
        if found != said:
            found = found and ascii(found[:100])[1:-1]
            what = f"image {entry.name}: the label {label} is {found}, the bundle says {said}"
            yield path, what


def _attested(
    folder: Path,
    entry: form.BundledImage,
    image: Image,
    listed: dict[str, str],
    right: set[str],
) -> Iterator[Contradiction]:
    try:
        pins = pins_of(image, folder / "locks")
    except QualifyError as error:
        yield form.blob_path(image.digest), f"image {entry.name}: {error.what}"
        return
    for path, mistakes in ((entry.sbom, sbom_mistakes), (entry.provenance, provenance_mistakes)):
        if path not in listed:
            yield path, f"is missing: image {entry.name} has none"
        elif path in right and (folder / path).stat().st_size > MAX_BILL_BYTES:
            yield path, f"has more than {MAX_BILL_BYTES} bytes"
        elif path in right:
            for mistake in mistakes((folder / path).read_bytes(), image, pins):
                yield path, mistake
