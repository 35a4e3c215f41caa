"""How much memory a configuration needs, from the facts that its model declares.

An estimate for admission and for people, not a measurement: weights as large as their files, a
key/value cache in 16 bits (2 x blocks x key/value heads x head dimension x 2 bytes a token), and a
fixed allowance for buffers. Models with sliding windows need less. What is not declared is `None`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qualify.core.status import EngineKind

if TYPE_CHECKING:
    from qualify.manifests.configuration import Configuration
    from qualify.manifests.kinds import Architecture

MIB = 1 << 20
_KV_BYTES = 2
_CPU_BUFFERS_MIB = 400
"""Measured with the 1.5 B model: resident memory beyond weights, cache and prompts."""
_GPU_BUFFERS_MIB = 1024
_GPU_SHARE_PERCENT = 90
"""The share of a card's memory that an engine takes (vLLM's default `gpu_memory_utilization`)."""


@dataclass(frozen=True)
class MemoryEstimate:
    """MiB, of each accelerator where there are any, else of the machine."""

    weights_mib: int | None
    kv_cache_mib: int | None
    other_mib: int
    available_mib: int
    """What the platform declares."""
    kv_bytes_per_token: int | None

    @property
    def total_mib(self) -> int | None:
        """Everything together, as far as it can be told."""
        if self.weights_mib is None or self.kv_cache_mib is None:
            return None
        return self.weights_mib + self.kv_cache_mib + self.other_mib

    def largest_context(self, slots: int) -> int | None:
        """Tokens of each slot that fit; 0 when not even the weights do."""
        if self.weights_mib is None or not self.kv_bytes_per_token:
            return None
        left = self.available_mib - self.weights_mib - self.other_mib
        return max(0, left * MIB // (self.kv_bytes_per_token * slots)) // 256 * 256


def estimate_memory(configuration: Configuration) -> MemoryEstimate | None:
    """The estimate, or `None` for engines that load nothing here."""
    if configuration.runtime.engine in (EngineKind.ENDPOINT, EngineKind.SCRIPTED):
        return None
    model, row, gpu = configuration.model, configuration.row, configuration.platform.gpu
    shards = row.tensor_parallel if gpu is not None else 1
    size = sum(file.size for file in model.files) if model is not None and model.files else None
    per_token = kv_bytes_per_token(model.architecture if model is not None else None)
    if per_token is not None:
        per_token = -(-per_token // shards)
    cache = None
    if per_token is not None and row.context_tokens is not None:
        cache = -(-per_token * row.context_tokens * row.slots // MIB)
    return MemoryEstimate(
        weights_mib=-(-size // (MIB * shards)) if size is not None else None,
        kv_cache_mib=cache,
        other_mib=_other_mib(configuration),
        available_mib=gpu.memory_mib * _GPU_SHARE_PERCENT // 100
        if gpu is not None
        else configuration.platform.minimum_memory_mib,
        kv_bytes_per_token=per_token,
    )


def kv_bytes_per_token(architecture: Architecture | None) -> int | None:
    """Bytes of key and value of one token in all blocks, or `None` when it is not declared."""
    if architecture is None:
        return None
    blocks, heads = architecture.blocks, architecture.kv_heads or architecture.heads
    dimension = architecture.head_dimension
    if dimension is None and architecture.embedding and architecture.heads:
        dimension = architecture.embedding // architecture.heads
    if blocks is None or heads is None or dimension is None:
        return None
    return 2 * blocks * heads * dimension * _KV_BYTES


def _other_mib(configuration: Configuration) -> int:
    from qualify.runtimes.llama_cpp import PROMPT_CACHE_MIB

    if configuration.platform.gpu is not None:
        return _GPU_BUFFERS_MIB
    prompts = PROMPT_CACHE_MIB if configuration.runtime.engine is EngineKind.LLAMA_CPP else 0
    return _CPU_BUFFERS_MIB + prompts
