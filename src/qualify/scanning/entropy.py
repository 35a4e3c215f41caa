"""Strings that look random: their characters change between upper case, lower case and digits far
more often than in words, names and paths.

Measured as the share of neighbours that are of different classes. For characters drawn from 62 it
is 62 % on average, 40 % for lower case with digits; in names and paths it is below 25 %. Digests
look as random; they are known by their length and by what stands before them.
"""

from __future__ import annotations

import operator
import re
import string
from collections.abc import Iterator

from qualify.scanning.kinds import Match, Subject

_CANDIDATE = re.compile(r"[A-Za-z0-9+/_-]{20,}={0,2}")
_LONGEST = 256
"""Longer runs are embedded data; what they hold is looked at when they are base64 of text."""
_HEX = re.compile(r"(?:[0-9a-f]+|[0-9A-F]+)")
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_DIGESTS = frozenset((32, 40, 48, 56, 64, 96, 128))
"""Hex digits of MD5, SHA-1, SHA-2, SHA-3 and BLAKE digests."""
_DIGEST_BEFORE = re.compile(
    r"(?:sha-?\d{1,3}|md5|blake\w{0,8}|digest|hash(?:es)?|checksum|sum|crc|commit|rev(?:ision)?"
    r"|head|blob|tree|oid|etag|fingerprint|key[-_ ]?id|site|trial|seed|snapshot|integrity|ref"
    r"|parent|object|prev(?:ious)?|uuid|version|layers?|diff[-_]ids?|image|root|nar|store|variant"
    r"|configuration|suite|export|files|ledger|at)s?\b"
    r"[\"'`)\]]{0,2}[ \t]*[:=@#/(, \[\"'`\n.-]{0,8}(?:[a-z]{1,12}[:_-])?[ \t]*[\"'`]{0,2}\Z",
    re.IGNORECASE,
)
_DIGEST_DIRECT = re.compile(
    r"(?:sha\d{1,3}|md5|blake\w{2,4})[-:=_/][\"']?\Z|/nix/store/\Z"
    r"|(?:files|blobs|packages|objects)/(?:[\w.-]+/)*\Z|/[0-9a-f]{2}/(?:[0-9a-f]{2}/)?\Z"
    # A journal's first line: its session is named after the trial's digest.
    r"|\"sdk_version\":\"[\w.+!-]{1,40}\",\"session\":\"\Z",
    re.IGNORECASE,
)
_LINE_START = re.compile(r"\s*(?:[\w.]{1,120}:\s*)?")
_NAMED_DIGEST = re.compile(r"\b(?:sha256|digest|commit|sha512|files)\"?[:=] ?\"?\Z")
_SUM_LINE = re.compile(r"[ \t]{1,2}[*]?[\w./+-]+[ \t]*(?:$|\n)")
_LEDGER_LINE = re.compile(r"^\d{1,19} (?:[0-9a-f]{64} )?\Z")
_PUBLIC_BEFORE = re.compile(
    r"(?:ssh-(?:ed25519|rsa|dss)|ecdsa-sha2-\S+|sk-\S+)\s+\Z|sha(?:256|384|512)-\Z|SHA256:\Z"
    r"|data:[\w/+.-]+;base64,\Z"
    r"|(?:sig|signatures?|payload|public[_-]?key|public|raw_?bytes|cert(?:ificate)?s?|keyid"
    r"|(?:signed_?entry_?)?timestamp|proof|bod(?:y|ies)|root_?hash|log_?id|hash(?:es)?|digest"
    r"|content|nar[_-]?hash)[\"']?\s*[:=]\s*\[?\s*[\"']\Z",
    re.IGNORECASE,
)
_JWK_PART = re.compile(r"\"(?:x|y|n|kid|x5c|x5t|x5t#S256)\"\s*:\s*\[?\s*\"\Z")
_PUBLIC_START = re.compile(r"sha\d{3}-|(?:/?[\w.-]+/)*(?:nix/)?store/[0-9a-z]{32}-|AAAA[BCE]3Nza")
"""A run can start with the name of its algorithm, or with a path."""
_BLOCK_START = re.compile(r"-----BEGIN (?![A-Z0-9 ]{0,40}PRIVATE)([A-Z0-9 ]{4,40})-----")
_LONGEST_BLOCK = 40_000
_ASSIGNED = re.compile(r"[=:][ \t]*[\"']?\Z")
_WORD = re.compile(r"[A-Z]?(?=[a-z]*[aeiouy])[a-z]{2,}[a-z]")
_CLASSES = str.maketrans(
    string.ascii_lowercase + string.ascii_uppercase + string.digits + "+/_-=",
    "l" * 26 + "u" * 26 + "d" * 10 + " " * 5,
)


