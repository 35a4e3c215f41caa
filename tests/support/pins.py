"""Small wheels and Debian packages, made in place: what the builders of images are given."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

ELF_HEAD = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00"
X86_64 = (62).to_bytes(2, "little")
AARCH64 = (183).to_bytes(2, "little")


def wheel(folder: Path, name: str, files: dict[str, bytes], version: str = "1.0") -> dict[str, str]:
    """A wheel with `files` (by their name in it) and sound metadata, as a builder takes it."""
    info = f"{name}-{version}.dist-info"
    members = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},{record_hash(data)},{len(data)}" for path, data in members.items()]
    members[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in members.items():
            entry = zipfile.ZipInfo(member)
            entry.external_attr = (0o755 if member.endswith(".sh") else 0o644) << 16
            archive.writestr(entry, data)
    return {"name": name, "version": version, "path": str(path)}


def record_hash(data: bytes) -> str:
    """A digest as `RECORD` writes it."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def deb(
    folder: Path, name: str, entries: list[tarfile.TarInfo | tuple[str, bytes, int]]
) -> dict[str, str]:
    """A Debian package whose data holds `entries`: ready ones, or (path, bytes, mode)."""
    control = _tar([("./control", f"Package: {name}\nVersion: 1.0\n".encode(), 0o644)])
    parts = {
        "debian-binary": b"2.0\n",
        "control.tar.xz": control,
        "data.tar.xz": _tar(entries),
    }
    path = folder / f"{name}_1.0_amd64.deb"
    with path.open("wb") as file:
        file.write(b"!<arch>\n")
        for member, data in parts.items():
            file.write(f"{member:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode())
            file.write(data + b"\n" * (len(data) % 2))
    return {"name": name, "version": "1.0", "path": str(path)}


def entry(path: str, kind: bytes, *, mode: int = 0o755, link: str = "") -> tarfile.TarInfo:
    """A folder, a link or a device for `deb`."""
    made = tarfile.TarInfo(path)
    made.type, made.mode, made.linkname = kind, mode, link
    return made


def _tar(entries: list[tarfile.TarInfo | tuple[str, bytes, int]]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(mode="w:xz", fileobj=held) as archive:
        for each in entries:
            if isinstance(each, tarfile.TarInfo):
                archive.addfile(each)
                continue
            path, data, mode = each
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(data), mode
            archive.addfile(info, io.BytesIO(data))
    return held.getvalue()


def members(layer: Path) -> dict[str, tarfile.TarInfo]:
    """Every entry of the layer in a folder, by path."""
    with tarfile.open(layer / "layer.tar.gz") as archive:
        return {info.name: info for info in archive}


def content(layer: Path, path: str) -> bytes:
    """The bytes of one file of the layer in a folder."""
    with tarfile.open(layer / "layer.tar.gz") as archive:
        file = archive.extractfile(path)
        assert file is not None
        return file.read()


def described(layer: Path) -> dict[str, Any]:
    """What the layer says of itself."""
    value: dict[str, Any] = json.loads((layer / "layer.json").read_text())
    return value
