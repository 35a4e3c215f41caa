"""What the doctor says: findings as plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing needs it."""
    WARNING = "warning"
    """Works, but not as well as it should."""
    LACKING = "lacking"
    """Something that is required is not there: the doctor fails."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `fix` is empty only when nothing needs to be done."""

    area: str
    subject: str
    level: Level
    text: str
    fix: str = ""


type Hashing = Callable[[int, int], None]
"""Told the bytes hashed so far and in all."""


def installed_version(package: str) -> str | None:
    """Version of an installed distribution, from its metadata: nothing is imported."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
