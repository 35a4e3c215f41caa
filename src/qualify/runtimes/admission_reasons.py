"""The reasons that admission can give: every code with its meaning, in one table.

A reason is either a *contradiction* between declared facts, which is evidence of `unsupported`
wherever it is found, or it only says that the row cannot be run here and now. Which of the two
belongs to the code, not to the place where it is raised. The documentation prints this table.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AdmissionCode:
    """What a code means."""

    meaning: str
    contradiction: bool = True
    """Whether it shows `unsupported`; otherwise it only cannot be run here and now."""


CODES: dict[str, AdmissionCode] = {
    # context and memory
    "context-beyond-training": AdmissionCode(
        "the context is longer than the model was trained for"
    ),
    "context-not-aligned": AdmissionCode("the engine gives contexts in other steps"),
    "memory-too-small": AdmissionCode(
        "weights, key/value cache and buffers need more memory than the platform declares"
    ),
    # tensor parallelism
    "tensor-parallel-engine": AdmissionCode("the engine does not split tensors"),
    "tensor-parallel-gpus": AdmissionCode("more shards than accelerators"),
    "tensor-parallel-heads": AdmissionCode("the shards do not divide the attention heads"),
    "tensor-parallel-kv-heads": AdmissionCode(
        "key/value heads can neither be divided among the shards nor repeated evenly"
    ),
    "tensor-parallel-width": AdmissionCode("the shards do not divide a feed-forward layer"),
    "tensor-parallel-vocabulary": AdmissionCode("the shards do not divide the padded vocabulary"),
    "quantization-groups": AdmissionCode("quantization groups or blocks would cross shards"),
    # accelerator, driver, CUDA
    "accelerator-needed": AdmissionCode("the platform has no accelerator and the row needs one"),
    "compute-capability": AdmissionCode(
        "the card's compute capability is below what the runtime needs"
    ),
    "precision-capability": AdmissionCode(
        "the card's compute capability is below what the precision needs in this engine version"
    ),
    "driver-too-old": AdmissionCode("the declared driver is too old for the runtime's CUDA"),
    "cuda-majors-mixed": AdmissionCode("the lock brings packages of two CUDA majors"),
    "cuda-not-of-lock": AdmissionCode("the lock brings another CUDA major than is declared"),
    # model against engine
    "format-not-served": AdmissionCode("the runtime does not serve this format of weights"),
    "precision-not-in-runtime": AdmissionCode("the runtime does not list this precision"),
    "precision-not-of-model": AdmissionCode("the model's weights have another precision"),
    # tools
    "parser-not-in-runtime": AdmissionCode("the runtime does not offer the tool parser"),
    "parser-not-of-model": AdmissionCode("the tool parser is not made for the model's calls"),
    "native-without-parser": AdmissionCode(
        "native tool calls are asked of an engine that returns none without a parser"
    ),
    "no-chat-template": AdmissionCode("the model has no chat template"),
    # here and now
    "declared-only": AdmissionCode("the row does not declare all that a run needs", False),
    "engine-not-available": AdmissionCode("this version cannot start the engine", False),
    "placement-not-available": AdmissionCode("this version cannot run the placement", False),
    "machine-driver-unknown": AdmissionCode(
        "this machine's driver does not answer; nothing is concluded from that", False
    ),
    "machine-driver-too-old": AdmissionCode(
        "this machine's driver is too old for the runtime's CUDA", False
    ),
}
"""Code → meaning. The codes are part of the interface; they never change their meaning."""


@dataclass(frozen=True)
class RefusalReason:
    """Why a row is not started."""

    code: str
    text: str
    fix: str
    contradiction: bool = True
    """Whether it shows `unsupported`; otherwise it only cannot be run here and now."""


def refusal(code: str, text: str, fix: str) -> RefusalReason:
    """A reason of `CODES`. Raises `KeyError` for a code that is not in the table."""
    return RefusalReason(code, text, fix, CODES[code].contradiction)
