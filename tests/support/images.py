"""Small real images, made byte for byte: an OCI layout, or what `docker save` writes.

`ImageBuilder` collects layers of `Entry` and writes them; what is wrong with an image can be put in
anywhere, which is what the tests of hostile images do.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import struct
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


@dataclass(frozen=True)
class Entry:
    """One member of a layer."""

    path: str
    data: bytes = b""
    type: bytes = tarfile.REGTYPE
    mode: int = 0o644
    target: str = ""
    uid: int = 0
    gid: int = 0
    pax: dict[str, str] = field(default_factory=dict)


def file(path: str, data: bytes | str = b"", mode: int = 0o644, **more: Any) -> Entry:
    """A file."""
    return Entry(path, data.encode() if isinstance(data, str) else data, mode=mode, **more)


def folder(path: str, mode: int = 0o755, **more: Any) -> Entry:
    """A folder."""
    return Entry(path, type=tarfile.DIRTYPE, mode=mode, **more)


def link(path: str, target: str) -> Entry:
    """A symbolic link."""
    return Entry(path, type=tarfile.SYMTYPE, mode=0o777, target=target)


def hard_link(path: str, target: str) -> Entry:
    """A hard link."""
    return Entry(path, type=tarfile.LNKTYPE, target=target)


def device(path: str) -> Entry:
    """A character device."""
    return Entry(path, type=tarfile.CHRTYPE, mode=0o666)


def layer_tar(entries: Iterable[Entry]) -> bytes:
    """The tar of a layer."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries:
            info = tarfile.TarInfo(entry.path)
            info.type, info.mode, info.linkname = entry.type, entry.mode, entry.target
            info.uid, info.gid, info.mtime = entry.uid, entry.gid, 1
            info.size = len(entry.data) if entry.type == tarfile.REGTYPE else 0
            info.pax_headers = entry.pax
            archive.addfile(info, io.BytesIO(entry.data))
    return out.getvalue()


def packed(tar: bytes) -> bytes:
    """Gzip without a time."""
    return gzip.compress(tar, 6, mtime=0)


def sha256(data: bytes) -> str:
    """`sha256:…`."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def distribution(
    name: str,
    version: str,
    files: dict[str, bytes | str],
    site: str = "usr/lib/python3.13/site-packages",
) -> list[Entry]:
    """An installed Python distribution: its files, METADATA and a RECORD that fits."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nText.\n"
    content = {
        **{path: data.encode() if isinstance(data, str) else data for path, data in files.items()},
        f"{info}/METADATA": metadata.encode(),
    }
    rows = [f"{path},{_record_hash(data)},{len(data)}" for path, data in content.items()]
    rows.append(f"{info}/RECORD,,")
    content[f"{info}/RECORD"] = ("\n".join(rows) + "\n").encode()
    return [file(f"{site}/{path}", data) for path, data in content.items()]


def _record_hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"


def elf(*needed: str, filler: int = 0, strings_last: bool = False) -> bytes:
    """A 64-bit ELF file that asks for libraries; `filler` bytes lie before its dynamic section."""
    names, offsets = b"\0", []
    for name in needed:
        offsets.append(len(names))
        names += name.encode() + b"\0"
    start = 64 + 2 * 56
    rows = len(offsets) + 3
    if strings_last:
        dynamic_at, strings_at = start + filler, start + filler + rows * 16
    else:
        strings_at, dynamic_at = start, start + len(names) + filler
    rows_data = b"".join(struct.pack("<qQ", 1, offset) for offset in offsets)
    rows_data += struct.pack("<qQqQqQ", 5, 0x1000 + strings_at, 10, len(names), 0, 0)
    total = max(dynamic_at + rows * 16, strings_at + len(names))
    body = bytearray(total)
    body[0:64] = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0
    )
    body[64:120] = struct.pack("<IIQQQQQQ", 1, 4, 0, 0x1000, 0x1000, total, total, 4096)
    size = rows * 16
    body[120:176] = struct.pack(
        "<IIQQQQQQ", 2, 6, dynamic_at, 0x1000 + dynamic_at, 0, size, size, 8
    )
    body[strings_at : strings_at + len(names)] = names
    body[dynamic_at : dynamic_at + size] = rows_data
    return bytes(body)


def safetensors(tensors: int = 1) -> bytes:
    """A small file of weights in the safetensors format."""
    header = json.dumps(
        {
            f"t{i}": {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]}
            for i in range(tensors)
        }
    ).encode()
    return struct.pack("<Q", len(header)) + header + b"\0" * 4 * tensors


