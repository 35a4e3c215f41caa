"""The images that Nix builds, looked at with our own and with public tools."""

import json
import subprocess
from pathlib import Path

import pytest

from support.nix import git

PYTHON = "legacyPackages.x86_64-linux.parts.python"

pytestmark = [pytest.mark.builds, pytest.mark.slow, pytest.mark.timeout(900)]

NAMES = ("llama-cpp-cpu", "runner")


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="session")
def root(image, tmp_path_factory):
    """The llama.cpp image's root, unpacked by umoci."""
    bundle = tmp_path_factory.mktemp("umoci") / "bundle"
    layout = image("llama-cpp-cpu")["path"]
    run("umoci", "unpack", "--image", f"{layout}:latest", str(bundle))
    return bundle / "rootfs"


def inside(root, *command):
    """Run in the image with no network, as its user, with its variables."""
    config = {
        "PATH": "/usr/local/bin:/usr/bin",
        "HOME": "/home/qualify",
        "PYTHONPATH": "/opt/qualify/src",
        "QUALIFY_PROJECT": "/opt/qualify",
    }
    variables = [word for name, value in config.items() for word in ("--setenv", name, value)]
    confined = ("bwrap", "--unshare-all", "--die-with-parent", "--clearenv", *variables,
                "--ro-bind", str(root), "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
                "--uid", "10001", "--gid", "10001")  # fmt: skip
    return run(*confined, *command)


@pytest.mark.parametrize("name", NAMES)
def test_every_guard_accepts_the_image(tree, image, name):
    done = tree.qualify("image", "guard", image(name)["path"])
    assert done.returncode == 0, done.stdout
    assert "failed" not in done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_skopeo_reads_it_and_its_labels_say_what_it_is(tree, image, name):
    document = image(name)
    shown = json.loads(run("skopeo", "inspect", f"oci:{document['path']}"))
    labels = shown["Labels"]
    assert shown["Digest"] == document["digest"]
    assert labels["org.opencontainers.image.revision"] == git(tree.folder, "rev-parse", "HEAD")
    assert labels["qualify.image"] == name
    assert {"qualify.lock.debian", "qualify.declarations", "qualify.closure"} <= set(labels)
    locked = json.loads((tree.folder / "locks/debian.json").read_text())
    assert labels["qualify.lock.debian"] == locked["digest"]


def test_skopeo_copies_it_to_an_archive_for_docker(image, tmp_path):
    archive = tmp_path / "image.tar"
    run("skopeo", "copy", f"oci:{image('llama-cpp-cpu')['path']}", f"docker-archive:{archive}:q:1")
    shown = json.loads(run("skopeo", "inspect", f"docker-archive:{archive}"))
    assert len(shown["Layers"]) == 5


def test_its_launcher_starts_without_a_network(root):
    assert inside(root, "/usr/bin/python3", "-P", "-m", "qualify.runtimes.launcher", "--version")


def test_its_engine_is_imported_from_compiled_code(root):
    said = inside(
        root, "/usr/bin/python3", "-P", "-v", "-c", "import xllamacpp, pydantic, qualify.cli"
    )
    assert said == ""


def test_it_holds_no_shell_and_its_home_is_private(root):
    assert not [name for name in ("sh", "bash", "dash") if (root / "usr/bin" / name).exists()]
    assert (root / "home/qualify").stat().st_mode & 0o777 == 0o700


def test_what_lies_beside_it_is_what_the_commands_print(tree, image):
    path = Path(image("llama-cpp-cpu")["path"])
    for command, file in (("sbom", "sbom.cdx.json"), ("provenance", "provenance.intoto.json")):
        printed = tree.qualify("image", command, str(path))
        assert printed.returncode == 0, printed.stderr
        assert printed.stdout == (path / file).read_text()


def test_the_offline_bundle_is_built_and_verified(tree, image):
    image("runner")
    bundle = tree.built("bundle-offline")
    done = tree.qualify("bundle", "verify", str(bundle), "--json")
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["accepted"] is True
