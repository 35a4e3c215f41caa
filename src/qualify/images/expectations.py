"""What an image should hold: from its labels, from the runtime that somebody names, and from the
project's locks and manifests.

An image of ours says in its labels what it is; somebody else's is held to a runtime only when one
is named. Without either, only the guards remain that any image can be asked. What cannot be found
(no project, another lock, a runtime that is not there) is kept as a sentence: a guard that needs it
answers `unknown`, never `passed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qualify.core.errors import QualifyError
from qualify.images.declarations import LABEL as DECLARATIONS_LABEL
from qualify.images.declarations import declared_files
from qualify.images.pinned import CLOSURE_LABEL, IMAGE_LABEL, RUNTIME_LABEL, lock_digests
from qualify.manifests.kinds import Runtime
from qualify.pins.debian import SET as DEBIAN
from qualify.pins.debian import DebianLock, read_debian_lock
from qualify.pins.locks import Lock, read_lock

LAUNCHER_SET = "launcher"
REVISION_LABEL = "org.opencontainers.image.revision"


@dataclass(frozen=True)
class Expectations:
    """What is known of how an image should be."""

    image: str | None = None
    """Of the label `qualify.image`; `None` for an image of somebody else."""
    runtime: Runtime | None = None
    runtime_missing: str | None = None
    """Why the runtime that was named is not known."""
    locks: Mapping[str, Lock] = field(default_factory=dict)
    """The project's locks that the image should be made of."""
    optional: Mapping[str, Lock] = field(default_factory=dict)
    """Locks whose packages may be there too."""
    debian: DebianLock | None = None
    closure: str | None = None
    label_digests: Mapping[str, str] = field(default_factory=dict)
    """Digest of each lock that the labels name."""
    locks_missing: tuple[str, ...] = ()
    """Locks that are not known, each as a sentence."""
    declarations: Mapping[str, str] | None = None
    """SHA-256 by path of what the project declares."""
    declarations_label: str | None = None
    project: Path | None = None
    revision: str | None = None
    """The commit that the label names."""
    depot: Path | None = None
    """Where the locked wheels lie, to compare with them."""

    @property
    def ours(self) -> bool:
        """Whether the image says that this project built it."""
        return self.image is not None


def expectations(
    labels: Mapping[str, str],
    project: Path | None,
    runtimes: Mapping[str, Runtime],
    runtime: str | None = None,
    depot: Path | None = None,
) -> Expectations:
    """What an image with these labels should hold.

    `runtime` outranks the label. Raises `UsageError` only for a project whose declarations are no
    plain files.
    """
    image = labels.get(IMAGE_LABEL)
    named = runtime or labels.get(RUNTIME_LABEL)
    found = runtimes.get(named) if named is not None else None
    missing = None
    if named is not None and found is None:
        missing = f"the project has no runtime {named[:80]!a}" if project else _NO_PROJECT
    digests = lock_digests(labels)
    locks, absent = _locks(project, digests, found)
    debian = locks_debian(project) if DEBIAN in digests else None
    optional, _ = _named(project, () if image else (LAUNCHER_SET,))
    return Expectations(
        image=image,
        runtime=found,
        runtime_missing=missing,
        locks=locks,
        optional=optional,
        debian=debian,
        closure=labels.get(CLOSURE_LABEL),
        label_digests=digests,
        locks_missing=tuple(absent),
        declarations=declared_files(project) if project is not None and image else None,
        declarations_label=labels.get(DECLARATIONS_LABEL),
        project=project,
        revision=labels.get(REVISION_LABEL),
        depot=depot,
    )


_NO_PROJECT = "there is no project here to compare with (name one with --project)"


def _locks(
    project: Path | None, digests: Mapping[str, str], runtime: Runtime | None
) -> tuple[dict[str, Lock], list[str]]:
    names = [name for name in digests if name != DEBIAN]
    if not names and runtime is not None and runtime.lock is not None:
        names = [runtime.lock]
    return _named(project, names)


def _named(
    project: Path | None, names: list[str] | tuple[str, ...]
) -> tuple[dict[str, Lock], list[str]]:
    if project is None:
        return {}, [_NO_PROJECT] if names else []
    found: dict[str, Lock] = {}
    absent = []
    for name in names:
        try:
            found[name] = read_lock(project / "locks" / f"{name}.json")
        except QualifyError as error:
            absent.append(f"lock {name[:64]!a}: {error.what}")
    return found, absent


def locks_debian(project: Path | None) -> DebianLock | None:
    """The project's Debian lock; `None` when there is none that can be read."""
    if project is None:
        return None
    try:
        return read_debian_lock(project / "locks" / f"{DEBIAN}.json")
    except QualifyError:
        return None
