"""How much memory a configuration needs, from the facts that its model declares.

An estimate for admission and for people, not a measurement: weights as large as their files (or as
declared), a key/value cache in 16 bits (2 x blocks x key/value heads x head dimension x 2 bytes a
token; blocks with a sliding window keep no more than that), and a fixed allowance for buffers. Key/
value heads are divided among shards and repeated where they are fewer. Linear-attention blocks
keep a small state that is not counted. What an engine takes while it measures itself with a full
batch, and what CUDA graphs take, is not known from declarations: a row that the estimate admits can
still run out of memory. What is not declared is `None`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qualify.core.status import EngineKind
from qualify.runtimes.admission_sharding import kv_heads_of_shard

if TYPE_CHECKING:
    from qualify.manifests.configuration import Configuration
    from qualify.manifests.kinds import Architecture, Model

MIB = 1 << 20
CONTEXT_STEP = 256
"""The largest context is named in multiples of this."""
_KV_BYTES = 2
_CPU_BUFFERS_MIB = 400
"""Measured with the 1.5 B model on llama.cpp: resident memory beyond weights, cache and prompts."""
_VLLM_CPU_BUFFERS_MIB = 1600
"""Measured with vLLM 0.32.0 on a processor: 2.6 GB with a tiny model and 1 GiB of cache."""
_GPU_BUFFERS_MIB = 1024
_GPU_SHARE_PERCENT = 90
"""The share of a card's memory that an engine takes (vLLM's `gpu_memory_utilization`; the default
of 0.19.1) where the runtime does not set it."""


@dataclass(frozen=True)
class MemoryEstimate:
    """MiB, of each accelerator where there are any, else of the machine."""

    weights_mib: int | None
    kv_cache_mib: int | None
    other_mib: int
    available_mib: int
    """What the platform declares."""
    kv_bytes_per_token: int | None
    """Of the blocks that keep the whole context."""
    kv_window_bytes_per_token: int = 0
    """Of the blocks with a sliding window, which keep at most `kv_window` tokens."""
    kv_window: int = 0
    kv_reserved_mib: int | None = None
    """What the engine takes for the cache whatever it needs; `None`: only what it needs."""

    @property
    def total_mib(self) -> int | None:
        """Everything together, as far as it can be told."""
        if self.weights_mib is None or self.kv_cache_mib is None:
            return None
        return self._total(self.weights_mib, self.kv_cache_mib)

    def cache_mib(self, context: int, slots: int) -> int | None:
        """MiB of the cache of `slots` requests of `context` tokens each, rounded up."""
        if self.kv_bytes_per_token is None:
            return None
        window = self.kv_window_bytes_per_token * min(context, self.kv_window)
        return -(-(self.kv_bytes_per_token * context + window) * slots // MIB)

    def fits(self, context: int, slots: int) -> bool | None:
        """Whether a context of that many tokens fits, or `None` when that cannot be told."""
        cache = self.cache_mib(context, slots)
        if self.weights_mib is None or cache is None:
            return None
        if self.kv_reserved_mib is not None and cache > self.kv_reserved_mib:
            return False
        return self._total(self.weights_mib, cache) <= self.available_mib

    def largest_context(self, slots: int, limit: int) -> int | None:
        """Tokens of each slot that fit, a multiple of `CONTEXT_STEP` of at most `limit`.

        0 when not even one step does; `None` when it cannot be told.
        """
        if self.fits(CONTEXT_STEP, slots) is None:
            return None
        low, high = 0, limit // CONTEXT_STEP
        while low < high:
            middle = -(-(low + high) // 2)
            if self.fits(middle * CONTEXT_STEP, slots):
                low = middle
            else:
                high = middle - 1
        return low * CONTEXT_STEP

    def _total(self, weights: int, cache: int) -> int:
        return weights + max(cache, self.kv_reserved_mib or 0) + self.other_mib


def estimate_memory(configuration: Configuration) -> MemoryEstimate | None:
    """The estimate, or `None` for engines that load nothing here."""
    if configuration.runtime.engine in (EngineKind.ENDPOINT, EngineKind.SCRIPTED):
        return None
    model, row, gpu = configuration.model, configuration.row, configuration.platform.gpu
    shards = row.tensor_parallel if gpu is not None else 1
    size = weight_bytes(model)
    architecture = model.architecture if model is not None else None
    per_token = kv_bytes_per_token(architecture, shards)
    in_window = _window_bytes_per_token(architecture, shards)
    estimate = MemoryEstimate(
        weights_mib=-(-size // (MIB * shards)) if size is not None else None,
        kv_cache_mib=None,
        other_mib=_other_mib(configuration),
        available_mib=_available_mib(configuration),
        kv_bytes_per_token=per_token,
        kv_window_bytes_per_token=in_window,
        kv_window=(architecture.sliding_window or 0) if architecture is not None else 0,
        kv_reserved_mib=_kv_reserved_mib(configuration),
    )
    if row.context_tokens is None:
        return estimate
    needed = estimate.cache_mib(row.context_tokens, whole_requests(configuration))
    return replace(estimate, kv_cache_mib=needed)


def whole_requests(configuration: Configuration) -> int:
    """Requests of the whole context that the cache must hold at once for the engine to start.

    llama.cpp lays out the context of every slot. vLLM demands room for one request and lets others
    wait ("To serve at least one request with the model's max seq len").
    """
    return 1 if configuration.runtime.engine is EngineKind.VLLM else configuration.row.slots


def largest_context(configuration: Configuration) -> int | None:
    """Tokens of each slot that fit into memory, at most what the model was trained for.

    `None` when it cannot be told.
    """
    estimate, model = estimate_memory(configuration), configuration.model
    if estimate is None or model is None or model.architecture is None:
        return None
    requests = whole_requests(configuration)
    return estimate.largest_context(requests, model.architecture.trained_context)


def weight_bytes(model: Model | None) -> int | None:
    """Bytes of the weights: of the files where they are listed, else as declared."""
    if model is None:
        return None
    if model.files:
        return sum(file.size for file in model.files)
    return model.architecture.weight_bytes if model.architecture is not None else None


def kv_bytes_per_token(architecture: Architecture | None, shards: int = 1) -> int | None:
    """Bytes of key and value of one token on one shard, in the blocks that keep every token.

    `None` when the facts for it are not declared.
    """
    of_block = _kv_bytes_of_block(architecture, shards)
    if architecture is None or architecture.blocks is None or of_block is None:
        return None
    whole = architecture.full_attention_blocks
    return of_block * (architecture.blocks if whole is None else whole)


def _window_bytes_per_token(architecture: Architecture | None, shards: int) -> int:
    of_block = _kv_bytes_of_block(architecture, shards)
    if architecture is None or architecture.blocks is None or of_block is None:
        return 0
    whole = architecture.full_attention_blocks
    if whole is None or architecture.sliding_window is None:
        return 0
    return of_block * (architecture.blocks - whole)


def _kv_bytes_of_block(architecture: Architecture | None, shards: int) -> int | None:
    if architecture is None:
        return None
    heads = architecture.kv_heads or architecture.heads
    dimension = architecture.head_dimension
    if dimension is None and architecture.embedding and architecture.heads:
        dimension = architecture.embedding // architecture.heads
    if heads is None or dimension is None:
        return None
    return 2 * kv_heads_of_shard(heads, shards) * dimension * _KV_BYTES


def _available_mib(configuration: Configuration) -> int:
    gpu, launch = configuration.platform.gpu, configuration.runtime.vllm
    if gpu is None:
        return configuration.platform.minimum_memory_mib
    share = launch.gpu_memory_percent if launch is not None else _GPU_SHARE_PERCENT
    return gpu.memory_mib * share // 100


def _kv_reserved_mib(configuration: Configuration) -> int | None:
    """Only vLLM on processors takes a fixed cache; on accelerators it takes what is left."""
    launch = configuration.runtime.vllm
    if configuration.platform.gpu is not None or launch is None or not launch.cpu_kv_cache_gib:
        return None
    return launch.cpu_kv_cache_gib * 1024


def _other_mib(configuration: Configuration) -> int:
    from qualify.runtimes.llama_cpp import PROMPT_CACHE_MIB

    if configuration.platform.gpu is not None:
        return _GPU_BUFFERS_MIB
    if configuration.runtime.engine is EngineKind.VLLM:
        return _VLLM_CPU_BUFFERS_MIB
    return _CPU_BUFFERS_MIB + PROMPT_CACHE_MIB
