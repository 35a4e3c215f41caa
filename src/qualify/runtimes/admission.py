"""Admission: whether a row can work at all, from what its manifests declare.

Each reason has a code that a record can hold, a sentence and a fix. Reasons are of two sorts. A
*contradiction* between declared facts (a context longer than the model was trained for, heads that
tensor parallelism does not divide) is evidence of `unsupported`, wherever it is found. Anything
else (no lock, no files, an engine that this version lacks, a driver of this very machine that is
too old or does not answer) only says that the row cannot be run here and now: it is told and never
recorded. What is not declared is not judged.

Pure: looks at manifests, at the versions of a lock and at the machine's facts that it is given,
starts nothing. The rules of shards stand in `admission_sharding`, those of accelerators, drivers
and CUDA in `admission_hardware`, the codes in `admission_reasons`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from qualify.core.status import EngineKind, ToolMode
from qualify.runtimes.admission_hardware import hardware, machine_driver
from qualify.runtimes.admission_reasons import RefusalReason, refusal
from qualify.runtimes.admission_sharding import problems, valid_sizes
from qualify.runtimes.engine import ENGINES
from qualify.runtimes.llama_cpp import TOOL_PARSER
from qualify.runtimes.memory import CONTEXT_STEP, estimate_memory, largest_context, whole_requests

if TYPE_CHECKING:
    from qualify.manifests.configuration import Configuration
    from qualify.manifests.kinds import Runtime, SupportedPrecision
    from qualify.runtimes.probe import MachineFacts

__all__ = ["RefusalReason", "admit", "supported_precision"]

LLAMA_CPP_CONTEXT_STEP = 256
"""llama.cpp rounds the context of a slot up to a multiple of this."""
_FORMATS = {EngineKind.VLLM: ("safetensors",), EngineKind.LLAMA_CPP: ("gguf",)}
"""Formats that an engine is made for, where its runtime does not list its own."""


def admit(
    configuration: Configuration,
    machine: MachineFacts | None = None,
    locked: Mapping[str, str] | None = None,
) -> tuple[RefusalReason, ...]:
    """Every reason against starting this row; empty when nothing speaks against it.

    `machine` adds what only a machine knows, `locked` the versions by package of the runtime's
    lock; without them the declarations alone are judged.
    """
    return (
        *_context(configuration),
        *_parallelism(configuration),
        *hardware(configuration, locked),
        *_weights(configuration),
        *_tools(configuration),
        *_memory(configuration),
        *_runnable(configuration, machine),
    )


def supported_precision(runtime: Runtime, precision: str) -> SupportedPrecision | None:
    """What the runtime says of a precision, or `None` when it says nothing."""
    return next((each for each in runtime.quantizations if each.precision == precision), None)


def _context(configuration: Configuration) -> Iterator[RefusalReason]:
    row, model = configuration.row, configuration.model
    context = row.context_tokens
    if context is None or configuration.runtime.engine is EngineKind.SCRIPTED:
        return
    trained = model.architecture.trained_context if model and model.architecture else None
    if trained is not None and context > trained:
        yield refusal(
            "context-beyond-training",
            f"a context of {context} tokens is longer than the {trained} of the model's training",
            f"declare at most {trained}",
        )
    step = LLAMA_CPP_CONTEXT_STEP
    if configuration.runtime.engine is EngineKind.LLAMA_CPP and context % step:
        yield refusal(
            "context-not-aligned",
            f"llama.cpp gives contexts in multiples of {step} tokens, {context} is none",
            f"declare {context // step * step} or {-(-context // step) * step}",
        )


def _parallelism(configuration: Configuration) -> Iterator[RefusalReason]:
    row, model, gpu = configuration.row, configuration.model, configuration.platform.gpu
    engine, size = configuration.runtime.engine, row.tensor_parallel
    cards = gpu.count if gpu is not None else 0
    if engine is EngineKind.LLAMA_CPP and size > 1:
        yield refusal(
            "tensor-parallel-engine",
            f"the llama.cpp engine does not split tensors, the row asks for {size} shards",
            "declare tensor_parallel 1",
        )
    if engine is not EngineKind.ENDPOINT and size > max(cards, 1):
        yield refusal(
            "tensor-parallel-gpus",
            f"{size} shards need {size} accelerators, the platform has {cards}",
            "lower tensor_parallel or choose another platform",
        )
    architecture = model.architecture if model is not None else None
    if architecture is None or engine is not EngineKind.VLLM:
        return
    support = supported_precision(configuration.runtime, row.precision)
    valid = valid_sizes(architecture, support, max(cards, 1))
    fix = (
        f"valid here: {', '.join(map(str, valid))}"
        if valid
        else "no number of shards works here: choose another precision or platform"
    )
    for code, text in problems(architecture, support, size).items():
        yield refusal(code, text, fix)


def _weights(configuration: Configuration) -> Iterator[RefusalReason]:
    runtime, model, row = configuration.runtime, configuration.model, configuration.row
    if model is None or runtime.engine not in _FORMATS:
        return
    formats = runtime.model_formats or _FORMATS[runtime.engine]
    if model.format not in formats:
        yield refusal(
            "format-not-served",
            f"the runtime serves {', '.join(formats)}, the model is {model.format}",
            "choose the model in another format, or a runtime of another engine",
        )
    listed = [each.precision for each in runtime.quantizations]
    if listed and row.precision not in listed:
        yield refusal(
            "precision-not-in-runtime",
            f"the runtime does not list the precision {row.precision}",
            f"it lists: {', '.join(listed)}",
        )
    quantization = model.architecture.quantization if model.architecture is not None else None
    if quantization is not None and quantization.precision != row.precision:
        yield refusal(
            "precision-not-of-model",
            f"the model's weights are {quantization.precision}, the row says {row.precision}",
            f"declare precision {quantization.precision}, or choose another model",
        )


def _tools(configuration: Configuration) -> Iterator[RefusalReason]:
    runtime, row, model = configuration.runtime, configuration.row, configuration.model
    parser = row.tool_parser
    offered = set(runtime.tool_parsers)
    if runtime.engine is EngineKind.LLAMA_CPP:
        offered.add(TOOL_PARSER)
    if parser is not None and runtime.engine is not EngineKind.ENDPOINT and parser not in offered:
        yield refusal(
            "parser-not-in-runtime",
            f"the runtime does not offer the tool parser {parser}",
            f"it offers: {', '.join(sorted(offered)) or 'none'}",
        )
    yield from _parser_and_mode(configuration)
    if model is None or model.chat_template != "none":
        return
    launch = runtime.llama_cpp or runtime.vllm
    required = launch is not None and launch.chat_template_required
    if required or row.tool_mode is ToolMode.NATIVE:
        yield refusal(
            "no-chat-template",
            "the model has no chat template, and another one would be used in silence",
            "choose an instruction-tuned model",
        )


def _parser_and_mode(configuration: Configuration) -> Iterator[RefusalReason]:
    """Without the parser of exactly the model's format, vLLM leaves a call in the text."""
    row, model = configuration.row, configuration.model
    if configuration.runtime.engine is not EngineKind.VLLM or row.tool_mode is not ToolMode.NATIVE:
        return
    known = model.tool_parsers if model is not None else ()
    advice = f"name one that reads its calls: {', '.join(known)}" if known else ""
    # An outcome from elsewhere that names no parser does not say that there was none.
    if row.tool_parser is None and not configuration.declared_only:
        yield refusal(
            "native-without-parser",
            "native tool calls are asked for and no tool parser is named",
            advice or "name a tool parser of the runtime, or declare tool_mode prompt",
        )
    elif row.tool_parser is not None and known and row.tool_parser not in known:
        yield refusal(
            "parser-not-of-model",
            f"the tool parser {row.tool_parser} is not made for the calls of {model and model.id}",
            advice,
        )


