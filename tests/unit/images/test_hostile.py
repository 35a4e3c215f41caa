"""Attacks on whoever reads or unpacks an image: each ends in one clear error and leaves nothing."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from dataclasses import replace

import pytest

from qualify.core.errors import QualifyError
from qualify.images import ImageFault, ImageTampered, open_image, unpack_image
from qualify.images.limits import Limits
from qualify.images.scan import scan_image
from support.images import (
    ImageBuilder,
    device,
    file,
    folder,
    hard_link,
    layer_tar,
    link,
    packed,
    python_image,
    sha256,
)


def attack(tmp_path, *layers, limits=None, read=True):
    """Scan and unpack an image; the error of each, and proof that nothing was left."""
    image = open_image(ImageBuilder(layers=list(layers)).layout(tmp_path / "image"))
    before = sorted(path.name for path in tmp_path.iterdir())
    errors = []
    if read:
        with pytest.raises(QualifyError) as caught:
            scan_image(image, limits=limits or Limits())
        errors.append(caught.value)
    with pytest.raises(QualifyError) as caught:
        unpack_image(image, tmp_path / "out", limits=limits or Limits())
    errors.append(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert all("\n" not in str(error) and len(str(error)) < 600 for error in errors)
    return errors[-1]


@pytest.mark.parametrize("path", ["../escaped", "a/../../escaped", "/../escaped", "./a/b/../../.."])
def test_a_path_that_leads_out_is_refused(path, tmp_path):
    assert "leads out of the image" in str(attack(tmp_path, [file(path, "x")]))
    assert not (tmp_path / "escaped").exists()


def test_an_absolute_path_means_the_root_of_the_image(tmp_path):
    image = open_image(ImageBuilder(layers=[[file("/etc/x", "x")]]).layout(tmp_path / "i"))
    assert (unpack_image(image, tmp_path / "out").root / "etc/x").read_text() == "x"


@pytest.mark.parametrize("target", ["/", "/etc", "../../..", "../../../etc"])
def test_a_file_below_a_link_out_stays_inside(target, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    layers = [[link("way", target if target != "/etc" else str(outside))], [file("way/in", "x")]]
    image = open_image(ImageBuilder(layers=layers).layout(tmp_path / "i"))
    if target.startswith("../"):
        with pytest.raises(ImageFault, match="climbs out"):
            unpack_image(image, tmp_path / "out")
    else:
        root = unpack_image(image, tmp_path / "out").root
        inside = [path for path in root.rglob("in") if not path.is_symlink()]
        assert [path.name for path in inside] == ["in"]
    assert list(outside.iterdir()) == []


def test_a_link_that_climbs_out_is_refused_when_unpacked(tmp_path):
    assert "climbs out" in str(attack(tmp_path, [link("a/b", "../../../etc/passwd")], read=False))


def test_a_link_that_climbs_within_the_root_is_kept(tmp_path):
    layer = [file("usr/lib/x", "x"), link("usr/bin/x", "../lib/x"), link("etc/x", "/usr/lib/x")]
    image = open_image(ImageBuilder(layers=[layer]).layout(tmp_path / "i"))
    root = unpack_image(image, tmp_path / "out").root
    assert (root / "usr/bin/x").read_text() == "x"
    assert str((root / "etc/x").readlink()) == "/usr/lib/x"


@pytest.mark.parametrize("target", ["../../etc/passwd", "gone", "/gone"])
def test_a_hard_link_to_the_outside_or_to_nothing_is_refused(target, tmp_path):
    attack(tmp_path, [hard_link("x", target)])


def test_a_hard_link_through_a_link_stays_inside(tmp_path):
    attack(tmp_path, [link("way", str(tmp_path)), hard_link("x", "way/image/index.json")])


def test_device_nodes_are_not_made(tmp_path):
    assert "is a device" in str(attack(tmp_path, [device("dev/sda")], read=False))


def test_setuid_bits_and_owners_are_not_kept(tmp_path):
    layer = [file("su", "x", 0o4755), folder("d", 0o2777), file("f", "x", 0o000, uid=0)]
    root = unpack_image(
        open_image(ImageBuilder(layers=[layer]).layout(tmp_path / "i")), tmp_path / "out"
    ).root
    assert (root / "su").stat().st_mode & 0o7777 == 0o755
    assert (root / "d").stat().st_mode & 0o7000 == 0
    assert (root / "f").read_text() == "x"
    assert (root / "su").stat().st_uid == os.geteuid()


# ── bombs ────────────────────────────────────────────────────────────────────────────────────────

SMALL = Limits(unpacked=1 << 20, members=100, ratio_from=1 << 18, ratio=20, layers=8)


def test_a_layer_that_unpacks_without_end_is_stopped(tmp_path):
    error = attack(tmp_path, [file("zeros", b"\0" * (1 << 21))], limits=SMALL)
    assert "bomb" in str(error) or "unpacks to more than" in str(error)


def test_many_layers_that_are_small_one_by_one_are_stopped(tmp_path):
    layers = [[file("x", os.urandom(300_000))] for _ in range(5)]
    assert "unpacks to more than" in str(attack(tmp_path, *layers, limits=SMALL))


def test_too_many_entries_are_stopped(tmp_path):
    assert "more than 100 entries" in str(
        attack(tmp_path, [file(str(i)) for i in range(200)], limits=SMALL)
    )


def test_a_header_without_end_is_not_read(tmp_path):
    pax = file("x", pax={"comment": "x" * (5 << 20)})
    assert "header of" in str(attack(tmp_path, [pax]))


def test_a_deep_or_long_path_is_refused(tmp_path):
    attack(tmp_path, [file("/".join("d" * 200))])
    attack(tmp_path, [file("n" * 5000)])


def test_a_declared_size_without_bytes_is_truncated(tmp_path):
    info = tarfile.TarInfo("huge")
    info.size = 1 << 40
    tar = info.tobuf(tarfile.GNU_FORMAT) + b"short"
    assert "truncated" in str(attack(tmp_path, tar))


# ── damaged streams ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("keep", [0.3, 0.7, 0.95])
def test_a_truncated_layer_is_refused(keep, tmp_path):
    layout = python_image(more=[file("x", os.urandom(200_000))]).layout(tmp_path / "i")
    image = open_image(layout)
    blob = layout / image.layers[-1].name
    data = blob.read_bytes()
    blob.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(ImageFault, match=r"layer 3.*truncated"):
        scan_image(image)
    with pytest.raises(ImageFault, match=r"layer 3.*truncated"):
        unpack_image(image, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_wrong_diff_id_is_found(tmp_path):
    made = python_image()
    ids = [sha256(tar) for tar in made.tars()]
    made = replace(
        made, changes={"rootfs": {"type": "layers", "diff_ids": [ids[0], "sha256:" + "0" * 64]}}
    )
    image = open_image(made.layout(tmp_path / "i"))
    with pytest.raises(ImageTampered, match="layer 2 unpacks to"):
        scan_image(image)
    with pytest.raises(ImageTampered, match="layer 2 unpacks to"):
        unpack_image(image, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_docker_archive_with_another_layer_is_found(tmp_path):
    archive = python_image().docker_archive(tmp_path / "x.tar")
    data = archive.read_bytes()
    archive.write_bytes(data.replace(b"alpha/__main__.py", b"alpha/__mainn.py", 1))
    with pytest.raises((ImageTampered, ImageFault)):
        scan_image(open_image(archive))


@pytest.mark.parametrize(
    "tail", [b"hidden" + b"\0" * 506, layer_tar([file("hidden", "x")])], ids=["bytes", "a tar"]
)
def test_what_follows_the_end_of_a_tar_is_refused(tail, tmp_path):
    tar = layer_tar([file("a", "x")])
    assert "after the end" in str(attack(tmp_path, tar + tail))


def test_a_last_block_that_was_not_filled_up_is_accepted(tmp_path):
    """As `umoci insert` writes it."""
    tar = layer_tar([file("a", "hi\n")])[: 512 + 3]
    image = open_image(ImageBuilder(layers=[tar]).layout(tmp_path / "i"))
    assert (unpack_image(image, tmp_path / "out").root / "a").read_text() == "hi\n"


def test_a_file_that_is_a_little_short_is_truncated(tmp_path):
    assert "truncated" in str(attack(tmp_path, layer_tar([file("a", "x" * 500)])[: 512 + 499]))


def test_zeros_after_the_end_are_padding(tmp_path):
    tar = layer_tar([file("a", "x")]) + b"\0" * 40_960
    image = open_image(ImageBuilder(layers=[tar]).layout(tmp_path / "i"))
    assert scan_image(image).files == 1


def with_layer(tmp_path, stored: bytes, tar: bytes, media_type: str):
    """An image whose only layer is stored in just these bytes."""
    made = ImageBuilder(layers=[tar])
    layout = made.layout(tmp_path / "i")
    manifest = json.loads(made.blobs()[2])
    manifest["layers"] = [{"mediaType": media_type, "digest": sha256(stored), "size": len(stored)}]
    data = json.dumps(manifest).encode()
    for blob in (stored, data):
        name = hashlib.sha256(blob).hexdigest()
        (layout / "blobs/sha256" / name).write_bytes(blob)
    index = {"schemaVersion": 2, "manifests": [made.descriptor(data)]}
    (layout / "index.json").write_text(json.dumps(index))
    return open_image(layout)


LAYER = "application/vnd.oci.image.layer.v1.tar"


def test_gzip_of_several_members_is_one_layer(tmp_path):
    tar = layer_tar([file("a", "x" * 5000)])
    stored = gzip.compress(tar[:3000]) + gzip.compress(tar[3000:])
    assert scan_image(with_layer(tmp_path, stored, tar, LAYER + "+gzip")).files == 1


@pytest.mark.parametrize(
    ("stored", "media_type", "said"),
    [
        (lambda tar: tar, LAYER + "+gzip", "is not compressed, and"),
        (packed, LAYER, "is gzip, and"),
        (lambda tar: b"BZh9" + tar, LAYER, "compressed with bzip2"),
        (lambda tar: packed(tar) + b"garbage", LAYER + "+gzip", "truncated or damaged"),
        (lambda tar: packed(b"no tar at all" * 100), LAYER + "+gzip", "no sound tar"),
    ],
)
def test_a_layer_that_is_not_what_is_declared_is_refused(stored, media_type, said, tmp_path):
    tar = layer_tar([file("a", "x")])
    with pytest.raises(ImageFault, match=said):
        scan_image(with_layer(tmp_path, stored(tar), tar, media_type))


def test_a_zstd_layer_is_read(tmp_path):
    import shutil
    import subprocess

    assert shutil.which("zstd"), "zstd is needed for this test"
    tar = layer_tar([file("a", "x")])
    stored = subprocess.run(["zstd", "-q", "-c"], input=tar, capture_output=True, check=True).stdout
    image = with_layer(tmp_path, stored, tar, LAYER + "+zstd")
    assert scan_image(image).files == 1


def test_sparse_files_are_refused(tmp_path):
    out = io.BytesIO()
    info = tarfile.TarInfo("sparse")
    info.type = tarfile.GNUTYPE_SPARSE
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    out.write(block + b"\0" * 1024)
    attack(tmp_path, out.getvalue())


def test_a_sound_image_passes_the_same_path(tmp_path):
    image = open_image(python_image().layout(tmp_path / "i"))
    assert scan_image(image).mismatches == []
    assert (unpack_image(image, tmp_path / "out").root / "etc/passwd").is_file()
