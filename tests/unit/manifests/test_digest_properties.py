"""The digest rules as properties: layout, order and unbound fields never change a digest, and any
bound input does.
"""

from __future__ import annotations

import copy
import json
import random
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from qualify.manifests.catalog import Catalog, load_catalog
from qualify.manifests.configuration import resolve, suite_identity
from qualify.manifests.kinds import KINDS
from qualify.manifests.loader import parse
from qualify.manifests.scalars import Scalar
from support.projects import SOUND, edited, write_project

# ── writing the same manifests in another way ────────────────────────────────────────────────────

ORDER_FREE = {
    "packages", "cpu_features", "files", "checks", "suites", "imported", "tool_parsers",
    "scenarios", "rows",
}  # fmt: skip
"""Lists whose order means nothing (scenarios of a suite, rows of a bundle included)."""


def rewritten(value: Any, chance: random.Random, indent: int = 0) -> str:
    """YAML of a parsed value with keys in another order, other styles and comments."""
    pad = " " * indent
    if isinstance(value, dict) and value:
        if chance.random() < 0.3:
            return (
                "{" + ", ".join(f"{k}: {flow(v, chance)}" for k, v in shuffled(value, chance)) + "}"
            )
        lines = []
        for key, member in shuffled(value, chance):
            item = member
            if chance.random() < 0.3:
                lines.append(f"{pad}# a comment: {chance.random()}")
            if key in ORDER_FREE and isinstance(item, list):
                item = chance.sample(item, len(item))
            nested = isinstance(item, dict | list) and item
            text = rewritten(item, chance, indent + 2)
            block = nested and not text.startswith(("{", "["))
            name = json.dumps(key) if chance.random() < 0.2 else key
            lines.append(f"{pad}{name}:\n{text}" if block else f"{pad}{name}:   {text}   # said")
        return "\n".join(lines)
    if isinstance(value, list) and value and chance.random() < 0.6:
        return "\n".join(f"{pad}- {flow(item, chance)}" for item in value)
    return flow(value, chance)


def flow(value: Any, chance: random.Random) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {flow(v, chance)}" for k, v in shuffled(value, chance)) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(flow(item, chance) for item in value) + "]"
    if value is None:
        return "null"
    assert isinstance(value, Scalar)
    return str(value) if value.plain and ":" not in value else json.dumps(str(value))


def shuffled(value: dict[str, Any], chance: random.Random) -> list[tuple[str, Any]]:
    return chance.sample(list(value.items()), len(value))


def digests(catalog: Catalog) -> dict[str, str]:
    rows = {name: resolve(catalog, name).digest for name in catalog.rows}
    return rows | {name: suite_identity(catalog, name).digest for name in catalog.suites}


def written(changes: dict[str, str | bytes | None]) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        project = write_project(Path(folder), changes)
        return digests(load_catalog(project, cache_folder=project / "cache"))


@cache
def unchanged() -> dict[str, str]:
    return written({})


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
def test_order_comments_and_style_change_no_digest(seed: int) -> None:
    chance = random.Random(seed)
    changes: dict[str, str | bytes | None] = {
        name: rewritten(parse(text.encode()).value, chance) + "\n"
        for name, text in SOUND.items()
        if name.endswith(".yaml")
    }
    assert written(changes) == unchanged()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    notes=st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"]), max_size=200),
    outcomes=st.lists(st.sampled_from(["qualified", "unsupported", "inconclusive"]), max_size=3),
    suites=st.sampled_from(["[]", "[acceptance]"]),
    budget=st.integers(1, 7200),
)
def test_notes_imported_outcomes_suites_and_start_up_budget_change_no_digest(
    notes: str, outcomes: list[str], suites: str, budget: int
) -> None:
    path = "manifests/matrix/one.yaml"
    head = (
        SOUND[path]
        .partition("suites:")[0]
        .replace("The first row.", json.dumps(notes, ensure_ascii=False))
    )
    imported = [
        {"outcome": word, "date": None, "reason": "because", "evidence": "elsewhere"}
        for word in outcomes
    ]
    tail = f"suites: {suites}\nstartup_budget_s: {budget}\nimported: {json.dumps(imported)}\n"
    assert written({path: head + tail}) == unchanged()


# ── changing one input at a time ─────────────────────────────────────────────────────────────────

