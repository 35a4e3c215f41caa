"""An unpacked image is whole and unchanged, or it is not there."""

from __future__ import annotations

import json
import os
import resource
import shutil
import threading

import pytest

from qualify.core.errors import EnvironmentFault, UsageError
from qualify.images import ImageFault, open_image, rooted, unpack_image
from qualify.images.limits import Limits
from qualify.images.unpacking import default_folder
from support.images import ImageBuilder, file, folder, hard_link, link, python_image


def unpacked(tmp_path, *layers):
    tmp_path.mkdir(exist_ok=True)
    image = open_image(ImageBuilder(layers=list(layers)).layout(tmp_path / "image"))
    return unpack_image(image, tmp_path / "out").root


def other_bytes(path):
    """As many other bytes, with the times that the file had."""
    info = path.stat()
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def listing(root):
    return sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_symlink() or not path.is_dir()
    )


def test_the_folder_is_the_merged_view(tmp_path):
    root = unpacked(
        tmp_path,
        [
            file("a", "1"),
            file("d/x", "1"),
            file("d/y", "1"),
            folder("usr/lib"),
            link("lib", "usr/lib"),
        ],
        [file("a", "22"), file("d/.wh.x"), file("lib/new", "n"), file("s/t", "deep", 0o755)],
        [file("d/.wh..wh..opq"), file("d/z", "1"), file(".wh.s"), link("a2", "a")],
    )
    assert listing(root) == ["a", "a2", "d/z", "lib", "usr/lib/new"]
    assert (root / "a").read_text() == "22"
    assert (root / "a2").is_symlink()


def test_a_file_takes_the_place_of_a_folder_and_back(tmp_path):
    root = unpacked(
        tmp_path,
        [file("d/x", "1"), file("f", "1"), link("l", "d")],
        [file("d", "now a file"), folder("f"), file("f/y", "1"), folder("l"), file("l/z", "1")],
    )
    assert listing(root) == ["d", "f/y", "l/z"]


def test_hard_links_stay_one_file_and_replacing_one_leaves_the_other(tmp_path):
    root = unpacked(
        tmp_path, [file("a", "same"), hard_link("b", "a"), hard_link("c", "a")], [file("a", "new")]
    )
    assert (root / "b").stat().st_ino == (root / "c").stat().st_ino
    assert [(root / name).read_text() for name in "abc"] == ["new", "same", "same"]


def test_modes_and_times_are_the_image_s(tmp_path):
    root = unpacked(tmp_path, [file("run", "x", 0o755), file("read", "x", 0o440)])
    assert (root / "run").stat().st_mode & 0o777 == 0o755
    assert (root / "read").stat().st_mode & 0o777 == 0o440
    assert (root / "run").stat().st_mtime == 1


def test_unpacking_again_uses_what_is_there(tmp_path):
    image = open_image(python_image(labels={"a": "b"}).layout(tmp_path / "image"))
    first = unpack_image(image, tmp_path / "out")
    marked = (first.root / "etc/passwd").stat().st_ino
    again = unpack_image(image, tmp_path / "out")
    assert again == first
    assert again.labels == {"a": "b"}
    assert (again.root / "etc/passwd").stat().st_ino == marked


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "etc/passwd").write_text("root::0:0::/:/bin/sh\n"),
        lambda root: other_bytes(root / "etc/passwd"),
        lambda root: (root / "new").touch(),
        lambda root: (root / "etc/passwd").chmod(0o777),
        lambda root: (root / "bin").unlink(),
        lambda root: ((root / "bin").unlink(), (root / "bin").symlink_to("/elsewhere")),
    ],
)
def test_a_folder_that_was_changed_is_not_used(change, tmp_path):
    image = open_image(python_image().layout(tmp_path / "image"))
    change(unpack_image(image, tmp_path / "out").root)
    with pytest.raises(UsageError, match="was changed after"):
        unpack_image(image, tmp_path / "out")


def test_a_folder_that_others_could_change_is_not_used(tmp_path):
    image = open_image(python_image().layout(tmp_path / "image"))
    unpack_image(image, tmp_path / "out")
    (tmp_path / "out").chmod(0o777)
    with pytest.raises(UsageError, match="could be changed by other users"):
        unpack_image(image, tmp_path / "out")


