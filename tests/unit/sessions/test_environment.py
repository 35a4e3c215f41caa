"""The environment of a worker is an allow-list: the settings of the SDK, nothing of the user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qualify.sessions.environment import prepare_this_process, worker_environment

PLANTED = {
    "OPENAI_API_KEY": "secret", "ANTHROPIC_API_KEY": "secret", "AWS_SECRET_ACCESS_KEY": "secret",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "secret", "LMNR_PROJECT_API_KEY": "secret",
    "LITELLM_LOG": "secret", "OPENHANDS_TOKEN": "secret", "HTTPS_PROXY": "secret",
    "LD_PRELOAD": "secret", "PYTHONSTARTUP": "secret",
}  # fmt: skip


def test_a_worker_gets_nothing_that_is_not_on_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LANG", "C.UTF-8")
    found = worker_environment(tmp_path)
    assert "secret" not in found.values()
    assert found["HOME"] == str(tmp_path)
    assert found["PATH"] == os.environ["PATH"]
    assert found["LANG"] == "C.UTF-8"
    # What the SDK must find before it is imported, or it asks the network.
    assert found["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"
    assert found["ALLOW_SHORT_CONTEXT_WINDOWS"] == "1"


def test_this_process_loses_what_would_open_exporters_and_keeps_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", {**PLANTED, "PATH": "/bin", "TZ": "UTC"})
    prepare_this_process()
    kept = {name for name in PLANTED if name in os.environ}
    assert kept == {"AWS_SECRET_ACCESS_KEY", "HTTPS_PROXY", "LD_PRELOAD", "PYTHONSTARTUP"}
    assert os.environ["TZ"] == "UTC"
    assert os.environ["NO_PROXY"] == "127.0.0.1,localhost"
    assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"
