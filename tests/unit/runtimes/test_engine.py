"""The engine registry, and what importing it costs: nothing heavy before a server is started."""

import subprocess
import sys

import pytest

from qualify.core.errors import UsageError
from qualify.core.status import EngineKind
from qualify.runtimes.engine import ENGINES, make_engine
from support import rows

HEAVY = ("aiohttp", "asyncio", "pydantic", "ruamel", "duckdb", "openhands", "litellm", "xllamacpp")


def heavy_after(statement):
    code = f"{statement}\nimport sys\nprint(*[n for n in {HEAVY!r} if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.split()


@pytest.mark.parametrize("module", ["engine", "llama_cpp", "endpoint", "scripted", "local"])
def test_importing_an_engine_imports_nothing_heavy(module):
    assert heavy_after(f"import qualify.runtimes.{module}") == []


def test_the_relay_imports_aiohttp_only_when_it_starts():
    assert "aiohttp" not in heavy_after("import qualify.runtimes.relay")
    assert "aiohttp" in heavy_after("import qualify.runtimes.relaying")


def test_every_registered_engine_is_made(tmp_path):
    made = [
        rows.llama_cpp(),
        rows.vllm(),
        rows.endpoint("http://127.0.0.1:1/v1"),
        rows.scripted([{"text": "a"}]),
    ]
    assert {configuration.runtime.engine for configuration in made} == set(ENGINES)
    for configuration in made:
        engine = make_engine(configuration, model_path=None, private=tmp_path, startup_budget_s=1)
        assert not engine.alive()
        engine.stop()


def test_an_engine_that_is_not_here_is_a_usage_error(tmp_path, monkeypatch):
    monkeypatch.delitem(ENGINES, EngineKind.VLLM)
    with pytest.raises(UsageError, match="vllm cannot be started"):
        make_engine(rows.vllm(), model_path=None, private=tmp_path, startup_budget_s=1)


def test_the_address_is_not_known_before_the_engine_is_ready(tmp_path):
    engine = make_engine(
        rows.scripted([{"text": "a"}]), model_path=None, private=tmp_path, startup_budget_s=1
    )
    with pytest.raises(RuntimeError, match="not ready"):
        _ = engine.base_url
