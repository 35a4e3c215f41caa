"""Rows that run inside the llama.cpp image that this checkout builds."""

from dataclasses import replace
from pathlib import Path

import pytest

from qualify.core.status import EvidenceClass
from qualify.manifests.catalog import load_catalog
from qualify.manifests.configuration import resolve
from qualify.models.store import acquire
from qualify.runner.image_place import image_place
from qualify.runtimes.engine import make_engine
from support.image_runs import run_without_network

pytestmark = [pytest.mark.builds, pytest.mark.slow, pytest.mark.real_model]


@pytest.mark.timeout(900)
def test_the_image_serves_a_completion_from_weights_mounted_read_only(
    tree, image, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    catalog = load_catalog(tree.folder, cache_folder=tmp_path / "parsed")
    made = resolve(catalog, "cpu-smollm2-135m")
    row = replace(made, row=made.row.model_copy(update={"placement": "image"}))
    root = image_place(catalog, row, Path(image("llama-cpp-cpu")["path"]))
    (weights,) = acquire(catalog.model(row.model.id)).path_of.values()
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    engine = make_engine(row, model_path=weights, private=private, startup_budget_s=300, root=root)
    engine.start()
    try:
        facts = engine.wait_ready()
    finally:
        engine.stop()
    assert facts.image == root.digest == image("llama-cpp-cpu")["digest"]
    assert facts.version == dict(made.runtime.packages[0])["version"]


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_acceptance_scenario_passes_in_the_image_without_a_network(tree, image, tmp_path):
    acquire(load_catalog(tree.folder).model("qwen2.5-coder-1.5b-instruct-q4_k_m"))
    built = image("llama-cpp-cpu")
    ran = run_without_network(
        tree.folder, "cpu-qwen2.5-coder-1.5b-image", Path(built["path"]), tmp_path
    )
    (trial,) = ran.trials
    assert trial.outcome == "passed"
    assert trial.engine.image == built["digest"]
    assert trial.engine.network == "loopback-only"
    assert ran.document["assessment"]["evidence_class"] == EvidenceClass.REAL_MODEL
