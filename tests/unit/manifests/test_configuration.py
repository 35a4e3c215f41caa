"""Configurations, suites and policies as digests, by example."""

from __future__ import annotations

from pathlib import Path

import pytest

from qualify.core.digests import digest_json
from qualify.core.errors import Refusal
from qualify.core.status import EvidenceClass
from qualify.manifests.catalog import Catalog, load_catalog
from qualify.manifests.configuration import (
    diff,
    files_content,
    is_bound,
    policy_digest,
    resolve,
    suite_identity,
)
from qualify.manifests.kinds import KINDS, Policy
from support.projects import SOUND, edited, write_project

ROW = "manifests/matrix/one.yaml"
RUNTIME = "manifests/runtimes/engine.yaml"
MODEL = "manifests/models/small.yaml"
AGENT = "manifests/agents/coder.yaml"


def load(folder: Path, changes: dict[str, str | bytes | None] | None = None) -> Catalog:
    return load_catalog(write_project(folder, changes), cache_folder=folder / "cache")


def test_the_digest_is_that_of_everything_shown_as_bound(tmp_path: Path) -> None:
    configuration = resolve(load(tmp_path), "one")
    assert configuration.digest == digest_json(configuration.bound)
    bound = configuration.bound
    assert bound["base_layer"] is None
    assert bound["runtime"]["lock"].startswith("sha256:")
    assert bound["runtime"]["llama_cpp"]["batch_tokens"] == 512
    assert [file["path"] for file in bound["model"]["files"]] == ["a.gguf", "b.gguf"]
    assert bound["platform"]["provider"] == "local"
    assert bound["agent"]["sampling"] == {"temperature": "0.5"}
    assert bound["row"]["context_tokens"] == 4096
    for part in ("runtime", "model", "platform", "agent", "row"):
        assert not {"id", "notes"} & set(bound[part])
    assert not {"suites", "imported", "startup_budget_s", "model", "agent"} & set(bound["row"])


def test_what_is_not_bound_is_this_list_and_nothing_else() -> None:
    listed = {
        (kind, name)
        for kind, model in KINDS.items()
        for name, field in model.model_fields.items()
        if not is_bound(field.json_schema_extra) and name not in ("id", "notes")
    }
    assert listed == {
        ("runtimes", "minimum_driver"),
        ("runtimes", "minimum_compute_capability"),
        ("runtimes", "tool_parsers"),
        ("runtimes", "quantizations"),
        ("runtimes", "model_formats"),
        ("runtimes", "base_layer"),
        ("runtimes", "startup_budget_s"),
        ("models", "licence"),
        ("models", "sources"),
        ("models", "architecture"),
        ("models", "tool_parsers"),
        ("matrix", "startup_budget_s"),
        ("matrix", "suites"),
        ("matrix", "imported"),
        ("corpora", "title"),
        ("corpora", "licence"),
        ("corpora", "origin"),
        ("corpora", "synthetic"),
    }


def test_renaming_what_a_row_refers_to_changes_nothing(tmp_path: Path) -> None:
    before = resolve(load(tmp_path / "a"), "one").digest
    renamed = {
        MODEL: None,
        "manifests/models/tiny.yaml": SOUND[MODEL].replace("id: small", "id: tiny"),
        "manifests/bundles/offline.yaml": None,
        **edited(ROW, "model: small", "model: tiny"),
    }
    assert resolve(load(tmp_path / "b", renamed), "one").digest == before


def test_a_changed_lock_changes_the_digest_and_diff_names_it(tmp_path: Path) -> None:
    before = resolve(load(tmp_path / "a"), "one")
    after = resolve(load(tmp_path / "b", {"locks/engine.json": '{"set":"engine2"}\n'}), "one")
    assert before.digest != after.digest
    assert [each.path for each in diff(before, after)] == ["runtime.lock"]


def test_diff_names_every_bound_input_that_differs_and_no_other(tmp_path: Path) -> None:
    catalog = load(
        tmp_path,
        {
            "manifests/matrix/two.yaml": SOUND[ROW]
            .replace("id: one", "id: two")
            .replace("tool_mode: prompt", "tool_mode: native\ntool_parser: hermes")
            .replace("4096", "2048")
        },
    )
    one, two = resolve(catalog, "one"), resolve(catalog, "two")
    assert [(each.path, each.a, each.b) for each in diff(one, two)] == [
        ("row.context_tokens", 4096, 2048),
        ("row.tool_mode", "prompt", "native"),
        ("row.tool_parser", None, "hermes"),
    ]
    assert diff(one, one) == []


def test_the_order_of_tools_is_bound_because_the_model_reads_it(tmp_path: Path) -> None:
    before = resolve(load(tmp_path / "a"), "one").digest
    swapped = edited(
        AGENT,
        "  - name: terminal\n    description: Run a command.\n  - name: finish\n",
        "  - name: finish\n  - name: terminal\n    description: Run a command.\n",
    )
    assert resolve(load(tmp_path / "b", swapped), "one").digest != before


