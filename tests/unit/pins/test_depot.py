"""A depot says what it holds, and nothing that is missing, changed or extra goes unnoticed."""

import json

import pytest

from qualify.core.errors import Refusal, UsageError
from qualify.pins.depot import (
    first_ten,
    index_bytes,
    other_locks,
    parse_index,
    read_index,
    store_name,
    verify,
)
from qualify.pins.depot_seed import flat_store_path, folder_store_path
from qualify.pins.portions import portions
from qualify.pins.wanted import WantedFile, lock_digests, not_as_locked, wanted_sets
from support.depots import make_depot, wheel_bytes, wheel_name, write_lock

FILES = {"a.whl": b"a" * 100, "b-1.deb": b"b" * 2000, "c.whl": b"c"}


@pytest.fixture
def depot(tmp_path):
    make_depot(tmp_path / "depot", FILES)
    return tmp_path / "depot"


def kinds(depot):
    return {(p.kind, p.name) for p in verify(depot, read_index(depot))}


def test_a_whole_depot_has_no_problems(depot):
    assert kinds(depot) == set()


def test_a_swapped_file_is_named(depot):
    (depot / "files/a.whl").write_bytes(b"x" * 100)
    assert kinds(depot) == {("changed", "files/a.whl")}


def test_a_truncated_file_is_named_with_both_sizes(depot):
    (depot / "files/b-1.deb").write_bytes(b"b" * 1999)
    (problem,) = verify(depot, read_index(depot))
    assert problem.detail == "1999 bytes, not 2000"


def test_a_missing_file_is_named(depot):
    (depot / "files/c.whl").unlink()
    assert kinds(depot) == {("missing", "files/c.whl")}


def test_a_link_to_the_right_bytes_is_no_file_of_the_depot(depot):
    (depot / "files/c.whl").rename(depot.parent / "c")
    (depot / "files/c.whl").symlink_to(depot.parent / "c")
    assert kinds(depot) == {("missing", "files/c.whl")}


@pytest.mark.parametrize("name", ["files/d.whl", "notes.txt", "busybox-elf/ash"])
def test_an_extra_file_is_named(depot, name):
    (depot / name).write_bytes(b"x")
    assert kinds(depot) == {("extra", name)}


def test_a_changed_or_closed_busybox_is_named(depot):
    (depot / "busybox-elf/busybox").chmod(0o644)
    assert kinds(depot) == {("changed", "busybox-elf/busybox")}
    (depot / "busybox-elf/busybox").chmod(0o755)
    assert kinds(depot) == set()
    data = (depot / "busybox-elf/busybox").read_bytes()
    (depot / "busybox-elf/busybox").write_bytes(data[:-1] + b"!")
    assert kinds(depot) == {("changed", "busybox-elf/busybox")}


def test_a_changed_script_is_named(depot):
    with (depot / "seed").open("ab") as stream:
        stream.write(b"rm -rf /\n")
    assert kinds(depot) == {("changed", "seed")}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"size":100', b'"size":101'),
        (b'"a.whl"', b'"x.whl"'),
        (b"qualify-depot/1", b"qualify-depot/2"),
        (b"}\n", b"} \n"),
        (b"a.whl", b"../../a"),
        (b'"digest"', b'"other"'),
    ],
)
def test_an_edited_index_is_refused(depot, old, new):
    data = (depot / "depot.json").read_bytes()
    parse_index(data, "depot.json")
    assert old in data
    with pytest.raises(Refusal):
        parse_index(data.replace(old, new), "depot.json")


def test_an_index_that_names_less_than_it_lists_is_refused(depot):
    index = read_index(depot)
    fewer = {"demo": index.sets["demo"].model_copy(update={"files": ("a.whl",)})}
    with pytest.raises(Refusal, match="changed after"):
        parse_index(index_bytes(index.model_copy(update={"sets": fewer})), "depot.json")


def test_a_folder_that_is_no_depot_and_a_half_filled_one_are_told_apart(tmp_path):
    with pytest.raises(UsageError, match="is not a depot"):
        read_index(tmp_path)
    (tmp_path / "files").mkdir()
    with pytest.raises(UsageError, match="not filled to its end") as caught:
        read_index(tmp_path)
    assert "what has arrived is kept" in caught.value.fix


def test_an_unknown_set_is_answered_with_the_known_ones(depot):
    with pytest.raises(UsageError) as caught:
        verify(depot, read_index(depot), ["nothing"])
    assert caught.value.fix == "sets: demo"


def test_a_depot_of_another_lock_is_told_from_the_projects(depot):
    index = read_index(depot)
    same = {"demo": index.sets["demo"].digest}
    assert other_locks(index, same) == []
    (problem,) = other_locks(index, {"demo": "sha256:" + "0" * 64})
    assert (problem.kind, problem.name) == ("other-lock", "demo")
    (problem,) = other_locks(index, {})
    assert problem.detail == "the project has no lock of this name"


def test_an_index_that_lists_other_files_than_its_lock_is_found(tmp_path):
    locks = tmp_path / "locks"
    locks.mkdir()
    wheel = wheel_name("one")
    lock = write_lock(locks, "demo", {"one": (wheel, wheel_bytes("one"))})
    right = make_depot(tmp_path / "right", {wheel: wheel_bytes("one")}, busybox=False)
    forged = make_depot(tmp_path / "forged", {wheel: wheel_bytes("one", size=9)}, busybox=False)
    as_locked = {"demo": right.sets["demo"].model_copy(update={"digest": lock.digest})}
    for index, expected in ((right, []), (forged, [("not-as-locked", wheel)])):
        found = not_as_locked(index.model_copy(update={"sets": as_locked}), locks, ["demo"])
        assert [(each.kind, each.name) for each in found] == expected


