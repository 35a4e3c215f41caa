"""Resolving and fetching Debian packages with the real apt, from an archive in a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from qualify.core.errors import EnvironmentFault, Refusal, UsageError
from qualify.pins.apt import SOURCES_VARIABLE
from qualify.pins.debian import (
    DebianLock,
    debian_lock_bytes,
    read_debian_input,
    read_debian_lock,
)
from qualify.pins.debian_resolution import resolve_debian
from qualify.pins.depot import read_index, verify
from qualify.pins.depot_fill import fill
from qualify.pins.elf import nar_sha256
from qualify.pins.wanted import wanted_sets
from support.debian_archive import make_archive
from support.depots import PROGRAM, make_depot, sha256

ASKED = """\
# purpose: a lock for tests
# release: trixie
[build]
busybox-static
[base]
libb
!debconf debconf-2.0
[more: base]
tool
"""


@pytest.fixture
def archive(tmp_path, monkeypatch):
    root = tmp_path / "mirror"
    monkeypatch.setenv(SOURCES_VARIABLE, str(make_archive(root)))
    return root


@pytest.fixture
def locks(tmp_path, archive):
    folder = tmp_path / "locks"
    folder.mkdir()
    (folder / "debian.in").write_text(ASKED)
    lock = resolve_debian(read_debian_input(folder / "debian.in"))
    (folder / "debian.json").write_bytes(debian_lock_bytes(lock))
    return folder


def filled(locks, name="debian"):
    depot = locks.parent / "depot"
    fill(wanted_sets(locks, [name]), depot, 2, lambda _step: None)
    return depot


def test_each_closure_is_complete_and_holds_no_more(locks):
    lock = read_debian_lock(locks / "debian.json")
    assert {name: c.packages for name, c in lock.closures.items()} == {
        "build": ("busybox-static",),
        "base": ("liba", "libb"),
        "more": ("liba", "libb", "tool"),
    }
    assert lock.closures["base"].without == ("debconf",)
    assert lock.release.date == "Sat, 21 Nov 2026 09:15:44 UTC"
    assert lock.bootstrap.busybox.nar_sha256 == nar_sha256(PROGRAM)


def test_a_lock_holds_pool_paths_without_a_host(locks, archive):
    lock = read_debian_lock(locks / "debian.json")
    package = lock.closure("base")[0]
    assert package.file == "liba_1.0~rc1-1_amd64.deb"
    assert package.path == f"pool/main/l/liba/{package.file}"
    assert package.version == "1:1.0~rc1-1"
    assert package.sha256 == sha256((archive / package.path).read_bytes())
    assert str(archive) not in (locks / "debian.json").read_text()


def test_resolving_twice_gives_the_same_bytes(locks):
    again = resolve_debian(read_debian_input(locks / "debian.in"))
    assert debian_lock_bytes(again) == (locks / "debian.json").read_bytes()


def test_a_package_that_is_not_there_ends_the_resolution(locks):
    (locks / "debian.in").write_text(ASKED.replace("tool", "no-such-tool"))
    with pytest.raises(UsageError, match="no-such-tool"):
        resolve_debian(read_debian_input(locks / "debian.in"))


def test_a_depot_holds_the_packages_and_the_first_program_of_a_build(locks):
    depot = filled(locks)
    index = read_index(depot)
    assert {file.name for file in index.files} == {
        f"{name}_1.0-rc1-1_amd64.deb" for name in ("busybox-static", "liba", "libb", "tool")
    }
    assert (depot / "busybox-elf/busybox").read_bytes() == PROGRAM
    assert verify(depot, index) == []


def test_one_closure_can_be_fetched_alone(locks):
    depot = filled(locks, "debian:base")
    assert [file.name for file in read_index(depot).files] == [
        "liba_1.0-rc1-1_amd64.deb", "libb_1.0-rc1-1_amd64.deb",
    ]  # fmt: skip
    assert not (depot / "busybox-elf").exists()
    assert list(read_index(depot).sets) == ["debian:base"]


def test_a_wrong_package_of_the_archive_never_enters(locks, archive):
    path = archive / "pool/main/l/liba/liba_1.0~rc1-1_amd64.deb"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(Refusal, match="not what the lock says") as caught:
        filled(locks, "debian:base")
    assert "liba_1.0~rc1-1_amd64.deb" in caught.value.where
    assert [p.name for p in (locks.parent / "depot/files").iterdir()] == [
        "libb_1.0-rc1-1_amd64.deb"
    ]


def test_an_archive_that_has_moved_on_is_told_with_the_locks_date(locks, archive):
    (archive / "pool/main/l/liba/liba_1.0~rc1-1_amd64.deb").unlink()
    with pytest.raises(EnvironmentFault, match="could not be fetched") as caught:
        filled(locks, "debian:base")
    assert "moved on since Sat, 21 Nov 2026" in caught.value.fix
    assert SOURCES_VARIABLE in caught.value.fix


def test_a_package_with_another_program_is_refused(locks):
    lock = read_debian_lock(locks / "debian.json")
    content = lock.model_dump()
    content["bootstrap"]["busybox"]["nar_sha256"] = "0" * 64
    (locks / "debian.json").write_bytes(debian_lock_bytes(DebianLock(**content)))
    with pytest.raises(Refusal, match="not the one that the lock names"):
        filled(locks)


def seed(depot, root, *, path=None):
    """`qualify depot seed` on a Nix store of its own below `root`."""
    environment = {
        **os.environ,
        "NIX_REMOTE": f"local?root={root}",
        "NIX_CONFIG": "build-users-group =\nsubstituters =\n",
    }
    if path is not None:
        environment["PATH"] = path
    return subprocess.run(
        [sys.executable, "-P", "-m", "qualify", "depot", "seed", str(depot)],
        env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.fixture
def depot(tmp_path):
    make_depot(tmp_path / "a depot", {"a.whl": b"a" * 100, "b-1.deb": b"b" * 2000})
    return tmp_path / "a depot"


def test_seeding_adds_everything_once(depot, tmp_path):
    done = seed(depot, tmp_path / "root")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "added 3, valid before 0\n"
    assert seed(depot, tmp_path / "root").stdout == "added 0, valid before 3\n"
    program = next((tmp_path / "root/nix/store").glob("*-busybox-elf/busybox"))
    assert program.read_bytes() == PROGRAM
    assert os.access(program, os.X_OK)


def test_the_script_of_the_depot_does_the_same_with_sh_and_nix_alone(depot, tmp_path):
    environment = {
        "PATH": os.environ["PATH"],
        "NIX_REMOTE": f"local?root={tmp_path / 'root'}",
        "NIX_CONFIG": "build-users-group =\nsubstituters =\n",
    }
    for said in ("added 3, valid before 0\n", "added 0, valid before 3\n"):
        done = subprocess.run(
            ["/bin/sh", str(depot / "seed")],
            env=environment, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, said), done.stderr
    assert seed(depot, tmp_path / "root").stdout == "added 0, valid before 3\n"


def test_a_changed_file_is_named_and_not_seeded(depot, tmp_path):
    (depot / "files/a.whl").write_bytes(b"x" * 100)
    done = seed(depot, tmp_path / "root")
    assert done.returncode == 10
    assert "files/a.whl: is changed" in done.stderr
    assert not list((tmp_path / "root/nix/store").glob("*.whl"))


def test_the_script_refuses_a_changed_file_too(depot, tmp_path):
    (depot / "files/b-1.deb").write_bytes(b"x" * 2000)
    done = subprocess.run(
        ["/bin/sh", str(depot / "seed")],
        env={"PATH": os.environ["PATH"], "NIX_REMOTE": f"local?root={tmp_path / 'root'}",
             "NIX_CONFIG": "build-users-group =\nsubstituters =\n"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 10
    assert "files/b-1.deb is not what this depot lists" in done.stderr


def test_without_nix_there_is_one_clear_error(depot, tmp_path):
    done = seed(depot, tmp_path / "root", path="/nonexistent")
    assert done.returncode == 1
    assert done.stderr == (
        "error: Nix is not installed here (install Nix (on Debian: apt-get install nix-bin))\n"
    )


def test_a_user_who_may_not_write_the_store_is_told(depot, tmp_path):
    """Said by the real nix-store: its store lies on a file system that is mounted read-only."""
    closed = tmp_path / "closed"
    closed.mkdir()
    done = subprocess.run(
        ["bwrap", "--dev-bind", "/", "/", "--ro-bind", str(closed), str(closed),
         "--setenv", "NIX_REMOTE", f"local?root={closed}",
         sys.executable, "-P", "-m", "qualify", "depot", "seed", str(depot)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "this user may not add to the Nix store" in done.stderr
    assert "run it as root, or let a Nix daemon run" in done.stderr


def test_verify_prints_one_document(depot):
    done = subprocess.run(
        [sys.executable, "-P", "-m", "qualify", "depot", "verify", str(depot), "--json"],
        capture_output=True, text=True, check=False, timeout=60, cwd=depot,
    )  # fmt: skip
    document = json.loads(done.stdout)
    assert document["schema"] == "qualify-depot-verify/1"
    assert document["files"] == 2
    assert document["problems"] == []
