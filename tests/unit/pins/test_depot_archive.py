"""A carried depot: what packing did not write is not unpacked, and nothing half-made stays."""

import errno
import io
import os
import tarfile

import pytest

from qualify.core.errors import EnvironmentFault, Refusal, UsageError
from qualify.pins import depot_archive
from qualify.pins.depot import read_index, verify
from qualify.pins.depot_archive import pack, unpack
from support.depots import make_depot

LONG = "long_" + "x" * 150 + ".whl"
FILES = {"a.whl": b"a" * 100, "b-1.deb": b"b" * 200_000, LONG: b"c" * 512}


@pytest.fixture
def packed(tmp_path):
    make_depot(tmp_path / "depot", FILES)
    pack(tmp_path / "depot", tmp_path / "depot.tar")
    return tmp_path / "depot.tar"


def refused(archive, said):
    target = archive.parent / "made"
    with pytest.raises(Refusal, match=said) as caught:
        unpack(archive, target)
    assert caught.value.fix
    assert not target.exists()
    assert {path.name for path in archive.parent.iterdir()} == {"depot", "depot.tar"}


def test_what_is_packed_is_unpacked(packed, tmp_path):
    unpack(packed, tmp_path / "made")
    assert verify(tmp_path / "made", read_index(tmp_path / "made")) == []
    for name, data in FILES.items():
        assert (tmp_path / "made/files" / name).read_bytes() == data
    assert os.access(tmp_path / "made/seed", os.X_OK)


def test_equal_depots_give_equal_bytes(packed, tmp_path):
    unpack(packed, tmp_path / "made")
    (tmp_path / "made/files/a.whl").touch()
    pack(tmp_path / "made", tmp_path / "again.tar")
    assert packed.read_bytes() == (tmp_path / "again.tar").read_bytes()


def test_the_archive_is_a_tar_that_others_read(packed):
    with tarfile.open(packed, "r:") as archive:
        names = archive.getnames()
        assert names[0] == "depot.json"
        assert f"files/{LONG}" in names
        assert {(m.uid, m.gid, m.mtime) for m in archive} == {(0, 0, 0)}


def test_every_flipped_byte_is_noticed(packed):
    """One byte in each block of 512, in headers, contents and paddings alike."""
    whole = bytearray(packed.read_bytes())
    for position in [*range(0, 16_384, 511), *range(16_384, len(whole), 9_973), len(whole) - 1]:
        whole[position] ^= 1
        packed.write_bytes(whole)
        refused(packed, None)
        whole[position] ^= 1
    packed.write_bytes(whole)
    unpack(packed, packed.parent / "made")


@pytest.mark.parametrize("cut", [1, 512, 1024, 1025, 100_000])
def test_a_truncated_archive_is_refused(packed, cut):
    packed.write_bytes(packed.read_bytes()[:-cut])
    refused(packed, "ends too early|cut off")


def test_what_follows_the_end_is_refused(packed):
    packed.write_bytes(packed.read_bytes() + b"\0" * 512)
    refused(packed, "goes on behind")


def rewritten(packed, change):
    """The archive with its members passed through `change`, which may add, drop or alter some."""
    stream = io.BytesIO()
    with (
        tarfile.open(packed, "r:") as old,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as new,
    ):
        for member in old:
            data = old.extractfile(member).read()
            for info, content in change(member, data):
                info.size = len(content)
                new.addfile(info, io.BytesIO(content))
    packed.write_bytes(stream.getvalue())


def entry(name, kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (entry("../escaped"), r"an entry '\.\./escaped'"),
        (entry("/etc/passwd"), "an entry '/etc/passwd'"),
        (entry("files/other.whl"), "an entry 'files/other.whl'"),
        (entry("files", tarfile.SYMTYPE, "/"), "a link 'files'"),
        (entry("files/a.whl", tarfile.LNKTYPE, "seed"), "a link 'files/a.whl'"),
        (entry("device", tarfile.CHRTYPE), "an entry 'device'"),
    ],
)
def test_an_entry_that_does_not_belong_is_refused(packed, extra, said):
    def change(member, data):
        if member.name == "seed":
            yield extra, b""
        yield member, data

    rewritten(packed, change)
    refused(packed, said)


def test_a_doubled_entry_is_refused(packed):
    def change(member, data):
        yield member, data
        if member.name == "files/a.whl":
            yield member, data

    rewritten(packed, change)
    refused(packed, "where files/b-1.deb belongs")


def test_a_missing_entry_is_refused(packed):
    rewritten(packed, lambda m, data: [] if m.name == "files/a.whl" else [(m, data)])
    refused(packed, "where files/a.whl belongs")


def test_another_mode_or_owner_is_refused(packed):
    def change(member, data):
        if member.name == "files/a.whl":
            member.mode = 0o4755
        yield member, data

    rewritten(packed, change)
    refused(packed, "files/a.whl")


def test_other_bytes_of_the_same_length_are_refused(packed):
    def change(member, data):
        yield member, data.replace(b"a" * 100, b"z" * 100)

    rewritten(packed, change)
    refused(packed, "files/a.whl is not what the depot lists")


def test_rewriting_alone_changes_nothing(packed):
    before = packed.read_bytes()
    rewritten(packed, lambda member, data: [(member, data)])
    after = packed.read_bytes()
    assert after.rstrip(b"\0") == before.rstrip(b"\0")


@pytest.mark.parametrize("data", [b"", b"hello" * 1000, b"\0" * 4096])
def test_what_is_no_archive_is_refused(packed, data):
    packed.write_bytes(data)
    refused(packed, "not a packed depot")


def test_a_damaged_depot_is_not_packed(packed, tmp_path):
    (tmp_path / "depot/files/a.whl").write_bytes(b"b" * 100)
    with pytest.raises(Refusal, match="not what the depot lists"):
        pack(tmp_path / "depot", tmp_path / "second.tar")
    assert {path.name for path in tmp_path.iterdir()} == {"depot", "depot.tar"}


def test_nothing_is_written_over(packed, tmp_path):
    with pytest.raises(UsageError, match="exists already"):
        pack(tmp_path / "depot", packed)
    (tmp_path / "made").mkdir()
    (tmp_path / "made/mine").touch()
    with pytest.raises(UsageError, match="there already"):
        unpack(packed, tmp_path / "made")


def test_a_full_disk_while_unpacking_leaves_nothing(packed, tmp_path, monkeypatch):
    """A double: fsync reports a full disk at the third file."""
    calls = []

    def full(handle):
        calls.append(handle)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(depot_archive.os, "fsync", full)
    with pytest.raises(EnvironmentFault, match="the disk filled up"):
        unpack(packed, tmp_path / "made")
    assert {path.name for path in tmp_path.iterdir()} == {"depot", "depot.tar"}


def test_too_small_a_disk_is_known_before_anything_is_written(packed, tmp_path, monkeypatch):
    free = depot_archive.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(depot_archive.shutil, "disk_usage", lambda _path: free)
    with pytest.raises(EnvironmentFault, match="not enough space: needs"):
        unpack(packed, tmp_path / "made")


def test_a_negative_size_is_refused_before_anything_is_read(tmp_path):
    info = tarfile.TarInfo("depot.json")
    info.size = -600
    header = info.tobuf(tarfile.GNU_FORMAT)
    (tmp_path / "a.tar").write_bytes(header + bytes(1024))
    with pytest.raises(Refusal, match="does not begin with"):
        unpack(tmp_path / "a.tar", tmp_path / "out")
