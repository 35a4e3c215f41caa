"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qualify.core.errors import EnvironmentFault, UsageError
from qualify.storage.staging import ScratchFolder, staged_folder


def fill(target: Path, text: str = "x") -> None:
    with staged_folder(target) as folder:
        (folder / "file").write_text(text)
        assert not (target / "file").exists()


def test_the_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    fill(tmp_path / "target")
    assert (tmp_path / "target/file").read_text() == "x"
    assert (tmp_path / "target").stat().st_mode & 0o7777 == 0o755
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_an_error_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def fail() -> None:
        with staged_folder(tmp_path / "target") as folder:
            (folder / "file").write_text("x")
            raise error

    with pytest.raises(error):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_relative_target_is_where_it_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with staged_folder(Path("target")):
        os.chdir("/")
    assert (tmp_path / "target").is_dir()


def test_an_empty_folder_is_replaced_and_a_full_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    fill(tmp_path / "target")
    with pytest.raises(UsageError, match="is there already"):
        fill(tmp_path / "target", "y")
    assert (tmp_path / "target/file").read_text() == "x"


@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_what_is_no_folder_is_not_replaced(tmp_path: Path, kind: str) -> None:
    target, other = tmp_path / "target", tmp_path / "other"
    if kind == "file":
        target.write_text("mine")
    else:
        target.symlink_to(other)
        if kind == "link":
            other.mkdir()
    with pytest.raises(UsageError, match="is there already"):
        fill(target)
    assert target.is_symlink() or target.read_text() == "mine"


def test_a_folder_that_somebody_made_meanwhile_is_left_alone(tmp_path: Path) -> None:
    def race() -> None:
        with staged_folder(tmp_path / "target"):
            (tmp_path / "target").mkdir()
            (tmp_path / "target/mine").write_text("mine")

    with pytest.raises(UsageError, match="another process"):
        race()
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert (tmp_path / "target/mine").read_text() == "mine"


def test_a_leftover_is_removed_by_the_next_call_for_the_same_target_only(tmp_path: Path) -> None:
    for name in (".target.partial-1", ".other.partial-1", ".target.partial-2"):
        (tmp_path / name / "deep").mkdir(parents=True)
    fill(tmp_path / "target")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".other.partial-1", "target"]


def test_a_folder_that_is_being_filled_is_no_leftover(tmp_path: Path) -> None:
    with staged_folder(tmp_path / "target") as first:
        (first / "file").write_text("first")
        fill(tmp_path / "target", "second")
        assert (first / "file").exists()
        (tmp_path / "target/file").unlink()
    assert (tmp_path / "target/file").read_text() == "first"


@pytest.mark.parametrize("name", ["tar*get", "[target]", "tar get"])
def test_an_odd_name_removes_nothing_else(tmp_path: Path, name: str) -> None:
    (tmp_path / ".tarXget.partial-1").mkdir()
    (tmp_path / f".{name}.partial-1").mkdir()
    fill(tmp_path / name)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".tarXget.partial-1", name]


def test_a_parent_that_is_missing_or_no_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for parent in ("gone", "file"):
        with pytest.raises(UsageError, match="is no folder"):
            fill(tmp_path / parent / "target")


def test_a_place_that_cannot_be_written_is_named() -> None:
    with pytest.raises(EnvironmentFault, match="cannot be written"):
        fill(Path("/proc/qualify-test"))


def test_a_scratch_folder_of_a_killed_maker_goes_and_that_of_a_living_one_stays(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine-left").mkdir()
    (tmp_path / "mine-left/socket").touch()
    (tmp_path / "other").mkdir()
    living = ScratchFolder("mine-", tmp_path)
    second = ScratchFolder("mine-", tmp_path)
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == sorted(["other", living.path.name, second.path.name])
    assert living.path.stat().st_mode & 0o777 == 0o700
    living.remove()
    second.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
