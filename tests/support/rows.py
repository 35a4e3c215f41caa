"""Configurations without manifest files: rows of each engine, changed with few words."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

from qualify.core.digests import digest_json
from qualify.core.status import EngineKind, EvidenceClass, ToolMode
from qualify.manifests.configuration import Configuration
from qualify.manifests.kinds import (
    Agent,
    Gpu,
    Model,
    Platform,
    Row,
    Runtime,
    Script,
)

SIZE = 1_117_320_768
QWEN = {
    "parameters": 1_777_088_000, "blocks": 28, "heads": 12, "kv_heads": 2, "head_dimension": 128,
    "embedding": 1536, "trained_context": 32768,
}  # fmt: skip
"""The architecture of Qwen2.5-Coder-1.5B."""


def gpu(**changes: Any) -> Gpu:
    """Two T4 cards, changed."""
    return Gpu.model_validate(
        {"model": "Tesla T4", "count": 2, "memory_mib": 15360, "compute_capability": Decimal("7.5")}
        | changes
    )


def llama_cpp(
    *,
    row: dict[str, Any] | None = None,
    runtime: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    platform: dict[str, Any] | None = None,
) -> Configuration:
    """A llama.cpp row that nothing speaks against, changed."""
    return _configuration(
        Runtime.model_validate(
            {"id": "engine", "engine": EngineKind.LLAMA_CPP, "lock": "engine", "llama_cpp": {}}
            | (runtime or {})
        ),
        _model(model),
        None,
        row,
        platform,
    )


def vllm(
    *,
    row: dict[str, Any] | None = None,
    runtime: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    platform: dict[str, Any] | None = None,
) -> Configuration:
    """A vLLM row on two T4 cards that nothing declared contradicts, changed."""
    return _configuration(
        Runtime.model_validate(
            {
                "id": "engine",
                "engine": EngineKind.VLLM,
                "lock": "engine",
                "cuda": "12.9",
                "minimum_driver": "525.60.13",
                "minimum_compute_capability": Decimal("7.5"),
                "tool_parsers": ("qwen3_coder",),
                "quantizations": (
                    {"precision": "q4", "whole_groups": "all", "source": "a test"},
                    {
                        "precision": "mxfp4",
                        "minimum_compute_capability": Decimal("8.0"),
                        "source": "a test",
                    },
                ),
                "vllm": {},
            }
            | (runtime or {})
        ),
        _model({"format": "safetensors", **(model or {})}),
        None,
        row,
        {"gpu": gpu(), "driver": "535.154.05"} | (platform or {}),
    )


def vllm_cpu(*, cache_gib: int, context: int, row: dict[str, Any] | None = None) -> Configuration:
    """A vLLM row on processors, with that much of a cache and that context."""
    return vllm(
        row={"context_tokens": context, "tensor_parallel": 1, **(row or {})},
        runtime={
            "cuda": None,
            "minimum_driver": None,
            "minimum_compute_capability": None,
            "quantizations": (),
            "vllm": {"cpu_kv_cache_gib": cache_gib},
        },
        model={"architecture": QWEN | {"trained_context": 65536}},
        platform={"gpu": None, "driver": None, "minimum_memory_mib": 16000},
    )


def endpoint(url: str, **launch: Any) -> Configuration:
    """A row on somebody else's service."""
    section = {"url": url, "provider": "somebody", "model_name": "their-model", **launch}
    return _configuration(
        Runtime.model_validate(
            {"id": "service", "engine": EngineKind.ENDPOINT, "endpoint": section}
        ),
        _model({"files": ()}),
        None,
        None,
        None,
    )


def scripted(
    replies: list[dict[str, Any]],
    *,
    captures: dict[str, str] | None = None,
    tool_mode: ToolMode = ToolMode.NATIVE,
) -> Configuration:
    """A row that plays `replies`."""
    script = Script.model_validate(
        {"id": "played", "replies": tuple(replies), "captures": captures or {}}
    )
    return _configuration(
        Runtime.model_validate({"id": "double", "engine": EngineKind.SCRIPTED}),
        None,
        script,
        {"tool_mode": tool_mode},
        None,
    )


def model_path(configuration: Configuration, folder: Path) -> Path:
    """Where a test puts the model's file."""
    assert configuration.model is not None
    return folder / configuration.model.files[0].path


def _model(changes: dict[str, Any] | None) -> Model:
    return Model.model_validate(
        {
            "id": "small", "repository": "somebody/small", "revision": "1" * 40, "format": "gguf",
            "licence": {"spdx": "Apache-2.0"}, "chat_template": "embedded", "architecture": QWEN,
            "files": ({"path": "small.gguf", "size": SIZE, "sha256": "a" * 64},),
        }
        | (changes or {})
    )  # fmt: skip


def _configuration(
    runtime: Runtime,
    model: Model | None,
    script: Script | None,
    row: dict[str, Any] | None,
    platform: dict[str, Any] | None,
) -> Configuration:
    made = Row.model_validate(
        {
            "id": "row", "runtime": runtime.id, "model": model.id if model else None,
            "script": script.id if script else None, "platform": "here", "precision": "q4",
            "context_tokens": 16384, "tool_mode": ToolMode.PROMPT, "agent": "coder",
        }
        | (row or {})
    )  # fmt: skip
    place = Platform.model_validate(
        {"id": "here", "provider": "local", "architecture": "x86_64", "minimum_memory_mib": 3500}
        | (platform or {})
    )
    agent = Agent.model_validate(
        {
            "id": "coder", "harness": "openhands", "lock": "agent", "tools": ({"name": "finish"},),
            "in_context_example": False, "sampling": {"temperature": Decimal(0)}, "limits": {},
        }
    )  # fmt: skip
    return Configuration(
        made, runtime, model, script, place, agent, {}, digest_json({}), EvidenceClass.SCRIPTED
    )
