"""Which CUDA majors a set of packages brings: an environment must hold exactly one.

Two majors in one process mean two runtimes, two contexts and crashes that name neither. Package
names alone mislead both ways, so what they mean stands in tables: a suffix (`-cu12`), a version
that follows the toolkit's (`nvidia-cuda-runtime` 13.0.96), a local version (`torch` 2.10.0+cu128),
and libraries that dropped their suffix with CUDA 13. Packages that carry another major on purpose
are allowed by name, each with its reason.

Pure: takes names and versions, of a lock or of what is installed; reads no library.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

ALLOWED: dict[str, str] = {
    "nvidia-cutlass-dsl-libs-cu12": (
        "the CuTe DSL installs its libraries for both majors and loads the one that matches"
    ),
    "pynvvideocodec": (
        "a video decoder with a CUDA 12 runtime of its own inside; text models never load it"
    ),
}
"""Packages that may bring another major, and why that does no harm."""

TOOLKIT_VERSIONED = frozenset(
    {
        "cuda-bindings", "cuda-python", "cuda-toolkit", "nvidia-cublas", "nvidia-cuda-cccl",
        "nvidia-cuda-crt", "nvidia-cuda-cupti", "nvidia-cuda-nvcc", "nvidia-cuda-nvrtc",
        "nvidia-cuda-runtime", "nvidia-nvjitlink", "nvidia-nvtx", "nvidia-nvvm",
    }
)  # fmt: skip
"""Packages without a suffix whose own major is CUDA's."""

SINCE_13: dict[str, int] = {
    "nvidia-cufft": 12,
    "nvidia-cufile": 1,
    "nvidia-curand": 10,
    "nvidia-cusolver": 12,
    "nvidia-cusparse": 12,
}
"""Libraries with versions of their own, without a suffix since CUDA 13 → their major in CUDA 13."""

_SUFFIX = re.compile(r"-cu(?:da)?(1\d)x?$")
_LOCAL = re.compile(r"\+cu(1\d)\d$")


def cuda_majors(versions: Mapping[str, str]) -> dict[int, tuple[str, ...]]:
    """CUDA major → the packages that bring it, sorted; packages of `ALLOWED` are left out.

    `versions` maps names (in the form of package indexes: small letters, `-`) to versions.
    """
    found: dict[int, list[str]] = {}
    for name, version in versions.items():
        major = None if name in ALLOWED else package_major(name, version)
        if major is not None:
            found.setdefault(major, []).append(name)
    return {major: tuple(sorted(found[major])) for major in sorted(found)}


def package_major(name: str, version: str) -> int | None:
    """The CUDA major that one package brings, or `None` when it tells none."""
    if suffix := _SUFFIX.search(name):
        return int(suffix[1])
    if local := _LOCAL.search(version):
        return int(local[1])
    own = version.split(".", 1)[0]
    if not own.isdigit():
        return None
    if name in TOOLKIT_VERSIONED:
        return int(own)
    return 13 if SINCE_13.get(name) == int(own) else None


def mixture(versions: Mapping[str, str]) -> str | None:
    """One sentence when `versions` bring more than one CUDA major, else `None`.

    Names the packages of the rarer majors: those are the ones to look at.
    """
    majors = cuda_majors(versions)
    if len(majors) < 2:
        return None
    common = max(majors, key=lambda major: (len(majors[major]), major))
    rest = "; ".join(
        f"CUDA {major} by {', '.join(names[:5])}{' …' if len(names) > 5 else ''}"
        for major, names in majors.items()
        if major != common
    )
    return f"CUDA {common} by {len(majors[common])} packages, and {rest}"
