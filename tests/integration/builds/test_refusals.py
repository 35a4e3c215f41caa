"""What cannot be built is refused before it is started, with what to do about it."""

import json
import os
import subprocess

import pytest

from qualify.images.nix_faults import explained
from support.nix import SETTINGS, checkout, open_to_others

PYTHON = "legacyPackages.x86_64-linux.parts.python"

pytestmark = [pytest.mark.builds, pytest.mark.timeout(600)]


@pytest.fixture
def copy(depot, tmp_path):
    """A checkout of its own, to be damaged."""
    return checkout(tmp_path / "a copy")


def refused(done, *words):
    assert done.returncode in (1, 2), done.stdout
    for word in words:
        assert word in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_a_machine_without_nix(tree, tmp_path):
    done = tree.qualify("image", "build", "runner", PATH=str(tmp_path))
    refused(done, "Nix is not installed here", "nix-bin")


def test_an_image_that_there_is_not(tree):
    refused(tree.qualify("image", "build", "runer"), "no image 'runer'", "runner", "vllm-cu130")


def test_a_folder_that_is_no_checkout(tree, tmp_path):
    (tmp_path / "manifests").mkdir()
    done = tree.qualify("--project", str(tmp_path), "image", "build", "runner")
    refused(done, "flake.nix")


def test_a_pinned_file_that_is_not_in_the_store_is_named(copy):
    lock = copy.folder / "locks/launcher.json"
    document = json.loads(lock.read_text())
    document["packages"][0]["files"][0]["sha256"] = "0" * 64
    lock.write_text(json.dumps(document))
    copy.commit("another file")
    said = refused(
        copy.qualify("image", "build", "llama-cpp-cpu"),
        document["packages"][0]["files"][0]["file"],
        "qualify depot fill",
        "qualify depot seed",
    )
    assert "launcher" in said.split("depot fill")[1]


def test_a_wheel_for_another_platform_is_named(copy):
    lock = copy.folder / "locks/launcher.json"
    document = json.loads(lock.read_text())
    document["packages"][0]["files"][0]["file"] = "click-8.0-py3-none-win_amd64.whl"
    lock.write_text(json.dumps(document))
    copy.commit("a wheel for Windows")
    done = copy.nix("eval", copy.reference("image-llama-cpp-cpu.outPath"), check=False)
    assert "click-8.0-py3-none-win_amd64.whl is a wheel for another" in done.stderr


def test_a_build_without_a_sandbox_ends_itself(copy):
    settings = SETTINGS.replace("sandbox = true", "sandbox = false")
    (copy.folder / "nix/bootstrap.nix").write_text(
        (copy.folder / "nix/bootstrap.nix").read_text().replace('"python3.13"', '"python3.13-x"')
    )
    copy.commit("another name, so that it is not there yet")
    done = subprocess.run(
        ["nix", "build", "--no-link", "-L", copy.reference(PYTHON)],
        cwd=copy.folder,
        env={**os.environ, "NIX_CONFIG": settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "Nix builds without a sandbox here: set sandbox = true" in done.stderr


def test_a_changed_tree_is_built_and_labelled_so(copy):
    source = copy.folder / "src/qualify/__main__.py"
    head = copy.commit("before")
    source.write_text(source.read_text() + "# not committed\n")
    (copy.folder / "src/qualify/new_module.py").write_text("")
    done = copy.qualify("image", "build", "llama-cpp-cpu", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["revision"] == f"{head}-dirty"
    assert "changes that are not committed" in done.stderr
    assert "src/qualify/new_module.py" in done.stderr
    shown = subprocess.run(
        ["skopeo", "inspect", f"oci:{json.loads(done.stdout)['path']}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    labels = json.loads(shown.stdout)["Labels"]
    assert labels["org.opencontainers.image.revision"] == f"{head}-dirty"


@pytest.fixture
def of_another_user(copy, tmp_path):
    """The checkout, owned by `nobody`; gives how Nix is told of it."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    reference = copy.reference("image-llama-cpp-cpu")
    open_to_others(tmp_path)
    subprocess.run(["chown", "-R", "nobody", str(copy.folder)], check=True)
    return reference


def test_a_checkout_of_another_user_is_refused_with_what_to_tell_git(copy, of_another_user):
    refused(copy.qualify("image", "build", "llama-cpp-cpu"), "another user", "safe.directory")


def test_a_user_who_may_not_use_the_store_is_told_what_to_do(copy, of_another_user):
    command = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    done = subprocess.run(
        [*command, "nix", "build", "--no-link", of_another_user],
        cwd=copy.folder,
        env={"PATH": os.environ["PATH"], "HOME": str(copy.folder), "NIX_CONFIG": SETTINGS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "may not use the Nix store" in str(explained(done.stderr, "image")), done.stderr
