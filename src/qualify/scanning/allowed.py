"""What may stay: the entries of `scan.yaml`, each with a reason and a last day.

An entry that has expired allows nothing, and one that nothing needs any more is named. A file
cannot allow anything in itself: what a model wrote is looked at too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from qualify.core.errors import ErrorList, UsageError
from qualify.core.identifiers import nearest
from qualify.manifests.loader import Document, YamlMistake, parse, read_manifest
from qualify.manifests.validation import place_in
from qualify.scanning.kinds import KINDS

FILE = "scan.yaml"
_SCHEMA = "qualify-scan/1"
_FIELDS = ("files", "kind", "until", "reason")


@dataclass
class Allowance:
    """Leave to hold one kind of thing in some files."""

    files: str
    """A path, or a pattern with `*` (within a folder), `**` (any folders) and `?`."""
    kind: str
    until: date
    """The last day on which it counts."""
    reason: str
    where: str
    uses: int = field(default=0, compare=False)
    pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.pattern = re.compile(_translated(self.files))

    def covers(self, place: str, kind: str, today: date) -> bool:
        """Tell whether it allows `kind` in the file `place` today."""
        return self.kind == kind and today <= self.until and bool(self.pattern.fullmatch(place))


def _translated(pattern: str) -> str:
    pieces = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    known = {"**/": r"(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "(?s:" + "".join(known.get(piece, re.escape(piece)) for piece in pieces) + ")"


def read_allowances(path: Path, shown: str) -> list[Allowance]:
    """The entries of an allow file. Raises `ErrorList` with every mistake."""
    try:
        document = parse(read_manifest(path))
    except YamlMistake as error:
        place = f"{shown}:{error.line}:{error.column}" if error.line else shown
        raise UsageError(error.what, where=place, fix=error.fix) from error
    mistakes: list[UsageError] = []
    allowances = _entries(document, shown, mistakes)
    if mistakes:
        raise ErrorList(mistakes)
    return allowances


def _entries(document: Document, shown: str, mistakes: list[UsageError]) -> list[Allowance]:
    value = document.value
    top = place_in(document, (), shown)
    if not isinstance(value, dict) or set(value) != {"schema", "allow"}:
        mistakes.append(
            UsageError(
                "must have `schema` and `allow`",
                where=top,
                fix=f"write `schema: {_SCHEMA}` and a list `allow`",
            )
        )
        return []
    if value["schema"] != _SCHEMA:
        mistakes.append(
            UsageError(
                "is of another schema",
                where=place_in(document, ("schema",), shown),
                fix=f"write `schema: {_SCHEMA}`",
            )
        )
    if not isinstance(value["allow"], list):
        mistakes.append(
            UsageError(
                "must be a list",
                where=place_in(document, ("allow",), shown),
                fix="write `- files: …`",
            )
        )
        return []
    found = []
    for index, entry in enumerate(value["allow"]):
        allowance = _entry(entry, document, ("allow", index), shown, mistakes)
        if allowance is not None:
            found.append(allowance)
    return found


def _entry(
    entry: Any,
    document: Document,
    place: tuple[str | int, ...],
    shown: str,
    mistakes: list[UsageError],
) -> Allowance | None:
    def mistake(what: str, fix: str, field: str | None = None, *, key: bool = False) -> None:
        at = place if field is None else (*place, field)
        mistakes.append(UsageError(what, where=place_in(document, at, shown, key=key), fix=fix))

    before = len(mistakes)
    if not isinstance(entry, dict):
        mistake("must be a mapping", f"write {', '.join(_FIELDS)}")
        return None
    for name in entry:
        if name not in _FIELDS:
            hint = nearest(name, list(_FIELDS)) or "remove it"
            mistake(f"{name[:40]!a} is no field of an entry", hint, name, key=True)
    for name in _FIELDS:
        if not isinstance(entry.get(name), str) or not entry[name].strip():
            mistake(f"lacks `{name}`", f"an entry has {', '.join(_FIELDS)}")
    if len(mistakes) == before:
        _check(entry, mistake)
    until = _day(entry["until"]) if len(mistakes) == before else None
    if until is None:
        return None
    where = place_in(document, place, shown)
    return Allowance(entry["files"], entry["kind"], until, entry["reason"], where)


def _check(entry: dict[str, str], mistake: Callable[[str, str, str], None]) -> None:
    """Find what is wrong with an entry that has all its fields."""
    if not re.search(r"[A-Za-z0-9]{2}", entry["files"]):
        mistake("covers everything", "name a file, or a folder: tests/assets/**", "files")
    if entry["kind"] not in KINDS:
        hint = nearest(entry["kind"], list(KINDS)) or "known: " + ", ".join(KINDS)
        mistake("is no kind of finding", hint, "kind")
    if _day(entry["until"]) is None:
        mistake("is no day", "write one like 2027-06-30", "until")
    if len(entry["reason"].strip()) < 8:
        mistake("is no reason", "say why this may stay", "reason")


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text) else None
    except ValueError:
        return None


def unused(allowances: Iterable[Allowance]) -> list[Allowance]:
    """Entries that allowed nothing."""
    return [allowance for allowance in allowances if not allowance.uses]
