"""Admission: one reason for each contradiction, each beside a row that has none."""

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from qualify.core.errors import UsageError
from qualify.core.status import ToolMode
from qualify.runtimes.admission import admit
from qualify.runtimes.locked import locked_versions
from qualify.runtimes.memory import estimate_memory, kv_bytes_per_token, largest_context
from qualify.runtimes.probe import GpuState, MachineFacts
from support import rows


def codes(configuration, machine=None):
    return [reason.code for reason in admit(configuration, machine)]


def contradictions(configuration):
    return [reason.code for reason in admit(configuration) if reason.contradiction]


def machine(driver):
    return MachineFacts("x86_64", None, 2, 2, (), 8000, 8000, 9999, GpuState.WORKING, driver=driver)


def test_a_sound_row_is_admitted():
    assert codes(rows.llama_cpp()) == []
    assert codes(rows.scripted([{"text": "a"}])) == []
    assert codes(rows.endpoint("http://127.0.0.1:1/v1")) == []


def test_a_row_of_an_engine_that_is_not_here_is_no_contradiction(monkeypatch):
    monkeypatch.setattr("qualify.runtimes.admission.ENGINES", {})
    assert codes(rows.vllm()) == ["engine-not-available"]
    assert contradictions(rows.vllm()) == []


def test_a_sound_row_on_accelerators_is_admitted():
    assert contradictions(rows.vllm()) == []
    assert contradictions(rows.vllm(row={"tensor_parallel": 2})) == []


@pytest.mark.parametrize(
    ("code", "refused", "admitted"),
    [
        (
            "context-beyond-training",
            rows.llama_cpp(row={"context_tokens": 33024}),
            rows.llama_cpp(row={"context_tokens": 32768}),
        ),
        (
            "context-not-aligned",
            rows.llama_cpp(row={"context_tokens": 16000}),
            rows.llama_cpp(row={"context_tokens": 16128}),
        ),
        (
            "tensor-parallel-engine",
            rows.llama_cpp(row={"tensor_parallel": 2}, platform={"gpu": rows.gpu()}),
            rows.llama_cpp(platform={"gpu": rows.gpu()}),
        ),
        (
            "tensor-parallel-gpus",
            rows.vllm(row={"tensor_parallel": 4}),
            rows.vllm(row={"tensor_parallel": 2}),
        ),
        (
            "tensor-parallel-heads",
            rows.vllm(row={"tensor_parallel": 8}, platform={"gpu": rows.gpu(count=8)}),
            rows.vllm(row={"tensor_parallel": 6}, platform={"gpu": rows.gpu(count=8)}),
        ),
        (
            "accelerator-needed",
            rows.vllm(platform={"gpu": None}),
            rows.vllm(),
        ),
        (
            "accelerator-needed",
            rows.llama_cpp(runtime={"llama_cpp": {"gpu_layers": 10}}),
            rows.llama_cpp(runtime={"llama_cpp": {"gpu_layers": 0}}),
        ),
        (
            "accelerator-needed",
            rows.llama_cpp(row={"graph_mode": "cuda-graphs"}),
            rows.llama_cpp(row={"graph_mode": "eager"}),
        ),
        (
            "compute-capability",
            rows.vllm(platform={"gpu": rows.gpu(compute_capability=Decimal("6.1"))}),
            rows.vllm(platform={"gpu": rows.gpu(compute_capability=Decimal("8.9"))}),
        ),
        (
            "precision-capability",
            rows.vllm(row={"precision": "mxfp4"}),
            rows.vllm(
                row={"precision": "mxfp4"},
                platform={"gpu": rows.gpu(compute_capability=Decimal("8.0"))},
            ),
        ),
        (
            "driver-too-old",
            rows.vllm(platform={"driver": "470.256.02"}),
            rows.vllm(platform={"driver": "525.60.13"}),
        ),
        (
            "parser-not-in-runtime",
            rows.vllm(row={"tool_parser": "hermes"}),
            rows.vllm(row={"tool_parser": "qwen3_coder"}),
        ),
        (
            "parser-not-in-runtime",
            rows.llama_cpp(row={"tool_parser": "hermes"}),
            rows.llama_cpp(row={"tool_parser": "llama-cpp-jinja"}),
        ),
        (
            "no-chat-template",
            rows.llama_cpp(model={"chat_template": "none"}),
            rows.llama_cpp(
                model={"chat_template": "none"},
                runtime={"llama_cpp": {"chat_template_required": False}},
            ),
        ),
        (
            "no-chat-template",
            rows.llama_cpp(
                model={"chat_template": "none"},
                runtime={"llama_cpp": {"chat_template_required": False}},
                row={"tool_mode": ToolMode.NATIVE},
            ),
            rows.llama_cpp(row={"tool_mode": ToolMode.NATIVE}),
        ),
        (
            "memory-too-small",
            rows.llama_cpp(platform={"minimum_memory_mib": 2000}),
            rows.llama_cpp(platform={"minimum_memory_mib": 2500}),
        ),
        (
            "memory-too-small",
            rows.llama_cpp(row={"slots": 8}),
            rows.llama_cpp(row={"slots": 2}),
        ),
        (
            "memory-too-small",
            # 1 GiB holds 37,449 tokens of this model; vLLM lets further requests wait.
            rows.vllm_cpu(row={"slots": 8}, cache_gib=1, context=40960),
            rows.vllm_cpu(row={"slots": 8}, cache_gib=1, context=32768),
        ),
    ],
)
def test_each_contradiction_has_its_reason(code, refused, admitted):
    assert code in contradictions(refused)
    assert code not in contradictions(admitted)


