"""Whether the packages that a row's digest binds are the ones that are installed here.

Reads the metadata of what is installed and imports none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qualify.core.errors import UsageError
from qualify.runner.findings import installed_version

if TYPE_CHECKING:
    from qualify.manifests.configuration import Configuration
    from qualify.pins.locks import LockedPackage


@dataclass(frozen=True)
class LockMatch:
    """How many packages a lock wants here, and which of them are others or missing."""

    wanted: int
    wrong: tuple[str, ...]

    @property
    def shown(self) -> str:
        """The first three of those that are wrong."""
        more = f" and {len(self.wrong) - 3} more" if len(self.wrong) > 3 else ""
        return ", ".join(self.wrong[:3]) + more


def compare_with_lock(
    project: Path, name: str, version_of: Callable[[str], str | None] | None = None
) -> LockMatch:
    """Compare what is installed with `locks/NAME.json`. Raises `QualifyError` for a bad lock.

    `version_of` tells the version of a distribution; by default of one that is installed here.
    """
    from qualify.pins.locks import read_lock

    packages = read_lock(project / "locks" / f"{name}.json").packages
    wanted = [package for package in packages if _applies(package)]
    ask = version_of or installed_version
    found = [(package, ask(package.name)) for package in wanted]
    return LockMatch(
        len(wanted),
        tuple(
            f"{package.name} {package.version} (is {version or 'not installed'})"
            for package, version in found
            if version != package.version
        ),
    )


def how_to_install(name: str) -> str:
    """The command that installs what a lock wants."""
    return f"pip install --require-hashes --no-deps -r locks/requirements/{name}.txt"


def require_locked(project: Path, configuration: Configuration) -> None:
    """What the configuration binds is what would run. Raises `UsageError`; records nothing.

    The runtime of an image row is inside the image: `image_place` looks there.
    """
    on_host = configuration.row.placement == "host"
    for subject, name in (
        ("runtime", configuration.runtime.lock if on_host else None),
        ("agent", configuration.agent.lock),
    ):
        match = compare_with_lock(project, name) if name is not None else LockMatch(0, ())
        if match.wrong:
            raise UsageError(
                f"the {subject} is not as locked in {name}: {match.shown}",
                where=f"row {configuration.row.id}",
                fix=f"{how_to_install(name or '')}, or ./qualify; nothing was recorded",
            )


def _applies(package: LockedPackage) -> bool:
    if package.marker is None:
        return True
    from packaging.markers import Marker

    return Marker(package.marker).evaluate()
