"""What does not fit into CI: a current Nix, every image twice, the vLLM images."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from support.nix import Elsewhere, elsewhere, open_depot

pytestmark = [pytest.mark.builds, pytest.mark.full, pytest.mark.timeout(4 * 3600)]

VLLM = ("vllm-cpu", "vllm-cu129", "vllm-cu130")
SYSTEM = "x86_64-linux"
OWN_LAYERS = (
    "l: map (t: l.${t}.outPath) "
    '(builtins.filter (t: t != "base" && t != "project") (builtins.attrNames l))'
)


@pytest.fixture(scope="session")
def current_nix(tmp_path_factory):
    """The Nix of Debian 13, started by its own C library, without installing anything."""
    from qualify.pins.apt import PrivateApt

    folder = tmp_path_factory.mktemp("nix")
    apt = PrivateApt(folder / "apt", "trixie")
    apt.write_sources()
    apt.run("apt-get", "-qq", "update")
    listed = apt.run(
        "apt-get", "-qq", "install", "--print-uris", "-y", "--no-install-recommends", "nix-bin"
    )
    names = {line.split()[1].split("_")[0] for line in listed.splitlines() if line[:1] == "'"}
    packages = folder / "packages"
    packages.mkdir()
    subprocess.run(
        ["apt-get", "-q", "-y", "download", *sorted(names)],
        cwd=packages, env=apt.environment(), check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    root = folder / "root"
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for package in sorted(packages.iterdir()):
        data = subprocess.run(
            ["dpkg-deb", "--fsys-tarfile", package], capture_output=True, check=True
        )
        unpack = ["tar", "-xf", "-", "--keep-directory-symlink", "--no-same-owner", "-C", root]
        subprocess.run(unpack, input=data.stdout, check=True)
    start = folder / "nix"
    libraries = root / "usr/lib/x86_64-linux-gnu"
    start.write_text(
        f"#!/bin/sh\nexec {root}/usr/lib64/ld-linux-x86-64.so.2 --inhibit-cache --library-path "
        f'{libraries}:{libraries}/nix --argv0 "${{0##*/}}" {root}/usr/bin/nix "$@"\n'
    )
    start.chmod(0o755)
    (folder / "nix-store").symlink_to("nix")
    return start


def test_a_current_nix_gives_the_same_paths_and_bytes(current_nix, image, depot, tmp_path):
    here = Path(image("llama-cpp-cpu")["path"])
    other = elsewhere(tmp_path / "other")
    current = Elsewhere(other.place, other.tree, other.store, str(current_nix))
    seed = open_depot(depot, tmp_path) / "seed"
    path = f"{current_nix.parent}:{os.environ['PATH']}"
    done = current.run("sh", str(seed), PATH=path)
    assert done.returncode == 0, done.stderr
    found = current.built("image-llama-cpp-cpu")
    assert found.name == here.name
    assert (found / "digest").read_text() == (here / "digest").read_text()
    assert (found / "sbom.cdx.json").read_bytes() == (here / "sbom.cdx.json").read_bytes()
    for name in ("runner", *VLLM):
        answers = {
            current.run(nix, "eval", "--raw", current.reference(f"image-{name}.outPath")).stdout
            for nix in ("nix", str(current_nix))
        }
        assert len(answers) == 1, name


@pytest.mark.parametrize("name", ["runner", "llama-cpp-cpu"])
def test_everything_of_an_image_is_built_again_with_the_same_bytes(tree, image, name):
    image(name)
    parts = f"legacyPackages.{SYSTEM}.parts"
    for title in tree.evaluated(f"{parts}.layers.{name}", "--apply", "builtins.attrNames"):
        tree.nix(
            "build", "--no-link", "--rebuild", tree.reference(f"{parts}.layers.{name}.{title}")
        )
    tree.nix("build", "--no-link", "--rebuild", tree.reference(f"{parts}.layouts.{name}"))
    tree.nix("build", "--no-link", "--rebuild", tree.reference(f"image-{name}"))


def test_the_offline_bundle_is_built_and_verified(tree):
    bundle = tree.built("bundle-offline")
    done = tree.qualify("bundle", "verify", str(bundle), "--json")
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["accepted"] is True


@pytest.mark.parametrize("name", VLLM)
def test_a_vllm_image_is_built_and_its_guards_accept_it(tree, name, tmp_path):
    depot = tmp_path / "depot"
    sets = tree.evaluated(f"legacyPackages.{SYSTEM}.pinned.{name}.sets")
    for step in (["fill", *sets, "--to", str(depot)], ["seed", str(depot)]):
        done = tree.qualify("depot", *step)
        assert done.returncode == 0, done.stderr
    subprocess.run(["rm", "-rf", str(depot)], check=True)
    document = tree.image(name)
    done = tree.qualify("image", "guard", document["path"])
    assert done.returncode == 0, done.stdout
    for title in ("engine", "project"):
        attribute = f"legacyPackages.{SYSTEM}.parts.layers.{name}.{title}"
        tree.nix("build", "--no-link", "--rebuild", tree.reference(attribute))
    # The next image needs the room: what was built and pinned for this one alone goes again.
    attribute = f"legacyPackages.{SYSTEM}"
    layers = tree.evaluated(f"{attribute}.parts.layers.{name}", "--apply", OWN_LAYERS)
    pinned = tree.evaluated(f"{attribute}.pinned.{name}.paths", "--apply", "builtins.attrNames")
    for path in [document["path"], *layers, *pinned]:
        subprocess.run(["nix-store", "--delete", path], check=False, capture_output=True)
