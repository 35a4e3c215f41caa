"""Time: UTC seconds for people, monotonic milliseconds for durations.

Pure rules never ask for the time; they are given it. Only the runner and the command line hold a
`Clock`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

TIME_PATTERN = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"
_TIME = re.compile(TIME_PATTERN)


def format_time(moment: datetime) -> str:
    """`2026-11-30T20:46:58Z`; sub-second parts are dropped. Raises `ValueError` for naive times."""
    if moment.tzinfo is None:
        raise ValueError("a time without a zone")
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    """Inverse of `format_time`. Raises `ValueError` for anything else."""
    if not _TIME.fullmatch(text):
        raise ValueError(f"{text!r} is not a time like 2026-11-30T20:46:58Z")
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a time that exists ({error})") from error


def _system_now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _system_monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True)
class Clock:
    """A source of wall time (UTC, whole seconds) and of monotonic milliseconds."""

    now: Callable[[], datetime] = _system_now
    monotonic_ms: Callable[[], int] = _system_monotonic_ms
