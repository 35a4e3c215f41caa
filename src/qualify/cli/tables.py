"""Tables and documents on stdout. Plain text: fast with thousands of lines, equal in every pipe."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from qualify.core.digests import is_digest

_SHORT = 12


def print_json(document: Any) -> None:
    """One JSON document, keys in the order given."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Aligned columns under their names; columns of numbers stand to the right."""
    cells = [[cell(value) for value in row] for row in rows]
    widths = [
        max(len(name), *(len(row[index]) for row in cells)) if cells else len(name)
        for index, name in enumerate(columns)
    ]
    numeric = [
        bool(rows) and all(isinstance(row[i], int | float | None) for row in rows)
        for i in range(len(columns))
    ]

    def line(values: Sequence[str]) -> str:
        parts = [
            value.rjust(width) if right else value.ljust(width)
            for value, width, right in zip(values, widths, numeric, strict=True)
        ]
        return "  ".join(parts).rstrip()

    click.echo(line(list(columns)))
    click.echo("  ".join("─" * width for width in widths))
    for row in cells:
        click.echo(line(row))


def cell(value: Any) -> str:
    """A value as one line of text; unknown is `-`, digests are cut, control characters shown."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = str(value)
    if is_digest(text):
        return short(text)
    return printable(text)


def short(digest: str) -> str:
    """The first 12 hex digits of a digest."""
    return digest.removeprefix("sha256:")[:_SHORT]


def printable(text: str) -> str:
    """`text` without a character that could move a terminal's cursor or hide something."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def percent(per_mille: int) -> str:
    """`294` → `29.4 %`."""
    return f"{per_mille / 10:g} %"
