"""Large texts in windows, so that memory stays bounded and nothing is cut in two.

Each window has some text before and behind the part that is its own. What starts in its own part
is reported from this window; every character is in the own part of exactly one.
"""

from __future__ import annotations

import bisect
import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import IO

OWN = 2 << 20
"""Characters, or bytes, that a window has for its own."""
BEFORE = 4 << 10
"""What stands before them, so that a value is seen with its name."""
BEHIND = 32 << 10
"""What stands behind them: more than the longest key."""
HEAD = 8192
"""Bytes that tell what a file is."""
_STRING = re.compile(rb"[\x20-\x7e\t]{6,}|(?:[\x20-\x7e\t]\x00){6,}")


@dataclass(frozen=True)
class Piece:
    """A part of a text, with where it starts."""

    inside: str
    """Path inside an archive, or nothing."""
    text: str
    first: int
    last: int
    """What starts from `first` and before `last` is reported from this piece."""
    line: int = 1
    """Line of its first character, from 1."""
    column: int = 1
    offsets: tuple[tuple[int, int, int], ...] | None = None
    """For strings in a binary: position in `text`, byte in the file, bytes a character."""
    lines: bool = True
    """Whether lines and columns mean anything in it."""

    @classmethod
    def of(cls, inside: str, text: str) -> Piece:
        """A short text that has no lines: a name, a comment."""
        return cls(inside, text, 0, len(text), lines=False)

    def without_lines(self) -> Piece:
        """The same, where lines mean nothing."""
        return replace(self, lines=False)

    def byte_at(self, position: int) -> int:
        """The byte in a binary file at which a character stands."""
        assert self.offsets is not None
        index = bisect.bisect_right(self.offsets, position, key=lambda each: each[0]) - 1
        start, byte, width = self.offsets[index]
        return byte + (position - start) * width


@dataclass(frozen=True)
class Raw:
    """The first bytes of a binary, for what is no text."""

    inside: str
    data: bytes


class Places:
    """Line and column of characters of a piece, asked for from front to back."""

    def __init__(self, piece: Piece) -> None:
        self._text = piece.text
        self._at = 0
        self._line, self._column = piece.line, piece.column

    def at(self, position: int) -> tuple[int, int]:
        """Line and column of a character, each from 1. Positions may not decrease."""
        breaks = self._text.count("\n", self._at, position)
        if breaks:
            self._line += breaks
            self._column = position - self._text.rfind("\n", self._at, position)
        else:
            self._column += position - self._at
        self._at = position
        return self._line, self._column


def encoding_of(head: bytes) -> str | None:
    """The encoding of a text by its first bytes; `None` for a binary file."""
    for mark, name in (
        (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
        (codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):  # fmt: skip
        if head.startswith(mark):
            return name
    if b"\0" not in head:
        return "utf-8"
    even, odd = head[0::2], head[1::2]
    few = len(head) // 2 * 0.05
    if odd.count(0) > len(odd) * 0.6 and even.count(0) <= few:
        return "utf-16-le"
    if even.count(0) > len(even) * 0.6 and odd.count(0) <= few:
        return "utf-16-be"
    return None


def text_windows(stream: IO[bytes], encoding: str, inside: str) -> Iterator[Piece]:
    """A text file. Bytes that are not of its encoding become U+FFFD."""
    yield from windows(_decoded(stream, encoding), inside)


def _decoded(stream: IO[bytes], encoding: str) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    while data := stream.read(OWN):
        yield decoder.decode(data)
    yield decoder.decode(b"", final=True)


def windows(texts: Iterator[str], inside: str) -> Iterator[Piece]:
    """One text that comes in parts of any length."""
    held, first, line, column = "", 0, 1, 1
    for more in _short(texts):
        held += more
        if len(held) - first < OWN + BEHIND:
            continue
        last = len(held) - BEHIND
        piece = Piece(inside, held, first, last, line, column)
        yield piece
        cut = max(0, last - BEFORE)
        line, column = Places(piece).at(cut)
        held, first = held[cut:], last - cut
    if len(held) > first:
        yield Piece(inside, held, first, len(held), line, column)


def _short(texts: Iterator[str]) -> Iterator[str]:
    for text in texts:
        for start in range(0, len(text), OWN):
            yield text[start : start + OWN] if len(text) > OWN else text


def strings(stream: IO[bytes], inside: str) -> Iterator[Piece | Raw]:
    """The printable strings of a binary file, each on a line, with the bytes where they start."""
    held, base, first = b"", 0, 0
    while True:
        data = stream.read(OWN)
        started = bool(held)
        held += data
        if not started and held:
            yield Raw(inside, held)
        if data and len(held) - first < OWN + BEHIND:
            continue
        last = len(held) - (BEHIND if data else 0)
        piece = _strings_of(held, base, first, last, inside)
        if piece is not None:
            yield piece
        if not data:
            return
        cut = max(0, last - BEFORE)
        base, held, first = base + cut, held[cut:], last - cut


def _strings_of(block: bytes, base: int, first: int, last: int, inside: str) -> Piece | None:
    pieces: list[str] = []
    offsets: list[tuple[int, int, int]] = []
    length = own_first = own_last = 0
    for found in _STRING.finditer(block) if block.strip(b"\0") else ():
        wide = found[0][1:2] == b"\0"
        width = 2 if wide else 1
        text = found[0][::width].decode("ascii")
        pieces.append(text)
        offsets.append((length, base + found.start(), width))
        if found.start() < first:
            own_first = length + min(len(text), -((found.start() - first) // width))
        if found.start() < last:
            own_last = length + min(len(text), -((found.start() - last) // width))
        length += len(text) + 1
    if own_last <= own_first:
        return None
    return Piece(inside, "\n".join(pieces), own_first, own_last, offsets=tuple(offsets))
