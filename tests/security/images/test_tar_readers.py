"""Whatever we accept, others read as we do: GNU tar, libarchive, Python's tarfile, Go (in umoci).

A layer that one reader takes for other files than another smuggles what no guard has seen. So each
tar here is either refused, or listed the same by every reader at hand. `ATTACKS` has known ways to
make readers differ; the generator looks for others by changing sound tars.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import subprocess
import tarfile

import pytest

from qualify.images import ImageFault, open_image
from qualify.images.layers import Allowance, LayerReader
from support.images import ImageBuilder, file, folder, hard_link, link
from support.tar_readers import (
    BLOCK,
    END,
    READERS,
    filled,
    header,
    member,
    note,
    pax,
    record,
    signed,
)

A, B, EVIL = member("a"), member("b", b"two"), member("evil", b"smuggled")


def ours(tar, folder):
    """What our reader lists. Raises `ImageFault`."""
    layout = ImageBuilder(layers=[tar], compression="none").layout(folder)
    image = open_image(layout)
    kinds = {"file": "f", "folder": "d", "link": "l", "hardlink": "h", "device": "v", "pipe": "p"}
    found = []
    with LayerReader(image, image.layers[0], Allowance()) as reader:
        for each in reader.members():
            if each.kind == "file":
                assert sum(map(len, reader.chunks())) == each.size
            found.append((each.path, kinds[each.kind], each.size, each.target))
        assert reader.finish() == ()
    return found


def disagreements(tar, place):
    """Whether we accept a tar, and what any reader sees in it that we do not, or the reverse."""
    try:
        mine = ours(tar, place)
    except ImageFault:
        return False, []
    found = []
    for name, read in READERS.items():
        theirs, content = read(tar)
        if theirs != mine[: len(theirs)] or (content and theirs != mine):
            found.append((name, theirs, mine))
    return True, found


# ── attacks ──────────────────────────────────────────────────────────────────────────────────────


def with_checksum(block, more):
    """A header whose checksum is larger by `more` than the right one."""
    return block[:148] + b"%06o\0 " % (int(block[148:154], 8) + more) + block[156:]


_BAD = with_checksum(B[:BLOCK], 1) + B[BLOCK:]

ATTACKS = {
    "a damaged header, then zeros": A + with_checksum(header("b"), 1) + END,
    "a damaged header with bytes": A + _BAD + END,
    "a damaged header, then more": A + _BAD + EVIL + END,
    "one block of zeros, then more": A + bytes(BLOCK) + EVIL + END,
    "two blocks of zeros, then more": A + END + EVIL + END,
    "a header cut short": A + header("b")[:300],
    "a mark of removal cut short": A + header(".wh.a")[:340],
    "text between members": A + filled(b"text") + B + END,
    "a long name of nothing": A + note(b"L", b"b\0") + END,
    "an extended header of nothing": A + pax(("path", "b")),
    "a path for all": pax(("path", "b"), kind=b"g") + A + END,
    "a link's target for all": pax(("linkpath", "b"), kind=b"g") + A + END,
    "a size for all": pax(("size", "512"), kind=b"g") + A + EVIL + END,
    "an owner for all": pax(("uid", "0"), kind=b"g") + A + END,
    "capabilities for all": pax(("SCHILY.xattr.security.capability", "x"), kind=b"g") + A + END,
    "holes for all": pax(("GNU.sparse.name", "b"), kind=b"g") + A + END,
    "a header for all before its member": (
        pax(("path", "b")) + pax(("comment", "c"), kind=b"g") + A + END
    ),
    "a smaller size in the extended header": (
        pax(("size", "0")) + member("a", EVIL, size=len(EVIL)) + END
    ),
    "a larger size in the extended header": (
        pax(("size", str(len(EVIL)))) + member("a", b"", size=0) + EVIL + B + END
    ),
    "a size that comes twice": pax(("size", "3"), ("size", "512")) + A + END,
    "a path that comes twice": pax(("path", "b"), ("path", "c")) + A + END,
    "an empty path": pax(("path", "")) + A + END,
    "a path with a NUL": pax(("path", b"b\0c")) + A + END,
    "a size with a sign": pax(("size", "+3")) + A + END,
    "a size with an underscore": pax(("size", "0_3")) + A + END,
    "a size in letters": pax(("size", "three")) + A + END,
    "a record that is too long": note(b"x", b"99 path=b\n") + A + END,
    "a record that is too short": note(b"x", b"5 path=b\n") + A + END,
    "a length with zeros": note(b"x", b"010 path=b\n") + A + END,
    "a length with a sign": note(b"x", b"+10 path=b\n") + A + END,
    "a record without a line's end": note(b"x", b"9 path=b ") + A + END,
    "records behind a NUL": note(b"x", record("path", "b") + b"\0" + record("uid", "0")) + A + END,
    "records behind the header's size": (
        header("note", 10, b"x") + filled(record("path", "b")[:10] + record("path", "c")) + A + END
    ),
    "two extended headers": pax(("path", "b")) + pax(("path", "c")) + A + END,
    "two long names": note(b"L", b"b\0") + note(b"L", b"c\0") + A + END,
    "two long targets": note(b"K", b"b\0") + note(b"K", b"c\0") + header("l", 0, b"2") + END,
    "a long name and a path": note(b"L", b"b\0") + pax(("path", "c")) + A + END,
    "a path and a long name": pax(("path", "c")) + note(b"L", b"b\0") + A + END,
    "an empty long name": note(b"L", b"\0") + A + END,
    "a long name with more behind it": note(b"L", b"b\0c\0") + A + END,
    "a number behind NULs": header("a", fields={124: bytes(9) + b"3\0"}) + filled(b"x") + END,
    "a number with a sign": header("a", fields={124: b"+0000000003\0"}) + filled(b"x") + END,
    "a number with more behind it": header("a", fields={124: b"3\0001000\0\0\0\0\0\0"}) + END,
    "a negative size": header("a", fields={124: b"\xff" * 12}) + END,
    "a size beyond 63 bits": header("a", fields={124: b"\x80\0\0\0" + b"\xff" * 8}) + END,
    "a binary number with a stray bit": header("a", fields={124: b"\x81" + bytes(11)}) + END,
    "a mode that is no number": header("a", fields={100: b"rw-r--r-"}) + END,
    "a device that is no number": header("a", fields={329: b"nothing\0"}) + END,
    "a checksum of signed bytes": with_checksum(header("\u00e9"), -512) + END,
    "an unknown format": member("a", magic=b"ustar!00") + END,
    "GNU's times where POSIX has a prefix": (
        header("a", magic=b"ustar  \0", fields={345: b"14000000000\0"}) + END
    ),
    "a prefix without a format": header("a", magic=bytes(8), fields={345: b"evil"}) + END,
    "star's mark": header("a", fields={508: b"tar\0"}) + END,
    "a file with the name of a folder": member("a/") + END,
    "a folder with bytes": header("d", len(EVIL), b"5") + EVIL + B + END,
    "a link with bytes": header("l", len(EVIL), b"2", "a") + EVIL + B + END,
    "a hard link with bytes": A + header("h", len(EVIL), b"1", "a") + EVIL + B + END,
    "a file with holes": header("a", kind=b"S") + END,
    "a file with holes, extended": pax(("GNU.sparse.major", "1"), ("path", "b")) + A + END,
    "another real size": pax(("SCHILY.realsize", "9")) + A + END,
    "a dumped folder": header("d", kind=b"D") + END,
    "the rest of another volume": header("a", kind=b"M") + END,
    "Solaris' extended header": pax(("path", "b"), kind=b"X") + A + END,
    "no type": header("a", kind=b"Z") + END,
    "a mark of removal with bytes": member(".wh.a", b"smuggled") + END,
    "a root that is a file": member("./", kind=b"7") + END,
    "a root that is a file by its dot": member(".") + END,
}  # fmt: skip


@pytest.mark.parametrize("tar", ATTACKS.values(), ids=ATTACKS.keys())
def test_an_attack_is_refused(tar, tmp_path):
    with pytest.raises(ImageFault) as caught:
        ours(tar, tmp_path / "image")
    assert "\n" not in str(caught.value)


SOUND = {
    "plain": A + B + END,
    "one block of zeros": A + B + bytes(BLOCK),
    "no end": A + B,
    "a short end": A + B[: BLOCK + 3],
    "an end that is cut": A + B + bytes(100),
    "nothing": END,
    "V7": member("a", magic=bytes(8)) + header("d/", magic=bytes(8), kind=b"\0") + END,
    "old GNU": member("a", magic=b"ustar  \0") + END,
    "numbers in spaces": header("a", fields={100: b"   644 \0", 108: b"     0 \0"}) + END,
    "no numbers": header("a", fields={329: bytes(16)}) + END,
    "a binary size": header("a", fields={124: b"\x80" + bytes(10) + b"\3"}) + filled(b"one") + END,
    "a time before 1970": header("a", fields={136: b"\xff" * 12}) + END,
    "a prefix": header("a", fields={345: b"some/folder"}) + END,
    "a comment for all": pax(("comment", "c"), kind=b"g") + A + B + END,
    "an extended path": pax(("path", "b/" * 90 + "b"), ("mtime", "1.5"), ("uid", "7")) + A + END,
    "the same size twice": pax(("size", "3")) + A + END,
    "a long name and a long target": (
        note(b"K", b"t" * 200 + b"\0") + note(b"L", b"n" * 200 + b"\0")
        + header("l", 0, b"2", "t" * 100)
        + END
    ),
    "a long name without its NUL": note(b"L", b"n" * 512) + A + END,
    "a name that is no UTF-8": pax(("hdrcharset", "BINARY"), ("path", b"\xff")) + A + END,
    "an attribute with a NUL and a line": pax(("SCHILY.xattr.user.x", b"a\0\n=b")) + A + END,
}  # fmt: skip


@pytest.mark.parametrize("tar", SOUND.values(), ids=SOUND.keys())
def test_what_is_sound_is_read_as_others_read_it(tar, tmp_path):
    accepted, found = disagreements(tar, tmp_path / "image")
    assert accepted
    assert found == []


# ── a generator ──────────────────────────────────────────────────────────────────────────────────

PLACES = (
    (0, 100), (100, 8), (108, 8), (116, 8), (124, 12), (136, 12), (148, 8), (156, 1), (157, 100),
    (257, 8), (265, 32), (329, 8), (345, 155), (500, 12),
)  # fmt: skip
BYTES = [bytes([each]) for each in b"\0 078/.+-\n125xgLKSa\x80\x81\xff"]
PIECES = (
    bytes(BLOCK), END, b"x" * BLOCK, A, pax(("path", "q")), pax(("path", "q/")), pax(("size", "3")),
    pax(("linkpath", "q")), pax(("uid", "5")), note(b"L", b"long\0"), note(b"L", b"long"),
    note(b"K", b"target\0"), pax(("path", "g"), kind=b"g"), pax(("comment", "c"), kind=b"g"),
    note(b"x", b""), note(b"L", b""), pax(("hdrcharset", "BINARY"), ("path", b"\xff\xfe")),
)  # fmt: skip


def sound(rng):
    """A tar with something of everything."""
    entries = [
        file("a", "one"), folder("d"), file("d/b", "x" * 700), link("l", "d/b"),
        link("k", "t" * 150),
        file("n" * 120, "y"), file("\u00e9", "z"),
    ]  # fmt: skip
    rng.shuffle(entries)
    entries.append(hard_link("h", "a"))
    out, form = io.BytesIO(), rng.choice([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for entry in entries:
            info = tarfile.TarInfo(entry.path)
            info.type, info.linkname, info.size = entry.type, entry.target, len(entry.data)
            archive.addfile(info, io.BytesIO(entry.data))
    return out.getvalue()


def changed(rng, tar):
    """The tar with one to three things done to it, headers signed again."""
    tar = bytearray(tar)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        heads = [
            at for at in range(0, len(tar) - 511, BLOCK) if tar[at + 257 : at + 262] == b"ustar"
        ]
        if not heads:
            break
        at, dice = rng.choice(heads), rng.random()
        if dice < 0.6:
            start, length = rng.choice(PLACES)
            place = at + start + rng.choice([0, rng.randrange(length)])
            tar[place : place + 1] = rng.choice(BYTES)
            if start != 148:
                tar[at : at + BLOCK] = signed(tar[at : at + BLOCK])
        elif dice < 0.7:
            place = at + BLOCK + rng.randrange(200)
            tar[place : place + 1] = rng.choice(BYTES)
        elif dice < 0.8:
            del tar[at : at + BLOCK]
        elif dice < 0.9:
            tar[at:at] = rng.choice(PIECES)
        else:
            del tar[at + rng.randrange(len(tar) - at) :]
    return bytes(tar)


@pytest.mark.parametrize("part", range(4))
def test_no_change_makes_readers_differ(part, tmp_path):
    """Seeded: the same tars every time. About a third is accepted and compared."""
    compared = 0
    for seed in range(part * 75, part * 75 + 75):
        rng = random.Random(seed)
        tar = changed(rng, sound(rng))
        accepted, found = disagreements(tar, tmp_path / str(seed))
        assert found == [], f"seed {seed}"
        compared += accepted
    assert compared > 10


# ── writers ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder with names that need every extension of a tar."""
    place = tmp_path_factory.mktemp("source")
    (place / "d/e").mkdir(parents=True)
    (place / "a").write_text("one\n")
    (place / "hard").hardlink_to(place / "a")
    (place / "l").symlink_to("d/e")
    (place / "far").symlink_to("t" * 150)
    (place / ("n" * 150)).write_text("y")
    deep = place / ("p" * 90) / ("q" * 90)
    deep.mkdir(parents=True)
    (deep / "f").write_text("deep")
    (place / "\u00e9").write_text("z")
    os.mkfifo(place / "pipe")
    (place / "old").touch()
    os.utime(place / "old", (-1000, -1000))
    return place


