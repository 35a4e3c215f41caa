"""Private folders, atomic writes and locks between processes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from qualify.core.errors import EnvironmentFault
from qualify.storage.folders import (
    private_folder,
    write_atomic,
    xdg_cache_home,
    xdg_data_home,
    xdg_state_home,
)
from qualify.storage.locks import LockHeld, file_lock, is_locked, lock_owner


@pytest.mark.parametrize(
    ("place", "variable", "default"),
    [
        (xdg_state_home, "XDG_STATE_HOME", ".local/state"),
        (xdg_data_home, "XDG_DATA_HOME", ".local/share"),
        (xdg_cache_home, "XDG_CACHE_HOME", ".cache"),
    ],
)
def test_xdg_places(place, variable: str, default: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv(variable, "/elsewhere")
    assert place() == Path("/elsewhere/qualify")
    for ignored in ("", "relative/folder"):
        monkeypatch.setenv(variable, ignored)
        assert place() == Path("/home/someone") / default / "qualify"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_private_folder_is_closed_to_others_even_if_it_was_open(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert mode(private_folder(folder)) == 0o700
    folder.chmod(0o755)
    assert mode(private_folder(folder)) == 0o700


def test_a_link_or_a_file_is_no_private_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("")
    for name in ("link", "file"):
        with pytest.raises(EnvironmentFault):
            private_folder(tmp_path / name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    with pytest.raises(EnvironmentFault, match="another user"):
        private_folder(folder)


def test_an_atomic_write_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    write_atomic(target, b"new", mode=0o600)
    assert target.read_bytes() == b"new"
    assert mode(target) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_an_atomic_write_that_fails_keeps_the_old_file(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "inside").write_text("kept")
    with pytest.raises(OSError, match="directory"):
        write_atomic(folder, b"new")
    assert (folder / "inside").read_text() == "kept"
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def test_an_exclusive_lock_keeps_others_out_and_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with file_lock(path):
        assert is_locked(path)
        assert lock_owner(path) == os.getpid()
        for shared in (True, False):
            with pytest.raises(LockHeld) as caught, file_lock(path, shared=shared):
                pass
            assert caught.value.pid == os.getpid()
    assert not is_locked(path)
    with file_lock(path):
        pass


def test_shared_locks_stand_side_by_side_and_exclude_an_exclusive_one(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with file_lock(path, shared=True), file_lock(path, shared=True):
        assert not is_locked(path)
        with pytest.raises(LockHeld), file_lock(path, timeout_s=0.01):
            pass


def test_a_missing_lock_file_is_not_locked_and_asking_creates_nothing(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "lock")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"garbage", b"[]", b'{"pid":"x"}', b"\xff"])
def test_a_lock_file_with_odd_content_names_nobody(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lock").write_bytes(content)
    assert lock_owner(tmp_path / "lock") is None


HOLD = """
import sys
from pathlib import Path
from qualify.storage.locks import file_lock
with file_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with pytest.raises(LockHeld) as caught, file_lock(path):
            pass
        assert caught.value.pid == child.pid
        child.kill()
    with file_lock(path):
        assert lock_owner(path) == os.getpid()