@pytest.mark.parametrize(
    "members",
    [
        [link("up", "..")],
        [link("a/b/up", "../../..")],
        [folder("deep/er"), link("short", "deep/er"), link("short/up", "../../..")],
        [folder("a/b"), link("in", "a/b"), link("out", "in/../../..")],
        [link("a/b/c/up", "../.."), hard_link("up", "a/b/c/up")],
        [link("out", "x/../../y"), link("x", "/")],
        [folder("x/y"), folder("d/e"), link("d/e/top", "../.."), link("d/e/out", "top/..")],
        # A reader outside finds a way where inside there is only a link to itself.
        [link("a", "../a")],
        [folder("etc"), link("etc/passwd", "passwd"), link("leak", "../../../etc/passwd")],
        [link("round", "round"), link("out", "round/../../x")],
    ],
)
def test_a_link_that_climbs_out_by_any_way_is_refused(members, tmp_path):
    with pytest.raises(ImageFault, match="climbs out"):
        unpacked(tmp_path, members)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "members",
    [
        [link("usr/bin/x", "../lib/x"), link("etc/mtab", "../proc/mounts")],
        [folder("usr/lib"), link("lib", "usr/lib"), link("lib/up", "../../etc")],
        [folder("x/y"), link("b", "x/y"), link("a", "b/..")],
        [link("a/b/c/root", "../../.."), hard_link("a/b/d/root", "a/b/c/root")],
        [link("round", "round"), link("never", "never/x")],
        [link("absolute", "/etc/passwd")],
    ],
)
def test_a_link_that_stays_inside_is_kept(members, tmp_path):
    assert unpacked(tmp_path, members).is_dir()


def test_what_a_later_layer_puts_in_the_way_counts(tmp_path):
    below = [folder("a/b/c"), link("x", "a/b/c/../..")]
    assert unpacked(tmp_path / "one", below).is_dir()
    with pytest.raises(ImageFault, match="layer 1: 'x' is a link that climbs out"):
        unpacked(tmp_path / "two", below, [file("a/b/.wh.c"), link("a/b/c", "../..")])
    # And what a later layer takes away does not.
    root = unpacked(tmp_path / "three", [link("d/up", "../../..")], [file("d/.wh.up")])
    assert listing(root) == []


def test_links_that_multiply_are_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(rooted, "_STEPS", 10_000)
    layer = [link(f"l{i}", f"l{i + 1}/" * 8) for i in range(12)] + [link("l12", ".")]
    with pytest.raises(ImageFault, match="too many others"):
        unpacked(tmp_path, layer)


def test_a_mark_in_a_deep_tree_is_applied(tmp_path):
    deep = "/".join("d" * 120)
    root = unpacked(
        tmp_path, [file(f"{deep}/old"), file("d/x")], [file(".wh.d"), file(f"{deep}/new")]
    )
    assert listing(root) == [f"{deep}/new"]


def test_links_do_not_make_a_tree_deeper_than_a_path_may_be(tmp_path):
    deep = "/".join("d" * 100)
    layers = [[folder(deep), link("l", deep)], [file(f"l/{deep}/x")], [file(".wh.d")]]
    with pytest.raises(ImageFault, match="folders deep"):
        unpacked(tmp_path, *layers)


def test_the_limits_that_are_given_hold_for_the_merged_view_too(tmp_path):
    image = open_image(python_image().layout(tmp_path / "image"))
    with pytest.raises(ImageFault, match="more than 3 files"):
        unpack_image(image, tmp_path / "out", limits=Limits(nodes=3))


def moved(place):
    """A link to what was there."""
    place.rename(place.with_name("moved"))
    place.symlink_to("moved")


