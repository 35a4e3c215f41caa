"""What an acquisition tells while it works, as plain data; drawing it is the caller's work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """What is being done to a file."""

    CHECKING = "checking"
    """Hashing what the store has."""
    WAITING = "waiting"
    """Another process acquires the same file."""
    DOWNLOADING = "downloading"
    ASSEMBLING = "assembling"
    COPYING = "copying"


@dataclass(frozen=True)
class Step:
    """`done` of `total` bytes of a phase; `detail` is a short remark for people."""

    phase: Phase
    file: str
    done: int
    total: int
    detail: str = ""


type Report = Callable[[Step], None]


def silent(_step: Step) -> None:
    """The report that nobody reads."""