def test_every_reason_says_what_would_fix_it():
    wrong = rows.vllm(
        row={"tensor_parallel": 8, "precision": "mxfp4", "tool_parser": "hermes"},
        model={"files": (), "chat_template": "none"},
        platform={"driver": "470.1"},
    )
    reasons = admit(wrong)
    assert len(reasons) >= 6
    assert all(reason.text and reason.fix for reason in reasons)


def test_the_valid_sizes_are_named_where_heads_do_not_divide():
    wrong = rows.vllm(row={"tensor_parallel": 8}, platform={"gpu": rows.gpu(count=8)})
    (reason,) = (r for r in admit(wrong) if r.code == "tensor-parallel-heads")
    assert reason.fix == "valid here: 1, 2, 4, 6"


def test_the_largest_context_that_fits_is_named_and_is_admitted():
    wrong = rows.llama_cpp(platform={"minimum_memory_mib": 2200})
    (reason,) = admit(wrong)
    largest = int(reason.fix.split("about ")[1].split(" ")[0])
    assert 0 < largest < 16384
    fitting = {"platform": {"minimum_memory_mib": 2200}, "row": {"context_tokens": largest}}
    assert codes(rows.llama_cpp(**fitting)) == []


@pytest.mark.parametrize(
    "declared",
    [
        rows.llama_cpp(runtime={"lock": None}),
        rows.llama_cpp(model={"files": ()}),
        rows.llama_cpp(row={"context_tokens": None}),
    ],
)
def test_a_row_that_is_only_declared_is_told_and_contradicts_nothing(declared):
    assert codes(declared) == ["declared-only"]
    assert contradictions(declared) == []


def test_a_placement_that_this_version_cannot_run_contradicts_nothing():
    assert codes(rows.llama_cpp(row={"placement": "enclave"})) == ["placement-not-available"]
    assert contradictions(rows.llama_cpp(row={"placement": "enclave"})) == []


def test_this_machines_driver_is_told_and_never_evidence():
    row = rows.vllm(platform={"driver": None})
    assert "machine-driver-too-old" in codes(row, machine("470.256.02"))
    assert "machine-driver-too-old" not in codes(row, machine("535.154.05"))
    assert "machine-driver-too-old" not in codes(row, machine(None))
    assert contradictions(row) == []


def test_a_driver_that_is_no_version_is_not_judged():
    assert "driver-too-old" not in codes(rows.vllm(platform={"driver": "open-module"}))


