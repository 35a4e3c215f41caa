"""Where evidence lives: the option, the variable, the project, the user's data folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from qualify.core.digests import digest_bytes
from qualify.core.errors import UsageError
from qualify.evidence.places import results_folder, trial_folder


@pytest.fixture(autouse=True)
def _surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUALIFY_RESULTS", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def test_the_nearest_word_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tmp_path / "project"
    assert results_folder(None, None) == tmp_path / "data/qualify/results"
    assert results_folder(project, None) == project / "results"
    monkeypatch.setenv("QUALIFY_RESULTS", "from-environment")
    assert results_folder(project, None) == tmp_path / "from-environment"
    assert results_folder(project, "from-option") == tmp_path / "from-option"
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_place_for_results(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is not a folder"):
        results_folder(None, "file")


def test_private_stores_lie_outside_the_results(tmp_path: Path) -> None:
    trial = digest_bytes(b"trial")
    folder = trial_folder("0" * 32, trial)
    assert folder == tmp_path / "state/qualify" / ("0" * 32) / "trials" / trial[7:]
    for wrong in ("../../etc", "sha256:../x", ""):
        with pytest.raises(ValueError, match="is not a trial id"):
            trial_folder("0" * 32, wrong)
