"""Opening an image: its manifest, its configuration, and the list of its layers.

Accepts an OCI layout (a folder, or one uncompressed tar) and a docker-archive (`docker save`). Of
an index with several platforms, linux/amd64 is taken, and `Image.notes` says so. Manifest and
configuration are verified against their digests here; a layer is verified by whoever streams it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from qualify.core.digests import is_digest
from qualify.core.errors import UsageError
from qualify.images.blobs import BlobStore, FolderStore, TarStore
from qualify.images.errors import ImageFault, ImageTampered, damaged
from qualify.images.limits import LIMITS

LAYER_TYPES = {
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd",
}
CONFIG_TYPES = {
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
}


@dataclass(frozen=True)
class Layer:
    """One layer, lowest first. `name` is its place in the store."""

    index: int
    name: str
    size: int
    """Bytes as stored."""
    digest: str | None
    """Of the stored bytes; `None` in a docker-archive, which names none."""
    diff_id: str
    """Of the decompressed tar."""
    media_type: str


@dataclass(frozen=True)
class Image:
    """An opened image. Nothing of its layers has been read yet."""

    path: Path
    kind: str
    """`oci-layout`, `oci-archive` or `docker-archive`."""
    digest: str
    """Of the manifest; of the configuration in a docker-archive, which has no manifest."""
    manifest: Mapping[str, Any]
    manifest_bytes: bytes
    config: Mapping[str, Any]
    config_bytes: bytes
    layers: tuple[Layer, ...]
    notes: tuple[str, ...] = ()
    """What was chosen on the caller's behalf."""
    reference: str | None = None
    """The name that the layout gives it."""
    store: BlobStore = field(repr=False, compare=False, default=None)  # type: ignore[assignment]

    @property
    def where(self) -> str:
        """The image's place, for messages."""
        return str(self.path)

    @property
    def size(self) -> int:
        """Bytes of all layers as stored."""
        return sum(layer.size for layer in self.layers)

    @property
    def run_settings(self) -> Mapping[str, Any]:
        """What the configuration says of a run: User, Env, Entrypoint, Labels and so on."""
        settings = self.config.get("config")
        return settings if isinstance(settings, dict) else {}

    @property
    def labels(self) -> dict[str, str]:
        """Labels by name."""
        labels = self.run_settings.get("Labels")
        found = labels if isinstance(labels, dict) else {}
        return {str(key): str(value) for key, value in found.items()}

    @property
    def environment(self) -> dict[str, str]:
        """Variables by name."""
        return dict(entry.partition("=")[::2] for entry in strings(self.run_settings.get("Env")))

    @property
    def command(self) -> tuple[str, ...]:
        """Entrypoint followed by the default arguments."""
        settings = self.run_settings
        return (*strings(settings.get("Entrypoint")), *strings(settings.get("Cmd")))

    @property
    def platform(self) -> str:
        """Such as `linux/amd64`."""
        return f"{self.config.get('os', '?')}/{self.config.get('architecture', '?')}"


def strings(value: Any) -> tuple[str, ...]:
    """The strings of a list; empty for anything else."""
    return (
        tuple(entry for entry in value if isinstance(entry, str)) if isinstance(value, list) else ()
    )


def open_image(path: Path, *, reference: str | None = None) -> Image:
    """Open the image at `path`; `reference` chooses one by name where there are several.

    Raises `ImageFault` when it is no image that can be read, `ImageTampered` when manifest or
    configuration is not what its digest says.
    """
    from qualify.images.selection import from_docker_archive, from_layout

    if path.is_dir():
        if not (path / "oci-layout").is_file():
            raise ImageFault(
                "is a folder without the file oci-layout",
                where=str(path),
                fix="give an OCI layout, or the tar of one, or what `docker save` wrote",
            )
        return from_layout(path, "oci-layout", FolderStore(path), reference)
    if not path.exists():
        raise UsageError("does not exist", where=str(path), fix="check the path")
    if not path.is_file():
        raise ImageFault("is neither a folder nor a file", where=str(path), fix="check the path")
    store = TarStore(path)
    if store.has("index.json") and store.has("oci-layout"):
        return from_layout(path, "oci-archive", store, reference)
    if store.has("manifest.json"):
        return from_docker_archive(path, store, reference)
    raise ImageFault(
        "is a tar without index.json or manifest.json",
        where=str(path),
        fix="give an OCI layout, or the tar of one, or what `docker save` wrote",
    )


def read_document(store: BlobStore, name: str) -> tuple[Any, bytes]:
    """A JSON document of the image and its bytes. Raises `ImageFault`."""
    if store.size(name) > LIMITS.document:
        raise damaged(f"{name} has more than {LIMITS.document} bytes", store.where)
    with store.open(name) as stream:
        data = stream.read(LIMITS.document + 1)
    try:
        return orjson.loads(data), data
    except orjson.JSONDecodeError as error:
        raise damaged(f"{name} is not JSON: {error}", store.where) from error


def read_blob_document(store: BlobStore, descriptor: Any) -> tuple[dict[str, Any], bytes]:
    """The JSON object that a descriptor names, verified. Raises `ImageFault`, `ImageTampered`."""
    name, digest, size = blob_of(descriptor, store.where)
    document, data = read_document(store, name)
    if "sha256:" + hashlib.sha256(data).hexdigest() != digest or len(data) != size:
        raise ImageTampered(
            f"{name} is not what its digest says",
            where=store.where,
            fix="get the image again from where it was built",
        )
    if not isinstance(document, dict):
        raise damaged(f"{name} is no JSON object", store.where)
    return document, data


def blob_of(descriptor: Any, where: str) -> tuple[str, str, int]:
    """Name in the layout, digest and size that a descriptor gives. Raises `ImageFault`."""
    if not isinstance(descriptor, dict):
        raise damaged("a descriptor is no JSON object", where)
    digest, size = descriptor.get("digest"), descriptor.get("size")
    if not isinstance(digest, str) or not is_digest(digest):
        raise damaged(f"{str(digest)[:90]!a} is no SHA-256 digest", where)
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise damaged(f"the blob {digest} has no size", where)
    return f"blobs/sha256/{digest.removeprefix('sha256:')}", digest, size
