"""What a wheel holds and where an installer would put it, read in place.

Follows the specification of binary distributions: `NAME-VERSION.data/` is spread over the scheme,
`RECORD` is written anew for the installed paths. Console scripts are not made: images start
modules.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from qualify.images.building.bytecode import bytecode_path
from qualify.images.building.layer_writer import BuildError

SITE = "usr/local/lib/python3.13/dist-packages"
"""Where distributions lie in an image, relative to its root."""

_SCHEME = {
    "purelib": SITE,
    "platlib": SITE,
    "scripts": "usr/local/bin",
    "data": "usr/local",
    "headers": "usr/local/include/python3.13",
}
_ELF_X86_64 = 62


@dataclass
class WheelFile:
    """One file of a wheel at its place in the image."""

    path: str
    size: int
    mode: int
    data: bytes | None
    """The bytes, when they are needed for more than copying."""
    entry: zipfile.ZipInfo
    bytecode: bool = False
    """Set by the caller when bytecode was made of it."""


@dataclass
class Wheel:
    """A wheel. `name` is how errors call it. Raises `BuildError` when it is none."""

    path: Path
    name: str
    left_out: frozenset[str] = frozenset()
    """Members that are not installed; each must exist."""
    _archive: zipfile.ZipFile = field(init=False, repr=False)
    _hashes: dict[str, str] = field(init=False, repr=False)
    _info: str = field(init=False, repr=False)
    _foreign: str | None = field(init=False, repr=False, default=None)
    _native: bool = field(init=False, repr=False, default=False)

    def __post_init__(self) -> None:
        try:
            self._archive = zipfile.ZipFile(self.path)
        except (zipfile.BadZipFile, OSError) as error:
            raise BuildError(f"{self.name} cannot be read as a wheel: {error}") from error
        infos = sorted(
            {
                name.split("/", 1)[0]
                for name in self._archive.namelist()
                if name.endswith(".dist-info/METADATA") and name.count("/") == 1
            }
        )
        if len(infos) != 1:
            raise BuildError(f"{self.name} has {len(infos)} folders of metadata instead of one")
        self._info = infos[0]
        try:
            record = self._archive.read(f"{self._info}/RECORD").decode("utf-8")
        except KeyError as error:
            raise BuildError(f"{self.name} has no RECORD") from error
        absent = sorted(self.left_out - {*self._archive.namelist()})
        if absent:
            raise BuildError(f"{self.name} has no {absent[0]} to leave out")
        self._hashes = {row[0]: row[1] for row in csv.reader(record.splitlines()) if len(row) > 1}

    def files(self) -> Iterator[WheelFile]:
        """Every file but `RECORD`, by name; Python sources, scripts and small files with data."""
        for entry in sorted(self._archive.infolist(), key=lambda entry: entry.filename):
            if entry.is_dir() or entry.filename == f"{self._info}/RECORD":
                continue
            if entry.filename in self.left_out or _is_signature(entry.filename, self._info):
                continue
            path, script = self._place(entry.filename)
            mode = 0o755 if script or (entry.external_attr >> 16) & 0o111 else 0o644
            data = None
            if script or entry.file_size <= 1 << 16 or path.endswith(".py"):
                data = self._read(entry)
                data = _interpreter(data) if script else data
            size = entry.file_size if data is None else len(data)
            yield WheelFile(path, size, mode, data, entry)

    def open(self, file: WheelFile) -> BinaryIO:
        """The bytes of a file as a stream."""
        stream: BinaryIO = (
            self._archive.open(file.entry)  # type: ignore[assignment]
            if file.data is None
            else io.BytesIO(file.data)
        )
        if ".so" in PurePosixPath(file.path).name:
            self._check_machine(file.path, stream.read(20))
            stream.seek(0)
        return stream

    def record(self, files: list[WheelFile]) -> tuple[str, bytes]:
        """Path and bytes of the `RECORD` of what was installed.

        Raises `BuildError` when all of its libraries are for another machine; some wheels carry
        stubs for several beside those that are used.
        """
        if self._foreign is not None and not self._native:
            raise BuildError(f"{self.name} is for another machine than x86_64: {self._foreign}")
        rows = []
        for file in files:
            listed = relative(file.path)
            known = self._hashes.get(file.entry.filename, "")
            if known and "/scripts/" not in file.entry.filename:
                rows.append((listed, known, str(file.size)))
            else:
                data = file.data if file.data is not None else self._read(file.entry)
                rows.append((listed, _record_hash(data), str(len(data))))
            if file.bytecode:
                rows.append((relative(bytecode_path(file.path)), "", ""))
        installer = f"{self._info}/INSTALLER"
        rows.append((installer, _record_hash(INSTALLER), str(len(INSTALLER))))
        rows.append((f"{self._info}/RECORD", "", ""))
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(sorted(set(rows)))
        return f"{SITE}/{self._info}/RECORD", text.getvalue().encode("utf-8")

    @property
    def installer_path(self) -> str:
        """Where the file goes that says who installed it."""
        return f"{SITE}/{self._info}/INSTALLER"

    def _read(self, entry: zipfile.ZipInfo) -> bytes:
        try:
            return self._archive.read(entry)
        except (zipfile.BadZipFile, OSError) as error:
            raise BuildError(f"{entry.filename} of {self.name} cannot be read: {error}") from error

    def _place(self, name: str) -> tuple[str, bool]:
        """Where a member goes, and whether it is a script."""
        data = self._info.removesuffix(".dist-info") + ".data/"
        if not name.startswith(data):
            return f"{SITE}/{name}", False
        scheme, _, rest = name.removeprefix(data).partition("/")
        if scheme not in _SCHEME or not rest:
            raise BuildError(f"{self.name} puts {name} in a place that no installer knows")
        if scheme == "headers":
            rest = f"{self._info.split('-')[0]}/{rest}"
        return f"{_SCHEME[scheme]}/{rest}", scheme == "scripts"

    def _check_machine(self, path: str, head: bytes) -> None:
        if head[:4] != b"\x7fELF" or len(head) < 20:
            return
        machine = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
        if machine != _ELF_X86_64 or head[4] != 2:
            self._foreign = self._foreign or path
        else:
            self._native = True


INSTALLER = b"qualify\n"


def relative(path: str) -> str:
    """A path of the image as `RECORD` names it: relative to the folder of the distributions."""
    if path.startswith(f"{SITE}/"):
        return path.removeprefix(f"{SITE}/")
    up = "../" * (SITE.count("/") - SITE.split("/").index("local"))
    return up + path.removeprefix("usr/local/")


def _is_signature(name: str, info: str) -> bool:
    return name in (f"{info}/RECORD.jws", f"{info}/RECORD.p7s")


def _interpreter(script: bytes) -> bytes:
    first, newline, rest = script.partition(b"\n")
    if first.startswith(b"#!python"):
        return b"#!/usr/bin/python3" + newline + rest
    return script


def _record_hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return f"sha256={digest.decode('ascii')}"
