"""What does not fit into CI: a current Nix, every image twice, the vLLM images."""

import os
import subprocess
from pathlib import Path

import pytest

from support.image_runs import run_the_fixture
from support.nix import Elsewhere, elsewhere, open_depot, open_to_others

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
    open_to_others(folder)
    return start


def test_a_current_nix_gives_the_same_paths_and_bytes(current_nix, image, depot, tmp_path):
    here = Path(image("llama-cpp-cpu")["path"])
    other = elsewhere(tmp_path / "other")
    # Started through the C library it cannot find its own helper for remote builds.
    alone = "build-hook ="
    current = Elsewhere(other.place, other.tree, other.store, str(current_nix), alone)
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
            each.run(each.nix, "eval", "--raw", each.reference(f"image-{name}.outPath")).stdout
            for each in (other, current)
        }
        assert len(answers) == 1, name
        assert name in answers.pop()


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
    if name == "vllm-cpu":
        trial = run_the_fixture(tree.folder, Path(document["path"]), tmp_path)
        assert trial.engine.image == document["digest"]
        assert trial.engine.network == "loopback-only"
        passed = {check.check for check in trial.checks if check.outcome == "passed"}
        assert {"direct-inference", "structured-action", "tool-mode", "identity"} <= passed
    for title in ("engine", "project"):
        attribute = f"legacyPackages.{SYSTEM}.parts.layers.{name}.{title}"
        tree.nix("build", "--no-link", "--rebuild", tree.reference(attribute))
    # The next image needs the room: what was built and pinned for this one alone goes again.
    attribute = f"legacyPackages.{SYSTEM}"
    layers = tree.evaluated(f"{attribute}.parts.layers.{name}", "--apply", OWN_LAYERS)
    pinned = tree.evaluated(f"{attribute}.pinned.{name}.paths", "--apply", "builtins.attrNames")
    for path in [document["path"], *layers, *pinned]:
        subprocess.run(["nix-store", "--delete", path], check=False, capture_output=True)
