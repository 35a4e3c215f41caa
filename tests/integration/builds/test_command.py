"""`nix run` on a machine without a network, and the flake's own checks."""

import os
import subprocess

import pytest

from support.nix import SETTINGS

pytestmark = [pytest.mark.builds, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def offline(tree, image, tmp_path_factory):
    """Runs a command of the flake in a namespace without any interface but a dead loopback."""
    image("runner")
    home = tmp_path_factory.mktemp("home")

    def run(*arguments):
        user = [] if os.geteuid() == 0 else ["--map-root-user"]
        return subprocess.run(
            ["unshare", "--net", *user, "nix", "run", tree.reference("qualify"), "--", *arguments],
            cwd=tree.folder,
            env={"PATH": os.environ["PATH"], "HOME": str(home), "NIX_CONFIG": SETTINGS},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_nix_run_tells_its_version_without_a_network(offline):
    done = offline("--version")
    assert (done.returncode, done.stdout) == (0, "qualify, version 0.1.0\n"), done.stderr


def test_nix_run_shows_the_matrix_without_a_network(offline):
    done = offline("matrix")
    assert done.returncode == 0, done.stderr
    assert "cpu-qwen2.5-coder-1.5b" in done.stdout


def test_nix_run_plans_a_row_and_refuses_an_unknown_one(offline):
    assert offline("plan", "cpu-qwen2.5-coder-1.5b").returncode in (0, 10)
    done = offline("plan", "no-such-row")
    assert done.returncode == 2
    assert "no-such-row" in done.stderr


def test_running_it_leaves_the_store_as_it_was(tree, offline):
    offline("matrix")
    for attribute in ("qualify", "legacyPackages.x86_64-linux.parts.environment"):
        path = tree.evaluated(attribute, "--apply", "p: p.outPath")
        done = subprocess.run(
            ["nix-store", "--verify-path", path], capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_outside_a_project_evidence_goes_to_the_users_own_folder(tree, offline, tmp_path):
    program = tree.built("qualify") / "bin/qualify"
    done = subprocess.run(
        [program, "results", "status"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "/nix/store" not in done.stdout + done.stderr


def test_the_flake_accepts_itself(tree):
    tree.nix("flake", "check", tree.reference("").rstrip("#"))


def test_the_flake_is_evaluated_without_nixpkgs(tree):
    shown = tree.nix("flake", "show", "--json", tree.reference("").rstrip("#")).stdout
    assert "image-vllm-cu130" in shown
