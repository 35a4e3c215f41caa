"""Private keys, as text and as bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from qualify.scanning.entropy import looks_random
from qualify.scanning.kinds import Match, Subject

_BETWEEN = r"(?:[\s\"',;+>|#*]|\\[nrt\\])*+"
"""What stands between the lines of a key that is quoted in a program or a document."""
_HEADERS = rf"(?:[A-Za-z-]+: [^\n\\]{{1,120}}+{_BETWEEN})*+"
_PEM = re.compile(rf"-----BEGIN [A-Z0-9 ]{{0,30}}PRIVATE KEY(?: BLOCK)?-----{_BETWEEN}{_HEADERS}")
_PEM_BODY = re.compile(rf"(?:[A-Za-z0-9+/=]++{_BETWEEN})++")
_PEM_END = re.compile(r"-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----")
_PEM_RUN = re.compile(r"[A-Za-z0-9+/]{16,}")
_LONGEST = 20_000
_SSH2 = re.compile(r"---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----\s")
_PUTTY = re.compile(r"PuTTY-User-Key-File-[123]: \S+")
_AGE = re.compile(r"(?<![A-Z0-9-])AGE-SECRET-KEY-(?:PQ-)?1[02-9AC-HJ-NP-Z]{58,}")
_JWK = re.compile(
    r"\{[^{}]{0,4000}?\"kty\"\s*:[^{}]{0,4000}?\"(?:d|k)\"\s*:\s*\"([A-Za-z0-9_-]{16,})\""
    r"|\{[^{}]{0,4000}?\"(?:d|k)\"\s*:\s*\"([A-Za-z0-9_-]{16,})\"[^{}]{0,4000}?\"kty\"\s*:"
)
_MINISIGN = re.compile(
    r"untrusted comment: [^\n]{0,120}?secret key[^\n]{0,120}\n[A-Za-z0-9+/=]{40,}"
)
_WIREGUARD = re.compile(
    r"(?im)^\s*(?:PrivateKey|PresharedKey)\s*=\s*([A-Za-z0-9+/]{42}[A-Za-z0-9+/=]=)"
)
_OPENSSH = b"openssh-key-v1\0"
_KEY_ALGORITHMS = (
    bytes.fromhex("06 09 2a 86 48 86 f7 0d 01 01 01"),  # RSA
    bytes.fromhex("06 07 2a 86 48 ce 3d 02 01"),  # elliptic curves
    bytes.fromhex("06 07 2a 86 48 ce 38 04 01"),  # DSA
    bytes.fromhex("06 03 2b 65 70"),  # Ed25519
    bytes.fromhex("06 03 2b 65 6e"),  # X25519
)
_PKCS12 = bytes.fromhex("06 09 2a 86 48 86 f7 0d 01 07 01")
_ENCRYPTED = (
    bytes.fromhex("06 09 2a 86 48 86 f7 0d 01 05 0d"),
    bytes.fromhex("06 0a 2a 86 48 86 f7 0d 01 0c 01"),
)
_JAVA = (bytes.fromhex("fe ed fe ed"), bytes.fromhex("ce ce ce ce"))
_VERSIONS = (b"\x02\x01\x00", b"\x02\x01\x01")


def keys(subject: Subject) -> Iterator[Match]:
    """Private keys in text. A header without a key behind it is none."""
    text = subject.text
    if "PRIVATE KEY" in text:
        for match in _PEM.finditer(text):
            end = _end_of_key(text, match.end())
            if end is not None:
                yield Match("private-key", match.start(), end)
        yield from _spans(_SSH2, text)
    if "AGE-SECRET-KEY-" in text:
        yield from _spans(_AGE, text)
    if "PuTTY-User-Key-File-" in text:
        yield from _spans(_PUTTY, text)
    if '"kty"' in text:
        for match in _JWK.finditer(text):
            yield Match("private-key", *match.span(match.lastindex or 0))
    if "secret key" in text:
        yield from _spans(_MINISIGN, text)
    if "privatekey" in subject.lower or "presharedkey" in subject.lower:
        for match in _WIREGUARD.finditer(text):
            yield Match("private-key", *match.span(1))


def _end_of_key(text: str, start: int) -> int | None:
    """Where a key ends whose lines start at `start`; `None` when there are no such lines."""
    body = _PEM_BODY.match(text, start, start + _LONGEST)
    run = _PEM_RUN.search(text, start, body.end()) if body else None
    if body is None or run is None:
        return None
    end = _PEM_END.match(text, body.end())
    if end is not None:
        return end.end()
    # Cut off, or a header that somebody writes about.
    return run.end() if run.start() - start < 8 and _is_line(run[0]) else None


def _is_line(run: str) -> bool:
    """Tell whether a run is a whole line of a key: no digest, no other token."""
    return len(run) >= 60 and run.lower() != run != run.upper() and looks_random(run[:64])


def _spans(pattern: re.Pattern[str], text: str) -> Iterator[Match]:
    for match in pattern.finditer(text):
        yield Match("private-key", *match.span())


def key_in_bytes(data: bytes) -> tuple[int, int] | None:
    """Where a private key starts and ends that is no text: DER, PKCS #12, key stores, OpenSSH."""
    if data.startswith(_JAVA):
        return 0, len(data)
    found = data.find(_OPENSSH)
    if found >= 0:
        return found, min(len(data), found + 400)
    if data[:1] != b"\x30" or len(data) < 16:
        return None
    inner = _content(data)
    if inner is None:
        return None
    head = data[inner : inner + 80]
    pkcs12 = head.startswith(b"\x02\x01\x03") and _PKCS12 in head
    pkcs8 = head.startswith(_VERSIONS) and any(oid in head[:40] for oid in _KEY_ALGORITHMS)
    # RSA (version, modulus) and SEC 1 (version 1, octet string).
    rsa = head.startswith(b"\x02\x01\x00\x02") and len(data) > 250
    sec1 = head.startswith(b"\x02\x01\x01\x04") and len(data) > 40
    locked = head[:1] == b"\x30" and any(oid in head[:24] for oid in _ENCRYPTED)
    return (0, len(data)) if pkcs12 or pkcs8 or rsa or sec1 or locked else None


def _content(data: bytes) -> int | None:
    """Where the content of an outer DER or BER sequence starts that is as long as `data`."""
    length = data[1]
    if length == 0x80:
        return 2
    if length < 0x80:
        return 2 if length + 2 <= len(data) else None
    count = length & 0x7F
    if count > 4:
        return None
    size = int.from_bytes(data[2 : 2 + count], "big")
    return 2 + count if size + 2 + count <= len(data) + 64 else None
