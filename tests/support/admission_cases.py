"""The public cases of admission: what is known from the field, and what admission must say.

Each case stands on the manifests that are shipped, changed in a few named facts, or on a system
that somebody else described. `known` is what was observed or published, `expected` the codes that
admission must give for what is declared (those of this machine in `here`); a case whose `expected`
does not follow from `known` says why in `remark`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from qualify.manifests.catalog import Catalog
from qualify.manifests.configuration import Configuration, resolve
from qualify.manifests.kinds import Architecture
from qualify.runtimes.admission import admit
from qualify.runtimes.probe import GpuFacts, GpuState, MachineFacts
from support import rows

NOT_ENGINE = {"declared-only", "engine-not-available", "placement-not-available"}
"""Codes that say what this version can run, not whether the row can work."""


@dataclass(frozen=True)
class Case:
    """One case; `make` builds it from the shipped catalog."""

    name: str
    source: str
    known: str
    expected: tuple[str, ...]
    make: Callable[[Catalog], Configuration]
    here: MachineFacts | None = None
    locked: Callable[[Catalog], Mapping[str, str]] | None = None
    remark: str = ""

    def got(self, catalog: Catalog) -> tuple[str, ...]:
        """The codes that admission gives, without those of this version's limits."""
        locked = self.locked(catalog) if self.locked is not None else None
        reasons = admit(self.make(catalog), self.here, locked)
        return tuple(reason.code for reason in reasons if reason.code not in NOT_ENGINE)


def shipped(name: str, /, **changes: dict[str, Any]) -> Callable[[Catalog], Configuration]:
    """A shipped row; `changes` are new fields by part (row, runtime, model, platform, gpu)."""
    return lambda catalog: changed(resolve(catalog, name), changes)


def stood(
    on: str, served: str, at: str, row: dict[str, Any], /, **changes: dict[str, Any]
) -> Callable[[Catalog], Configuration]:
    """A row made of shipped manifests that no shipped row combines."""

    def make(catalog: Catalog) -> Configuration:
        base = resolve(catalog, "2xt4-qwen3-coder-30b-awq-cu129")
        made = replace(
            base,
            runtime=catalog.runtime(on),
            model=catalog.model(served),
            platform=catalog.platform(at),
        )
        return changed(made, {"row": row, **changes})

    return make


def changed(base: Configuration, changes: dict[str, dict[str, Any]]) -> Configuration:
    """`base` with other values in some of its parts."""
    parts: dict[str, Any] = {}
    for part in ("row", "runtime", "model", "platform"):
        if part in changes:
            parts[part] = getattr(base, part).model_copy(update=changes[part])
    if "gpu" in changes:
        platform = parts.get("platform", base.platform)
        gpu = platform.gpu.model_copy(update=changes["gpu"])
        parts["platform"] = platform.model_copy(update={"gpu": gpu})
    return replace(base, **parts)


def machine(state: GpuState = GpuState.WORKING, **facts: Any) -> MachineFacts:
    """A machine with two T4, or with a driver that does not answer."""
    cards = (GpuFacts("Tesla T4", 15360, Decimal("7.5")),) * 2 if state is GpuState.WORKING else ()
    return MachineFacts(
        "x86_64", None, 16, 32, (), 200000, 190000, 900000, state, gpus=cards, **facts
    )


def elsewhere(
    architecture: dict[str, Any],
    precision: str,
    gpu: dict[str, Any],
    row: dict[str, Any],
    *,
    runtime: dict[str, Any] | None = None,
    platform: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
) -> Callable[[Catalog], Configuration]:
    """A system that somebody described: its model's sizes, its card, its row."""

    def make(_catalog: Catalog) -> Configuration:
        demands = {
            "precision": precision,
            "minimum_compute_capability": None,
            "whole_groups": "none" if precision == "fp16" else "all",
            "source": "the case",
        }
        return rows.vllm(
            row={"precision": precision, "context_tokens": 4096, **row},
            runtime={"quantizations": (demands,), **(runtime or {})},
            model={"files": (), "architecture": architecture, **(model or {})},
            platform={"gpu": rows.gpu(**gpu), **(platform or {})},
        )

    return make


