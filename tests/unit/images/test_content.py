"""What layers say of a folder and what is found in it are the same digest, or it was changed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qualify.images import ImageFault, open_image, unpack_image
from qualify.images.content import content_of_folder, content_of_tree
from qualify.images.scan import scan_image
from support.images import ImageBuilder, file, folder, hard_link, link

NAMES = ("a", "b", "c", "a/b", "a/c", "b/a", "a/b/c", "c/b/a")
places = st.sampled_from(NAMES)
modes = st.sampled_from((0o000, 0o644, 0o755, 0o777, 0o4755, 0o1777, 0o2770))
marks = st.builds(
    lambda path: file(f"{path.rpartition('/')[0]}/.wh.{path.rpartition('/')[2]}".lstrip("/")),
    st.sampled_from((*NAMES, ".wh..opq", "a/.wh..opq", "a/b/.wh..opq")),
)
targets = st.sampled_from(("a", "b/", "./c", "/a/b", "b//a", "../a", "nothing"))
entries = st.one_of(
    st.builds(file, places, st.binary(max_size=3), modes),
    st.builds(folder, places, modes),
    st.builds(link, places, targets),
    st.builds(hard_link, places, places),
    marks,
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.lists(entries, max_size=6), min_size=1, max_size=3))
def test_whatever_the_layers_do_the_folder_is_what_they_say(layers):
    with tempfile.TemporaryDirectory() as name:
        image = open_image(ImageBuilder(layers=layers).layout(Path(name) / "image"))
        try:
            unpack_image(image, Path(name) / "out")
        except ImageFault:
            return
        # Hashes everything, and compares it with what was told from the layers.
        unpack_image(image, Path(name) / "out")


def test_two_ways_to_the_same_digest(tmp_path):
    layers = [
        [file("b/large", os.urandom(1 << 20)), hard_link("b/again", "b/large"), folder("a-b")],
        [link("a", "b/"), file("a/new", "x", 0o755), file("a.b", ""), file("b/\udcff", "y")],
    ]
    image = open_image(ImageBuilder(layers=layers).layout(tmp_path / "image"))
    read = []
    found = content_of_folder(unpack_image(image, tmp_path / "out").root, read.append)
    assert found == content_of_tree(scan_image(image).tree)
    assert found.size == sum(read) == (1 << 20) + 2


def test_each_fact_of_a_file_is_in_the_digest(tmp_path):
    def digest(*layer):
        with tempfile.TemporaryDirectory(dir=tmp_path) as name:
            image = open_image(ImageBuilder(layers=[list(layer)]).layout(Path(name) / "i"))
            return content_of_folder(unpack_image(image, Path(name) / "o").root).digest

    layers = (
        [file("a", "x")], [file("a", "y")], [file("b", "x")], [file("a", "x", 0o755)],
        [folder("a")], [link("a", "x")], [link("a", "x/")], [file("a")], [],
    )  # fmt: skip
    assert len({digest(*layer) for layer in layers}) == len(layers)
    assert digest(file("a", "x")) == digest(file("a", "x"))


@pytest.mark.parametrize("size", [10, 1 << 20])
def test_a_file_with_several_names_is_read_once(tmp_path, size):
    (tmp_path / "one").write_bytes(b"x" * size)
    (tmp_path / "two").hardlink_to(tmp_path / "one")
    assert content_of_folder(tmp_path).size == size


def test_the_order_does_not_depend_on_when_a_file_was_read(tmp_path):
    for number in range(40):
        (tmp_path / f"{number}").write_bytes(os.urandom((number % 3) * 300_000))
    assert len({content_of_folder(tmp_path).digest for _ in range(5)}) == 1


def test_an_image_that_is_refused_leaves_nothing(tmp_path):
    image = open_image(ImageBuilder(layers=[[link("a", "..")]]).layout(tmp_path / "i"))
    with pytest.raises(ImageFault):
        unpack_image(image, tmp_path / "out")
    assert not (tmp_path / "out").exists()
