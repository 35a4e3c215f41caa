"""The launch plan: complete, pure, and without anything private."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from qualify.manifests.kinds import Scenario
from qualify.runtimes.plan import launch_plan
from support import rows

SCENARIO = Scenario.model_validate(
    {
        "id": "case", "kind": "acceptance", "contract": 1, "corpus": "c", "checks": ("a",),
        "budgets": {"wall_time_s": 60, "actions": 4, "model_calls": 8},
    }
)  # fmt: skip


def test_a_plan_says_what_would_be_started():
    plan = launch_plan(rows.llama_cpp(row={"slots": 2}), [SCENARIO])
    assert plan.arguments["context_tokens"] == 16384
    assert plan.arguments["slots"] == 2
    assert plan.model_files == (("small.gguf", rows.SIZE, "a" * 64),)
    assert plan.startup_budget_s == 180
    assert plan.budgets[0].wall_time_s == 60
    assert plan.budgets[0].prompt_tokens is None
    assert "HOME" in plan.environment


@pytest.mark.parametrize(
    "configuration",
    [
        rows.llama_cpp(),
        rows.llama_cpp(row={"context_tokens": None}),
        rows.vllm(),
        rows.scripted([{"text": "a"}]),
        rows.endpoint("http://127.0.0.1:1/v1", api_key_variable="THEIR_KEY"),
    ],
)
def test_no_plan_holds_a_path_of_this_machine(configuration):
    text = json.dumps(asdict(launch_plan(configuration, [])))
    assert str(Path.home()) + "/" not in text
    assert str(Path(__file__).parents[3]) not in text


def test_an_endpoint_starts_nothing_and_the_variables_name_is_shown():
    plan = launch_plan(rows.endpoint("http://h/v1", api_key_variable="THEIR_KEY"), [])
    assert plan.program.startswith("nothing")
    assert plan.environment == ()
    assert plan.arguments["api_key_variable"] == "THEIR_KEY"
