"""Which NVIDIA driver runs which CUDA: NVIDIA's own tables, and what follows from them.

Source of both tables: NVIDIA's "CUDA Toolkit Release Notes" ("CUDA Toolkit and Corresponding Driver
Versions", Linux x86_64) and "CUDA Compatibility" ("Minor Version Compatibility"), as of CUDA 13.2.

Three things can make a program built for one CUDA version run on a driver:

- *native*: the driver is as new as the one that this CUDA version was released with. Drivers are
  backward compatible, so any newer one does, also one of a later CUDA major.
- *minor-version compatibility*: the driver is older than that, but as new as the first one of the
  CUDA major. It runs what was compiled for a card; PTX of a newer toolkit it cannot compile.
- *forward compatibility*: a package `cuda-compat` brings newer user-mode libraries than the kernel
  driver's. It serves data-centre cards only, and whether it is in place is not seen from here: no
  image of this project carries driver libraries, so it is never counted in a row's favour.

Pure tables and rules: nothing here looks at a machine. What is no version is unknown, not old.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.version import Version

RELEASED_WITH: dict[str, str] = {
    "11.8": "520.61.05",
    "12.0": "525.60.13",
    "12.1": "530.30.02",
    "12.2": "535.54.03",
    "12.3": "545.23.06",
    "12.4": "550.54.14",
    "12.5": "555.42.02",
    "12.6": "560.28.03",
    "12.8": "570.26",
    "12.9": "575.51.03",
    "13.0": "580.65.06",
    "13.1": "590.44.01",
    "13.2": "595.45.04",
}
"""CUDA version → the driver that its first release came with. From here on it runs natively."""

FIRST_OF_MAJOR: dict[int, str] = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}
"""CUDA major → oldest driver that runs any of its versions (minor-version compatibility)."""


class Support(StrEnum):
    """How a driver runs a CUDA version."""

    NATIVE = "native"
    MINOR = "minor-version compatibility"
    NONE = "too old"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class CudaSupport:
    """What a driver says about a CUDA version."""

    support: Support
    ceiling: str | None
    """The newest CUDA version that the driver runs natively; `None`: older than the table."""
    minimum: str | None
    """The oldest driver for this CUDA version; `None`: its major is not in the table."""


def cuda_support(driver: str, cuda: str) -> CudaSupport:
    """Judge `driver` (such as `535.154.05`) for `cuda` (such as `12.9`)."""
    minimum = minimum_driver(cuda)
    have, wanted = _version(driver), _version(cuda)
    if have is None or wanted is None:
        return CudaSupport(Support.UNKNOWN, None, minimum)
    ceiling = driver_ceiling(driver)
    newest = _version(ceiling) if ceiling is not None else None
    if newest is not None and newest >= wanted:
        return CudaSupport(Support.NATIVE, ceiling, minimum)
    oldest = _version(minimum) if minimum is not None else None
    if oldest is None:
        return CudaSupport(Support.UNKNOWN, ceiling, None)
    return CudaSupport(Support.MINOR if have >= oldest else Support.NONE, ceiling, minimum)


def minimum_driver(cuda: str) -> str | None:
    """Oldest driver for `cuda`, or `None` when its major is not in the table."""
    wanted = _version(cuda)
    return FIRST_OF_MAJOR.get(wanted.major) if wanted is not None else None


def driver_ceiling(driver: str) -> str | None:
    """Newest CUDA that `driver` runs natively; `None`: older than the table, or no version.

    `nvidia-smi` prints the same as "CUDA Version"; of a driver newer than this table it knows more.
    """
    have = _version(driver)
    if have is None:
        return None
    best = None
    for cuda, first in RELEASED_WITH.items():
        needed = _version(first)
        if needed is not None and have >= needed:
            best = cuda
    return best


def older(driver: str | None, minimum: str | None) -> bool:
    """Whether both are known versions and `driver` is the older one."""
    have = _version(driver) if driver is not None else None
    needed = _version(minimum) if minimum is not None else None
    return have is not None and needed is not None and have < needed


def cuda_major(cuda: str | None) -> int | None:
    """The major of a CUDA version, or `None` when it is none."""
    found = _version(cuda) if cuda is not None else None
    return found.major if found is not None else None


def _version(text: str) -> Version | None:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(text)
    except InvalidVersion:
        return None