def locked_set(*names: str) -> Callable[[Catalog], Mapping[str, str]]:
    """The versions of shipped locks, later ones over earlier ones."""

    def read(catalog: Catalog) -> Mapping[str, str]:
        from qualify.pins.locks import read_lock

        found: dict[str, str] = {}
        for name in names:
            found |= read_lock(catalog.project / "locks" / f"{name}.json").versions
        return found

    return read


T4_ROW = "2xt4-qwen3-coder-30b-awq-cu129"
L40S_ROW = "l40s-qwen3-coder-30b-fp8-cu129"
QWEN3_30B = {
    "parameters": 30_532_122_624, "blocks": 48, "heads": 32, "kv_heads": 4, "head_dimension": 128,
    "embedding": 2048, "experts": 128, "moe_intermediate": 768, "vocabulary": 151936,
    "trained_context": 40960,
    "quantization": {"precision": "awq", "group_size": 128},
}  # fmt: skip
"""Qwen3-30B-A3B, quantized with AWQ in groups of 128."""
WIZARD_33B = {
    "parameters": 32_500_000_000, "blocks": 60, "heads": 52, "kv_heads": 52, "head_dimension": 128,
    "embedding": 6656, "intermediate": 17920, "vocabulary": 32000, "trained_context": 2048,
}  # fmt: skip
"""LLaMA-33B, of which WizardLM-33B is made."""
WIZARD_7B = {
    "parameters": 6_738_000_000, "blocks": 32, "heads": 32, "kv_heads": 32, "head_dimension": 128,
    "embedding": 4096, "intermediate": 11008, "vocabulary": 32001, "trained_context": 16384,
    "quantization": {"precision": "awq", "group_size": 128},
}  # fmt: skip
"""WizardCoder-Python-7B (Code Llama), AWQ in groups of 128."""
INTERN_78B = {
    "parameters": 72_700_000_000, "blocks": 80, "heads": 64, "kv_heads": 8, "head_dimension": 128,
    "embedding": 8192, "intermediate": 29568, "vocabulary": 152064, "trained_context": 32768,
    "quantization": {"precision": "awq", "group_size": 128},
}  # fmt: skip
"""The language part of InternVL3-78B (Qwen2.5-72B), AWQ in groups of 128."""
ALPACA_2 = {
    "parameters": 6_738_415_616, "blocks": 32, "heads": 32, "kv_heads": 32, "head_dimension": 128,
    "embedding": 4096, "intermediate": 11008, "vocabulary": 32000, "trained_context": 4096,
    "weight_bytes": 13_476_831_232,
}  # fmt: skip
"""Llama-2-7B in 16 bits."""
LLAMA_31_8B = {
    "parameters": 8_030_261_248, "blocks": 32, "heads": 32, "kv_heads": 8, "head_dimension": 128,
    "embedding": 4096, "intermediate": 14336, "vocabulary": 128256, "trained_context": 131072,
    "weight_bytes": 16_060_522_496,
}  # fmt: skip
"""Llama-3.1-8B in 16 bits."""
FP8_7B = Architecture.model_validate(
    {
        "parameters": 7_615_616_512, "blocks": 28, "heads": 28, "kv_heads": 4,
        "head_dimension": 128, "embedding": 3584, "intermediate": 18944, "vocabulary": 152064,
        "trained_context": 32768, "weight_bytes": 8_720_000_000,
        "quantization": {"precision": "fp8", "group_size": 128, "output_block": 128},
    }
)  # fmt: skip
"""Qwen2.5-Coder-7B as it would be in FP8."""
FP8_ROW = {"precision": "fp8", "tensor_parallel": 1, "tool_parser": "hermes",
           "context_tokens": 16384}  # fmt: skip
EIGHT_CARDS = {"model": "NVIDIA A100", "count": 8, "memory_mib": 81920,
               "compute_capability": Decimal("8.0")}  # fmt: skip
RTX_3090 = {"model": "NVIDIA GeForce RTX 3090", "count": 1, "memory_mib": 24146,
            "compute_capability": Decimal("8.6")}  # fmt: skip
CARD_16_GB = {"model": "16 GB card", "count": 1, "memory_mib": 16376,
              "compute_capability": Decimal("8.9")}  # fmt: skip
