"""All detectors over one text. Where two see the same characters, the more specific one counts."""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterator

from qualify.scanning.entropy import random_strings
from qualify.scanning.escapes import ESCAPE, Unescaped
from qualify.scanning.keys import key_in_bytes, keys
from qualify.scanning.kinds import Match, Subject, subject
from qualify.scanning.passwords import passwords
from qualify.scanning.personal import personal
from qualify.scanning.places import places
from qualify.scanning.tokens import tokens

type Detector = Callable[[Subject], Iterator[Match]]

_DETECTORS: tuple[Detector, ...] = (keys, tokens, passwords, personal, places)
"""In order of precedence; base64 and random strings come after them."""
_BASE64 = re.compile(
    r"(?<![A-Za-z0-9+/_=-])"
    r"(?:(?:[A-Za-z0-9+/]{48,100}+\r?\n[ \t]*+)++"
    r"(?:[A-Za-z0-9+/]{2,}+={0,2}(?![ A-Za-z0-9+/_=-]))?+"
    r"|[A-Za-z0-9+/_-]{16,}+={0,2}(?![A-Za-z0-9+/_=-]))"
)
_PRINTABLE = bytes(range(32, 127)) + b"\t\n\r"
_STANDARD = str.maketrans("-_", "+/", "\r\n\t =")


def find(text: str, name: str, *, binary: bool = False) -> list[Match]:
    """What `text` of a file called `name` holds, by position. Matches do not overlap."""
    given = subject(text, name, binary=binary)
    plain = [(start, Unescaped(escaped)) for start, escaped in _with_escapes(text)]
    inner = [subject(unescaped.text, name, binary=binary) for _, unescaped in plain]
    taken = _Taken(len(text))
    for detectors in (_DETECTORS, (_unwrapped, random_strings)):
        for match in _found(detectors, given):
            taken.add(match)
        for (start, unescaped), text_inside in zip(plain, inner, strict=True):
            for match in _found(detectors, text_inside):
                first, last = unescaped.place(match.start), unescaped.place(match.end)
                taken.add(Match(match.kind, start + first, start + last, match.wrapped))
    return sorted(taken.matches, key=lambda match: match.start)


def _found(detectors: tuple[Detector, ...], given: Subject) -> Iterator[Match]:
    for detector in detectors:
        yield from detector(given)


def _with_escapes(text: str) -> Iterator[tuple[int, str]]:
    """Runs of lines that hold escapes, and where they start."""
    end = -1
    start: int | None = None
    for match in ESCAPE.finditer(text) if "\\" in text or "%" in text or "&" in text else ():
        if match.start() < end:
            continue
        line = text.rfind("\n", 0, match.start()) + 1
        if start is not None and line > end + 1:
            yield start, text[start:end]
            start = None
        start = line if start is None else start
        end = text.find("\n", match.start())
        end = len(text) if end < 0 else end
    if start is not None:
        yield start, text[start:end]


def _unwrapped(given: Subject) -> Iterator[Match]:
    """What stands in base64 in the text, one level deep."""
    for run in _BASE64.finditer(given.text):
        data = _decoded(run[0])
        if data is None:
            continue
        if data.translate(None, _PRINTABLE):
            if key_in_bytes(data) is not None:
                yield Match("private-key", *run.span(), wrapped=True)
            data = _as_text(data)
            if data is None:
                continue
        inner = subject(
            data.decode("ascii", "replace"), given.name if given.sort == "settings" else "x.env"
        )
        for detector in _DETECTORS:
            for match in detector(inner):
                yield Match(match.kind, *run.span(), wrapped=True)


def _decoded(run: str) -> bytes | None:
    plain = run.translate(_STANDARD)
    if len(plain) % 4 == 1:
        return None
    try:
        return binascii.a2b_base64(plain + "=" * (-len(plain) % 4))
    except (ValueError, binascii.Error):
        return None


def _as_text(data: bytes) -> bytes | None:
    """UTF-16 and UTF-8 text with other letters; `None` for what is no text."""
    half = data[0::2] if not any(data[1::2]) else data[1::2] if not any(data[0::2]) else None
    if half is not None:
        return half if not half.translate(None, _PRINTABLE) else None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return data if len(text) > 12 and all(c.isprintable() or c in "\t\r\n" for c in text) else None


class _Taken:
    """Matches; what overlaps an earlier one is left out."""

    def __init__(self, length: int) -> None:
        self.matches: list[Match] = []
        self._length = length
        self._used = bytearray()

    def add(self, match: Match) -> None:
        self._used = self._used or bytearray(self._length)
        if self._used.find(1, match.start, match.end) < 0:
            self._used[match.start : match.end] = b"\1" * (match.end - match.start)
            self.matches.append(match)
