"""The libraries that an ELF file asks for (DT_NEEDED), read from a stream that cannot go back.

The parts of an ELF file that say so lie in three places: the program headers at the start, the
dynamic section near the end, and the string table before or behind it. The start of the file is
kept up to a bound, and of the rest the ranges that turn out to be needed; the last few chunks are
at hand, because patchelf puts a string table right before the section that names it. Layout as in
the System V ABI, chapters 4 and 5 (elf(5)). Little-endian 64-bit files are read, others are none of
ours.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass

MAGIC = b"\x7fELF"
_HEAD = 48 << 20
"""String tables of the largest CUDA libraries end before this many bytes."""
_MAX_RANGE = 64 << 20
_RECENT = 64 << 20
"""Bytes at hand of what passed last, within the segment of the dynamic section; whole chunks, so a
little more. The string table of libcusparseLt 0.7 has 26 MB."""
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB, _DT_STRSZ = 1, 5, 10
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<qQ")
_MAX_NAMES = 1024
_MAX_NAME = 4096


@dataclass
class _Range:
    start: int
    end: int
    data: bytearray

    @property
    def whole(self) -> bool:
        return len(self.data) == self.end - self.start


class NeededLibraries:
    """Feed it a file from its first byte to its last; then ask for `result`."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._position = 0
        self._recent: deque[tuple[int, bytes]] = deque()
        self._keep_from = 0
        self._segments: list[tuple[int, int, int, int]] | None = None
        self._dynamic: _Range | None = None
        self._strings: _Range | None = None
        self._names: list[int] = []
        self._done = False
        self._unreadable = False

    def feed(self, chunk: bytes) -> None:
        """The next bytes of the file."""
        start, self._position = self._position, self._position + len(chunk)
        if self._done:
            return
        self._recent.append((start, chunk))
        self._forget(max(self._keep_from, start - _RECENT))
        if len(self._head) < _HEAD:
            self._head += chunk[: _HEAD - len(self._head)]
        for wanted in (self._dynamic, self._strings):
            if wanted is not None and not wanted.whole:
                _fill(wanted, chunk, start)
        self._advance()

    def result(self) -> tuple[str, ...] | None:
        """Names in the file's order; empty for a static file; `None` when they cannot be told."""
        if self._unreadable or self._strings is None or not self._strings.whole:
            return () if self._done and not self._unreadable else None
        table = bytes(self._strings.data)
        found = []
        for offset in self._names:
            end = table.find(b"\0", offset)
            if offset >= len(table) or not 0 <= end - offset <= _MAX_NAME:
                return None
            found.append(table[offset:end].decode("utf-8", "replace"))
        return tuple(found)

    def _advance(self) -> None:
        try:
            if self._segments is None:
                self._read_headers()
            if self._dynamic is not None and self._dynamic.whole and self._strings is None:
                self._read_dynamic()
        except (struct.error, ValueError):
            self._unreadable = self._done = True
        if self._strings is not None and self._strings.whole:
            self._done = True
            self._head.clear()
            self._recent.clear()

    def _read_headers(self) -> None:
        if len(self._head) < _HEADER.size:
            return
        header = _HEADER.unpack_from(self._head)
        ident, table, entry, count = header[0], header[5], header[9], header[10]
        if ident[:4] != MAGIC or ident[4:6] != b"\x02\x01" or (count and entry != _SEGMENT.size):
            raise ValueError
        if len(self._head) < table + count * entry:
            if len(self._head) >= _HEAD:
                raise ValueError
            return
        self._segments = []
        for index in range(count):
            kind, _, offset, address, _, size, _, _ = _SEGMENT.unpack_from(
                self._head, table + index * entry
            )
            if kind == _PT_LOAD:
                self._segments.append((address, address + size, offset, size))
            elif kind == _PT_DYNAMIC:
                self._dynamic = self._range(offset, offset + size)
        if self._dynamic is None:
            self._done = True
            return
        place = self._dynamic.start
        for _, _, offset, size in self._segments:
            if offset <= place < offset + size:
                self._keep_from = offset

    def _forget(self, before: int) -> None:
        """Let go of chunks that end before this place."""
        while self._recent and self._recent[0][0] + len(self._recent[0][1]) < before:
            self._recent.popleft()

    def _read_dynamic(self) -> None:
        assert self._dynamic is not None
        assert self._segments is not None
        address = size = 0
        for tag, value in _ENTRY.iter_unpack(self._dynamic.data):
            if tag == 0:
                break
            if tag == _DT_NEEDED:
                self._names.append(value)
            elif tag == _DT_STRTAB:
                address = value
            elif tag == _DT_STRSZ:
                size = value
        if not self._names:
            self._done = True
            return
        if len(self._names) > _MAX_NAMES:
            raise ValueError
        for low, high, offset, _ in self._segments:
            if low <= address and address + size <= high:
                start = offset + address - low
                self._strings = self._range(start, start + size)
                return
        raise ValueError

    def _range(self, start: int, end: int) -> _Range:
        """A range to collect; what has passed is taken from the start or the last chunks."""
        if not 0 <= end - start <= _MAX_RANGE:
            raise ValueError
        wanted = _Range(start, end, bytearray())
        if start < self._position:
            wanted.data += self._head[start : min(end, self._position)]
            for begin, chunk in self._recent:
                _fill(wanted, chunk, begin)
            if len(wanted.data) != min(end, self._position) - start:
                raise ValueError
        return wanted


def _fill(wanted: _Range, chunk: bytes, start: int) -> None:
    """Add what `chunk`, which begins at `start`, holds of a range."""
    low = wanted.start + len(wanted.data)
    if start <= low < start + len(chunk):
        wanted.data += chunk[low - start : wanted.end - start]
