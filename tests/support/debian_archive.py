"""A small Debian archive in a folder: packages made here, with the index that apt reads."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

from support.depots import PROGRAM, sha256


def deb_bytes(name: str, fields: str = "", files: dict[str, bytes] | None = None) -> bytes:
    """A .deb that apt accepts."""
    control = _control(name, fields)
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": _tar({"./control": control.encode()}),
        "data.tar.gz": _tar(files or {}),
    }
    parts = [b"!<arch>\n"]
    for member, data in members.items():
        parts.append(f"{member:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode())
        parts.append(data + b"\n" * (len(data) % 2))
    return b"".join(parts)


def _control(name: str, fields: str) -> str:
    return (
        f"Package: {name}\nVersion: 1:1.0~rc1-1\nArchitecture: amd64\n"
        "Maintainer: nobody <n@invalid>\n"
        f"{fields}Description: for tests\n"
    )


def _tar(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=stream, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path, data in files.items():
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(data), 0o755
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


PACKAGES: dict[str, str] = {
    "busybox-static": "",
    "liba": "",
    "libb": "Depends: liba, debconf | debconf-2.0\n",
    "debconf": "Depends: perl-base\nProvides: debconf-2.0\n",
    "perl-base": "Essential: yes\n",
    "tool": "Depends: libb\nRecommends: extra\n",
    "extra": "",
}


def make_archive(root: Path) -> Path:
    """Write the archive below `root` and return a sources list that names it."""
    rows = []
    for name, fields in PACKAGES.items():
        files = {"./usr/bin/busybox": PROGRAM} if name == "busybox-static" else {}
        data = deb_bytes(name, fields, files)
        path = f"pool/main/{name[0]}/{name}/{name}_1.0~rc1-1_amd64.deb"
        (root / path).parent.mkdir(parents=True)
        (root / path).write_bytes(data)
        rows.append(
            f"{_control(name, fields)}Filename: {path}\nSize: {len(data)}\nSHA256: {sha256(data)}\n"
        )
    index = "\n".join(rows).encode()
    place = root / "dists/trixie/main/binary-amd64"
    place.mkdir(parents=True)
    (place / "Packages").write_bytes(index)
    (root / "dists/trixie/Release").write_text(
        "Origin: Debian\nSuite: stable\nVersion: 13.8\nCodename: trixie\n"
        "Date: Sat, 21 Nov 2026 09:15:44 UTC\nArchitectures: amd64\nComponents: main\nSHA256:\n"
        f" {sha256(index)} {len(index)} main/binary-amd64/Packages\n"
    )
    sources = root.parent / "sources.list"
    sources.write_text(f"deb [trusted=yes] file:{root} trixie main\n")
    return sources
