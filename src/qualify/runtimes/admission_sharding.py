"""Which numbers of shards a model can be split into: heads, key/value heads, widths, groups.

The rules are those of vLLM's loader (read in the wheels of 0.19.1 and 0.33.0): attention heads,
feed-forward widths and the vocabulary, padded to a multiple of 64, are divided; fewer key/value
heads than shards are repeated, and then the shards must be a multiple of them. A layer whose input
is split must keep whole quantization groups on every shard, and blocks of outputs (FP8) must not be
cut either; where an engine pads (MXFP4) or halves
the groups of experts instead, its runtime's manifest says so.

Pure. A size that is not declared is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qualify.manifests.kinds import Architecture, SupportedPrecision

VOCABULARY_PADDING = 64
"""vLLM pads the embedding's rows to a multiple of this (`DEFAULT_VOCAB_PADDING_SIZE`)."""


def problems(
    architecture: Architecture, support: SupportedPrecision | None, shards: int
) -> dict[str, str]:
    """Reason code → sentence, for every rule that `shards` breaks; empty when they work."""
    found: dict[str, str] = {}
    for code, text in (
        *_heads(architecture, shards),
        *_widths(architecture, shards),
        *_groups(architecture, support, shards),
    ):
        found[code] = f"{found[code]}; {text}" if code in found else text
    return found


def valid_sizes(
    architecture: Architecture, support: SupportedPrecision | None, most: int
) -> list[int]:
    """Every number of shards from 1 to `most` that breaks no rule."""
    return [size for size in range(1, most + 1) if not problems(architecture, support, size)]


def kv_heads_of_shard(kv_heads: int, shards: int) -> int:
    """Key/value heads that one shard keeps; at least one, because they are repeated."""
    return max(1, -(-kv_heads // shards))


type _Found = Iterator[tuple[str, str]]


def _heads(architecture: Architecture, shards: int) -> _Found:
    heads, kv_heads = architecture.heads, architecture.kv_heads
    if heads is not None and heads % shards:
        yield (
            "tensor-parallel-heads",
            f"{heads} attention heads cannot be divided into {shards} shards",
        )
    if kv_heads is None:
        return
    if kv_heads >= shards and kv_heads % shards:
        yield (
            "tensor-parallel-kv-heads",
            f"{kv_heads} key/value heads cannot be divided into {shards} shards",
        )
    if kv_heads < shards and shards % kv_heads:
        yield (
            "tensor-parallel-kv-heads",
            f"{kv_heads} key/value heads cannot be repeated evenly on {shards} shards",
        )


def _widths(architecture: Architecture, shards: int) -> _Found:
    for name, width in (
        ("feed-forward layers", architecture.intermediate),
        ("experts", architecture.moe_intermediate),
    ):
        if width is not None and width % shards:
            yield (
                "tensor-parallel-width",
                f"{name} of width {width} cannot be divided into {shards} shards",
            )
    if architecture.vocabulary is not None:
        padded = -(-architecture.vocabulary // VOCABULARY_PADDING) * VOCABULARY_PADDING
        if padded % shards:
            yield (
                "tensor-parallel-vocabulary",
                f"a vocabulary of {padded} rows cannot be divided into {shards} shards",
            )


def _groups(architecture: Architecture, support: SupportedPrecision | None, shards: int) -> _Found:
    quantization = architecture.quantization
    if quantization is None or support is None or support.whole_groups == "none":
        return
    group, block = quantization.group_size, quantization.output_block
    for name, inner in _quantized_parts(architecture, experts=support.whole_groups == "all"):
        part = inner // shards
        if inner % shards:
            continue  # already said by another rule
        shares = f"{name} of {inner} give {part} on each of {shards} shards, no multiple of the"
        if group is not None and shards > 1 and part % group:
            yield "quantization-groups", f"{shares} quantization group {group}"
        elif block is not None and part % block:
            yield "quantization-groups", f"{shares} quantization block {block}"
    kv_part = _kv_outputs(architecture, shards)
    if block is not None and kv_part is not None and kv_part % block:
        shares = f"key/value outputs of {kv_part} on each of {shards} shards"
        yield "quantization-groups", f"{shares} are no multiple of the quantization block {block}"


def _quantized_parts(architecture: Architecture, *, experts: bool) -> Iterator[tuple[str, int]]:
    """Dimensions that are split among shards, inside a block's quantized layers."""
    quantization = architecture.quantization
    assert quantization is not None
    if quantization.quantized == "linear":
        if architecture.heads is not None and architecture.head_dimension is not None:
            yield "attention outputs", architecture.heads * architecture.head_dimension
        if architecture.intermediate is not None:
            yield "feed-forward layers", architecture.intermediate
    if experts and architecture.moe_intermediate is not None:
        yield "experts", architecture.moe_intermediate


def _kv_outputs(architecture: Architecture, shards: int) -> int | None:
    quantization = architecture.quantization
    if quantization is None or quantization.quantized != "linear":
        return None
    if architecture.kv_heads is None or architecture.head_dimension is None:
        return None
    return kv_heads_of_shard(architecture.kv_heads, shards) * architecture.head_dimension
