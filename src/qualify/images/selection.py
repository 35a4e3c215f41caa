"""Which image of a layout or archive is meant, and its parts in the form of `Image`.

An index may hold several platforms, nested indexes, attestations and several names. linux/amd64 is
chosen; what is left open after that must be named. Nothing is guessed: an index without such an
image, or with two, is an error that lists what there is. So is a document that another reader
would take for a different one: Go's encoding/json, which engines of containers use, does not tell
`layers` from `Layers` and merges what is there twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from qualify.images.blobs import BlobStore, TarStore
from qualify.images.errors import ImageFault, damaged
from qualify.images.image import (
    CONFIG_TYPES,
    LAYER_TYPES,
    Image,
    Layer,
    blob_of,
    read_blob_document,
    read_document,
    strings,
)
from qualify.images.limits import LIMITS

_INDEX_TYPES = {
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
}
_MANIFEST_TYPES = {
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
}
_OCI_NAMES = """
    schemaVersion mediaType artifactType config layers manifests subject annotations digest size
    urls data platform architecture os os.version os.features variant created author rootfs history
    type diff_ids created_by comment empty_layer imageLayoutVersion User ExposedPorts Env Entrypoint
    Cmd Volumes WorkingDir Labels StopSignal Memory MemorySwap CpuShares Healthcheck ArgsEscaped
    OnBuild Shell
"""
_DOCKER_NAMES = "Config RepoTags Layers Parent LayerSources"
_FREE = {"annotations", "Labels", "ExposedPorts", "Volumes", "LayerSources"}
"""Objects whose names are anybody's."""
_REFERENCE = "org.opencontainers.image.ref.name"
_WANTED = ("linux", "amd64")
_MAX_NESTING = 4
_MAX_MANIFESTS = 1000


class _Candidate:
    """A manifest of the index."""

    def __init__(self, descriptor: dict[str, Any], reference: str | None) -> None:
        self.descriptor = descriptor
        annotations = descriptor.get("annotations")
        named = annotations.get(_REFERENCE) if isinstance(annotations, dict) else None
        self.reference = named if isinstance(named, str) else reference
        platform = descriptor.get("platform")
        self.platform: tuple[str, str] | None = None
        if isinstance(platform, dict):
            self.platform = (_shown(platform.get("os")), _shown(platform.get("architecture")))

    @property
    def shown(self) -> str:
        place = "/".join(self.platform) if self.platform else "no platform named"
        return f"{_shown(self.reference or str(self.descriptor.get('digest'))[:19])} ({place})"


def _shown(text: Any) -> str:
    """A text of the image, short and on one line."""
    return ascii(str(text)[:200])[1:-1]


def from_layout(path: Path, kind: str, store: BlobStore, reference: str | None) -> Image:
    """The image of an OCI layout. Raises `ImageFault` and `ImageTampered`."""
    layout, layout_bytes = read_document(store, "oci-layout")
    _check_names(layout_bytes, _OCI_NAMES, store.where)
    version = layout.get("imageLayoutVersion") if isinstance(layout, dict) else None
    if version != "1.0.0":
        raise damaged(f"is a layout of version {str(version)[:40]!a}, not 1.0.0", store.where)
    index, index_bytes = read_document(store, "index.json")
    if not isinstance(index, dict):
        raise damaged("index.json is no JSON object", store.where)
    notes: list[str] = []
    chosen = _choose(_Indexes(store).read(index, index_bytes), reference, store.where, notes)
    manifest, manifest_bytes = read_blob_document(store, chosen.descriptor)
    _check_names(manifest_bytes, _OCI_NAMES, store.where)
    for said in (manifest.get("mediaType"), chosen.descriptor.get("mediaType")):
        if said is not None and not _is_one(said, _MANIFEST_TYPES):
            raise _unknown_type(said, store.where)
    if "manifests" in manifest:
        raise damaged("has a manifest that is an index as well", store.where)
    config, config_bytes = _config(store, manifest)
    return Image(
        path=path,
        kind=kind,
        digest=str(chosen.descriptor["digest"]),
        manifest=manifest,
        manifest_bytes=manifest_bytes,
        config=config,
        config_bytes=config_bytes,
        layers=_layers(store, manifest, config),
        notes=tuple(notes),
        reference=chosen.reference,
        store=store,
    )