@pytest.mark.parametrize(
    "options",
    [
        ["--format=gnu"], ["--format=oldgnu"], ["--format=pax"], ["--format=ustar"],
        ["--format=v7"],
        ["--format=pax", "--pax-option=comment=for all"], ["--format=pax", "--xattrs", "--acls"],
        ["--format=gnu", "--owner=99999999", "--group=99999999"], ["--blocking-factor=1"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_gnu_tar_writes_is_read(options, source, tmp_path):
    # Formats without long names leave those out, with an error of their own.
    made = subprocess.run(
        ["tar", *options, "-cf", "-", "-C", source, "."], capture_output=True, check=False
    ).stdout
    accepted, found = disagreements(made, tmp_path / "image")
    assert accepted
    assert found == []


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_python_writes_is_read(form, source, tmp_path):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name in sorted(path.name for path in source.iterdir()):
            if form != tarfile.USTAR_FORMAT or name in ("a", "d", "hard", "l"):
                archive.add(source / name, name)
    accepted, found = disagreements(out.getvalue(), tmp_path / "image")
    assert accepted
    assert found == []


NOT_FOR_GO = (
    "a comment for all",  # umoci knows no such header, and says so
    "a long name without its NUL",  # no file system takes a name of 512 bytes
    "an end that is cut",  # unexpected end, says Go
)


def test_go_unpacks_what_we_list(tmp_path):
    """Go's reader, which engines of containers are built on, as it stands in umoci."""
    umoci = shutil.which("umoci")
    if umoci is None:
        pytest.skip("umoci is not installed")
    tars = [tar for name, tar in SOUND.items() if name not in NOT_FOR_GO]
    for number, tar in enumerate(tars):
        layout = ImageBuilder(layers=[tar], name="one").layout(tmp_path / f"image{number}")
        out = tmp_path / f"out{number}"
        subprocess.run(
            [umoci, "unpack", "--rootless", "--image", f"{layout}:one", out],
            check=True, capture_output=True,
        )  # fmt: skip
        root = out / "rootfs"
        theirs = {
            path.relative_to(root).as_posix(): -1 if path.is_symlink() else path.stat().st_size
            for path in root.rglob("*")
            if path.is_symlink() or not path.is_dir()
        }
        mine = ours(tar, tmp_path / f"again{number}")
        assert theirs == {path: -1 if kind == "l" else size for path, kind, size, _ in mine
                          if kind != "d"}  # fmt: skip
