"""Filling a depot with this machine's real pip from an index on loopback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from qualify.cli import cli
from qualify.core.errors import QualifyError
from support.depots import sdist_bytes, sha256, wheel_bytes, wheel_name, write_lock
from support.package_index import PackageIndex, serving

PLATFORM_TAG = "cp313-cp313-manylinux_2_34_x86_64"


def a_wheel(package, size=2_000, tag="py3-none-any"):
    return wheel_name(package, tag=tag), wheel_bytes(package, size=size, tag=tag)


FILES = {
    "alpha": a_wheel("alpha"),
    "beta-two": a_wheel("beta-two", tag=PLATFORM_TAG),
    "gamma": a_wheel("gamma", tag="cp39-abi3-manylinux2014_x86_64"),
}


@pytest.fixture
def index():
    with serving(PackageIndex(dict(FILES))) as served:
        yield served


def clean(environment):
    """Without what moves pip elsewhere, and without what hides progress."""
    return {
        key: value
        for key, value in environment.items()
        if not key.startswith("PIP_") and key not in ("CI", "NO_COLOR")
    }


def known(environment):
    """The variables that have a value."""
    return {key: value for key, value in environment.items() if value is not None}


@dataclass
class Ended:
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


class Depot:
    """A project with locks, and the command at work on one depot."""

    def __init__(self, folder: Path, index: PackageIndex) -> None:
        self.folder, self.index = folder, index
        self.place = folder / "depot of mine"
        write_lock(folder / "locks", "demo", FILES)

    def start(self, *arguments: str, wrapper: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """The command as a process of its own."""
        environment = {**clean(os.environ), **known(self.index.environment)}
        return subprocess.Popen(
            [*wrapper, sys.executable, "-P", "-m", "qualify", "depot", *arguments],
            cwd=self.folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run_apart(self, *arguments: str, wrapper: tuple[str, ...] = ()) -> Ended:
        """The command as a process of its own, to its end."""
        child = self.start(*arguments, wrapper=wrapper)
        out, err = child.communicate(timeout=100)
        return Ended(child.returncode, out, err)

    def run(self, *arguments: str) -> Ended:
        """The command in this process."""
        before = Path.cwd()
        os.chdir(self.folder)
        try:
            done = CliRunner(env=self.index.environment).invoke(cli, ["depot", *arguments])
        finally:
            os.chdir(before)
        if isinstance(done.exception, QualifyError):
            said = f"{done.stderr}error: {done.exception}"
            return Ended(done.exception.exit_code, done.stdout, said)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Ended(done.exit_code, done.stdout, done.stderr)

    def fill(self, *sets: str) -> Ended:
        """Fill the depot with the sets, by default with the one of `FILES`."""
        return self.run("fill", *(sets or ("demo",)), "--to", str(self.place))

    def files(self) -> dict[str, str]:
        """Name and SHA-256 of every file that has entered."""
        return {path.name: sha256(path.read_bytes()) for path in self.place.glob("files/*")}


@pytest.fixture
def depot(tmp_path, index):
    return Depot(tmp_path, index)


RIGHT = {name: sha256(data) for name, data in FILES.values()}


def test_a_fill_brings_exactly_the_pinned_files(depot):
    done = depot.fill()
    assert done.returncode == 0, done.stderr
    assert "3 files" in done.stdout
    assert "fetched 3" in done.stdout
    assert done.stderr == ""
    assert depot.files() == RIGHT
    assert sorted(p.name for p in depot.place.iterdir()) == [".lock", "depot.json", "files", "seed"]
    checked = depot.run("verify", str(depot.place), "--json")
    assert checked.returncode == 0
    assert json.loads(checked.stdout)["problems"] == []


def test_a_second_fill_asks_for_nothing(depot):
    assert depot.fill().returncode == 0
    asked = depot.index.asked.copy()
    done = depot.fill()
    assert "fetched 0 (0.0 MB), had 3" in done.stdout
    assert depot.index.asked == asked


def test_damaged_files_are_found_named_and_fetched_again(depot):
    depot.fill()
    swapped, truncated, missing = (depot.place / "files" / name for name, _ in FILES.values())
    swapped.write_bytes(FILES["gamma"][1])
    truncated.write_bytes(truncated.read_bytes()[:-1])
    missing.unlink()
    checked = depot.run("verify", str(depot.place))
    assert checked.returncode == 10
    for path, kind in ((swapped, "changed"), (truncated, "changed"), (missing, "missing")):
        assert f"{kind}: files/{path.name}: " in checked.stdout
    assert "3 problems; fill it again with `qualify depot fill`" in checked.stdout
    again = depot.fill()
    assert again.returncode == 0
    assert "fetched 3" in again.stdout
    assert f"replaced files/{swapped.name}" in again.stderr
    assert f"replaced files/{truncated.name}" in again.stderr
    assert depot.files() == RIGHT


def test_a_wrong_file_of_the_index_is_named_and_never_enters(depot):
    name, data = FILES["alpha"]
    depot.index.files["alpha"] = (name, wheel_bytes("alpha", size=2_001))
    done = depot.fill()
    assert done.returncode == 10
    assert f"{name} of alpha 1.0" in done.stderr
    assert "not what the lock says" in done.stderr
    assert name not in depot.files()
    assert depot.files() == {key: value for key, value in RIGHT.items() if key != name}
    assert not (depot.place / "depot.json").exists()
    depot.index.files["alpha"] = (name, data)
    assert "fetched 1" in depot.fill().stdout


def test_a_file_that_the_index_lacks_is_named_and_the_others_stay(depot):
    missing = depot.index.files.pop("beta-two")
    done = depot.fill()
    assert done.returncode == 1
    assert f"{missing[0]} of beta-two 1.0: could not be fetched" in done.stderr
    assert len(depot.files()) == 2
    half = depot.run("verify", str(depot.place))
    assert half.returncode == 2
    assert "not filled to its end" in half.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_fill_goes_on_where_it_was(depot, number):
    """The big file stands still half-way; the small ones have come when the signal does."""
    big = wheel_name("big"), wheel_bytes("big", size=34 << 20)
    files = {**FILES, "big": big}
    write_lock(depot.folder / "locks", "demo", files)
    depot.index.files |= files
    depot.index.stalled = {big[0]}
    child = depot.start("fill", "demo", "--to", str(depot.place))
    assert depot.index.half_sent.wait(60)
    deadline = time.monotonic() + 60
    while depot.files() != RIGHT:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    child.send_signal(number)
    _, err = child.communicate(timeout=30)
    assert child.returncode == {2: 130, 15: 143, 9: -9}[number], err
    assert depot.files() == RIGHT
    assert not (depot.place / "depot.json").exists()

    depot.index.stalled = set()
    depot.index.release.set()
    asked = depot.index.asked.copy()
    done = depot.fill()
    assert done.returncode == 0, done.stderr
    assert "fetched 1" in done.stdout
    assert depot.index.asked - asked == {big[0]: 1}
    assert depot.run("verify", str(depot.place)).returncode == 0


def test_what_a_killed_client_had_ready_is_taken(depot):
    left = depot.place / ".fetch/portion-x/target"
    left.mkdir(parents=True)
    (left / FILES["alpha"][0]).write_bytes(FILES["alpha"][1])
    (left / FILES["gamma"][0]).write_bytes(FILES["gamma"][1][:-1])
    done = depot.fill()
    assert "fetched 2" in done.stdout
    assert FILES["alpha"][0] not in depot.index.asked
    assert depot.files() == RIGHT


def test_nothing_of_a_source_distribution_is_run(depot, tmp_path):
    witness = tmp_path / "ran"
    source = sdist_bytes("delta", f"open({str(witness)!r}, 'w')\nimport setuptools\n")
    files = {**FILES, "delta": ("delta-1.0.tar.gz", source)}
    write_lock(depot.folder / "locks", "demo", files, sdists=("delta",))
    depot.index.files |= files
    done = depot.fill()
    assert done.returncode == 0, done.stderr
    assert depot.files()["delta-1.0.tar.gz"] == sha256(source)
    assert not witness.exists()


def test_two_sets_share_a_depot_and_a_set_left_behind_is_removed(depot):
    other = {"alpha": FILES["alpha"], "other": a_wheel("other")}
    depot.index.files |= other
    write_lock(depot.folder / "locks", "second", other)
    assert depot.fill().returncode == 0
    done = depot.fill("second")
    assert "demo, second: 4 files" in done.stdout
    assert "fetched 1" in done.stdout
    write_lock(depot.folder / "locks", "second", {"alpha": FILES["alpha"]})
    stale = depot.run("verify", str(depot.place), "second")
    assert stale.returncode == 10
    assert "other-lock: second" in stale.stdout
    done = depot.fill("second")
    assert f"removed files/{other['other'][0]}" in done.stderr
    assert depot.files() == RIGHT
    assert depot.run("verify", str(depot.place)).returncode == 0


def test_a_set_that_contradicts_what_the_depot_holds_is_refused(depot):
    assert depot.fill().returncode == 0
    name = FILES["alpha"][0]
    other = {"alpha": (name, wheel_bytes("alpha", size=3_000))}
    write_lock(depot.folder / "locks", "second", other)
    done = depot.fill("second")
    assert done.returncode == 2
    assert "demo and second pin different files of this name" in done.stderr
    assert depot.files() == RIGHT


def test_one_fill_at_a_time(depot):
    depot.index.stalled = {FILES["alpha"][0]}
    child = depot.start("fill", "demo", "--to", str(depot.place))
    try:
        assert depot.index.half_sent.wait(60)
        second = depot.fill()
        assert second.returncode == 1
        assert f"is in use by process {child.pid}" in second.stderr
    finally:
        child.terminate()
        child.communicate(timeout=30)


def on_a_small_disk(folder: Path, size: int) -> tuple[str, ...]:
    program = shutil.which("bwrap")
    assert program is not None, "bubblewrap is needed; ./test installs it"
    return (
        program, "--dev-bind", "/", "/", "--size", str(size), "--tmpfs", str(folder), "--",
    )  # fmt: skip


def test_a_disk_that_is_too_small_is_known_before_anything_is_fetched(depot, tmp_path):
    files = {**FILES, "big": a_wheel("big", size=3 << 20)}
    write_lock(depot.folder / "locks", "demo", files)
    small = tmp_path / "small"
    small.mkdir()
    done = depot.run_apart(
        "fill", "demo", "--to", str(small / "depot"), wrapper=on_a_small_disk(small, 2 << 20)
    )
    assert done.returncode == 1
    assert "not enough space for the depot" in done.stderr
    assert not depot.index.asked


def test_a_disk_that_fills_up_meanwhile_says_so(depot, tmp_path):
    """Client and depot need twice the file, which the disk does not have."""
    files = {"big": a_wheel("big", size=16 << 20)}
    write_lock(depot.folder / "locks", "demo", files)
    depot.index.files |= files
    small = tmp_path / "small"
    small.mkdir()
    done = depot.run_apart(
        "fill", "demo", "--to", str(small / "depot"), wrapper=on_a_small_disk(small, 18 << 20)
    )
    assert done.returncode == 1
    assert "the disk filled up; what arrived before is kept" in done.stderr
    assert "larger disk" in done.stderr


def test_a_place_that_cannot_be_written_is_named(depot):
    (depot.folder / "file").touch()
    done = depot.run("fill", "demo", "--to", str(depot.folder / "file/depot"))
    assert done.returncode == 1
    assert "cannot be written" in done.stderr


def test_an_unknown_set_is_answered_with_the_known_ones(depot):
    done = depot.fill("nothing")
    assert done.returncode == 2
    assert "there is no set 'nothing'" in done.stderr
    assert "sets: demo" in done.stderr


def test_a_depot_is_carried_in_one_file(depot, tmp_path):
    depot.fill()
    packed = depot.run("pack", str(depot.place), "--to", "depot.tar")
    assert packed.returncode == 0, packed.stderr
    assert "depot.tar: sha256:" in packed.stdout
    unpacked = depot.run("unpack", "depot.tar", "--to", "carried")
    assert unpacked.returncode == 0, unpacked.stderr
    assert depot.run("verify", "carried").returncode == 0
    for path in depot.place.glob("files/*"):
        assert (tmp_path / "carried/files" / path.name).read_bytes() == path.read_bytes()


def test_a_depot_with_an_edited_index_says_how_to_go_on(depot):
    assert depot.fill().returncode == 0
    path = depot.place / "depot.json"
    path.write_bytes(path.read_bytes().replace(b'"demo"', b'"dema"'))
    done = depot.fill()
    assert done.returncode == 10
    assert "depot.json: was changed after the depot was filled (remove it and" in done.stderr
    path.unlink()
    assert "fetched 0" in depot.fill().stdout


def test_a_bar_is_drawn_on_a_terminal_and_only_there(depot):
    command = f"{sys.executable} -P -m qualify depot fill demo --to made"
    done = subprocess.run(
        ["script", "-qec", command, "/dev/null"],
        cwd=depot.folder,
        env={**clean(os.environ), **known(depot.index.environment), "TERM": "xterm"},
        capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0
    assert "fetching" in done.stdout
    assert "of 3 files" in done.stdout
    assert depot.fill().stderr == ""
