"""The merged view: layers over each other, whiteouts, links inside the root."""

from __future__ import annotations

import pytest

from qualify.images import ImageFault, open_image
from qualify.images.scan import scan_image
from support.images import ImageBuilder, file, folder, hard_link, link


def view(tmp_path, *layers):
    tree = scan_image(open_image(ImageBuilder(layers=list(layers)).layout(tmp_path / "i"))).tree
    return {path: node.layer for path, node in tree.walk() if node.kind != "folder"}, tree


def test_a_later_layer_replaces_a_file(tmp_path):
    found, tree = view(tmp_path, [file("a", "1"), file("b", "1")], [file("a", "22")])
    assert found == {"a": 1, "b": 0}
    assert tree.find("a").size == 2


def test_a_whiteout_removes_a_file_and_a_folder_of_lower_layers_only(tmp_path):
    found, _ = view(
        tmp_path,
        [file("d/x"), file("d/y"), file("e/z")],
        [file("d/.wh.x"), file(".wh.e"), file("e/new")],
    )
    assert found == {"d/y": 0, "e/new": 1}


@pytest.mark.parametrize("first", [True, False])
def test_an_opaque_folder_keeps_what_its_own_layer_brings(first, tmp_path):
    mark, new = file("d/.wh..wh..opq"), file("d/sub/new")
    upper = [mark, new] if first else [new, mark]
    found, _ = view(tmp_path, [file("d/x"), file("d/sub/old")], upper)
    assert found == {"d/sub/new": 1}


def test_a_whiteout_of_nothing_does_nothing(tmp_path):
    assert view(tmp_path, [file("a")], [file(".wh.gone"), file("q/.wh.gone")])[0] == {"a": 0}


def test_a_file_replaces_a_folder_and_a_folder_a_link(tmp_path):
    found, tree = view(
        tmp_path, [file("d/x"), link("l", "d")], [file("d", "now a file"), folder("l"), file("l/y")]
    )
    assert found == {"d": 1, "l/y": 1}
    assert tree.find("l").kind == "folder"


@pytest.mark.parametrize("target", ["usr/lib", "/usr/lib", "../usr/lib", "usr/./../usr/lib"])
def test_a_path_through_a_link_is_entered_where_the_link_leads(target, tmp_path):
    found, tree = view(tmp_path, [folder("usr/lib"), link("lib", target)], [file("lib/x", "x")])
    assert found == {"lib": 0, "usr/lib/x": 1}
    assert tree.find("lib/x") is tree.find("usr/lib/x")
    assert tree.real_path("lib/x") == "usr/lib/x"


def test_no_link_leads_out_of_the_root(tmp_path):
    _, tree = view(tmp_path, [file("etc/passwd", "inside"), link("d/out", "../../../etc/passwd")])
    assert tree.real_path("d/out") == "etc/passwd"


def test_hard_links_share_a_file(tmp_path):
    _, tree = view(tmp_path, [file("a", "same"), hard_link("b", "a")], [file("a", "other")])
    assert tree.find("b").size == 4
    assert tree.find("a").size == 5


@pytest.mark.parametrize(
    "entries",
    [
        [hard_link("b", "gone")],
        [folder("d"), hard_link("b", "d")],
        [file("a"), file("a/below")],
        [link("a", "b"), link("b", "a"), file("a/x")],
    ],
)
def test_a_view_that_cannot_be_is_refused(entries, tmp_path):
    with pytest.raises(ImageFault):
        view(tmp_path, entries)


def test_a_loop_of_links_that_nobody_enters_is_no_fault(tmp_path):
    found, _ = view(tmp_path, [link("a", "b"), link("b", "a")])
    assert found == {"a": 0, "b": 0}