def _unknown_type(media_type: Any, where: str) -> ImageFault:
    return ImageFault(
        f"media type {str(media_type)[:100]!a} is not known here",
        where=where,
        fix="convert it to an OCI image with gzip or zstd layers (skopeo copy --format oci)",
    )


def _is_one(media_type: Any, known: Iterable[str]) -> bool:
    return isinstance(media_type, str) and media_type in known


def _check_names(data: bytes, names: str, where: str) -> None:
    """Refuse a document in which a name comes twice, or almost is one that has a meaning."""
    known = {name.casefold(): name for name in names.split()}

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise damaged("a document of the image says one thing twice", where)
        return found

    try:
        stack = [(json.loads(data, object_pairs_hook=distinct), False)]
    except (ValueError, RecursionError) as error:
        raise damaged("a document of the image is no JSON that everybody reads", where) from error
    while stack:
        value, free = stack.pop()
        if isinstance(value, list):
            stack += [(each, False) for each in value]
        elif isinstance(value, dict):
            for name, each in value.items():
                meant = known.get(name.casefold(), name)
                if not free and meant != name:
                    raise damaged(f"a document of the image says {name[:60]!a} for {meant}", where)
                stack.append((each, name in _FREE and not free))


class _Indexes:
    """Reads an index and those that it names."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._seen = 0
        """Descriptors, of manifests and of indexes."""

    def read(
        self, index: dict[str, Any], data: bytes, reference: str | None = None, depth: int = 0
    ) -> list[_Candidate]:
        """The manifests, attestations left out. Raises `ImageFault` and `ImageTampered`."""
        where = self._store.where
        _check_names(data, _OCI_NAMES, where)
        manifests = index.get("manifests")
        if not isinstance(manifests, list) or depth > _MAX_NESTING:
            raise damaged("has an index without a list of manifests, or a bottomless one", where)
        if "layers" in index:
            raise damaged("has an index that is a manifest as well", where)
        self._seen += len(manifests)
        if self._seen > _MAX_MANIFESTS:
            raise damaged(f"has indexes of more than {_MAX_MANIFESTS} manifests", where)
        found: list[_Candidate] = []
        for descriptor in manifests:
            blob_of(descriptor, where)
            annotations = descriptor.get("annotations") or {}
            if isinstance(annotations, dict) and "vnd.docker.reference.type" in annotations:
                continue
            candidate = _Candidate(descriptor, reference)
            media_type = descriptor.get("mediaType")
            if _is_one(media_type, _INDEX_TYPES):
                nested, nested_data = read_blob_document(self._store, descriptor)
                found += self.read(nested, nested_data, candidate.reference, depth + 1)
            elif media_type is None or _is_one(media_type, _MANIFEST_TYPES):
                found.append(candidate)
            else:
                raise _unknown_type(media_type, where)
        return found


def _choose(
    candidates: list[_Candidate], reference: str | None, where: str, notes: list[str]
) -> _Candidate:
    named = [c for c in candidates if reference is None or c.reference == reference]
    fitting = [c for c in named if c.platform in (None, _WANTED)]
    unique = {str(c.descriptor["digest"]): c for c in fitting}
    if len(unique) == 1:
        chosen = next(iter(unique.values()))
        if len(named) > 1 and chosen.platform == _WANTED:
            others = sorted({"/".join(c.platform) for c in named if c.platform} - {"linux/amd64"})
            notes.append(f"linux/amd64 was chosen; there are also {', '.join(others)}")
        return chosen
    listed = ", ".join(c.shown for c in candidates[:8]) or "nothing"
    what = "holds no such image" if not unique else f"holds {len(unique)} images"
    wanted = f" named {reference!a}" if reference else ""
    raise ImageFault(
        f"{what} for linux/amd64{wanted}: {listed}", where=where, fix="choose one with --ref NAME"
    )


def _config(store: BlobStore, manifest: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    descriptor = manifest.get("config")
    media_type = descriptor.get("mediaType") if isinstance(descriptor, dict) else None
    if not _is_one(media_type, CONFIG_TYPES):
        raise _unknown_type(media_type, store.where)
    config, data = read_blob_document(store, descriptor)
    _check_names(data, _OCI_NAMES, store.where)
    return config, data


def diff_ids(config: dict[str, Any], where: str) -> tuple[str, ...]:
    """The digests of the decompressed layers. Raises `ImageFault`."""
    rootfs = config.get("rootfs")
    found = strings(rootfs.get("diff_ids")) if isinstance(rootfs, dict) else ()
    if not isinstance(rootfs, dict) or rootfs.get("type") != "layers":
        raise damaged("its configuration names no layers (rootfs)", where)
    return found


def _layers(
    store: BlobStore, manifest: dict[str, Any], config: dict[str, Any]
) -> tuple[Layer, ...]:
    descriptors = manifest.get("layers")
    if not isinstance(descriptors, list) or len(descriptors) > LIMITS.layers:
        raise damaged(f"its manifest has no list of at most {LIMITS.layers} layers", store.where)
    ids = diff_ids(config, store.where)
    if len(ids) != len(descriptors):
        raise damaged(
            f"has {len(descriptors)} layers, and its configuration names {len(ids)}", store.where
        )
    layers = []
    for index, (descriptor, diff_id) in enumerate(zip(descriptors, ids, strict=True)):
        name, digest, size = blob_of(descriptor, store.where)
        media_type = descriptor.get("mediaType")
        if not _is_one(media_type, LAYER_TYPES):
            raise _unknown_type(media_type, store.where)
        layers.append(Layer(index, name, size, digest, diff_id, media_type))
    return tuple(layers)


def from_docker_archive(path: Path, store: TarStore, reference: str | None) -> Image:
    """The image of a docker-archive. Raises `ImageFault`."""
    entries, manifest_bytes = read_document(store, "manifest.json")
    _check_names(manifest_bytes, _DOCKER_NAMES, store.where)
    entry = _docker_entry(entries, reference, store.where)
    name = entry.get("Config")
    if not isinstance(name, str) or not name.isprintable():
        raise damaged("manifest.json names no configuration", store.where)
    config, config_bytes = read_document(store, name)
    if not isinstance(config, dict):
        raise damaged(f"{name[:200]!a} is no JSON object", store.where)
    _check_names(config_bytes, _OCI_NAMES, store.where)
    names, ids = strings(entry.get("Layers")), diff_ids(config, store.where)
    if len(names) != len(ids) or len(ids) > LIMITS.layers:
        raise damaged(
            f"has {len(names)} layers, and its configuration names {len(ids)}", store.where
        )
    if not all(each.isprintable() for each in names):
        raise damaged("manifest.json names a layer in signs that cannot be shown", store.where)
    layers = tuple(
        Layer(i, layer, store.size(layer), None, diff_id, "application/vnd.docker.layer")
        for i, (layer, diff_id) in enumerate(zip(names, ids, strict=True))
    )
    tags = strings(entry.get("RepoTags"))
    return Image(
        path=path,
        kind="docker-archive",
        digest="sha256:" + hashlib.sha256(config_bytes).hexdigest(),
        manifest=entry,
        manifest_bytes=manifest_bytes,
        config=config,
        config_bytes=config_bytes,
        layers=layers,
        notes=("a docker-archive names no manifest: the digest is that of the configuration",),
        reference=tags[0] if tags else None,
        store=store,
    )


def _docker_entry(entries: Any, reference: str | None, where: str) -> dict[str, Any]:
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise damaged("manifest.json is no list of images", where)
    named = [
        entry
        for entry in entries
        if reference is None or reference in strings(entry.get("RepoTags"))
    ]
    if len(named) == 1:
        found: dict[str, Any] = named[0]
        return found
    tags = ", ".join(tag for entry in entries[:8] for tag in strings(entry.get("RepoTags")))
    wanted = f" named {reference!a}" if reference else ""
    raise ImageFault(
        f"holds {len(named)} images{wanted}: {_shown(tags) or 'none has a name'}",
        where=where,
        fix="choose one with --ref NAME",
    )