NATIVE_12_4 = {"cuda": "12.4", "minimum_driver": "550.54.14",
               "minimum_compute_capability": Decimal("7.0")}  # fmt: skip
BEFORE_TURING = (
    {"precision": "fp8", "minimum_compute_capability": Decimal("8.0"), "whole_groups": "all",
     "source": "vllm before #29901"},
)  # fmt: skip


def _before_turing(catalog: Catalog) -> Configuration:
    from qualify.manifests.kinds import SupportedPrecision

    table = tuple(SupportedPrecision.model_validate(each) for each in BEFORE_TURING)
    make = stood("vllm-0.19.1-cu129", "qwen2.5-coder-7b-instruct-awq", "t4", FP8_ROW,
                 model={"architecture": FP8_7B}, runtime={"quantizations": table})  # fmt: skip
    return make(catalog)


def _tp(size: int) -> Callable[[Catalog], Configuration]:
    return elsewhere(QWEN3_30B, "awq", EIGHT_CARDS, {"tensor_parallel": size})


DRIVER_CASES = (
    Case("an image that demands CUDA 12.4, driver 530 (CUDA 12.1)", "vllm#5635",
         "container refused: unsatisfied condition cuda>=12.4", ("driver-too-old",),
         elsewhere(QWEN3_30B, "awq", EIGHT_CARDS, {}, runtime=NATIVE_12_4,
                   platform={"driver": "530.30.02"})),
    Case("CUDA 12.9 on driver 535 (CUDA 12.2)", "the peer's 2 × T4 row",
         "works by minor-version compatibility", (),
         shipped(T4_ROW, platform={"driver": "535.154.05"})),
    Case("CUDA 12.9 on driver 470", "NVIDIA's tables", "cannot work", ("driver-too-old",),
         shipped(T4_ROW, platform={"driver": "470.256.02"})),
    Case("CUDA 13.0 on driver 535", "NVIDIA's tables", "cannot work", ("driver-too-old",),
         shipped("2xt4-qwen3-coder-30b-awq-cu130", platform={"driver": "535.154.05"})),
    Case("CUDA 13.0 on driver 580", "NVIDIA's tables", "works", (),
         shipped("2xt4-qwen3-coder-30b-awq-cu130", platform={"driver": "580.65.06"})),
    Case("CUDA 12.9 on driver 590 (CUDA 13.1)", "the peer's L40S row",
         "works, drivers are backward compatible", (),
         shipped(L40S_ROW, platform={"driver": "590.48.01"})),
    Case("this machine's driver is too old", "vllm#5635, here", "cannot work here",
         ("machine-driver-too-old",), shipped("2xt4-qwen3-coder-30b-awq-cu130"),
         here=machine(driver="535.154.05", cuda="12.2"),
         remark="told, never recorded: the declaration has no fault"),
    Case("driver and library disagree after an update", "nvidia-container-toolkit#171",
         "nothing can be concluded", ("machine-driver-unknown",), shipped(T4_ROW),
         here=machine(GpuState.BROKEN, gpu_remark="Driver/library version mismatch"),
         remark="inconclusive, not unsupported"),
    Case("a device is there, its nodes are missing", "gpu-operator#2685",
         "a validator said Ready", ("machine-driver-unknown",), shipped(T4_ROW),
         here=machine(GpuState.BROKEN, gpu_remark="it lists no device")),
    Case("the lock brings CUDA 12 and 13", "architecture", "crashes that name neither",
         ("cuda-majors-mixed",), shipped(L40S_ROW), locked=locked_set("vllm-cu129", "vllm-cu130")),
    Case("the lock of CUDA 12.9", "locks/vllm-cu129.json", "one major", (), shipped(L40S_ROW),
         locked=locked_set("vllm-cu129")),
    Case("the lock of CUDA 13.0", "locks/vllm-cu130.json",
         "one major; cutlass-dsl-libs-cu12 and pynvvideocodec are allowed", (),
         shipped("l40s-qwen3-coder-30b-fp8-cu130"), locked=locked_set("vllm-cu130")),
    Case("CUDA 13.0 declared, lock of CUDA 12.9", "architecture", "another runtime than declared",
         ("cuda-not-of-lock",), shipped("l40s-qwen3-coder-30b-fp8-cu130"),
         locked=locked_set("vllm-cu129")),
)  # fmt: skip