def state(out, **changes):
    place = out / "image.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), **changes}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda out: shutil.rmtree(out / "rootfs"), "is no unpacked image"),
        (lambda out: moved(out / "rootfs"), "is no folder"),
        (moved, "is no folder"),
        (lambda out: (out / "rootfs").chmod(0o777), "could be changed by other users"),
        (lambda out: (out / "image.json").write_text("[]"), "is no unpacked image"),
        (lambda out: state(out, schema="qualify-unpacked-image/2"), "by another version"),
        (lambda out: state(out, content="sha256:" + "0" * 64), "was changed after"),
    ],
)
def test_what_is_not_as_it_was_left_is_told_and_kept(change, said, tmp_path):
    image = open_image(python_image().layout(tmp_path / "image"))
    unpack_image(image, tmp_path / "out")
    change(tmp_path / "out")
    with pytest.raises(UsageError, match=said) as caught:
        unpack_image(image, tmp_path / "out")
    assert caught.value.fix
    assert (tmp_path / "out").exists()


def test_a_folder_of_another_user_is_not_used(tmp_path, monkeypatch):
    image = open_image(python_image().layout(tmp_path / "image"))
    unpack_image(image, tmp_path / "out")
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(UsageError, match="could be changed by other users"):
        unpack_image(image, tmp_path / "out")


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path):
    image = open_image(python_image().layout(tmp_path / "image"))
    root = unpack_image(image, tmp_path / "out").root
    (root / "etc/passwd").unlink()
    os.mkfifo(root / "etc/passwd", 0o644)
    with pytest.raises(UsageError, match="was changed after"):
        unpack_image(image, tmp_path / "out")


@pytest.fixture(params=[0o000, 0o077])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_nobody_else_may_write_what_was_unpacked(tmp_path):
    root = unpacked(
        tmp_path, [folder("tmp", 0o1777), file("f", "x", 0o666), file("implied/f", "x", 0o777)]
    )
    modes = {
        path.relative_to(root).as_posix(): path.stat().st_mode & 0o7777 for path in root.rglob("*")
    }
    assert modes == {"tmp": 0o1755, "f": 0o644, "implied": 0o755, "implied/f": 0o755}


def test_how_far_the_hashing_is_ends_at_the_size_of_the_image(tmp_path):
    more = [file("large", os.urandom(3 << 20)), hard_link("again", "large")]
    image = open_image(python_image(more=more).layout(tmp_path / "image"))
    unpack_image(image, tmp_path / "out")
    told = []
    unpack_image(image, tmp_path / "out", progress=told.append)
    assert len(told) > 3
    assert sum(told) == image.size
    assert min(told) >= 0


def test_a_file_of_which_the_disk_takes_a_part_is_not_taken_for_whole(tmp_path):
    layout = ImageBuilder(layers=[[file("f", os.urandom(900_000))]]).layout(tmp_path / "image")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, before[1]))
    try:
        with pytest.raises(EnvironmentFault, match="File too large"):
            unpack_image(open_image(layout), tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "out").exists()


def test_another_image_or_another_folder_is_not_replaced(tmp_path):
    first = open_image(python_image().layout(tmp_path / "a"))
    second = open_image(python_image(user="7").layout(tmp_path / "b"))
    unpack_image(first, tmp_path / "out")
    with pytest.raises(UsageError, match="holds the image"):
        unpack_image(second, tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("precious")
    with pytest.raises(UsageError, match="is no unpacked image"):
        unpack_image(first, tmp_path / "mine")
    assert (tmp_path / "mine/file").read_text() == "precious"


def test_by_default_it_lies_in_the_user_s_cache_by_digest(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    image = open_image(python_image().layout(tmp_path / "image"))
    made = unpack_image(image)
    assert made.root.parent == default_folder(image)
    assert made.root.parent.name == image.digest.removeprefix("sha256:")
    assert default_folder(image).parent.stat().st_mode & 0o077 == 0


def test_two_processes_that_unpack_at_once_both_have_it(tmp_path):
    image = open_image(python_image().layout(tmp_path / "image"))
    made, errors = [], []

    def work():
        try:
            made.append(unpack_image(image, tmp_path / "out").root)
        except UsageError as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [tmp_path / "out/rootfs"] * 4, errors
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    from qualify.images import unpacking

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(unpacking._Writer, "_file", full)
    image = open_image(python_image().layout(tmp_path / "image"))
    with pytest.raises(EnvironmentFault, match="No space left"):
        unpack_image(image, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["image"]
