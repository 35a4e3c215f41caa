"""Admission: whether a row can work at all, from what its manifests declare.

Each reason has a code that a record can hold, a sentence and a fix. Reasons are of two sorts. A
*contradiction* between declared facts (a context longer than the model was trained for, heads that
tensor parallelism does not divide) is evidence of `unsupported`, wherever it is found. Anything
else (no lock, no files, an engine that this version lacks, a driver of this very machine that is
too old) only says that the row cannot be run here and now: it is told and never recorded.

Pure: looks at manifests and at the machine's facts that it is given, starts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from qualify.core.status import EngineKind, ToolMode
from qualify.runtimes.engine import ENGINES
from qualify.runtimes.llama_cpp import TOOL_PARSER
from qualify.runtimes.memory import estimate_memory

if TYPE_CHECKING:
    from qualify.manifests.configuration import Configuration
    from qualify.runtimes.probe import MachineFacts

LLAMA_CPP_CONTEXT_STEP = 256
"""llama.cpp rounds the context of a slot up to a multiple of this."""
PRECISION_MINIMUM: dict[tuple[EngineKind, str], Decimal] = {
    (EngineKind.VLLM, "mxfp4"): Decimal("8.0"),
}
"""Lowest compute capability by engine and precision, where it is higher than the runtime's."""


@dataclass(frozen=True)
class RefusalReason:
    """Why a row is not started."""

    code: str
    text: str
    fix: str
    contradiction: bool = True
    """Whether it shows `unsupported`; otherwise it only cannot be run here and now."""


def admit(
    configuration: Configuration, machine: MachineFacts | None = None
) -> tuple[RefusalReason, ...]:
    """Every reason against starting this row; empty when nothing speaks against it.

    `machine` adds what only a machine knows; without it the declarations alone are judged.
    """
    return (
        *_context(configuration),
        *_parallelism(configuration),
        *_accelerator(configuration),
        *_tools(configuration),
        *_memory(configuration),
        *_runnable(configuration, machine),
    )


def _context(configuration: Configuration) -> Iterator[RefusalReason]:
    row, model = configuration.row, configuration.model
    context = row.context_tokens
    if context is None or configuration.runtime.engine is EngineKind.SCRIPTED:
        return
    trained = model.architecture.trained_context if model and model.architecture else None
    if trained is not None and context > trained:
        yield RefusalReason(
            "context-beyond-training",
            f"a context of {context} tokens is longer than the {trained} of the model's training",
            f"declare at most {trained}",
        )
    step = LLAMA_CPP_CONTEXT_STEP
    if configuration.runtime.engine is EngineKind.LLAMA_CPP and context % step:
        yield RefusalReason(
            "context-not-aligned",
            f"llama.cpp gives contexts in multiples of {step} tokens, {context} is none",
            f"declare {context // step * step} or {-(-context // step) * step}",
        )


def _parallelism(configuration: Configuration) -> Iterator[RefusalReason]:
    row, model, gpu = configuration.row, configuration.model, configuration.platform.gpu
    size = row.tensor_parallel
    if size == 1:
        return
    cards = gpu.count if gpu is not None else 0
    if configuration.runtime.engine is EngineKind.LLAMA_CPP:
        yield RefusalReason(
            "tensor-parallel-engine",
            f"the llama.cpp engine does not split tensors, the row asks for {size} shards",
            "declare tensor_parallel 1",
        )
    if configuration.runtime.engine is not EngineKind.ENDPOINT and size > cards:
        yield RefusalReason(
            "tensor-parallel-gpus",
            f"{size} shards need {size} accelerators, the platform has {cards}",
            "lower tensor_parallel or choose another platform",
        )
    architecture = model.architecture if model is not None else None
    if architecture is not None and architecture.heads and architecture.heads % size:
        valid = [n for n in range(1, max(cards, 1) + 1) if architecture.heads % n == 0]
        yield RefusalReason(
            "tensor-parallel-heads",
            f"{architecture.heads} attention heads cannot be divided into {size} shards",
            f"valid here: {', '.join(map(str, valid))}",
        )