CAPABILITY_CASES = (
    *(
        Case(f"{card} (compute capability {capability})", "the peer's minimum of 7.5",
             "refused before start", ("compute-capability",),
             shipped("terra-t4-qwen25-coder-7b-awq",
                     gpu={"model": card, "compute_capability": Decimal(capability)}))
        for card, capability in (("Tesla P4", "6.1"), ("Tesla P100", "6.0"), ("Tesla V100", "7.0"))
    ),
    Case("7 B in FP8 on T4, vLLM before Turing support", "vllm#29901", "refused by the engine",
         ("precision-capability",), _before_turing),
    Case("7 B in FP8 on T4, vLLM 0.19.1", "vllm#29901", "served by Marlin", (),
         stood("vllm-0.19.1-cu129", "qwen2.5-coder-7b-instruct-awq", "t4", FP8_ROW,
               model={"architecture": FP8_7B})),
    Case("Qwen3-Coder-30B FP8 on 2 × T4", "31.2 GB of weights", "cannot fit",
         ("memory-too-small",),
         stood("vllm-0.19.1-cu129", "qwen3-coder-30b-a3b-instruct-fp8", "2xt4",
               {"precision": "fp8", "tensor_parallel": 2})),
    Case("MXFP4 on T4", "lessons; Mxfp4Config", "needs 8.0", ("precision-capability",),
         stood("vllm-0.19.1-cu129", "gpt-oss-20b", "2xt4",
               {"precision": "mxfp4", "tensor_parallel": 2, "tool_parser": "openai"})),
    Case("MXFP4 on L40S", "lessons; Mxfp4Config", "works from 8.0 on", (),
         stood("vllm-0.19.1-cu129", "gpt-oss-20b", "l40s",
               {"precision": "mxfp4", "tensor_parallel": 1, "tool_parser": "openai"})),
    Case("bfloat16 on T4", "the check in vllm/platforms/cuda.py", "needs 8.0",
         ("precision-capability", "precision-not-of-model"),
         shipped(T4_ROW, row={"precision": "bf16"})),
)  # fmt: skip

SHARDING_CASES = (
    Case("WizardLM-33B, 8 shards", "vllm#2652", "52 heads cannot be divided by 8",
         ("tensor-parallel-heads", "tensor-parallel-kv-heads"),
         elsewhere(WIZARD_33B, "fp16", EIGHT_CARDS,
                   {"tensor_parallel": 8, "context_tokens": 2048})),
    Case("WizardLM-33B, 4 shards", "vllm#2652", "works", (),
         elsewhere(WIZARD_33B, "fp16", EIGHT_CARDS,
                   {"tensor_parallel": 4, "context_tokens": 2048})),
    *(
        Case(f"Qwen3-30B-A3B AWQ, {size} shard{'s' if size > 1 else ''}", "vllm#17604", known,
             expected, _tp(size))
        for size, known, expected in (
            (1, "works", ()),
            (2, "works", ()),
            (3, "heads", ("tensor-parallel-heads", "tensor-parallel-kv-heads",
                          "tensor-parallel-vocabulary")),
            (4, "size_k must be divisible by BLOCK_SIZE_K", ("quantization-groups",)),
            (5, "heads", ("tensor-parallel-heads", "tensor-parallel-kv-heads",
                          "tensor-parallel-width", "tensor-parallel-vocabulary")),
            (6, "heads", ("tensor-parallel-heads", "tensor-parallel-kv-heads",
                          "tensor-parallel-vocabulary")),
            (7, "heads", ("tensor-parallel-heads", "tensor-parallel-kv-heads",
                          "tensor-parallel-width", "tensor-parallel-vocabulary")),
            (8, "size_k must be divisible by BLOCK_SIZE_K", ("quantization-groups",)),
        )
    ),
    Case("experts of 768 in AWQ groups of 128, 4 shards, vLLM 0.19.1", "vllm#17604, later",
         "falls back to kernels that halve the groups", (),
         elsewhere(QWEN3_30B, "awq", EIGHT_CARDS, {"tensor_parallel": 4},
                   runtime={"quantizations": (
                       {"precision": "awq", "whole_groups": "linear", "source": "the wheel"},)})),
    Case("InternVL3-78B AWQ, 2 shards", "vllm#21695", "29568 is no multiple of 128 × 2",
         ("quantization-groups",),
         elsewhere(INTERN_78B, "awq", EIGHT_CARDS, {"tensor_parallel": 2})),
    Case("WizardCoder-7B AWQ, 4 shards", "vllm#1258", "11008 / 4 is no multiple of the group",
         ("quantization-groups",),
         elsewhere(WIZARD_7B, "awq", EIGHT_CARDS, {"tensor_parallel": 4})),
    Case("Qwen3-Coder-30B FP8, 2 shards of L40S", "block checks of the wheels", "works", (),
         stood("vllm-0.33.0-cu130", "qwen3-coder-30b-a3b-instruct-fp8", "carina-2xl40s",
               {"precision": "fp8", "tensor_parallel": 2})),
    Case("Qwen2.5-Coder-7B, 8 shards", "the replication rule of vLLM",
         "28 heads; 4 key/value heads are repeated", ("tensor-parallel-heads",
                                                      "quantization-groups"),
         stood("vllm-0.19.1-cu129", "qwen2.5-coder-7b-instruct-awq", "2xt4",
               {"precision": "awq", "tensor_parallel": 8, "tool_parser": "hermes",
                "context_tokens": 16384}, gpu={"count": 8})),
)  # fmt: skip

