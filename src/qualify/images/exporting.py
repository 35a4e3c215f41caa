"""A self-contained copy of an image: an OCI layout in a folder or a tar, or a docker-archive.

Promises: the same image gives the same bytes, whoever exports it and when; every blob is verified
on the way; the target appears whole or not at all. An OCI export keeps manifest, configuration and
layers byte for byte, and so the image's digest, and what a build left beside them, once that is
known to be about this image; a docker-archive holds the layers decompressed, as `docker save`
writes them.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import orjson

from qualify.core.digests import digest_bytes
from qualify.core.errors import EnvironmentFault, UsageError
from qualify.images.companions import checked_companions
from qualify.images.decompression import CHUNK
from qualify.images.errors import ImageTampered
from qualify.images.image import Image, Layer
from qualify.images.layers import Allowance, LayerReader, Progress
from qualify.storage.folders import fsync_folder
from qualify.storage.staging import staged_folder

FORMATS = ("oci", "oci-archive", "docker-archive")
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class _Target(Protocol):
    """Takes files in a fixed order."""

    def write(self, name: str, fill: Callable[[BinaryIO], None]) -> None: ...


def export_image(
    image: Image,
    target: Path,
    form: str,
    *,
    tag: str | None = None,
    progress: Progress | None = None,
) -> str:
    """Write `image` to `target` in one of `FORMATS`; the digest of what was written.

    `tag` names the image inside (default: the name it has). Raises `ImageTampered` when a blob is
    not what its digest says or a file beside the blobs is about another image, `UsageError` when
    the target exists, `EnvironmentFault` when it cannot be written.
    """
    name = tag or image.reference
    try:
        if form == "oci":
            with staged_folder(target) as staging:
                return _write_oci(image, _Folder(staging), name, progress)
        with _staged_file(target) as stream, _tar(stream) as archive:
            write = _write_docker if form == "docker-archive" else _write_oci
            return write(image, _Tar(archive), name, progress)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot be written: {error.strerror or error}",
            where=str(target),
            fix="check the folder's permissions and the free space",
        ) from error


def _write_oci(image: Image, target: _Target, name: str | None, progress: Progress | None) -> str:
    manifest = image.manifest_bytes
    companions: dict[str, bytes] = {}
    if image.kind == "docker-archive":
        manifest = _made_manifest(image)
    else:
        companions = checked_companions(image)
    digest = digest_bytes(manifest)
    entry: dict[str, Any] = {
        "mediaType": image.manifest.get("mediaType", _MANIFEST),
        "digest": digest,
        "size": len(manifest),
        "platform": {"architecture": "amd64", "os": "linux"},
    }
    if name:
        entry["annotations"] = {"org.opencontainers.image.ref.name": name}
    index = {"schemaVersion": 2, "manifests": [entry]}
    target.write("oci-layout", _bytes(b'{"imageLayoutVersion":"1.0.0"}'))
    target.write("index.json", _bytes(orjson.dumps(index)))
    written = set()
    for data in (manifest, image.config_bytes):
        target.write(_blob(digest_bytes(data)), _bytes(data))
        written.add(digest_bytes(data))
    for layer in image.layers:
        found = layer.digest or _stored_digest(image, layer)
        if found not in written:
            written.add(found)
            target.write(_blob(found), _copied(image, layer, found, progress))
    for companion, data in companions.items():
        target.write(companion, _bytes(data))
    return digest


def _blob(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _bytes(data: bytes) -> Callable[[BinaryIO], None]:
    def fill(out: BinaryIO) -> None:
        out.write(data)

    return fill


def _copied(
    image: Image, layer: Layer, digest: str, progress: Progress | None
) -> Callable[[BinaryIO], None]:
    """Copies the stored bytes and checks them."""

    def fill(out: BinaryIO) -> None:
        state = hashlib.sha256()
        with image.store.open(layer.name) as stream:
            while chunk := stream.read(CHUNK):
                state.update(chunk)
                out.write(chunk)
                if progress is not None:
                    progress(len(chunk))
        if f"sha256:{state.hexdigest()}" != digest:
            raise _tampered(image, layer)

    return fill


def _tampered(image: Image, layer: Layer) -> ImageTampered:
    return ImageTampered(
        f"layer {layer.index + 1} is not what its digest says",
        where=image.where,
        fix="get the image again from its builder",
    )


def _stored_digest(image: Image, layer: Layer) -> str:
    """Digest of a layer of a docker-archive, once its content is what the diff_id says."""
    with LayerReader(image, layer, Allowance()) as reader:
        for _ in reader.everything():
            pass
        if reader.finish():
            raise _tampered(image, layer)
        return reader.stored_digest


def _made_manifest(image: Image) -> bytes:
    """The OCI manifest of an image that has none."""
    layers = []
    for layer in image.layers:
        with image.store.open(layer.name) as stream:
            head = stream.read(4)
        packed = "+gzip" if head.startswith(_GZIP) else "+zstd" if head == _ZSTD else ""
        digest = _stored_digest(image, layer)
        layers.append({"mediaType": _LAYER + packed, "digest": digest, "size": layer.size})
    config = {
        "mediaType": _CONFIG,
        "digest": digest_bytes(image.config_bytes),
        "size": len(image.config_bytes),
    }
    made = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": config, "layers": layers}
    return orjson.dumps(made)


def _write_docker(
    image: Image, target: _Target, name: str | None, progress: Progress | None
) -> str:
    config = digest_bytes(image.config_bytes).removeprefix("sha256:")
    names = [f"{layer.diff_id.removeprefix('sha256:')}.tar" for layer in image.layers]
    written = set()
    for layer, file in zip(image.layers, names, strict=True):
        if file not in written:
            written.add(file)
            target.write(file, _decompressed(image, layer, progress))
    target.write(f"{config}.json", _bytes(image.config_bytes))
    tags = [tag] if (tag := _repository_tag(image, name)) else []
    entry = {"Config": f"{config}.json", "RepoTags": tags, "Layers": names}
    target.write("manifest.json", _bytes(orjson.dumps([entry])))
    return f"sha256:{config}"


def _repository_tag(image: Image, name: str | None) -> str | None:
    """`repository:tag`; a layout may know only the tag, and the title is then the repository."""
    title = image.labels.get("org.opencontainers.image.title", "").lower().replace(" ", "-")
    if name is None or ":" in name:
        return name
    if name == image.reference and "/" not in name:
        return f"{title}:{name}" if title else None
    return f"{name}:latest"


def _decompressed(
    image: Image, layer: Layer, progress: Progress | None
) -> Callable[[BinaryIO], None]:
    def fill(out: BinaryIO) -> None:
        with LayerReader(image, layer, Allowance(), progress) as reader:
            for chunk in reader.everything():
                out.write(chunk)
            if reader.finish():
                raise _tampered(image, layer)

    return fill


class _Folder:
    """Files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, name: str, fill: Callable[[BinaryIO], None]) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as stream:
            fill(stream)
            stream.flush()
            os.fsync(stream.fileno())
        path.chmod(0o644)