def random_strings(subject: Subject) -> Iterator[Match]:
    """Strings that look random and are no digest, public key, signature or UUID.

    In a binary file only those that stand alone or behind `=`: symbols look random as well.
    """
    text = subject.text
    blocks: list[tuple[int, int]] | None = None
    for match in _CANDIDATE.finditer(text):
        value = match[0]
        if len(value) > _LONGEST or not looks_random(value.rstrip("=")):
            continue
        if subject.sort == "binary" and not _stands_out(text, match):
            continue
        blocks = _public_blocks(text) if blocks is None else blocks
        if any(start <= match.start() < end for start, end in blocks):
            continue
        if not _is_expected(text, match):
            yield Match("high-entropy", *match.span())


def _public_blocks(text: str) -> list[tuple[int, int]]:
    """Where public keys, certificates and signatures stand in PEM."""
    blocks: list[tuple[int, int]] = []
    for start in _BLOCK_START.finditer(text):
        if blocks and start.start() < blocks[-1][1]:
            continue
        end = text.find(f"-----END {start[1]}-----", start.end(), start.end() + _LONGEST_BLOCK)
        if end >= 0:
            blocks.append((start.start(), end))
    return blocks


def _stands_out(text: str, match: re.Match[str]) -> bool:
    """Tell whether a string in a binary file is the whole of it, or a value behind its name."""
    value = match[0]
    mixed = any(c.isupper() for c in value) and any(c.islower() for c in value)
    before = text[max(0, match.start() - 8) : match.start()]
    if _ASSIGNED.search(before):
        return True
    alone = "_" not in value and text[match.start() - 1 : match.start()] in ("", "\n", " ")
    return mixed and alone and text[match.end() : match.end() + 1] in ("", "\n")


def looks_random(value: str) -> bool:
    """Tell whether a string of letters, digits and `+/_-` is more like a key than like a name."""
    if _UUID.search(value):
        return False
    classes = value.translate(_CLASSES)
    longest = max(map(len, classes.split()), default=0)
    if longest < 12 or len(set(value)) < 10:
        return False
    runs = classes.split()
    changes = sum(sum(map(operator.ne, run, run[1:])) for run in runs)
    share = changes / sum(len(run) - 1 for run in runs)
    lower, upper, digits = (classes.count(c) for c in "lud")
    if len(value) >= 32 and _HEX.fullmatch(value):
        return digits >= 3 and lower + upper >= 3
    if lower and upper and digits:
        return share >= 0.33 and min(lower, upper) >= 3 and _wordy(value) < 0.55
    if lower and upper:
        return len(value) >= 24 and share >= 0.38 and _wordy(value) < 0.5
    return longest >= 18 and share >= 0.2 and digits >= len(value) * 0.12


def _wordy(value: str) -> float:
    """Share of the characters that belong to what looks like a word: `Parser`, `video`."""
    return sum(len(word) for word in _WORD.findall(value)) / len(value)


def _is_expected(text: str, match: re.Match[str]) -> bool:
    """Tell whether something that looks random is a digest, a public key or a signature."""
    start, end = match.span()
    value = match[0]
    before = text[max(0, start - 96) : start]
    if len(value) in _DIGESTS and _HEX.fullmatch(value) and _NAMED_DIGEST.search(before[-24:]):
        return True  # the same as below for the most frequent case, in a tenth of the time
    if _PUBLIC_BEFORE.search(before) or _DIGEST_DIRECT.search(before) or _PUBLIC_START.match(value):
        return True
    if _JWK_PART.search(before) and '"kty"' in text[max(0, start - 1_000) : end + 1_000]:
        return True
    parts = value.split("/")
    random = [index for index, part in enumerate(parts) if looks_random(part.rstrip("="))]
    return bool(random) and all(
        _is_digest(text, before + "".join(f"{part}/" for part in parts[:index]), parts[index], end)
        for index in random
    )


def _is_digest(text: str, before: str, part: str, end: int) -> bool:
    """Tell whether `part` is a digest by its length and what stands before it."""
    digits = re.split(r"[-_]", part)[-1]
    if not _HEX.fullmatch(digits):
        return False
    before += part[: len(part) - len(digits)]
    if _DIGEST_DIRECT.search(before):
        return True
    if len(digits) not in _DIGESTS:
        return False
    line = before.rpartition("\n")[2]
    alone = _LINE_START.fullmatch(line) and _SUM_LINE.match(text, end)
    return bool(_DIGEST_BEFORE.search(before) or alone or _LEDGER_LINE.search(line))
