"""The static busybox that starts a build, taken out of Debian's package and named as Nix names it.

A Nix sandbox holds no shell. A folder with one static program, whose content Nix identifies by the
SHA-256 of its archive form (NAR), is where every build begins. The digest is in the Debian lock, so
it does not matter who took the program out of the package.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

from qualify.core.errors import Refusal

FOLDER = "busybox-elf"
PROGRAM = "busybox"
_MEMBERS = ("./usr/bin/busybox", "./bin/busybox")


def busybox_of(package: Path) -> bytes:
    """The program inside a busybox-static .deb.

    Raises `Refusal` when the file is no such package.
    """
    try:
        for name, data in _ar_members(package.read_bytes()):
            if name.startswith("data.tar"):
                with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                    return _program(archive)
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise Refusal(f"cannot be unpacked: {error}", where=str(package)) from error
    raise Refusal("holds no data.tar", where=str(package))


def _program(archive: tarfile.TarFile) -> bytes:
    for member in archive:
        if member.name in _MEMBERS and member.isreg():
            stream = archive.extractfile(member)
            if stream is not None:
                return stream.read()
    raise ValueError("no busybox in it")


def _ar_members(data: bytes) -> list[tuple[str, bytes]]:
    if not data.startswith(b"!<arch>\n"):
        raise ValueError("not an ar archive")
    members, position = [], 8
    while position + 60 <= len(data):
        header = data[position : position + 60]
        size = int(header[48:58])
        name = header[:16].decode("ascii").strip().rstrip("/")
        members.append((name, data[position + 60 : position + 60 + size]))
        position += 60 + size + size % 2
    return members


def nar_sha256(program: bytes) -> str:
    """SHA-256 of the NAR of a folder that holds `program` as the executable `busybox`."""
    digest = hashlib.sha256()
    parts = [
        b"nix-archive-1", b"(", b"type", b"directory",
        b"entry", b"(", b"name", PROGRAM.encode(), b"node",
        b"(", b"type", b"regular", b"executable", b"", b"contents", program, b")",
        b")", b")",
    ]  # fmt: skip
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
        digest.update(b"\0" * (-len(part) % 8))
    return digest.hexdigest()
