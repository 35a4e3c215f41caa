"""Named questions: one `.sql` file each, with parameters that are checked before they are bound.

The first line of a file, `-- …`, describes the question. A line `-- :name kind default text` after
it declares a parameter, which the SQL uses as `$name`; the default `-` means that it must be given.
Kinds: `count` (a number from 1), `rows` (the most lines to answer, 0 for all), `digest` (six digits
of it are enough), `name` (an id; `*` for all) and `time` (`now`, or 2026-11-30T20:46:58Z).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

from qualify.core.clock import parse_time
from qualify.core.errors import UsageError
from qualify.core.identifiers import is_identifier, nearest

_PARAMETER = re.compile(r"-- :([a-z_]+) +(count|rows|digest|name|time) +(\S+) +(.+)")
_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{6,64})")
_NUMBERS = {"count": (1, 100_000), "rows": (0, 10**9)}
"""The least and the most that can be asked for."""


@dataclass(frozen=True)
class Parameter:
    """What a question may be told."""

    name: str
    kind: str
    default: str | None
    """`None`: it must be given."""
    description: str


@dataclass(frozen=True)
class NamedQuery:
    """A question that ships with Qualify."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    sql: str

    def values(self, given: Mapping[str, str], now: datetime) -> dict[str, Any]:
        """The value of each parameter. Raises `UsageError` for what is unknown, missing or wrong.

        A number of rows comes out as the number that is asked for; `limit_of` finds it.
        """
        known = {parameter.name: parameter for parameter in self.parameters}
        for name in given:
            if name not in known:
                raise UsageError(
                    f"has no parameter {name!r}",
                    where=self.name,
                    fix=nearest(name, list(known)) or _listed(self.parameters),
                )
        values = {}
        for parameter in self.parameters:
            text = given.get(parameter.name, parameter.default)
            if text is None:
                raise UsageError(
                    f"needs the parameter {parameter.name} ({parameter.description})",
                    where=self.name,
                    fix=f"give --param {parameter.name}=…",
                )
            values[parameter.name] = _value(parameter, text, now)
        return values

    def limit(self, values: Mapping[str, Any]) -> int | None:
        """The most lines that are to be answered; `None`: all."""
        for parameter in self.parameters:
            if parameter.kind == "rows":
                return values[parameter.name] or None
        return None


def _listed(parameters: tuple[Parameter, ...]) -> str:
    names = ", ".join(parameter.name for parameter in parameters)
    return f"it has {names}" if names else "it has none"


def _value(parameter: Parameter, text: str, now: datetime) -> Any:
    where = f"--param {parameter.name}"
    if parameter.kind in _NUMBERS:
        least, most = _NUMBERS[parameter.kind]
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else -1
        if not least <= number <= most:
            raise UsageError(
                f"{text!r} is no whole number from {least} to {most}",
                where=where,
                fix="give digits",
            )
        return number
    if parameter.kind == "digest":
        match = _DIGEST.fullmatch(text.lower())
        if match is None:
            raise UsageError(
                f"{text!r} is no digest", where=where, fix="give at least 6 of its hex digits"
            )
        return f"sha256:{match[1]}"
    if parameter.kind == "name":
        if text != "*" and not is_identifier(text):
            raise UsageError(f"{text!r} is no id", where=where, fix="give an id, or * for all")
        return text
    if text == "now":
        return now.astimezone(UTC).replace(tzinfo=None)
    try:
        return parse_time(text).replace(tzinfo=None)
    except ValueError as error:
        raise UsageError(
            f"{text!r} is not a time", where=where, fix="write 2026-11-30T20:46:58Z, or now"
        ) from error


@cache
def named_queries() -> dict[str, NamedQuery]:
    """Every named query by name, sorted."""
    found = {}
    for file in (files("qualify.results") / "queries").iterdir():
        if file.name.endswith(".sql"):
            name = file.name.removesuffix(".sql")
            found[name] = _parsed(name, file.read_text("utf-8"))
    return dict(sorted(found.items()))


def _parsed(name: str, text: str) -> NamedQuery:
    first, _, rest = text.partition("\n")
    parameters = []
    for line in rest.splitlines():
        if not line.startswith("-- :"):
            break
        match = _PARAMETER.fullmatch(line)
        assert match is not None, (name, line)
        default = None if match[3] == "-" else match[3]
        parameters.append(Parameter(match[1], match[2], default, match[4]))
    return NamedQuery(name, first.removeprefix("-- "), tuple(parameters), text)


def named_query(name: str) -> NamedQuery:
    """The query of that name. Raises `UsageError` with the nearest one."""
    known = named_queries()
    if name not in known:
        raise UsageError(
            f"there is no query {name!r}",
            fix=nearest(name, list(known)) or "run `qualify query` for the list",
        )
    return known[name]
