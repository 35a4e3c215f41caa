"""Why vLLM did not start, told from what it wrote into its log.

vLLM ends with exit code 1 whatever went wrong; its log says the rest. The patterns are data: each
names the version whose log was provoked here (its lines are kept under `tests/assets/vllm-logs`),
or the public issue that shows it. The first pattern of the table that matches wins, so the more
specific stand first. A log that matches nothing stays `died-at-start`.

The codes and what they mean to a person stand in `assessment.reasons.START_FAULTS`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LOG_BYTES = 256 << 10
"""How much of the end of a log is looked at."""
_HERE = "0.32.0"


@dataclass(frozen=True)
class Pattern:
    """One way in which vLLM says what is wrong."""

    code: str
    text: str
    """A regular expression, searched in the log; it does not reach over the end of a line."""
    seen: str
    """The version whose log was provoked here, or the issue of a public tracker that shows it."""


PATTERNS = (
    Pattern("bad-parser", r"invalid (?:tool call|reasoning) parser: ", _HERE),
    Pattern("bad-parser", r"(?:Tool|Reasoning) parser '[^']*' not found", _HERE),
    Pattern(
        "tensor-parallel-mismatch",
        r"attention heads \(\d+\) must be divisible by tensor parallel size",
        _HERE,
    ),
    Pattern(
        "tensor-parallel-mismatch",
        r"not aligned with the quantized weight shape.*too large tensor parallel size",
        "vllm-project/vllm#5675",
    ),
    Pattern(
        "tensor-parallel-mismatch",
        r"size_per_partition = \d+ is not divisible by weight quantization block_[nk]",
        "vllm-project/vllm#45784",
    ),
    Pattern("bad-quantization", r"Unknown quantization method", _HERE),
    Pattern("bad-quantization", r"Cannot find the config file for \w+", _HERE),
    Pattern(
        "bad-quantization",
        r"Quantization method specified in the model config .* does not match",
        _HERE,
    ),
    Pattern(
        "bad-quantization",
        r"quantization method \S+ is not supported for the current GPU",
        "vllm-project/vllm#4202",
    ),
    Pattern(
        "bad-quantization",
        r"Quantization scheme is not supported for",
        "vllm-project/vllm#14040",
    ),
    Pattern("kv-cache-too-small", r"KV cache is needed, which is larger than the available", _HERE),
    Pattern(
        "kv-cache-too-small",
        r"is larger than the maximum number of tokens that can be stored in KV cache",
        "vllm-project/vllm#2418",
    ),
    Pattern(
        "kv-cache-too-small",
        r"No available memory for the cache blocks",
        "vllm-project/vllm#2248",
    ),
    Pattern("out-of-memory", r"on kv cache allocation is less than requested memory", _HERE),
    Pattern("out-of-memory", r"OutOfMemoryError|CUDA out of memory", "vllm-project/vllm#29049"),
    Pattern(
        "out-of-memory",
        r"Free memory on device .* is less than desired GPU memory utilization",
        "vllm-project/vllm#23192",
    ),
    Pattern("driver-too-old", r"unsatisfied condition: cuda>=", "vllm-project/vllm#5635"),
    Pattern(
        "driver-too-old", r"NVIDIA driver on your system is too old", "vllm-project/vllm#11623"
    ),
    Pattern(
        "driver-too-old",
        r"CUDA driver version is insufficient for CUDA runtime version",
        "ovg-project/kvcached#74",
    ),
    Pattern("no-accelerator", r"Failed to infer device type", "0.33.0"),
    Pattern("no-accelerator", r"No CUDA GPUs are available", "vllm-project/vllm#14413"),
    Pattern("no-accelerator", r"Found no NVIDIA driver on your system", "bentoml/OpenLLM#746"),
    Pattern("collective-failed", r"NCCL error: ", "vllm-project/vllm#6732"),
    Pattern("context-beyond-model", r"max_model_len \(\d+\) is greater than the derived", _HERE),
    Pattern("model-not-served", r"does not recognize this architecture", _HERE),
    Pattern("model-unreadable", r"Invalid repository ID or local directory", _HERE),
    Pattern("model-unreadable", r"Cannot find any model weights", _HERE),
    Pattern("compiler-missing", r"Failed to find C compiler", "vllm-project/vllm#2997"),
)
"""In the order in which they are tried."""

HANGS = (
    Pattern("collective-failed", r"vLLM is using nccl==", "vllm-project/vllm#6732"),
    Pattern("collective-failed", r"NCCL version", "vllm-project/vllm#6370"),
)
"""What the last line says of a server that waits for its other workers, and for ever."""

_COMPILED = tuple((each, re.compile(each.text)) for each in PATTERNS)


def classify(log: str) -> Pattern | None:
    """The first pattern of the table that the log matches."""
    return next((each for each, expression in _COMPILED if expression.search(log)), None)


def hanging(log: str) -> Pattern | None:
    """Why a server that is late may be waiting for ever: judged by its last line alone."""
    last = log.rstrip().rpartition("\n")[2]
    return next((each for each in HANGS if re.search(each.text, last)), None)
