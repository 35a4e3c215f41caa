"""Wheel tags: which files a Python on x86_64 Linux takes, and which of them it would prefer.

The order is that of PEP 425 and PEP 600, read from the file's name alone: what an installer on that
machine would choose.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from qualify.core.errors import UsageError


def fits(wheel: str, python: str, glibc_minor: int) -> bool:
    """Whether CPython `python` (`3.13`) takes this wheel where glibc is 2.`glibc_minor`.

    Raises `UsageError` when `wheel` is not the name of a wheel.
    """
    return not _ranks(python, glibc_minor).keys().isdisjoint(parsed(wheel)[3])


def best(wheels: Iterable[str], python: str, glibc_minor: int) -> str | None:
    """The wheel that an installer would take: best tag, then highest build number; None for none.

    Raises `UsageError` when one of `wheels` is not the name of a wheel.
    """
    ranks = _ranks(python, glibc_minor)

    def preference(wheel: str) -> tuple[int, Any, str]:
        _, _, build, tags = parsed(wheel)
        return (-min(ranks[tag] for tag in tags if tag in ranks), build, wheel)

    fitting = [wheel for wheel in wheels if fits(wheel, python, glibc_minor)]
    return max(fitting, key=preference, default=None)


@cache
def parsed(wheel: str) -> tuple[str, Any, Any, frozenset[Any]]:
    """Name, version, build number and tags. Raises `UsageError` for what is no wheel's name."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    try:
        return parse_wheel_filename(wheel)
    except InvalidWheelFilename as error:
        raise UsageError(
            f"{wheel!r} is not the name of a wheel", fix="report it upstream"
        ) from error


@cache
def _ranks(python: str, glibc_minor: int) -> dict[Any, int]:
    """Every tag that is taken, with its rank; 0 is preferred."""
    from packaging.tags import compatible_tags, cpython_tags

    version = tuple(int(part) for part in python.split("."))
    platforms = []
    for minor in range(glibc_minor, 4, -1):
        platforms.append(f"manylinux_2_{minor}_x86_64")
        if legacy := {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}.get(minor):
            platforms.append(f"{legacy}_x86_64")
    platforms.append("linux_x86_64")
    interpreter = "cp" + python.replace(".", "")
    tags = [*cpython_tags(version, [interpreter], platforms)]
    tags += compatible_tags(version, interpreter, platforms)
    return {tag: rank for rank, tag in reversed(list(enumerate(tags)))}