def test_unknown_architecture_is_not_judged():
    blind = rows.vllm(model={"architecture": None}, row={"tensor_parallel": 2})
    assert contradictions(blind) == []
    assert estimate_memory(blind).total_mib is None


def test_the_cache_of_the_small_coding_model_is_28_kib_a_token():
    model = rows.llama_cpp().model
    assert kv_bytes_per_token(model.architecture) == 2 * 28 * 2 * 128 * 2
    assert estimate_memory(rows.llama_cpp()).kv_cache_mib == 448


def test_the_head_dimension_follows_from_the_embedding_where_it_is_not_declared():
    architecture = rows.llama_cpp().model.architecture
    derived = architecture.model_copy(update={"head_dimension": None})
    assert kv_bytes_per_token(derived) == kv_bytes_per_token(architecture)
    assert kv_bytes_per_token(derived.model_copy(update={"blocks": None})) is None
    assert kv_bytes_per_token(None) is None


def test_shards_share_weights_and_cache():
    whole, half = rows.vllm(), rows.vllm(row={"tensor_parallel": 2})
    assert estimate_memory(half).weights_mib * 2 == pytest.approx(
        estimate_memory(whole).weights_mib, abs=2
    )


def test_engines_that_load_nothing_need_no_estimate():
    assert estimate_memory(rows.scripted([{"text": "a"}])) is None
    assert estimate_memory(replace(rows.endpoint("http://h/v1"))) is None


def test_only_a_runtime_with_cuda_is_judged_by_what_its_lock_pins(tmp_path):
    locks = Path(__file__).parents[3]
    on_cuda = rows.vllm(runtime={"lock": "vllm-cu129"}).runtime
    assert locked_versions(locks, on_cuda)["vllm"] == "0.19.1"
    assert locked_versions(locks, on_cuda.model_copy(update={"cuda": None})) is None
    assert locked_versions(locks, on_cuda.model_copy(update={"lock": None})) is None
    with pytest.raises(UsageError):
        locked_versions(tmp_path, on_cuda)


def test_a_broken_driver_concludes_nothing_and_a_working_one_is_not_mentioned():
    broken = replace(machine(None), gpu_state=GpuState.BROKEN, gpu_remark="no answer")
    reasons = admit(rows.vllm(), broken)
    told = [reason for reason in reasons if reason.code == "machine-driver-unknown"]
    assert [reason.contradiction for reason in told] == [False]
    assert "machine-driver-unknown" not in codes(rows.vllm(), machine("535.154.05"))
    assert "machine-driver-unknown" not in codes(rows.llama_cpp(), broken)


def test_this_machines_ceiling_is_enough_to_tell_where_its_version_is_not_known():
    row = rows.vllm(platform={"driver": None}, runtime={"cuda": "13.0", "minimum_driver": None})
    old, new = (replace(machine(None), cuda=cuda) for cuda in ("12.2", "13.0"))
    assert "machine-driver-too-old" in codes(row, old)
    assert "machine-driver-too-old" not in codes(row, new)


def test_on_a_processor_the_context_must_fit_into_the_cache_that_vllm_reserves():
    here = {"runtime": {"cuda": None, "vllm": {"cpu_kv_cache_gib": 1}},
            "platform": {"gpu": None, "driver": None, "minimum_memory_mib": 9000}}  # fmt: skip
    named = largest_context(rows.vllm(**here))
    assert 16384 < named <= 32768
    small = rows.QWEN | {"trained_context": 131072}
    for context, refused in ((36864, False), (40960, True)):
        row = rows.vllm(row={"context_tokens": context}, model={"architecture": small}, **here)
        assert ("memory-too-small" in contradictions(row)) is refused


def test_weights_alone_can_be_too_large_where_the_context_is_not_known():
    huge = rows.vllm(
        row={"context_tokens": None},
        model={"files": (), "architecture": rows.QWEN | {"weight_bytes": 65_000_000_000}},
    )
    small = rows.vllm(row={"context_tokens": None})
    assert "memory-too-small" in contradictions(huge)
    assert "memory-too-small" not in contradictions(small)
