"""What a `.deb` holds, read in place: no package manager, no maintainer scripts, nothing unpacked.

A package lays its files where Debian's merged `/usr` has them: what an older package still puts
below `/bin`, `/sbin` or `/lib` goes to `/usr`. Manuals, translations and other documents are left
out; licences (`copyright`) stay.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from qualify.images.building.layer_writer import BuildError

_MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_LEFT_OUT = re.compile(
    r"usr/share/(man|info|locale|lintian|doc-base|bug|gtk-doc|menu|linda)(/.*)?$"
    r"|usr/share/doc/[^/]+/(?!copyright$).*$"
    r"|var/(run|lock)$"  # links to /run, which the base layer makes
)


def placed(path: str) -> str | None:
    """Where a package's path goes, relative to the root; `None` when it is left out."""
    pure = PurePosixPath(path)
    parts = [part for part in pure.parts if part not in ("/", ".")]
    if not parts:
        return None
    if len(parts) > 1 and parts[0] in _MERGED:
        parts.insert(0, "usr")
    place = "/".join(parts)
    return None if _LEFT_OUT.match(place) else place


def control_text(deb: Path) -> bytes:
    """The control file of a package. Raises `BuildError`."""
    with member(deb, "control.tar") as archive:
        for entry in archive:
            if PurePosixPath(entry.name).name == "control" and entry.isfile():
                data = archive.extractfile(entry)
                assert data is not None
                return data.read()
    raise BuildError(f"{deb.name} has no control file")


@contextmanager
def member(deb: Path, name: str) -> Iterator[tarfile.TarFile]:
    """The archive `control.tar` or `data.tar` of a package, as a stream. Raises `BuildError`."""
    with deb.open("rb") as file:
        found = _find(file, deb.name, name)
        part = _Part(file, found.size)
        try:
            with _archive(part, found.suffix, f"{deb.name}: {name}") as archive:
                yield archive
        except (tarfile.TarError, EOFError) as error:
            raise BuildError(f"{deb.name}: {name} cannot be read: {error}") from error


def _archive(part: _Part, suffix: str, where: str) -> tarfile.TarFile:
    match suffix:
        case "xz":
            return tarfile.open(mode="r|xz", fileobj=part, bufsize=1 << 20)
        case "gz":
            return tarfile.open(mode="r|gz", fileobj=part, bufsize=1 << 20)
        case "":
            return tarfile.open(mode="r|", fileobj=part, bufsize=1 << 20)
    raise BuildError(f"{where}.{suffix} is compressed in an unknown way")


class _Found:
    def __init__(self, suffix: str, size: int) -> None:
        self.suffix = suffix
        self.size = size


def _find(file: IO[bytes], deb: str, name: str) -> _Found:
    """Go to the start of a member of the `ar` archive."""
    if file.read(8) != b"!<arch>\n":
        raise BuildError(f"{deb} is no Debian package")
    while len(header := file.read(60)) == 60:
        member_name = header[:16].decode("ascii", "replace").rstrip().rstrip("/")
        size = int(header[48:58])
        if member_name == name or member_name.startswith(f"{name}."):
            return _Found(member_name[len(name) + 1 :], size)
        file.seek(size + size % 2, io.SEEK_CUR)
    raise BuildError(f"{deb} has no {name}")


class _Part(io.RawIOBase):
    """The next `size` bytes of a file."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._file.read(wanted)
        self._left -= len(data)
        return data
