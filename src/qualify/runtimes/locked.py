"""The versions that a runtime's lock pins, for admission.

Reads one file of the project; installs and resolves nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qualify.manifests.kinds import Runtime


def locked_versions(project: Path, runtime: Runtime) -> dict[str, str] | None:
    """Version by package name of the runtime's lock, or `None` when it has none or no CUDA.

    A runtime without CUDA is not judged by the CUDA libraries that its packages bring along.
    Raises `UsageError` for a lock that was edited by hand.
    """
    if runtime.lock is None or runtime.cuda is None:
        return None
    from qualify.pins.locks import read_lock

    return read_lock(project / "locks" / f"{runtime.lock}.json").versions