def _accelerator(configuration: Configuration) -> Iterator[RefusalReason]:
    runtime, row, gpu = configuration.runtime, configuration.row, configuration.platform.gpu
    layers = runtime.llama_cpp.gpu_layers if runtime.llama_cpp is not None else 0
    if gpu is None:
        if runtime.cuda is not None or layers or row.graph_mode == "cuda-graphs":
            yield RefusalReason(
                "accelerator-needed",
                "the runtime, its layers or the graph mode need an accelerator, the platform has "
                "none",
                "choose a platform with an accelerator, or a runtime for processors",
            )
        return
    minimum = runtime.minimum_compute_capability
    if minimum is not None and gpu.compute_capability < minimum:
        yield RefusalReason(
            "compute-capability",
            f"the runtime needs compute capability {minimum}, {gpu.model} has "
            f"{gpu.compute_capability}",
            f"choose a card with at least {minimum}",
        )
    needed = PRECISION_MINIMUM.get((runtime.engine, row.precision))
    if needed is not None and gpu.compute_capability < needed:
        yield RefusalReason(
            "precision-capability",
            f"{row.precision} needs compute capability {needed}, {gpu.model} has "
            f"{gpu.compute_capability}",
            f"choose a card with at least {needed}, or another precision",
        )
    driver = configuration.platform.driver
    if _older(driver, runtime.minimum_driver):
        yield RefusalReason(
            "driver-too-old",
            f"the runtime needs driver {runtime.minimum_driver}, the platform declares {driver}",
            f"update the driver to {runtime.minimum_driver} or later",
        )


def _tools(configuration: Configuration) -> Iterator[RefusalReason]:
    runtime, row, model = configuration.runtime, configuration.row, configuration.model
    offered = set(runtime.tool_parsers)
    if runtime.engine is EngineKind.LLAMA_CPP:
        offered.add(TOOL_PARSER)
    if (
        row.tool_parser is not None
        and runtime.engine is not EngineKind.ENDPOINT
        and row.tool_parser not in offered
    ):
        yield RefusalReason(
            "parser-not-in-runtime",
            f"the runtime does not offer the tool parser {row.tool_parser}",
            f"it offers: {', '.join(sorted(offered)) or 'none'}",
        )
    if model is None or model.chat_template != "none":
        return
    required = runtime.llama_cpp is not None and runtime.llama_cpp.chat_template_required
    if required or row.tool_mode is ToolMode.NATIVE:
        yield RefusalReason(
            "no-chat-template",
            "the model has no chat template, and another one would be used in silence",
            "choose an instruction-tuned model",
        )


def _memory(configuration: Configuration) -> Iterator[RefusalReason]:
    estimate = estimate_memory(configuration)
    if estimate is None or estimate.total_mib is None:
        return
    if estimate.total_mib <= estimate.available_mib:
        return
    largest = estimate.largest_context(configuration.row.slots) or 0
    yield RefusalReason(
        "memory-too-small",
        f"about {estimate.total_mib} MiB are needed (weights {estimate.weights_mib}, key/value "
        f"cache {estimate.kv_cache_mib}, other {estimate.other_mib}), the platform has "
        f"{estimate.available_mib}",
        f"the largest context that fits has about {largest} tokens" if largest else
        "choose a platform with more memory",
    )  # fmt: skip


def _runnable(
    configuration: Configuration, machine: MachineFacts | None
) -> Iterator[RefusalReason]:
    """What keeps a row from being run here although nothing declared contradicts it."""
    runtime, row = configuration.runtime, configuration.row
    if configuration.declared_only:
        yield RefusalReason(
            "declared-only",
            "the row carries outcomes from elsewhere only: "
            + "; ".join(configuration.declared_only),
            "declare what is missing in a row of your own",
            contradiction=False,
        )
    if runtime.engine not in ENGINES:
        yield RefusalReason(
            "engine-not-available",
            f"this version cannot start the engine {runtime.engine.value}",
            "choose a row of another engine",
            contradiction=False,
        )
    if row.placement != "host":
        yield RefusalReason(
            "placement-not-available",
            f"this version runs rows on the host only, not in placement {row.placement}",
            "choose a row with placement host",
            contradiction=False,
        )
    driver = machine.driver if machine is not None else None
    if configuration.platform.gpu is not None and _older(driver, runtime.minimum_driver):
        yield RefusalReason(
            "machine-driver-too-old",
            f"the runtime needs driver {runtime.minimum_driver}, this machine has {driver}",
            f"update the driver to {runtime.minimum_driver} or later",
            contradiction=False,
        )


def _older(driver: str | None, minimum: str | None) -> bool:
    """Whether both are known and `driver` is older; what is no version is not judged."""
    from packaging.version import InvalidVersion, Version

    if driver is None or minimum is None:
        return False
    try:
        return Version(driver) < Version(minimum)
    except InvalidVersion:
        return False