MEMORY_CASES = (
    Case("context 4096, 7 B in 16 bits on 16 GB", "vllm#2418", "3,664 tokens fit at most",
         ("memory-too-small",), elsewhere(ALPACA_2, "fp16", CARD_16_GB, {}),
         remark="the card is not named; our estimate names 1,536, less than really fits"),
    Case("Qwen3-Coder-30B AWQ on 2 × T4, 18,432", "the peer's row", "works", (),
         shipped("terra-2xt4-qwen3-coder-30b-awq")),
    Case("Qwen3-Coder-30B AWQ on 2 × T4, 32,768", "the peer's note", "no cache blocks are left",
         (), shipped("terra-2xt4-qwen3-coder-30b-awq", row={"context_tokens": 32768}),
         remark="**the estimate is too low here**: it does not know what the engine takes while it "
         "measures itself"),
    Case("Llama-3.1-8B on a 3090, 35,000", "vllm#10517", "works", (),
         elsewhere(LLAMA_31_8B, "fp16", RTX_3090, {"context_tokens": 35000})),
    Case("Llama-3.1-8B on a 3090, 29,000, prompts in one piece", "vllm#10517",
         "23,648 tokens fit", (),
         elsewhere(LLAMA_31_8B, "fp16", RTX_3090, {"context_tokens": 29000}),
         remark="**the estimate is too low here**: batches as long as the context, which newer "
         "versions cut into chunks"),
    Case("Llama-3.1-8B on a 3090, 65,536", "vllm#10517 by its own figures", "cannot fit",
         ("memory-too-small",),
         elsewhere(LLAMA_31_8B, "fp16", RTX_3090, {"context_tokens": 65536})),
    Case("context 65,536 for Qwen2.5-Coder-7B", "its configuration", "trained for 32,768",
         ("context-beyond-training",),
         stood("vllm-0.19.1-cu129", "qwen2.5-coder-7b-instruct-awq", "l40s",
               {"precision": "awq", "tensor_parallel": 1, "context_tokens": 65536,
                "tool_parser": "hermes"})),
)  # fmt: skip

