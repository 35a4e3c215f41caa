"""What an image may ask of memory: deep trees, many names, many texts, many libraries."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from qualify.images import ImageFault, open_image, unpack_image
from qualify.images.blobs import TarStore
from qualify.images.distributions import check_records, distributions
from qualify.images.libraries import NeededLibraries
from qualify.images.limits import LIMITS
from qualify.images.scan import scan_folder, scan_image
from support.images import (
    ImageBuilder,
    distribution,
    elf,
    file,
    folder,
    hard_link,
    layer_tar,
    link,
    python_image,
    safetensors,
)


def scanned(tmp_path, *layers, name="image", **options):
    """The scan of an image with these layers."""
    made = ImageBuilder(layers=list(layers), compression=options.pop("compression", "gzip"))
    return scan_image(open_image(made.layout(tmp_path / name)), **options)


# ── deep trees ───────────────────────────────────────────────────────────────────────────────────


def chain(depth):
    """Files that links bring `depth` folders below the root, though each path is short."""
    entries, reached = [folder("d/" * 50 + "d")], 51
    entries.append(link("l0", "d/" * 50 + "d"))
    number = 0
    while reached < depth:
        step = min(50, depth - reached)
        entries.append(folder(f"l{number}/" + "/".join("d" * step)))
        entries.append(link(f"l{number + 1}", f"l{number}/" + "/".join("d" * step)))
        reached, number = reached + step, number + 1
    return [*entries, file(f"l{number}/file", "x")]


def test_links_may_lead_as_deep_as_a_path_may_be(tmp_path):
    found = scanned(tmp_path, chain(LIMITS.depth - 1), [file("d/.wh..wh..opq")])
    assert found.tree.find("d").children == {}


@pytest.mark.parametrize("depth", [LIMITS.depth, LIMITS.depth + 1, 1500])
def test_links_that_lead_deeper_are_refused(depth, tmp_path):
    """Without the bound, removing such a tree ends in a RecursionError."""
    with pytest.raises(ImageFault, match="folders deep"):
        scanned(tmp_path, chain(depth), [file("d/.wh..wh..opq")])
    with pytest.raises(ImageFault, match="folders deep"):
        unpack_image(open_image(tmp_path / "image"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_plain_path_may_be_as_deep_as_the_limit(tmp_path):
    deepest = "d/" * (LIMITS.depth - 1) + "f"
    found = scanned(tmp_path, [file(deepest, "x")], [file(".wh.d")])
    assert found.files == 1
    assert found.tree.find("d") is None
    with pytest.raises(ImageFault, match="too deep"):
        scanned(tmp_path, [file(f"d/{deepest}", "x")], name="deeper")


# ── many names ───────────────────────────────────────────────────────────────────────────────────


def test_folders_that_no_layer_lists_are_counted(tmp_path):
    layer = [file("/".join(f"{number}{part}" for part in "abcdefghij")) for number in range(20)]
    limits = replace(LIMITS, nodes=200)
    assert scanned(tmp_path, layer, limits=limits).files == 20
    with pytest.raises(ImageFault, match="more than 199 files"):
        scanned(tmp_path, layer, name="again", limits=replace(LIMITS, nodes=199))


def test_names_and_targets_are_counted(tmp_path):
    layer = [link(str(number), "t" * 100) for number in range(10)]
    assert scanned(tmp_path, layer, limits=replace(LIMITS, names=1010)).tree.find("0") is None
    with pytest.raises(ImageFault, match="MiB of their names"):
        scanned(tmp_path, layer, name="again", limits=replace(LIMITS, names=1009))


# ── texts ────────────────────────────────────────────────────────────────────────────────────────


def texts(count, size=1000):
    """RECORDs in folders of their own, also ones that a later layer would replace."""
    return [file(f"site/p{number}-1.dist-info/RECORD", "x" * size) for number in range(count)]


def test_texts_are_counted_together(tmp_path):
    limits = replace(LIMITS, texts=10_000)
    assert scanned(tmp_path, texts(10), limits=limits).files == 10
    with pytest.raises(ImageFault, match="RECORD, METADATA and the like"):
        scanned(tmp_path, texts(11), name="again", limits=limits)
    with pytest.raises(ImageFault, match="RECORD, METADATA and the like"):
        scanned(tmp_path, texts(10), texts(1), name="replaced", limits=limits)


def test_a_folder_is_bounded_too(tmp_path):
    for entry in texts(11):
        place = tmp_path / entry.path
        place.parent.mkdir(parents=True)
        place.write_bytes(entry.data)
    assert scan_folder(tmp_path).files == 11
    with pytest.raises(ImageFault, match="RECORD, METADATA and the like"):
        scan_folder(tmp_path, limits=replace(LIMITS, texts=10_000))


def test_the_names_of_libraries_are_counted_too(tmp_path):
    needs = elf(*(f"lib{number:05}.so" for number in range(100)))
    layer = [file(f"lib/{number}.so", needs) for number in range(4)]
    assert scanned(tmp_path, layer, limits=replace(LIMITS, texts=4400)).files == 4
    with pytest.raises(ImageFault, match="RECORD, METADATA and the like"):
        scanned(tmp_path, layer, name="again", limits=replace(LIMITS, texts=4399))


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["l.so"] * 1024, True),
        (["l.so"] * 1025, False),
        (["l" * 4096], True),
        (["l" * 4097], False),
    ],
)
def test_libraries_without_end_are_not_told(names, told):
    needed = NeededLibraries()
    needed.feed(elf(*names))
    assert needed.result() == (tuple(names) if told else None)


# ── files known by another name ──────────────────────────────────────────────────────────────────

SITE = "usr/lib/python3.13/site-packages"
INFO = f"{SITE}/evil-6.6.dist-info"
METADATA = "Metadata-Version: 2.1\nName: evil\nVersion: 6.6\n\n"


@pytest.mark.parametrize(
    "layer",
    [
        [file("hidden", METADATA), folder(INFO), hard_link(f"{INFO}/METADATA", "hidden")],
        [file("hidden", METADATA), folder(INFO), link(f"{INFO}/METADATA", "/hidden")],
        [folder(INFO), link("x", f"/{INFO}"), file("x/METADATA", METADATA)],
        [file(f"{INFO}/METADATA", "x" * 2000 + METADATA)],
    ],
    ids=["hard link", "link", "folder's link", "too large"],
)
def test_a_distribution_is_seen_by_whatever_way_its_metadata_came(layer, tmp_path):
    sound = distribution("good", "1", {"good.py": "x"})
    found = scanned(tmp_path, [*sound, *layer], limits=replace(LIMITS, text=1500))
    installed = distributions(found.tree)
    assert [(each.name, each.version) for each in installed] == [("evil", "6.6"), ("good", "1")]
    assert check_records(found.tree, installed).without_record == ["evil"]


def test_a_text_that_came_by_another_name_is_noted_as_unread(tmp_path):
    layer = [
        file("empty"), file("some", "root:x:0:0::/:\n"),
        hard_link("etc/passwd", "some"), hard_link("site/a-1.dist-info/RECORD", "empty"),
    ]  # fmt: skip
    found = scanned(tmp_path, layer)
    assert found.too_large == ["etc/passwd"]
    assert found.tree.find("site/a-1.dist-info/RECORD").text == b""
    assert scanned(tmp_path, [file("etc/passwd", "x")], name="plain").too_large == []


def test_a_record_that_is_no_csv_is_no_record(tmp_path):
    entries = distribution("a", "1", {"a.py": "x"})
    broken = [
        replace(each, data=b'"' + b"x" * 200_000) if each.path.endswith("/RECORD") else each
        for each in entries
    ]
    for name, layer, expected in (("sound", entries, []), ("broken", broken, ["a"])):
        tree = scanned(tmp_path, layer, name=name).tree
        assert check_records(tree, distributions(tree)).without_record == expected


def test_a_field_begins_where_a_line_of_an_email_begins(tmp_path):
    metadata = (
        "Metadata-Version: 2.1\nSummary: x\u2028Name: other\x0bVersion: 9\nName: a\nVersion: 1\n"
    )
    tree = scanned(tmp_path, [file(f"{SITE}/a-1.dist-info/METADATA", metadata)]).tree
    assert [(each.name, each.version) for each in distributions(tree)] == [("a", "1")]


# ── files that are cut where nobody looks ────────────────────────────────────────────────────────


@pytest.mark.parametrize("shift", range(0, 4 * 512, 512))
def test_weights_are_found_wherever_the_stream_is_cut(shift, tmp_path):
    """The reader takes a layer in pieces of 1 MiB; a file may begin just before one ends."""
    before = file("before", b"\0" * ((1 << 20) - 3 * 512 + shift))
    layer = [before, file("data", safetensors(200)), file("more", os.urandom(1 << 20))]
    for compression in ("none", "gzip"):
        found = scanned(tmp_path, layer, name=compression, compression=compression)
        assert [(each.topic, each.path) for each in found.findings] == [("weights", "data")]


def test_weights_are_found_behind_spaces(tmp_path):
    spaced = safetensors(3)
    header = spaced[8:].replace(b'{"', b'{ \n"', 1)
    data = (int.from_bytes(spaced[:8], "little") + 2).to_bytes(8, "little") + header
    assert [each.topic for each in scanned(tmp_path, [file("x", data)]).findings] == ["weights"]


# ── marks ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mark", ["d/.wh..", "d/.wh..."])
def test_a_mark_that_removes_its_own_folder_is_refused(mark, tmp_path):
    with pytest.raises(ImageFault, match="from within"):
        scanned(tmp_path, [file("d/x", "x")], [file(mark)])


# ── archives ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("second", ["manifest.json", "./manifest.json", "x/../manifest.json"])
def test_an_archive_with_one_name_twice_is_refused(second, tmp_path):
    """The first is taken by skopeo, the last by docker."""
    archive = python_image().docker_archive(tmp_path / "x.tar")
    sound = archive.read_bytes()
    assert TarStore(archive).has("manifest.json")
    end = len(sound.rstrip(b"\0"))
    end += -end % 512
    archive.write_bytes(sound[:end] + layer_tar([file(second, "[]")]))
    with pytest.raises(ImageFault, match=r"holds 'manifest\.json' twice"):
        open_image(archive)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda tar: tar + b"x" * 512, "after the end"),
        (lambda tar: tar[:-20_000], "truncated|no sound tar"),
        (lambda tar: tar[:512] + b"x" + tar[513:], None),
        (lambda tar: tar[:150] + b"x" + tar[151:], "no sound tar"),
    ],
    ids=["more behind it", "cut off", "only content", "damaged header"],
)
def test_an_archive_that_is_damaged_is_refused(spoil, said, tmp_path):
    archive = python_image().docker_archive(tmp_path / "x.tar")
    archive.write_bytes(spoil(archive.read_bytes()))
    if said is None:
        open_image(archive)
    else:
        with pytest.raises(ImageFault, match=said):
            open_image(archive)
