"""The licences that packages in an image state themselves.

A wheel states its licence in `*.dist-info/METADATA`, a Debian package in
`/usr/share/doc/PACKAGE/copyright`. What is stated is passed on as it stands; what is not stated is
absent. Nothing is concluded from a package's name, its files or a licence's text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from email.parser import HeaderParser

_METADATA = re.compile(r"(?:^|/)[^/]+\.dist-info/METADATA$")
_COPYRIGHT = re.compile(r"^usr/share/doc/([a-z0-9][a-z0-9+.-]*)/copyright$")
_DEP5 = re.compile(
    r"^Format:\s*\S*/doc/packaging-manuals/copyright-format/1\.0/?\s*$", re.MULTILINE
)
_MAX_NAME = 200

type Key = tuple[str, str]
"""A package: `pypi` or `deb`, and its name (normalized for `pypi`)."""


@dataclass(frozen=True)
class Stated:
    """`expression` is an SPDX expression as stated; `names` are licences in words as stated."""

    expression: str | None = None
    names: tuple[str, ...] = ()


def is_wanted(path: str) -> bool:
    """Tell whether the file at `path` of an image (no leading slash) states a licence."""
    return _METADATA.search(path) is not None or _COPYRIGHT.match(path) is not None


def stated_licences(files: Iterable[tuple[str, bytes]]) -> dict[Key, Stated]:
    """What the files for which `is_wanted` holds state, by package; without those that do not."""
    found: dict[Key, Stated] = {}
    for path, data in files:
        text = data.decode("utf-8", "replace")
        if match := _COPYRIGHT.match(path):
            key, stated = ("deb", match[1]), Stated(names=_debian_names(text))
        elif _METADATA.search(path):
            headers = HeaderParser().parsestr(text)
            key = ("pypi", normalized(str(headers.get("Name", ""))))
            stated = _of_wheel(
                headers.get_all("License-Expression", []),
                headers.get_all("License", []),
                headers.get_all("Classifier", []),
            )
        else:
            continue
        if stated != Stated():
            found[key] = stated
    return found


def normalized(name: str) -> str:
    """A Python distribution's name as locks write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _of_wheel(expressions: list[str], licences: list[str], classifiers: list[str]) -> Stated:
    """The newest of the three ways to state it that the wheel uses."""
    if expressions:
        return Stated(expression=expressions[0].strip())
    # `License` often holds the whole text: that is no name.
    short = [text.strip() for text in licences if "\n" not in text.strip()]
    short = [text for text in short if 0 < len(text) <= _MAX_NAME and text != "UNKNOWN"]
    if short:
        return Stated(names=(short[0],))
    prefix = "License :: "
    names = {
        text.rsplit(" :: ", 1)[1].strip()
        for text in classifiers
        if text.startswith(prefix) and text.strip() != "License :: OSI Approved"
    }
    return Stated(names=tuple(sorted(names)))


def _debian_names(text: str) -> tuple[str, ...]:
    """The short names in a machine-readable copyright file; none of another form."""
    if not _DEP5.search(text[:4000]):
        return ()
    names = set()
    for paragraph in re.split(r"\n[ \t]*\n", text.replace("\r\n", "\n")):
        fields = {
            name.lower(): value.strip()
            for name, value in re.findall(r"^([A-Za-z-]+):[ \t]*(.*)$", paragraph, re.MULTILINE)
        }
        # Paragraphs without Files only hold the text of a licence.
        if "files" in fields and 0 < len(licence := fields.get("license", "")) <= _MAX_NAME:
            names.add(licence)
    return tuple(sorted(names))
