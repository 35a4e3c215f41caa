"""Reads the metadata of a GGUF file, to compare a model's own words with what a server says.

Follows the GGUF specification, versions 2 and 3, little-endian. Only the header's key-value section
is read; tensors are not touched. Every length is checked against the file before it is used, so a
truncated or hostile file gives a `GgufError`, never more.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Set as AbstractSet
from pathlib import Path

_MAGIC = b"GGUF"
_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q",
    12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_U64 = struct.Struct("<Q")
_MAX_ENTRIES = 1 << 16
_MAX_TEXT = 1 << 20

type Value = str | int | float | bool


class GgufError(ValueError):
    """The file is no GGUF file that can be read."""


def read_metadata(path: Path, wanted: AbstractSet[str]) -> dict[str, Value]:
    """The values of those `wanted` keys that the file has; arrays are skipped.

    Raises `GgufError`, `OSError`.
    """
    with path.open("rb") as stream:
        try:
            view = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:
            raise GgufError("the file is empty") from error
        with view:
            try:
                return _Reader(view).metadata(wanted)
            except (struct.error, IndexError, UnicodeDecodeError) as error:
                raise GgufError("the header is truncated or damaged") from error


class _Reader:
    def __init__(self, view: mmap.mmap) -> None:
        self._view = view
        self._size = len(view)
        self._at = 0

    def metadata(self, wanted: AbstractSet[str]) -> dict[str, Value]:
        if self._bytes(4) != _MAGIC:
            raise GgufError("the file is no GGUF file")
        version = self._number("<I")
        if version not in (2, 3):
            raise GgufError(f"GGUF version {version} is not known")
        self._number("<Q")
        entries = self._number("<Q")
        if entries > _MAX_ENTRIES:
            raise GgufError(f"{entries} metadata entries are too many")
        found: dict[str, Value] = {}
        for _ in range(int(entries)):
            key = self._bytes(self._length()).decode()
            value = self._value(int(self._number("<I")), key in wanted)
            if value is not None:
                found[key] = value
            if len(found) == len(wanted):
                break
        return found

    def _value(self, kind: int, keep: bool) -> Value | None:
        if kind in _SCALARS:
            number = self._number(_SCALARS[kind])
            return number if keep else None
        if kind == _STRING:
            length = self._length()
            if keep and length > _MAX_TEXT:
                raise GgufError(f"a text of {length} bytes is too long")
            content = self._bytes(length)
            return content.decode() if keep else None
        if kind == _ARRAY:
            self._skip_array()
            return None
        raise GgufError(f"value type {kind} is not known")

    def _skip_array(self) -> None:
        kind, count = int(self._number("<I")), int(self._number("<Q"))
        if kind in _SCALARS:
            self._advance(count * struct.calcsize(_SCALARS[kind]))
        elif kind == _STRING:
            # The vocabulary: some hundred thousand strings, so this loop is kept bare.
            at, size, unpack, view = self._at, self._size, _U64.unpack_from, self._view
            for _ in range(count):
                at += 8 + unpack(view, at)[0]
                if at > size:
                    raise GgufError("the header is truncated or damaged")
            self._at = at
        else:
            raise GgufError(f"an array of type {kind} is not known")

    def _number(self, code: str) -> int | float | bool:
        value: int | float | bool = struct.unpack_from(code, self._view, self._at)[0]
        self._at += struct.calcsize(code)
        return value

    def _length(self) -> int:
        return int(self._number("<Q"))

    def _bytes(self, length: int) -> bytes:
        start = self._at
        self._advance(length)
        return self._view[start : self._at]

    def _advance(self, length: int) -> None:
        self._at += length
        if self._at > self._size:
            raise GgufError("the header is truncated or damaged")