@dataclass
class ImageBuilder:
    """An image to be written. Layers are lists of entries or ready tars."""

    layers: list[list[Entry] | bytes] = field(default_factory=list)
    user: str = "10001:10001"
    env: dict[str, str] = field(default_factory=lambda: {"PATH": "/usr/bin"})
    entrypoint: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    compression: str = "gzip"
    name: str | None = "test:1"
    architecture: str = "amd64"
    changes: dict[str, Any] = field(default_factory=dict)
    """Keys of the configuration to replace."""
    layer_type: str | None = None

    def tars(self) -> list[bytes]:
        """The decompressed layers."""
        return [each if isinstance(each, bytes) else layer_tar(each) for each in self.layers]

    def config(self) -> bytes:
        """The configuration."""
        document: dict[str, Any] = {
            "architecture": self.architecture,
            "os": "linux",
            "config": {
                "User": self.user,
                "Env": [f"{name}={value}" for name, value in self.env.items()],
                "Entrypoint": self.entrypoint,
                "Labels": self.labels,
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [sha256(tar) for tar in self.tars()]},
            "history": self.history,
        }
        return json.dumps({**document, **self.changes}).encode()

    def blobs(self) -> tuple[list[bytes], bytes, bytes]:
        """Layers as stored, configuration, manifest."""
        stored = [packed(tar) if self.compression == "gzip" else tar for tar in self.tars()]
        config = self.config()
        suffix = "+gzip" if self.compression == "gzip" else ""
        layers = [
            {"mediaType": self.layer_type or LAYER + suffix, "digest": sha256(d), "size": len(d)}
            for d in stored
        ]
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": CONFIG, "digest": sha256(config), "size": len(config)},
            "layers": layers,
        }
        return stored, config, json.dumps(manifest).encode()

    def descriptor(self, manifest: bytes) -> dict[str, Any]:
        """What an index says of the image."""
        made: dict[str, Any] = {
            "mediaType": MANIFEST,
            "digest": sha256(manifest),
            "size": len(manifest),
            "platform": {"os": "linux", "architecture": self.architecture},
        }
        if self.name:
            made["annotations"] = {"org.opencontainers.image.ref.name": self.name}
        return made

    def layout(self, target: Path) -> Path:
        """Write an OCI layout."""
        return write_layout(target, [self])

    def docker_archive(self, target: Path) -> Path:
        """Write what `docker save` writes."""
        config = self.config()
        hexadecimal = sha256(config).removeprefix("sha256:")
        members = [(f"{i}/layer.tar", tar) for i, tar in enumerate(self.tars())]
        entry = {
            "Config": f"{hexadecimal}.json",
            "RepoTags": [self.name] if self.name else [],
            "Layers": [name for name, _ in members],
        }
        members += [
            (f"{hexadecimal}.json", config),
            ("manifest.json", json.dumps([entry]).encode()),
        ]
        with tarfile.open(target, "w") as archive:
            for name, data in members:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        return target


def write_layout(
    target: Path, images: list[ImageBuilder], index: dict[str, Any] | None = None
) -> Path:
    """Write an OCI layout of several images."""
    blobs = target / "blobs/sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    manifests = []
    for image in images:
        stored, config, manifest = image.blobs()
        for data in (*stored, config, manifest):
            put_blob(target, data)
        manifests.append(image.descriptor(manifest))
    (target / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    document = index or {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}
    (target / "index.json").write_text(json.dumps(document))
    return target


def put_blob(layout: Path, data: bytes) -> Path:
    """Write one blob under its digest."""
    path = layout / "blobs/sha256" / sha256(data).removeprefix("sha256:")
    path.write_bytes(data)
    return path


def tarred(layout: Path, target: Path) -> Path:
    """The tar of an OCI layout."""
    with tarfile.open(target, "w") as archive:
        for path in sorted(layout.rglob("*")):
            archive.add(path, path.relative_to(layout), recursive=False)
    return target


PYTHON_IMAGE = ImageBuilder(
    layers=[
        [
            folder("usr/bin"),
            link("bin", "usr/bin"),
            link("lib", "usr/lib"),
            file("etc/passwd", "root:x:0:0::/root:\nqualify:x:10001:10001::/home/qualify:\n"),
            file("usr/bin/python3", b"\x7fELF", 0o755),
            folder("tmp", 0o1777),
        ],
        distribution("alpha", "1.2.3", {"alpha/__init__.py": "", "alpha/__main__.py": "pass\n"}),
    ],
    entrypoint=["/usr/bin/python3", "-m", "alpha"],
)
"""A sound image of somebody else: one Python distribution and an unprivileged user."""


def python_image(**changes: Any) -> ImageBuilder:
    """A copy of `PYTHON_IMAGE` with other fields, or with `more` entries in one more layer."""
    more: list[Entry] = changes.pop("more", [])
    made = replace(PYTHON_IMAGE, **changes)
    made.layers = [*made.layers, *([more] if more else [])]
    return made