@pytest.mark.parametrize(
    ("changes", "row", "expected"),
    [
        ({}, "one", EvidenceClass.REAL_MODEL),
        ({}, "double", EvidenceClass.SCRIPTED),
        (
            edited(MODEL, "format: gguf", "format: gguf\npurpose: test"),
            "one",
            EvidenceClass.FIXTURE,
        ),
    ],
)
def test_the_evidence_class_follows_from_the_manifests(
    tmp_path: Path, changes: dict[str, str | bytes | None], row: str, expected: EvidenceClass
) -> None:
    assert resolve(load(tmp_path, changes), row).evidence_class is expected


def test_the_startup_budget_is_the_rows_or_the_runtimes(tmp_path: Path) -> None:
    assert resolve(load(tmp_path / "a"), "one").startup_budget_s == 180
    own = edited(ROW, "precision: q4", "precision: q4\nstartup_budget_s: 9")
    assert resolve(load(tmp_path / "b", own), "one").startup_budget_s == 9


def test_a_row_that_only_stands_for_outcomes_elsewhere_says_why_it_cannot_run(
    tmp_path: Path,
) -> None:
    assert resolve(load(tmp_path / "a"), "one").declared_only == ()
    assert resolve(load(tmp_path / "a"), "double").declared_only == ()
    changes = {
        **edited(ROW, "context_tokens: 4096", "context_tokens: null\ngraph_mode: null"),
        **edited(RUNTIME, "lock: engine\n", ""),
        **edited(AGENT, "lock: agent", "lock: null"),
    }
    configuration = resolve(load(tmp_path / "b", changes), "one")
    assert configuration.declared_only == (
        "the runtime has no lock",
        "the agent has no lock",
        "the context window is not known",
        "the graph mode is not known",
    )
    with pytest.raises(Refusal, match="context window is not known"):
        _ = configuration.context_tokens


def test_a_suite_binds_its_cases_and_their_data(tmp_path: Path) -> None:
    before = suite_identity(load(tmp_path / "a"), "acceptance")
    assert [scenario.id for scenario in before.scenarios] == ["edit"]
    scenario = "manifests/scenarios/edit.yaml"
    bound = [
        edited(scenario, "contract: 1", "contract: 2"),
        edited(scenario, "bytes]", "bytes, replay]"),
        edited(scenario, "actions: 4", "actions: 5"),
        edited(scenario, "kind: acceptance", "kind: repair"),
    ]
    free = [
        edited(
            scenario, "[direct-inference, expected-bytes]", "[expected-bytes, direct-inference]"
        ),
        edited(scenario, "id: edit", "id: edit\nnotes: for readers"),
        edited("corpora/letters/card.yaml", "title: Letters", "title: Other letters"),
    ]
    digests = [
        suite_identity(load(tmp_path / str(index), change), "acceptance").digest
        for index, change in enumerate(bound + free)
    ]
    assert before.digest not in digests[: len(bound)]
    assert set(digests[len(bound) :]) == {before.digest}


def test_changed_data_changes_the_suite_and_not_the_configuration(tmp_path: Path) -> None:
    first, data = load(tmp_path / "a"), b"{}\n"
    card = SOUND["corpora/letters/card.yaml"]
    old = card.split('"')[1]
    new_digest = digest_of(data)
    changed = load(
        tmp_path / "b",
        {
            "corpora/letters/cases.json": data,
            "corpora/letters/card.yaml": card.replace(old, new_digest).replace(
                "size: 19", f"size: {len(data)}"
            ),
        },
    )
    before, after = suite_identity(first, "acceptance"), suite_identity(changed, "acceptance")
    assert before.digest != after.digest
    assert resolve(first, "one").digest == resolve(changed, "one").digest


def digest_of(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


def test_a_policys_name_is_not_its_content() -> None:
    numbers = {"trials_needed": 3, "freshness_days": 30, "minimum_pass_percent": 80}
    first = policy_digest(Policy(id="release", **numbers))
    assert policy_digest(Policy(id="other", notes="x", **numbers)) == first
    assert policy_digest(Policy(id="release", **{**numbers, "freshness_days": 31})) != first


def test_the_files_of_a_model_are_listed_by_path(tmp_path: Path) -> None:
    files = files_content(load(tmp_path).model("small"))
    assert files == [
        {"path": "a.gguf", "size": 1, "sha256": "a" * 64},
        {"path": "b.gguf", "size": 2, "sha256": "b" * 64},
    ]


def test_the_order_of_a_suites_scenarios_is_not_bound_and_their_ids_are(tmp_path: Path) -> None:
    scenario, suite = "manifests/scenarios/edit.yaml", "manifests/suites/acceptance.yaml"

    def digest(folder: str, listed: str, other: str) -> str:
        changes: dict[str, str | bytes | None] = {
            f"manifests/scenarios/{other}.yaml": SOUND[scenario].replace("edit", other, 1),
            suite: f"id: acceptance\nscenarios: [{listed}]\n",
        }
        return suite_identity(load(tmp_path / folder, changes), "acceptance").digest

    first = digest("a", "edit, alter", "alter")
    assert digest("b", "alter, edit", "alter") == first
    assert digest("c", "edit, amend", "amend") != first
