"""Layers unpacked into the Nix store: the same files, or an error."""

import gzip
import io
import tarfile

import pytest

from qualify.images.building.layer_writer import BuildError, LayerWriter
from qualify.images.building.store_tree import unpack


def packed(folder, *entries, spoil=None, **options):
    """A layer of `(name, type, bytes or target)`; `spoil` changes the bytes of its tar."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", **options) as archive:
        for name, kind, content in entries:
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, 0o755
            if kind == tarfile.REGTYPE:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                info.linkname = content
                archive.addfile(info)
    data = bytearray(plain.getvalue())
    if spoil is not None:
        spoil(data)
    layer = folder / "layer.tar.gz"
    layer.write_bytes(gzip.compress(data))
    return layer


@pytest.fixture
def root(tmp_path):
    place = tmp_path / "out"
    place.mkdir()
    return place


A = ("a", tarfile.REGTYPE, b"one")
B = ("b", tarfile.REGTYPE, b"two")


def test_a_layer_of_ours_is_unpacked_whole(tmp_path, root):
    long = "/".join(["d" * 90] * 4) + "/file"
    with LayerWriter(tmp_path, title="t", threads=1) as layer:
        layer.file("usr/bin/tool", b"#!", "x", mode=0o755)
        layer.file(long, b"long", "x")
        layer.link("etc/link", "/usr/bin/tool", "x")
        layer.link("etc/far", "t" * 300, "x")
        layer.same_file("usr/bin/twin", "usr/bin/tool", "x")
    unpack(tmp_path / "layer.tar.gz", root)
    assert (root / long).read_bytes() == b"long"
    assert (root / "etc/link").read_bytes() == b"#!"
    assert (root / "etc/far").readlink().name == "t" * 300
    assert (root / "usr/bin/twin").stat().st_ino == (root / "usr/bin/tool").stat().st_ino
    assert (root / "usr/bin/tool").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("length", [4000, 70_000])
def test_a_long_header_is_read_and_an_endless_one_refused(tmp_path, root, format, length):
    link = ("l", tarfile.SYMTYPE, "x/" * (length // 2))
    layer = packed(tmp_path, A, link, format=format)
    if length < 1 << 16:
        unpack(layer, root)
        assert (root / "l").is_symlink()
    else:
        with pytest.raises(BuildError, match="a header of 70"):
            unpack(layer, root)


def test_a_global_header_is_bounded_too(tmp_path, root):
    layer = packed(tmp_path, A, format=tarfile.PAX_FORMAT, pax_headers={"comment": "c" * 70_000})
    with pytest.raises(BuildError, match="a header of 70"):
        unpack(layer, root)


@pytest.mark.parametrize("at", [0, 1024], ids=["first", "second"])
def test_a_damaged_header_is_not_the_end(tmp_path, root, at):
    def spoil(data):
        data[at + 148] ^= 1

    with pytest.raises(BuildError, match="damaged header"):
        unpack(packed(tmp_path, A, B, spoil=spoil), root)


def test_a_layer_that_is_cut_off_is_an_error(tmp_path, root):
    layer = packed(tmp_path, A, B)
    layer.write_bytes(layer.read_bytes()[:-20])
    with pytest.raises(BuildError, match=r"layer\.tar\.gz cannot be read"):
        unpack(layer, root)


@pytest.mark.parametrize(
    "entry",
    [
        ("../outside", tarfile.REGTYPE, b"x"),
        ("/outside", tarfile.REGTYPE, b"x"),
        ("link", tarfile.LNKTYPE, "../outside"),
        ("pipe", tarfile.FIFOTYPE, ""),
        ("device", tarfile.CHRTYPE, ""),
    ],
    ids=lambda entry: entry[0],
)
def test_what_no_layer_of_ours_holds_is_refused(tmp_path, root, entry):
    with pytest.raises(BuildError):
        unpack(packed(tmp_path, A, entry), root)
    assert not (tmp_path / "outside").exists()