MODEL_CASES = (
    Case("GGUF on vLLM for processors", "measured", "answers /health, dies at the first request",
         ("format-not-served",),
         stood("vllm-0.32.0-cpu", "qwen2.5-coder-1.5b-instruct-q4_k_m", "cpu-x86_64",
               {"precision": "q4_k_m", "tensor_parallel": 1, "tool_mode": "prompt",
                "tool_parser": None, "context_tokens": 1024},
               platform={"minimum_memory_mib": 16000})),
    Case("FP8 declared for AWQ weights", "kind: precision against format", "cannot load",
         ("precision-not-of-model",),
         stood("vllm-0.19.1-cu129", "qwen2.5-coder-7b-instruct-awq", "l40s",
               {"precision": "fp8", "tensor_parallel": 1, "tool_parser": "hermes",
                "context_tokens": 16384})),
    Case("a precision that the runtime does not list", "kind: engine version", "not known to work",
         ("precision-not-in-runtime",),
         elsewhere(ALPACA_2 | {"weight_bytes": None}, "q4", EIGHT_CARDS, {},
                   runtime={"quantizations": (
                       {"precision": "fp8", "source": "the case"},)})),
    Case("a base model without a chat template", "llama.cpp PR#11616, #8403",
         "a default replaces it in silence", ("no-chat-template",), shipped("cpu-gemma-3-270m")),
    Case("the parser of another format", "vllm#22975", "the call stays in the text",
         ("parser-not-of-model",), shipped(L40S_ROW, row={"tool_parser": "hermes"})),
    Case("a parser that the runtime lacks", "facts of the wheels", "argument refused at start",
         ("parser-not-in-runtime", "parser-not-of-model"),
         shipped(L40S_ROW, row={"tool_parser": "qwen3_json"})),
    Case("native tool calls without a parser", "vllm#22975", "the call stays in the text",
         (), shipped(L40S_ROW, row={"tool_parser": None}),
         remark="not judged while the row does not declare all that a run needs"),
    Case("native tool calls without a parser, complete row", "vllm#22975",
         "the call stays in the text", ("native-without-parser",),
         elsewhere(ALPACA_2 | {"weight_bytes": None}, "fp16", EIGHT_CARDS,
                   {"tool_mode": "native", "tool_parser": None},
                   model={"files": ({"path": "m.safetensors", "size": 1000,
                                     "sha256": "a" * 64},)})),
)  # fmt: skip

PEER_CASES = tuple(
    Case(row, "the peer's matrix", known, expected, shipped(row), remark=remark)
    for row, known, expected, remark in (
        ("carina-l40s-qwen3-coder-30b-fp8", "qualified", (), ""),
        ("terra-2xt4-qwen3-coder-30b-awq", "qualified", (), ""),
        ("terra-t4-qwen25-coder-7b-awq", "unsupported: the tool-use workflow does not pass", (),
         "inference works: only trials can tell"),
        ("terra-t4-qwen25-coder-14b-awq", "unsupported: the tool-use workflow does not pass", (),
         "inference works: only trials can tell"),
        ("terra-4xt4-qwen3-coder-30b-fp8", "unsupported: quantization dimensions on T4",
         ("quantization-groups",), ""),
        ("terra-4xt4-qwen3-coder-30b-awq", "unsupported: groups cross four shards, two work",
         ("quantization-groups",), ""),
        ("terra-4xt4-gpt-oss-20b", "unsupported: needs 8.0", ("precision-capability",), ""),
        ("terra-4xt4-gpt-oss-120b", "unsupported: needs 8.0",
         ("precision-capability", "memory-too-small"), "16 GB a card hold no 65 GB of weights"),
        ("carina-2xl40s-gpt-oss-120b", "inconclusive: download interrupted", (), ""),
        ("carina-2xl40s-qwen3-coder-next-fp8", "inconclusive: NCCL initialised, never ready", (),
         "nothing declared speaks against it; the bounded start does"),
    )
)  # fmt: skip

CASES: dict[str, tuple[Case, ...]] = {
    "Driver and CUDA": DRIVER_CASES,
    "Compute capability": CAPABILITY_CASES,
    "Tensor parallelism and quantization": SHARDING_CASES,
    "Memory and context": MEMORY_CASES,
    "Model, parser and tool mode": MODEL_CASES,
    "The peer's matrix": PEER_CASES,
}
"""Heading of the reference → its cases."""


def case_table(catalog: Catalog, cases: tuple[Case, ...]) -> str:
    """The table of the reference, with what admission says now."""
    lines = [
        "| case | source | known | expected | admission says |",
        "|---|---|---|---|---|",
    ]
    for case in cases:
        known = f"{case.known}. {case.remark}" if case.remark else case.known
        lines.append(
            f"| {case.name} | {case.source} | {known} | {_codes(case.expected)} | "
            f"{_codes(case.got(catalog))} |"
        )
    return "\n".join(lines) + "\n"


def _codes(codes: tuple[str, ...]) -> str:
    return ", ".join(f"`{code}`" for code in codes) or "admitted"