def _memory(configuration: Configuration) -> Iterator[RefusalReason]:
    row = configuration.row
    estimate = estimate_memory(configuration)
    if estimate is None or estimate.weights_mib is None:
        return
    gpu = configuration.platform.gpu
    fits = estimate.fits(row.context_tokens or CONTEXT_STEP, whole_requests(configuration))
    if fits is None and gpu is not None:
        fits = estimate.weights_mib + estimate.other_mib <= estimate.available_mib
    if fits is not False or (row.context_tokens is None and gpu is None):
        return
    largest = largest_context(configuration)
    of_each = " on each accelerator" if gpu is not None else ""
    reserved = estimate.kv_reserved_mib
    yield refusal(
        "memory-too-small",
        f"about {estimate.total_mib or estimate.weights_mib + estimate.other_mib} MiB are needed"
        f"{of_each} (weights {estimate.weights_mib}, key/value cache "
        f"{'unknown' if estimate.kv_cache_mib is None else estimate.kv_cache_mib}"
        + (f" of {reserved} reserved" if reserved is not None else "")
        + f", other {estimate.other_mib}), the platform has {estimate.available_mib}",
        f"the largest context that fits has about {largest} tokens"
        if largest
        else "choose a platform with more memory, more shards or a smaller model",
    )


def _runnable(
    configuration: Configuration, machine: MachineFacts | None
) -> Iterator[RefusalReason]:
    """What keeps a row from being run here although nothing declared contradicts it."""
    runtime, row = configuration.runtime, configuration.row
    if configuration.declared_only:
        yield refusal(
            "declared-only",
            (
                "the row carries outcomes from elsewhere only: "
                if row.imported
                else "the row does not declare all that a run needs: "
            )
            + "; ".join(configuration.declared_only),
            "declare what is missing in a row of your own",
        )
    if runtime.engine not in ENGINES:
        yield refusal(
            "engine-not-available",
            f"this version cannot start the engine {runtime.engine.value}",
            "choose a row of another engine",
        )
    if row.placement == "enclave":
        yield refusal(
            "placement-not-available",
            "this version does not run rows in an enclave",
            "choose a row with placement host or image",
        )
    if row.placement == "image" and configuration.platform.gpu is not None:
        yield refusal(
            "placement-not-available",
            "this version starts images on processors only: an accelerator's devices and driver "
            "are handed to an image by a container runtime",
            "choose a row with placement host, or run the image yourself and declare an endpoint",
        )
    if machine is not None:
        yield from machine_driver(configuration, machine)
