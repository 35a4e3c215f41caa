"""The answer of one guard, and what guards are given to look at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from qualify.images.distributions import (
    Distribution,
    RecordCheck,
    check_records,
    debian_packages,
    distributions,
)
from qualify.images.expectations import Expectations
from qualify.images.image import Image
from qualify.images.layers import Progress
from qualify.images.scan import Scan

MAX_SHOWN = 10


class Outcome(StrEnum):
    """What a guard says. Only the first and the last are no objection."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """It could not be judged: as bad as failed."""
    NOT_APPLICABLE = "not-applicable"


@dataclass(frozen=True)
class GuardResult:
    """One line of the table."""

    guard: str
    outcome: Outcome
    summary: str
    """One sentence."""
    details: tuple[str, ...] = ()
    """Every place that it concerns, one a line."""


@dataclass(frozen=True)
class Subject:
    """What is guarded. `image` is `None` for an environment in a folder."""

    scan: Scan
    expected: Expectations
    image: Image | None = None
    progress: Progress | None = None
    """Told of stored bytes when a guard reads layers once more."""

    @cached_property
    def installed(self) -> list[Distribution]:
        """Installed Python distributions."""
        return distributions(self.scan.tree)

    @cached_property
    def versions(self) -> dict[str, str]:
        """Version by name; of a distribution that is there twice, one of them."""
        return {each.name: each.version for each in self.installed}

    @cached_property
    def debian(self) -> dict[str, str]:
        """Installed Debian packages."""
        return debian_packages(self.scan.tree)

    @cached_property
    def records(self) -> RecordCheck:
        """Installed files against their RECORD."""
        return check_records(self.scan.tree, self.installed)


def passed(guard: str, summary: str, details: Iterable[str] = ()) -> GuardResult:
    """The guard found nothing wrong."""
    return GuardResult(guard, Outcome.PASSED, summary, tuple(details))


def failed(guard: str, summary: str, details: Iterable[str] = ()) -> GuardResult:
    """The guard found something wrong."""
    return GuardResult(guard, Outcome.FAILED, summary, tuple(details))


def unknown(guard: str, summary: str, details: Iterable[str] = ()) -> GuardResult:
    """The guard could not judge."""
    return GuardResult(guard, Outcome.UNKNOWN, summary, tuple(details))


def not_applicable(guard: str, why: str) -> GuardResult:
    """The guard has nothing to say of this image."""
    return GuardResult(guard, Outcome.NOT_APPLICABLE, why)


def counted(number: int, what: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def first_of(names: Iterable[str]) -> str:
    """The first three names, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - 3} more" if len(every) > 3 else ""
    return ", ".join(every[:3]) + more
