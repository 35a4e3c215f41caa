"""The same pins give the same bytes, and a change of our code rebuilds our code alone."""

import json
import time
from pathlib import Path

import pytest

from support.nix import checkout, elsewhere, open_depot

pytestmark = [pytest.mark.builds, pytest.mark.slow, pytest.mark.timeout(1500)]

PARTS = "legacyPackages.x86_64-linux.parts"
LLAMA = f"{PARTS}.layouts.llama-cpp-cpu"


def manifest_of(layout):
    index = json.loads((layout / "index.json").read_text())
    digest = index["manifests"][0]["digest"].removeprefix("sha256:")
    return json.loads((layout / "blobs/sha256" / digest).read_text())


def layers_of(layout):
    return [layer["digest"] for layer in manifest_of(layout)["layers"]]


def test_a_layer_and_an_image_built_again_have_the_same_bytes(tree, image):
    image("llama-cpp-cpu")
    for attribute in (
        f"{PARTS}.layers.llama-cpp-cpu.base",
        f"{PARTS}.layers.llama-cpp-cpu.libraries",
        "image-llama-cpp-cpu",
    ):
        tree.nix("build", "--no-link", "--rebuild", tree.reference(attribute))


def test_another_user_another_store_and_another_temporary_folder_make_no_difference(
    image, depot, tmp_path
):
    here = Path(image("llama-cpp-cpu")["path"])
    other = elsewhere(tmp_path / "other")
    done = other.run("sh", str(open_depot(depot, tmp_path) / "seed"))
    assert done.returncode == 0, done.stderr
    found = other.built(LLAMA)
    assert manifest_of(found) == manifest_of(here)
    assert (found / "digest").read_text() == (here / "digest").read_text()


def test_a_one_line_change_of_our_code_rewrites_the_last_layer_alone(
    tree, image, tmp_path, record_property
):
    before = layers_of(Path(image("runner")["path"]))
    changed = checkout(tmp_path / "changed")
    source = changed.folder / "src/qualify/__main__.py"
    source.write_text(source.read_text() + f"# one more line, {time.time_ns()}\n")
    changed.commit("one line")
    started = time.monotonic()
    done = changed.qualify("image", "build", "runner", "--json")
    seconds = time.monotonic() - started
    assert done.returncode == 0, done.stderr
    after = layers_of(Path(json.loads(done.stdout)["path"]))
    assert after[:-1] == before[:-1]
    assert after[-1] != before[-1]
    assert {line.strip() for line in done.stderr.splitlines()} == {
        "layer-project",
        "layout-runner",
        "image-runner",
    }
    record_property("seconds", round(seconds, 1))
    assert seconds < 60