def test_only_the_first_ten_are_listed():
    assert first_ten(range(12)) == (list(range(10)), 2)
    assert first_ten([]) == ([], 0)


@pytest.mark.parametrize(
    ("file", "stored"),
    [
        ("libc6_2.41-12_amd64.deb", "libc6_2.41-12_amd64.deb"),
        ("a_1.0~rc1%2b+x_amd64.deb", "a_1.0-rc1-2b+x_amd64.deb"),
        ("b-1!2.0.whl", "b-1-2.0.whl"),
    ],
)
def test_names_become_those_of_a_nix_store(file, stored):
    assert store_name(file) == stored


def test_store_paths_are_those_that_nix_computes():
    """From `nix-store --print-fixed-path [--recursive] sha256 HASH NAME`."""
    assert flat_store_path("x.txt", "a" * 64) == (
        "/nix/store/jxfl0fs8jyxnvmy1x0cy55h8hg09k584-x.txt"
    )
    nar = "e0166d1702bbc252e8c5a4790178670106d4aeb2266989006bf60131fac29c72"
    assert folder_store_path("busybox-elf", nar) == (
        "/nix/store/l2vhddgdiqgrimjv3hkskghpmp635kd6-busybox-elf"
    )


def test_two_sets_with_different_bytes_under_one_name_share_no_depot(tmp_path):
    locks = tmp_path / "locks"
    file = wheel_name("demo")
    write_lock(locks, "one", {"demo": (file, b"1")})
    write_lock(locks, "two", {"demo": (file, b"2")})
    write_lock(locks, "same", {"demo": (file, b"1")})
    assert len(wanted_sets(locks, ["one", "same"])) == 2
    with pytest.raises(UsageError, match="one and two pin different files") as caught:
        wanted_sets(locks, ["one", "two"])
    assert caught.value.where == file


@pytest.mark.parametrize(
    "tag",
    ["cp313-cp313-manylinux_2_34_aarch64", "cp312-cp312-manylinux_2_34_x86_64",
     "cp313-cp313-manylinux_2_42_x86_64", "cp313-cp313-win_amd64"],
)  # fmt: skip
def test_a_wheel_for_another_platform_is_refused(tmp_path, tag):
    right = "cp313-cp313-manylinux_2_34_x86_64"
    write_lock(tmp_path / "locks", "right", {"demo": (wheel_name("demo", tag=right), b"1")})
    write_lock(tmp_path / "locks", "wrong", {"demo": (wheel_name("demo", tag=tag), b"1")})
    assert wanted_sets(tmp_path / "locks", ["right"])[0].files[0].python == "3.13"
    with pytest.raises(UsageError, match="for another platform"):
        wanted_sets(tmp_path / "locks", ["wrong"])


def test_a_lock_edited_by_hand_fills_nothing(tmp_path):
    write_lock(tmp_path / "locks", "one", {"demo": (wheel_name("demo"), b"1")})
    path = tmp_path / "locks/one.json"
    wanted_sets(tmp_path / "locks", ["one"])
    path.write_bytes(path.read_bytes().replace(b'"size":1', b'"size":2'))
    with pytest.raises(UsageError, match="edited by hand"):
        wanted_sets(tmp_path / "locks", ["one"])


def test_only_debian_has_closures(tmp_path):
    write_lock(tmp_path / "locks", "one", {"demo": (wheel_name("demo"), b"1")})
    with pytest.raises(UsageError, match="only debian has closures"):
        wanted_sets(tmp_path / "locks", ["one:runner"])
    assert list(lock_digests(tmp_path / "locks")) == ["one"]


def a_file(name, size, **changes):
    content = {"package": name, "version": "1", "sha256": "a" * 64, "python": "3.13"}
    return WantedFile(name, size=size, **(content | changes))


def test_big_files_go_alone_and_first_and_small_ones_together():
    files = [a_file(f"s{n}", 1000) for n in range(20)] + [a_file("big", 64 << 20)]
    divided = portions(files)
    assert [file.name for file in divided[0].files] == ["big"]
    assert sorted(len(p.files) for p in divided) == [1, 4, 16]
    assert sorted(f.name for p in divided for f in p.files) == sorted(f.name for f in files)


def test_no_portion_mixes_kinds_pythons_or_files_of_one_package():
    files = [
        a_file("a1", 10, package="a"), a_file("a2", 10, package="a"),
        a_file("b", 10, python="3.12"), a_file("c", 10, python=None),
        a_file("d", 10, python=None, path="pool/d.deb"),
    ]  # fmt: skip
    divided = portions(files)
    assert sorted(tuple(f.name for f in p.files) for p in divided) == [
        ("a1",), ("a2",), ("b",), ("c",), ("d",)
    ]  # fmt: skip
    assert {p.files[0].name: p.kind for p in divided}["d"] == "deb"


def test_depots_json_is_one_canonical_document(depot):
    data = (depot / "depot.json").read_bytes()
    document = json.loads(data)
    assert document["sets"]["demo"]["files"] == sorted(FILES)
    assert index_bytes(read_index(depot)) == data
