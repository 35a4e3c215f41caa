"""The house: what is written in two places says the same in both."""

import importlib.util
import os
import re
import tomllib
from pathlib import Path

import pytest

import qualify
from qualify.pins.locks import read_input

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def load_script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("declared", "name"),
    [
        (PROJECT["dependencies"], "base"),
        (PROJECT["optional-dependencies"]["run"], "run"),
        (PROJECT["optional-dependencies"]["dev"], "dev"),
    ],
)
def test_the_package_asks_for_what_the_locks_hold(declared, name):
    assert tuple(sorted(declared)) == read_input(ROOT / "locks" / f"{name}.in").requirements


def test_the_run_set_holds_agent_and_engine():
    run = set(read_input(ROOT / "locks/run.in").requirements)
    for part in ("agent-openhands", "llama-cpp-cpu"):
        assert set(read_input(ROOT / "locks" / f"{part}.in").requirements) <= run


def test_one_version_everywhere():
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert PROJECT["version"] == qualify.__version__
    assert f"## [{qualify.__version__}]" in changelog


def test_the_licence_is_the_one_declared():
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text("utf-8")[:200]


@pytest.mark.parametrize("name", ["qualify", "test", ".ci/run", "scripts/check-hosts"])
def test_entry_points_are_executable_bash(name):
    path = ROOT / name
    assert os.access(path, os.X_OK)
    assert path.read_text("utf-8").startswith("#!/usr/bin/env bash\n")


def test_ci_runs_the_same_command_as_a_person():
    lines = (ROOT / ".ci/run").read_text("utf-8").splitlines()
    assert lines[-1] == "exec ./test"


def test_no_module_has_a_name_that_says_nothing():
    vague = re.compile(r"^(utils?|helpers?|managers?|common|misc)$")
    assert [p for p in (ROOT / "src").rglob("*.py") if vague.match(p.stem)] == []


def test_pip_settings_become_uv_settings():
    listing = r"""
global.index-url='https://mirror.invalid/simple'
global.extra-index-url='file:///a/simple\nfile:///b/simple'
global.find-links='/wheels'
:env:.find-links='/w1 /w2'
install.timeout='30'
global.unrelated='x'
freeze.index-url='https://other.invalid'
"""
    assert load_script("index_settings").uv_environment(listing) == {
        "UV_DEFAULT_INDEX": "https://mirror.invalid/simple",
        "UV_INDEX": "file:///a/simple file:///b/simple",
        "UV_FIND_LINKS": "/w1,/w2",
        "UV_HTTP_TIMEOUT": "30",
    }
