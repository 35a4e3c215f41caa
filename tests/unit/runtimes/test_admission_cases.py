"""The public cases: what is known from the field, and that admission says what it must."""

from pathlib import Path

import pytest

from qualify.manifests.catalog import load_catalog
from qualify.manifests.configuration import resolve
from qualify.runtimes.admission import admit
from qualify.runtimes.admission_reasons import CODES
from qualify.runtimes.memory import estimate_memory, largest_context, weight_bytes
from support.admission_cases import CASES, case_table, changed

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/admission.md").read_text()
ALL = [case for cases in CASES.values() for case in cases]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory):
    return load_catalog(ROOT, cache_folder=tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("case", ALL, ids=lambda case: f"{case.source}: {case.name}")
def test_admission_says_what_is_known(catalog, case):
    assert case.got(catalog) == case.expected


@pytest.mark.parametrize("heading", CASES)
def test_the_reference_shows_every_case_as_admission_judges_it(catalog, heading):
    table = PAGE.split(f"### {heading}\n\n")[1].split("\n\n")[0] + "\n"
    assert table == case_table(catalog, CASES[heading])


def test_every_refused_case_has_a_neighbour_that_is_admitted():
    for cases in CASES.values():
        assert any(case.expected for case in cases)
        assert any(not case.expected for case in cases)


def test_every_code_that_a_declaration_can_give_has_a_public_case_or_a_test_beside_it():
    shown = {code for case in ALL for code in case.expected}
    elsewhere = {
        "context-not-aligned", "tensor-parallel-engine", "tensor-parallel-gpus",
        "accelerator-needed", "declared-only", "engine-not-available", "placement-not-available",
    }  # fmt: skip
    assert shown | elsewhere == set(CODES)


def test_every_reason_of_every_case_has_a_fix(catalog):
    for case in ALL:
        locked = case.locked(catalog) if case.locked else None
        for reason in admit(case.make(catalog), case.here, locked):
            assert reason.text
            assert reason.fix


def test_the_table_of_codes_is_the_one_in_the_reference():
    lines = [
        f"| `{code}` | {'contradiction' if kind.contradiction else 'here and now'} | "
        f"{kind.meaning} |"
        for code, kind in CODES.items()
    ]
    assert "\n".join(lines) + "\n" in PAGE


def test_the_18432_of_the_peer_is_far_below_what_the_estimate_allows(catalog):
    """The honest comparison: the peer found 32,768 too long, our lower bound does not."""
    row = resolve(catalog, "terra-2xt4-qwen3-coder-30b-awq")
    estimate = estimate_memory(row)
    assert (estimate.weights_mib, estimate.kv_cache_mib, estimate.available_mib) == (
        8598,
        864,
        13824,
    )
    named = largest_context(row)
    assert named == 89600
    assert f"{named:,}" in PAGE
    longer = changed(row, {"row": {"context_tokens": 32768}})
    assert estimate_memory(longer).fits(32768, 1)


# Linear layers, embeddings and small tensors of the dense models; see each manifest's notes.
def dense(blocks, width, heads, kv_heads, inner, vocabulary):
    attention = 2 * width * heads * 128 + 2 * width * kv_heads * 128
    linear = blocks * (attention + 3 * width * inner)
    small = blocks * ((heads + 2 * kv_heads) * 128 + 2 * width) + width
    return linear, 2 * vocabulary * width, small


def awq(linear, embeddings, small):
    return linear // 2 + linear * 5 // 256 + 2 * (embeddings + small)


def gpt_oss(blocks, experts):
    attention = blocks * (2880 * 4096 + 4096 + 2 * (2880 * 512 + 512) + 4096 * 2880 + 2880 + 64)
    inner = blocks * experts * (2880 * 5760 + 2880 * 2880)
    rest = blocks * (experts * (5760 + 2880) + 2880 * experts + experts + 2 * 2880) + 2880
    embeddings = 2 * 201088 * 2880
    return (
        attention + inner + rest + embeddings,
        inner // 2 + inner // 32 + 2 * (attention + rest + embeddings),
    )


def qwen3_30b():
    attention = 48 * (2048 * 4096 * 2 + 2 * 2048 * 512)
    experts = 48 * 128 * 3 * 2048 * 768
    rest = 2 * 151936 * 2048 + 48 * 2048 * 128 + 48 * (2 * 2048 + 2 * 128) + 2048
    return attention, experts, rest


@pytest.mark.parametrize(
    ("name", "parameters", "size"),
    [
        ("qwen2.5-coder-7b-instruct-awq", 7_615_616_512,
         awq(*dense(28, 3584, 28, 4, 18944, 152064))),
        ("qwen2.5-coder-14b-instruct-awq", 14_770_033_664,
         awq(*dense(48, 5120, 40, 8, 13824, 152064))),
        ("gpt-oss-20b", 20_914_757_184, gpt_oss(24, 32)[1]),
        ("gpt-oss-120b", 116_829_156_672, gpt_oss(36, 128)[1]),
        ("qwen3-coder-30b-a3b-instruct-fp8", 30_532_122_624,
         sum(qwen3_30b()[:2]) + sum(qwen3_30b()[:2]) * 4 // 128**2 + 2 * qwen3_30b()[2]),
        ("qwen3-coder-30b-a3b-instruct-w4a16-mixed-awq", 30_532_122_624,
         qwen3_30b()[1] // 2 + qwen3_30b()[1] // 64 + 2 * (qwen3_30b()[0] + qwen3_30b()[2])),
    ],
)  # fmt: skip
def test_the_bytes_of_weights_follow_from_the_architecture(catalog, name, parameters, size):
    """Parameter counts are the published ones, so the sizes that make them up are right."""
    model = catalog.model(name)
    assert model.architecture.parameters == parameters
    assert weight_bytes(model) == size


def test_the_parameters_follow_from_the_sizes_that_are_declared(catalog):
    for name, sizes in (
        ("qwen2.5-coder-7b-instruct-awq", (28, 3584, 28, 4, 18944, 152064)),
        ("qwen2.5-coder-14b-instruct-awq", (48, 5120, 40, 8, 13824, 152064)),
    ):
        facts = catalog.model(name).architecture
        declared = (
            facts.blocks,
            facts.embedding,
            facts.heads,
            facts.kv_heads,
            facts.intermediate,
            facts.vocabulary,
        )
        assert declared == sizes
        assert sum(dense(*sizes)) == facts.parameters
    for name, (blocks, experts) in {"gpt-oss-20b": (24, 32), "gpt-oss-120b": (36, 128)}.items():
        facts = catalog.model(name).architecture
        assert (facts.blocks, facts.experts) == (blocks, experts)
        assert gpt_oss(blocks, experts)[0] == facts.parameters
    assert sum(qwen3_30b()) == 30_532_122_624


def test_a_declared_runtime_demands_the_driver_that_its_cuda_needs(catalog):
    from qualify.runtimes.cuda_drivers import minimum_driver

    with_cuda = [each for each in catalog.runtimes.values() if each.cuda is not None]
    assert len(with_cuda) >= 3
    for runtime in with_cuda:
        assert runtime.minimum_driver == minimum_driver(runtime.cuda), runtime.id


def test_each_runtime_of_vllm_lists_precisions_with_their_sources(catalog):
    for name in ("vllm-0.19.1-cu129", "vllm-0.33.0-cu130", "vllm-0.25.1-cu129"):
        runtime = catalog.runtime(name)
        assert {"fp8", "awq", "w4a16-awq", "mxfp4"} <= {q.precision for q in runtime.quantizations}
        assert all(each.source for each in runtime.quantizations)


@pytest.mark.parametrize(
    ("name", "count"),
    [("vllm-0.19.1-cu129", 34), ("vllm-0.33.0-cu130", 58), ("vllm-0.32.0-cpu", 54)],
)
def test_the_parsers_are_those_counted_in_the_wheels(catalog, name, count):
    parsers = catalog.runtime(name).tool_parsers
    assert len(parsers) == count
    assert {"hermes", "qwen3_coder", "openai"} <= set(parsers)
