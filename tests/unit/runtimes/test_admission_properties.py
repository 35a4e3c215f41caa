"""What must hold of admission whatever is declared: more never hurts, and what is named works."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qualify.manifests.kinds import Architecture
from qualify.runtimes.admission import admit
from qualify.runtimes.admission_sharding import problems, valid_sizes
from qualify.runtimes.cuda_drivers import RELEASED_WITH, Support, cuda_support
from qualify.runtimes.memory import CONTEXT_STEP, estimate_memory, largest_context
from support import rows

POSITIVE = st.integers(1, 128)
CAPABILITIES = st.sampled_from(["6.0", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0"])
DRIVERS = st.sampled_from(["450.80.02", *RELEASED_WITH.values(), "610.10.01"])


@st.composite
def architectures(draw):
    blocks = draw(st.integers(1, 80))
    return {
        "parameters": 1_000_000_000,
        "blocks": blocks,
        "heads": draw(st.integers(1, 64)),
        "kv_heads": draw(st.integers(1, 64)),
        "head_dimension": draw(st.sampled_from([64, 128, 256])),
        "embedding": 4096,
        "intermediate": draw(st.none() | st.integers(1, 200).map(lambda n: n * 64)),
        "moe_intermediate": draw(st.none() | st.integers(1, 64).map(lambda n: n * 32)),
        "vocabulary": draw(st.none() | st.integers(1000, 200_000)),
        "full_attention_blocks": draw(st.none() | st.integers(0, blocks)),
        "sliding_window": draw(st.none() | st.integers(1, 4096)),
        "trained_context": draw(st.integers(1, 1024)) * CONTEXT_STEP,
        "weight_bytes": draw(st.integers(1, 80_000_000_000)),
        "quantization": {
            "precision": "q4",
            "group_size": draw(st.sampled_from([None, 32, 64, 128])),
            "output_block": draw(st.sampled_from([None, 128])),
            "quantized": draw(st.sampled_from(["linear", "experts"])),
        },
    }


@st.composite
def systems(draw):
    """A row, card and driver, as keyword arguments of `rows.vllm`."""
    count = draw(st.sampled_from([1, 2, 4, 8]))
    return {
        "architecture": draw(architectures()),
        "memory_mib": draw(st.integers(1000, 90_000)),
        "capability": draw(CAPABILITIES),
        "driver": draw(st.none() | DRIVERS),
        "count": count,
        "context_tokens": draw(st.integers(1, 1024)) * CONTEXT_STEP,
        "slots": draw(st.integers(1, 4)),
        "tensor_parallel": draw(st.integers(1, count)),
        "precision": draw(st.sampled_from(["q4", "mxfp4"])),
    }


def made(system, **changes):
    facts = system | changes
    return rows.vllm(
        row={
            "context_tokens": facts["context_tokens"],
            "slots": facts["slots"],
            "tensor_parallel": facts["tensor_parallel"],
            "precision": facts["precision"],
        },
        model={"files": (), "architecture": facts["architecture"]},
        platform={
            "gpu": rows.gpu(
                count=facts["count"],
                memory_mib=facts["memory_mib"],
                compute_capability=Decimal(facts["capability"]),
            ),
            "driver": facts["driver"],
        },
    )


def contradictions(configuration):
    return {reason.code for reason in admit(configuration) if reason.contradiction}


@given(systems(), st.integers(0, 90_000))
def test_more_memory_never_adds_a_reason(system, more):
    larger = made(system, memory_mib=system["memory_mib"] + more)
    assert contradictions(larger) <= contradictions(made(system))


@given(systems(), CAPABILITIES)
def test_a_higher_compute_capability_never_adds_a_reason(system, other):
    higher = max(system["capability"], other, key=Decimal)
    assert contradictions(made(system, capability=higher)) <= contradictions(made(system))


@given(systems(), DRIVERS, DRIVERS, st.sampled_from(["12.4", "12.9", "13.0"]))
def test_a_newer_driver_never_adds_a_reason(system, one, other, cuda):
    from packaging.version import Version

    older, newer = sorted((one, other), key=Version)
    before = contradictions(made(system, driver=older))
    assert contradictions(made(system, driver=newer)) <= before
    order = [Support.NONE, Support.MINOR, Support.NATIVE]
    assert order.index(cuda_support(older, cuda).support) <= order.index(
        cuda_support(newer, cuda).support
    )


@given(systems())
def test_the_named_context_fits_and_the_next_step_does_not(system):
    named = largest_context(made(system))
    trained = system["architecture"]["trained_context"]
    assert named is not None
    assert named % CONTEXT_STEP == 0
    if named:
        fitting = contradictions(made(system, context_tokens=named))
        assert not fitting & {"memory-too-small", "context-beyond-training"}
    following = contradictions(made(system, context_tokens=named + CONTEXT_STEP))
    assert following & {"memory-too-small", "context-beyond-training"}
    if "memory-too-small" in contradictions(made(system)):
        (reason,) = (r for r in admit(made(system)) if r.code == "memory-too-small")
        assert named == 0 or f"about {named} tokens" in reason.fix
        assert system["context_tokens"] > named
    assert named <= trained


@given(systems())
def test_every_named_number_of_shards_breaks_no_rule(system):
    configuration = made(system)
    facts = configuration.model.architecture
    support = configuration.runtime.quantizations[0]
    valid = valid_sizes(facts, support, system["count"])
    for size in range(1, system["count"] + 1):
        assert (size in valid) == (problems(facts, support, size) == {})


@given(systems())
def test_every_reason_has_a_sentence_and_a_fix(system):
    for reason in admit(made(system)):
        assert reason.text
        assert reason.fix
        assert not reason.text.endswith(".")


@given(architectures())
def test_what_is_not_declared_is_not_judged(architecture):
    bare = {key: architecture[key] for key in ("parameters", "trained_context")}
    configuration = rows.vllm(
        row={"context_tokens": CONTEXT_STEP, "tensor_parallel": 2},
        model={"files": (), "architecture": bare},
    )
    assert contradictions(configuration) == set()
    assert problems(Architecture.model_validate(bare), None, 7) == {}


@given(st.integers(1, 64), st.integers(1, 64))
def test_the_cache_of_all_shards_holds_every_head(kv_heads, shards):
    """Repeating heads costs memory; sharing them never loses any."""
    whole = {"kv_heads": kv_heads, "heads": kv_heads * shards}
    facts = rows.QWEN | whole
    split = rows.vllm(
        row={"tensor_parallel": shards},
        model={"architecture": facts},
        platform={"gpu": rows.gpu(count=64)},
    )
    one = rows.vllm(model={"architecture": facts})
    per_shard = estimate_memory(split).kv_bytes_per_token
    assert per_shard * shards >= estimate_memory(one).kv_bytes_per_token
    assert per_shard <= estimate_memory(one).kv_bytes_per_token


@pytest.mark.parametrize("context", [CONTEXT_STEP, 10 * CONTEXT_STEP])
def test_blocks_with_a_window_stop_growing(context):
    windowed = rows.QWEN | {"full_attention_blocks": 14, "sliding_window": 128}
    configuration = rows.vllm(row={"context_tokens": context}, model={"architecture": windowed})
    of_block = 2 * 2 * 128 * 2
    expected = 14 * of_block * context + 14 * of_block * 128
    assert estimate_memory(configuration).kv_cache_mib == -(-expected // (1 << 20))
