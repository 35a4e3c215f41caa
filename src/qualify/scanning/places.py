"""Places on somebody's machine: home folders and the like, in Unix and Windows spelling."""

from __future__ import annotations

import re
from collections.abc import Iterator

from qualify.scanning.kinds import Match, Subject, words

_BEFORE = r"/(?<![\w.~})\]>*$-]/)"
"""A slash that starts a path. It comes first, so that the search is for it."""
_REST = r"(?:/[\w.@+-]+)*"
_NOBODY = words(
    "user users username name you me someone nobody home shared public default example app agent"
    " nonroot runner build builder somebody qualify"
)
_HOMES = re.compile(rf"{_BEFORE}(?:var/)?(?:home|Users)/([A-Za-z_][\w.+-]*){_REST}")
_ROOT = re.compile(rf"{_BEFORE}root(?:/[\w.@+-]+)+")
_OTHERS = re.compile(
    rf"{_BEFORE}(?:work|workspaces?|scratch|gpfs|lustre|nfs|Volumes|data/home|(?:mnt|media)/[\w.-]+)"
    rf"/[A-Za-z0-9_][\w.@+-]*{_REST}"
    rf"|{_BEFORE}(?:private/)?var/folders/[\w+]{{2}}/[\w+]{{8,}}{_REST}"
    rf"|{_BEFORE}run/user/\d+{_REST}|{_BEFORE}tmp/pytest-of-[\w.-]+{_REST}"
)
_STARTS = (
    "/work", "/scratch/", "/gpfs/", "/lustre/", "/nfs/", "/mnt/", "/media/", "/Volumes/",
    "/data/home", "/var/folders/", "/run/user/", "/tmp/pytest-of-",  # noqa: S108
)  # fmt: skip
_WINDOWS = re.compile(
    r"(?<![A-Za-z0-9])[A-Za-z]:(?:\\{1,2}|/)(?:Users|Documents and Settings)(?:\\{1,2}|/)"
    r"([A-Za-z0-9_][\w.~ +-]{0,40}?)"
    r"(?=\\|/|[\"'\s,;:)<>]|$)(?:(?:\\{1,2}|/)[\w.@+-]+)*",
    re.IGNORECASE | re.MULTILINE,
)
_SHARE = re.compile(r"(?<![\\\w])\\\\[A-Za-z][\w.-]{2,}\\[\w$.-]{2,}(?:\\[\w$. -]+)+")


def places(subject: Subject) -> Iterator[Match]:
    """Local paths that name a person, a machine or a working place."""
    text = subject.text
    if "/home/" in text or "/Users/" in text:
        yield from _named(_HOMES, text)
    if "/root/" in text:
        yield from _all(_ROOT, text)
    if any(start in text for start in _STARTS):
        yield from _all(_OTHERS, text)
    if "users" in subject.lower or "documents and settings" in subject.lower:
        yield from _named(_WINDOWS, text)
    if "\\\\" in text and subject.sort in ("text", "settings"):
        yield from _all(_SHARE, text)


def _named(pattern: re.Pattern[str], text: str) -> Iterator[Match]:
    for match in pattern.finditer(text):
        if match[1].lower() not in _NOBODY:
            yield Match("local-path", *match.span())


def _all(pattern: re.Pattern[str], text: str) -> Iterator[Match]:
    for match in pattern.finditer(text):
        yield Match("local-path", *match.span())