class _Tar:
    """Members of a tar: owner 0, mode 0644, no times. The size is filled in once it is known."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive

    def write(self, name: str, fill: Callable[[BinaryIO], None]) -> None:
        info = tarfile.TarInfo(name)
        info.mode = 0o644
        out: Any = self._archive.fileobj
        start = out.tell()
        out.write(info.tobuf(tarfile.GNU_FORMAT))
        fill(out)
        end = out.tell()
        info.size = end - start - tarfile.BLOCKSIZE
        out.write(b"\0" * (-info.size % tarfile.BLOCKSIZE))
        after = out.tell()
        out.seek(start)
        out.write(info.tobuf(tarfile.GNU_FORMAT))
        out.seek(after)
        self._archive.offset = after


@contextmanager
def _tar(stream: BinaryIO) -> Iterator[tarfile.TarFile]:
    with tarfile.TarFile(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        yield archive


@contextmanager
def _staged_file(target: Path) -> Iterator[BinaryIO]:
    """A file that gets its name when the block ends without an error."""
    if os.path.lexists(target):
        raise UsageError(
            "is there already", where=str(target), fix="name a new file, or remove this one"
        )
    if not target.absolute().parent.is_dir():
        raise UsageError("is no folder", where=str(target.parent), fix="make it first")
    with tempfile.NamedTemporaryFile(
        prefix=f".{target.name[:100]}.partial-", dir=target.absolute().parent, delete=False
    ) as stream:
        try:
            yield cast("BinaryIO", stream.file)
            stream.flush()
            os.fchmod(stream.fileno(), 0o644)
            os.fsync(stream.fileno())
            Path(stream.name).rename(target)
        finally:
            Path(stream.name).unlink(missing_ok=True)
    fsync_folder(target.absolute().parent)
