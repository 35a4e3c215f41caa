"""What the configuration binds must be what is installed; anything else records nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from qualify.core.errors import UsageError
from qualify.manifests.catalog import load_catalog
from qualify.manifests.configuration import resolve
from qualify.runner import installed
from qualify.runner.installed import compare_with_lock, require_locked

ROOT = Path(__file__).parents[3]
ROW = "cpu-qwen2.5-coder-1.5b"


def test_the_environment_of_the_tests_is_the_locked_one() -> None:
    match = compare_with_lock(ROOT, "agent-openhands")
    assert match.wanted > 100
    assert match.wrong == ()
    require_locked(ROOT, resolve(load_catalog(ROOT), ROW))


@pytest.mark.parametrize("package", ["openhands-sdk", "litellm", "xllamacpp"])
@pytest.mark.parametrize("version", ["0.0.1", None])
def test_another_version_or_none_is_named_and_refused(
    package: str, version: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = installed.installed_version
    monkeypatch.setattr(
        installed, "installed_version", lambda name: version if name == package else real(name)
    )
    with pytest.raises(UsageError, match=package) as caught:
        require_locked(ROOT, resolve(load_catalog(ROOT), ROW))
    assert "nothing was recorded" in caught.value.fix
