"""Admission by hardware: accelerators, compute capability, drivers and CUDA.

A driver is judged by NVIDIA's own tables (`cuda_drivers`) and by what the runtime demands on top;
compute capability by the runtime's manifest, whose thresholds belong to that one engine version.
A declared driver that is too old is a contradiction; this machine's driver is told and never
evidence, and one that does not answer proves nothing at all.

Pure: machines and locks are given, not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from qualify.core.status import EngineKind
from qualify.pins.cuda import cuda_majors, mixture
from qualify.runtimes.admission_reasons import RefusalReason, refusal
from qualify.runtimes.cuda_drivers import (
    Support,
    cuda_major,
    cuda_support,
    minimum_driver,
    older,
)
from qualify.runtimes.probe import gpu_unknown

if TYPE_CHECKING:
    from qualify.manifests.configuration import Configuration
    from qualify.manifests.kinds import Gpu, Runtime
    from qualify.runtimes.probe import MachineFacts


def hardware(
    configuration: Configuration, locked: Mapping[str, str] | None
) -> Iterator[RefusalReason]:
    """What accelerator, declared driver and lock say against the row."""
    yield from _lock(configuration.runtime, locked)
    runtime, row, gpu = configuration.runtime, configuration.row, configuration.platform.gpu
    if gpu is None:
        layers = runtime.llama_cpp.gpu_layers if runtime.llama_cpp is not None else 0
        if runtime.cuda is not None or layers or row.graph_mode == "cuda-graphs":
            yield refusal(
                "accelerator-needed",
                "the runtime, its layers or the graph mode need an accelerator, the platform has "
                "none",
                "choose a platform with an accelerator, or a runtime for processors",
            )
        return
    yield from _capability(runtime, row.precision, gpu)
    driver = configuration.platform.driver
    if driver is not None and (text := too_old(runtime, driver)):
        yield refusal(
            "driver-too-old", f"{text}; the platform declares {driver}", _driver_fix(runtime)
        )


def machine_driver(configuration: Configuration, machine: MachineFacts) -> Iterator[RefusalReason]:
    """What this machine's driver says against the row, here and now."""
    runtime = configuration.runtime
    if configuration.platform.gpu is None or runtime.engine is EngineKind.ENDPOINT:
        return
    if unknown := gpu_unknown(machine):
        yield refusal("machine-driver-unknown", unknown, "make nvidia-smi work, then ask again")
        return
    driver, ceiling = machine.driver, machine.cuda
    text = too_old(runtime, driver) if driver is not None else None
    wanted, have = cuda_major(runtime.cuda), cuda_major(ceiling)
    if text is None and wanted is not None and have is not None and have < wanted:
        text = f"the runtime's CUDA {runtime.cuda} is beyond the driver's CUDA {ceiling}"
    if text is not None:
        yield refusal(
            "machine-driver-too-old",
            f"{text}; this machine has {driver or 'a driver of unknown version'}",
            _driver_fix(runtime),
        )


def too_old(runtime: Runtime, driver: str) -> str | None:
    """Why `driver` cannot run the runtime's CUDA, or `None` when it can or cannot be judged."""
    if runtime.cuda is not None:
        found = cuda_support(driver, runtime.cuda)
        if found.support is Support.NONE:
            ceiling = f"CUDA up to {found.ceiling}" if found.ceiling else "no CUDA of the table"
            return (
                f"CUDA {runtime.cuda} needs driver {found.minimum} or later, {driver} supports "
                f"{ceiling}"
            )
    if older(driver, runtime.minimum_driver):
        return f"the runtime needs driver {runtime.minimum_driver} or later"
    return None


def _driver_fix(runtime: Runtime) -> str:
    needed = runtime.minimum_driver
    of_cuda = minimum_driver(runtime.cuda) if runtime.cuda is not None else None
    if of_cuda is not None and (needed is None or older(needed, of_cuda)):
        needed = of_cuda
    return f"update the driver to {needed} or later, or choose a runtime for an older CUDA"


def _capability(runtime: Runtime, precision: str, gpu: Gpu) -> Iterator[RefusalReason]:
    minimum = runtime.minimum_compute_capability
    if minimum is not None and gpu.compute_capability < minimum:
        yield refusal(
            "compute-capability",
            f"the runtime needs compute capability {minimum:.1f}, {gpu.model} has "
            f"{gpu.compute_capability:.1f}",
            f"choose a card with at least {minimum:.1f}",
        )
    for each in runtime.quantizations:
        needed = each.minimum_compute_capability
        if each.precision != precision or needed is None or needed <= (minimum or 0):
            continue  # no more than the runtime needs anyway
        if gpu.compute_capability < needed:
            yield refusal(
                "precision-capability",
                f"{precision} needs compute capability {needed:.1f} in {runtime.id}, {gpu.model} "
                f"has {gpu.compute_capability:.1f}",
                f"choose a card with at least {needed:.1f}, or another precision",
            )


def _lock(runtime: Runtime, locked: Mapping[str, str] | None) -> Iterator[RefusalReason]:
    if locked is None or runtime.cuda is None:
        return
    if text := mixture(locked):
        yield refusal(
            "cuda-majors-mixed",
            f"the lock {runtime.lock} mixes CUDA majors: {text}",
            "resolve the lock again with overrides that keep one major",
        )
        return
    majors = cuda_majors(locked)
    declared = cuda_major(runtime.cuda)
    if majors and declared is not None and declared not in majors:
        yield refusal(
            "cuda-not-of-lock",
            f"the runtime declares CUDA {runtime.cuda}, its lock brings CUDA "
            f"{', '.join(map(str, majors))}",
            "correct `cuda` of the runtime, or name its lock",
        )
