"""`qualify plan`: shows, starts nothing, writes nothing, and says why a row is refused."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from qualify.cli import cli

ROOT = Path(__file__).parents[3]


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """`plan(*arguments)` in the project, with stores of the test's own."""
    for name in ("XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.delenv("QUALIFY_MODEL_STORE", raising=False)

    def ask(*arguments):
        return CliRunner().invoke(cli, ["--project", str(ROOT), "plan", *arguments])

    return ask


def test_a_row_that_can_run_shows_what_would_be_started(plan, tmp_path):
    done = plan("cpu-qwen2.5-coder-1.5b")
    assert done.return_value == 0 or done.exit_code == 0
    for words in ("context_tokens", "16384", "127.0.0.1", "qualify model acquire", "wall time s"):
        assert words in done.stdout
    assert "refused" not in done.output
    assert list(tmp_path.iterdir()) == []


def test_a_refused_row_gives_its_reasons_and_exit_10(plan):
    done = CliRunner().invoke(
        cli, ["--project", str(ROOT), "plan", "cpu-gemma-3-270m"], standalone_mode=False
    )
    assert done.return_value == 10
    assert "no-chat-template" in done.stderr


def test_the_document_says_the_same(plan):
    document = json.loads(plan("terra-4xt4-gpt-oss-20b", "--json").stdout)
    assert document["schema"] == "qualify-plan/1"
    assert document["admitted"] is False
    contradictions = [r["code"] for r in document["reasons"] if r["contradiction"]]
    assert contradictions == ["precision-capability"]
    assert document["plan"]["memory"]["total_mib"] is None
    assert document["machine_mismatches"]


@pytest.mark.parametrize(
    ("row", "code", "fix"),
    [
        ("terra-4xt4-qwen3-coder-30b-fp8", "quantization-groups", "valid here: 1, 2"),
        ("terra-4xt4-qwen3-coder-30b-awq", "quantization-groups", "valid here: 1, 2"),
        ("terra-4xt4-gpt-oss-120b", "precision-capability", "at least 8.0"),
        ("terra-4xt4-gpt-oss-120b", "memory-too-small", "more memory"),
    ],
)
def test_each_reason_comes_with_its_fix_in_both_forms(plan, row, code, fix):
    document = json.loads(plan(row, "--json").stdout)
    (reason,) = (each for each in document["reasons"] if each["code"] == code)
    assert fix in reason["fix"]
    assert reason["contradiction"] is True
    assert reason["text"] in plan(row).stderr


def test_a_row_that_nobody_ran_shows_its_memory_and_the_largest_context(plan):
    document = json.loads(plan("2xt4-qwen3-coder-30b-awq-cu129", "--json").stdout)
    memory = document["plan"]["memory"]
    assert memory["total_mib"] == 8598 + 864 + 1024
    assert memory["largest_context_tokens"] == 89600
    assert [r["code"] for r in document["reasons"] if r["contradiction"]] == []
    assert "89600 tokens" in plan("2xt4-qwen3-coder-30b-awq-cu129").stdout


def test_the_suites_budgets_are_those_that_were_asked_for(plan):
    for suite in ("acceptance", "repair"):
        document = json.loads(plan("cpu-qwen2.5-coder-1.5b", "--suite", suite, "--json").stdout)
        assert document["suite"] == suite
        assert document["plan"]["budgets"][0]["kind"] == suite
        assert document["plan"]["budgets"][0]["wall_time_s"] > 0


@pytest.mark.parametrize(
    "arguments", [("no-such-row",), ("cpu-qwen2.5-coder-1.5b", "--suite", "no-such-suite")]
)
def test_what_is_not_known_is_a_usage_error(arguments):
    from qualify.core.errors import UsageError

    done = CliRunner().invoke(
        cli, ["--project", str(ROOT), "plan", *arguments], standalone_mode=False
    )
    assert isinstance(done.exception, UsageError)


def test_no_output_holds_a_path_of_this_machine(plan):
    for arguments in (("cpu-qwen2.5-coder-1.5b",), ("cpu-qwen2.5-coder-1.5b", "--json")):
        assert str(ROOT) not in plan(*arguments).output
