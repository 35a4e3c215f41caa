"""The manifests that Qualify ships: they load, and say what is known, no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from qualify.core.status import EngineKind
from qualify.manifests.catalog import Catalog, load_catalog
from qualify.manifests.configuration import resolve
from qualify.manifests.kinds import PythonPackagesSource
from qualify.runtimes.admission import admit

PROJECT = Path(__file__).parents[3]

IMPORTED = {
    "carina-2xl40s-gpt-oss-120b": ("inconclusive", "2026-07-22", 65_536, 2),
    "carina-2xl40s-qwen3-coder-next-fp8": ("inconclusive", "2026-07-21", 18_432, 2),
    "carina-l40s-qwen3-coder-30b-fp8": ("qualified", "2026-07-21", 32_768, 1),
    "terra-2xt4-qwen3-coder-30b-awq": ("qualified", "2026-07-22", 18_432, 2),
    "terra-4xt4-gpt-oss-120b": ("unsupported", None, None, 4),
    "terra-4xt4-gpt-oss-20b": ("unsupported", None, None, 4),
    "terra-4xt4-qwen3-coder-30b-awq": ("unsupported", None, None, 4),
    "terra-4xt4-qwen3-coder-30b-fp8": ("unsupported", None, None, 4),
    "terra-t4-qwen25-coder-14b-awq": ("unsupported", "2026-07-21", None, 1),
    "terra-t4-qwen25-coder-7b-awq": ("unsupported", "2026-07-21", None, 1),
}
"""Outcome, day, context and tensor parallelism as the peer published them."""

ACCELERATORS = {"l40s", "t4", "2xt4"}
"""Platforms of rows that nobody has run here, with models whose files are not listed yet."""

FILES = {
    "qwen2.5-coder-1.5b-instruct-q4_k_m": (
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        22,
    ),
    "gemma-3-270m-q4_k_m": (
        253_113_024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        4,
    ),
    "smollm2-135m-instruct-q4_1": (
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        1,
    ),
}
"""Size, SHA-256 and number of parts of each model that packages carry."""


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    return load_catalog(PROJECT, cache_folder=tmp_path_factory.mktemp("cache"))


def test_outcomes_from_elsewhere_are_declared_as_published(catalog: Catalog) -> None:
    declared = {name: row for name, row in catalog.rows.items() if row.imported}
    assert set(declared) == set(IMPORTED)
    for name, (outcome, day, context, parallel) in IMPORTED.items():
        row = declared[name]
        (imported,) = row.imported
        assert (imported.outcome, imported.date and imported.date.isoformat()) == (outcome, day)
        assert (row.context_tokens, row.tensor_parallel) == (context, parallel)
        assert imported.reason or outcome == "qualified"
        assert resolve(catalog, name).declared_only, name


def test_rows_without_a_declared_outcome_can_be_run(catalog: Catalog) -> None:
    own = [name for name, row in catalog.rows.items() if not row.imported]
    assert "cpu-qwen2.5-coder-1.5b" in own
    lacking = {name: resolve(catalog, name).declared_only for name in own}
    complete = [name for name in own if catalog.rows[name].platform not in ACCELERATORS]
    assert {name for name in complete if lacking[name]} == set()
    for name in set(own) - set(complete):
        assert lacking[name] == ("the model has no files",), name


def test_rows_on_accelerators_are_declared_for_both_cuda_majors_and_claim_nothing(
    catalog: Catalog,
) -> None:
    own = {n: row for n, row in catalog.rows.items() if row.platform in ACCELERATORS}
    assert {row.runtime for row in own.values()} == {"vllm-0.19.1-cu129", "vllm-0.33.0-cu130"}
    assert {row.platform for row in own.values()} == ACCELERATORS
    for name, row in own.items():
        assert not row.imported, name
        told = {reason.code for reason in admit(resolve(catalog, name))}
        assert told <= {"declared-only", "engine-not-available"}, (name, told)


@pytest.mark.parametrize("name", FILES)
def test_a_models_parts_are_listed_in_order(catalog: Catalog, name: str) -> None:
    size, sha256, count = FILES[name]
    model = catalog.model(name)
    (file,) = model.files
    assert (file.size, file.sha256) == (size, sha256)
    source = model.sources[0]
    assert isinstance(source, PythonPackagesSource)
    assert len(source.parts) == count
    if count > 1:
        numbers = [int(part.package.rpartition("-part")[2]) for part in source.parts]
        assert numbers == list(range(1, count + 1))


def test_a_licence_that_restricts_use_needs_approval_by_name(catalog: Catalog) -> None:
    approval = {name: model.licence.approval for name, model in catalog.models.items()}
    assert approval["gemma-3-270m-q4_k_m"] == "explicit"
    assert approval["qwen2.5-coder-1.5b-instruct-q4_k_m"] == "none"


def test_versions_asserted_before_a_run_are_those_of_the_lock(catalog: Catalog) -> None:
    import json

    for runtime in catalog.runtimes.values():
        if runtime.lock is None:
            assert runtime.engine is not EngineKind.LLAMA_CPP
            continue
        lock = json.loads((PROJECT / "locks" / f"{runtime.lock}.json").read_text())
        pinned = {package["name"]: package["version"] for package in lock["packages"]}
        assert {each.name: pinned.get(each.name) for each in runtime.packages} == {
            each.name: each.version for each in runtime.packages
        }


def test_the_fixture_model_is_committed_as_its_manifest_pins_it(catalog: Catalog) -> None:
    from qualify.core.digests import digest_file

    model = catalog.model("fixture-tools")
    folder = PROJECT / "tests/fixtures/models/fixture-tools"
    assert model.purpose == "test"
    assert {str(file.path) for file in model.files} == {path.name for path in folder.iterdir()}
    for file in model.files:
        assert digest_file(folder / file.path) == f"sha256:{file.sha256}"
    assert sum(file.size for file in model.files) < 1_000_000


def test_trials_of_the_fixture_model_are_a_class_of_their_own(catalog: Catalog) -> None:
    assert resolve(catalog, "cpu-fixture-vllm").evidence_class == "fixture"
    assert resolve(catalog, "cpu-qwen2.5-coder-1.5b-image").evidence_class == "real-model"