UNBOUND = {
    "id", "notes", "startup_budget_s", "suites", "imported", "minimum_driver",
    "minimum_compute_capability", "tool_parsers", "sources", "licence", "api_key_variable",
    "quantizations", "model_formats", "base_layer",
}  # fmt: skip
"""Said again here on purpose: the code has its own list, and the two must agree."""
REFERENCES = {"runtime", "model", "script", "platform", "agent", "lock"}
"""Names whose content is bound in their place."""
FULL: dict[str, dict[str, Any]] = {
    "runtimes": {
        "id": "engine", "notes": "a note", "engine": "llama-cpp", "lock": "engine",
        "packages": [{"name": "alpha", "version": "1.2"}, {"name": "beta", "version": "2.0"}],
        "python": "3.12", "cuda": "12.9", "minimum_driver": "525.60", "tool_parsers": ["hermes"],
        "minimum_compute_capability": "7.5", "startup_budget_s": 60,
        "quantizations": [{"precision": "q4", "minimum_compute_capability": "7.5",
                           "whole_groups": "all", "source": "there"}],
        "model_formats": ["gguf"],
        "llama_cpp": {"threads": 2, "batch_tokens": 512, "gpu_layers": 0,
                      "chat_template_required": True},
    },
    "models": {
        "id": "small", "notes": "a note", "repository": "somebody/small", "revision": "1" * 40,
        "format": "gguf", "licence": {"spdx": "MIT", "approval": "none", "attribution": "them"},
        "chat_template": "embedded", "purpose": "release", "tool_parsers": ["hermes"],
        "files": [{"path": "a.gguf", "size": 1, "sha256": "a" * 64}],
        "sources": [{"kind": "hub"}],
        "architecture": {"parameters": 10, "blocks": 2, "trained_context": 4096},
    },
    "platforms": {
        "id": "here", "notes": "a note", "provider": "local", "architecture": "x86_64",
        "minimum_cores": 2, "minimum_memory_mib": 2000, "cpu_features": ["avx2"],
        "gpu": {"model": "T4", "count": 1, "memory_mib": 15360, "compute_capability": "7.5"},
        "driver": "535.1",
    },
    "agents": {
        "id": "coder", "notes": "a note", "harness": "openhands", "lock": "agent",
        "system_prompt": "Be brief.",
        "tools": [
            {"name": "terminal", "description": "Run.", "parameters": {"command": "What."}},
            {"name": "finish", "description": None, "parameters": None},
        ],
        "in_context_example": False, "grammar": "root ::= x",
        "sampling": {"temperature": "0.5", "top_p": "0.9", "seed": 7},
        "limits": {"max_input_tokens": 8192, "max_output_tokens": 200, "max_iterations": 12,
                   "command_timeout_s": 60, "command_output_bytes": 3000,
                   "request_timeout_s": 300},
    },
    "matrix": {
        "id": "one", "notes": "a note", "runtime": "engine", "model": "small", "platform": "here",
        "precision": "q4", "context_tokens": 4096, "slots": 1, "tensor_parallel": 1,
        "tool_parser": "hermes", "tool_mode": "prompt", "agent": "coder", "graph_mode": "eager",
        "placement": "host", "startup_budget_s": 30, "suites": ["acceptance"],
        "imported": [{"outcome": "qualified", "date": "2026-07-21", "driver": "1.2",
                      "reason": "it did", "evidence": "there"}],
    },
}  # fmt: skip
LOCKS = {"engine": "sha256:" + "1" * 64, "agent": "sha256:" + "2" * 64}
WORDS = [
    "vllm", "endpoint", "safetensors", "none", "unknown", "test", "aarch64", "think", "native",
    "cuda-graphs", "image", "explicit", "file", "inconclusive", "unlike",
    "3" * 40, "c" * 64, "2026-07-22", "9.5", "0.25",
]  # fmt: skip
"""Values to put in the place of others; the first that the schema takes is used."""


def configuration_digest(manifests: dict[str, dict[str, Any]], locks: dict[str, str]) -> str:
    made = {kind: KINDS[kind].model_validate(data) for kind, data in manifests.items()}
    known: dict[str, Any] = {
        ("rows" if kind == "matrix" else kind): {made[kind].id: made[kind]} if kind in made else {}
        for kind in KINDS
    }
    for kind, field in (("runtimes", "runtime"), ("models", "model"), ("agents", "agent")):
        known[kind] = {manifests["matrix"][field]: made[kind]}
    known["platforms"] = {manifests["matrix"]["platform"]: made["platforms"]}
    catalog = Catalog(project=Path("/"), locks=locks, files={}, **known)
    return resolve(catalog, made["matrix"].id).digest


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every scalar, and every list, which may grow."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))
        return
    if path:
        yield path
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from places(item, (*path, index))


