"""What an image row binds of its image: the Debian closure that it is built on, and no other."""

import json
from pathlib import Path

import pytest

from qualify.core.errors import ErrorList
from qualify.manifests.base_layers import closure_digests
from qualify.manifests.catalog import load_catalog
from qualify.manifests.configuration import diff, resolve
from qualify.pins.debian import read_debian_lock
from support.projects import SOUND, edited, write_project

ROOT = Path(__file__).parents[3]
ROW = "manifests/matrix/one.yaml"
RUNTIME = "manifests/runtimes/engine.yaml"
LOCK = "locks/debian.json"


def lock(**sha256):
    names = {"libc": "a" * 64, "shell": "b" * 64, **sha256}
    return json.dumps(
        {
            "closures": {
                "base": {"packages": ["libc"]},
                "more": {"packages": ["libc", "shell"]},
            },
            "packages": [{"name": name, "sha256": value} for name, value in names.items()],
        }
    )


def project(folder, changes=None, **sha256):
    with_image = {
        LOCK: lock(**sha256),
        ROW: SOUND[ROW] + "placement: image\n",
        RUNTIME: SOUND[RUNTIME] + "base_layer: base\n",
    }
    return load_catalog(
        write_project(folder, {**with_image, **(changes or {})}), cache_folder=folder / "cache"
    )


def test_it_is_the_digest_that_the_lock_itself_gives():
    shipped = read_debian_lock(ROOT / LOCK)
    found = closure_digests(ROOT)
    assert found
    assert found == {name: shipped.closure_digest(name) for name in shipped.closures}


def test_an_image_row_binds_its_closure_and_a_host_row_does_not(tmp_path):
    image = resolve(project(tmp_path / "a"), "one")
    assert image.bound["base_layer"].startswith("sha256:")
    host = resolve(project(tmp_path / "b", {ROW: SOUND[ROW]}), "one")
    assert host.bound["base_layer"] is None
    assert {each.path for each in diff(host, image)} == {"base_layer", "row.placement"}


def test_a_changed_package_of_the_closure_changes_the_row_and_another_does_not(tmp_path):
    before = resolve(project(tmp_path / "a"), "one").digest
    assert resolve(project(tmp_path / "b", shell="c" * 64), "one").digest == before
    assert resolve(project(tmp_path / "c", libc="c" * 64), "one").digest != before


def test_naming_a_base_layer_changes_no_host_row(tmp_path):
    plain = load_catalog(write_project(tmp_path / "a"), cache_folder=tmp_path / "cache")
    named = project(tmp_path / "b", {ROW: SOUND[ROW]})
    assert resolve(plain, "one").digest == resolve(named, "one").digest


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({RUNTIME: SOUND[RUNTIME] + "base_layer: bass\n"}, "did you mean 'base'"),
        ({RUNTIME: SOUND[RUNTIME]}, "names no base layer"),
        ({LOCK: None}, "has no closure 'base'"),
        ({LOCK: "{"}, "has no closure 'base'"),
    ],
)
def test_an_image_row_without_a_known_base_layer_is_a_mistake(tmp_path, changes, said):
    with pytest.raises(ErrorList) as caught:
        project(tmp_path, changes)
    assert said in str(caught.value)


def test_a_runtime_with_a_lock_needs_its_launch_template(tmp_path):
    wrong = edited(RUNTIME, "engine: llama-cpp", "engine: vllm")
    with pytest.raises(ErrorList) as caught:
        load_catalog(write_project(tmp_path, wrong), cache_folder=tmp_path / "cache")
    assert "llama_cpp does not belong to engine vllm" in str(caught.value)