def alternatives(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1]
    if isinstance(value, list):
        return [value[:-1], [*value, "more"], []]
    if value is None:
        return ["something", {"message": "What."}, None]
    return [word for word in (*WORDS, f"{value}x") if word != value]


def changed(
    manifests: dict[str, dict[str, Any]], path: tuple[str | int, ...]
) -> dict[str, dict[str, Any]] | None:
    """A copy with another valid value at `path`, or `None` when the schema has no other."""
    for candidate in alternatives(at(manifests, path)):
        copied = copy.deepcopy(manifests)
        at(copied, path[:-1])[path[-1]] = candidate
        if path == ("runtimes", "engine"):
            copied["runtimes"] |= {"llama_cpp": None, "vllm": {}}
        try:
            for kind, data in copied.items():
                KINDS[kind].model_validate(data)
        except ValidationError:
            continue
        return copied
    return None


def at(value: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


def is_bound_place(path: tuple[str | int, ...]) -> bool:
    names = [step for step in path[1:] if isinstance(step, str)]
    if names[0] in UNBOUND or names[-1] in UNBOUND:
        return False
    if path[:2] == ("models", "architecture"):
        return False
    return not (len(names) == 1 and names[0] in REFERENCES)


ALL_PLACES = list(places(FULL))
ONLY_ONE_WORD = {("agents", "harness")}
"""Fields whose schema knows a single value so far."""


def test_the_example_sets_every_field_of_every_kind_that_a_row_binds() -> None:
    for kind, data in FULL.items():
        missing = set(KINDS[kind].model_fields) - set(data)
        assert missing <= {"endpoint", "script", "vllm", "base_layer"}, kind


@pytest.mark.parametrize("path", ALL_PLACES, ids=lambda path: ".".join(map(str, path)))
def test_a_change_at_any_bound_place_changes_the_digest_and_at_others_it_does_not(
    path: tuple[str | int, ...],
) -> None:
    other = changed(FULL, path)
    if other is None:
        assert path in ONLY_ONE_WORD
        return
    locks = {**LOCKS, other["runtimes"]["lock"]: LOCKS["engine"]}
    locks[other["agents"]["lock"]] = LOCKS["agent"]
    differs = configuration_digest(other, locks) != configuration_digest(FULL, LOCKS)
    assert differs == is_bound_place(path)


@pytest.mark.parametrize("name", LOCKS)
def test_the_content_of_a_lock_is_bound(name: str) -> None:
    locks = {**LOCKS, name: "sha256:" + "3" * 64}
    assert configuration_digest(FULL, locks) != configuration_digest(FULL, LOCKS)


@settings(max_examples=100, deadline=None)
@given(chosen=st.lists(st.sampled_from(ALL_PLACES), min_size=1, max_size=5, unique=True))
def test_several_changes_change_the_digest_exactly_when_one_is_bound(
    chosen: list[tuple[str | int, ...]],
) -> None:
    present, applied = FULL, []
    for path in chosen:
        try:
            other = changed(present, path)
        except (IndexError, KeyError, TypeError):
            continue  # an earlier change took the place away
        if other is not None:
            present = other
            applied.append(path)
    locks = {**LOCKS, present["runtimes"]["lock"]: LOCKS["engine"]}
    locks[present["agents"]["lock"]] = LOCKS["agent"]
    differs = configuration_digest(present, locks) != configuration_digest(FULL, LOCKS)
    assert differs == any(is_bound_place(path) for path in applied)


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("manifests/scripts/nod.yaml", "hello", "goodbye"),
        ("manifests/scripts/nod.yaml", "message: done", "message: finished"),
        ("manifests/scripts/nod.yaml", '"yes"', '"no"'),
    ],
)
def test_what_a_script_says_is_bound_into_its_row_and_no_other(
    path: str, old: str, new: str
) -> None:
    before, after = unchanged(), written(edited(path, old, new))
    assert {name for name in before if before[name] != after[name]} == {"double"}
