"""What is settled before Nix is started, and what its failures are turned into."""

import pytest

from qualify.core.errors import EnvironmentFault, ExitCode, UsageError
from qualify.images.nix_build import UNKNOWN_REVISION, nix_settings, remarks, source_tree
from qualify.images.nix_faults import explained
from support.nix import git


@pytest.fixture
def checkout(tmp_path):
    """A small checkout in a folder with a space in its name."""
    folder = tmp_path / "a checkout"
    folder.mkdir()
    (folder / "flake.nix").write_text("{ outputs = _: { }; }\n")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "one")
    return folder


def test_our_settings_come_after_the_users_own():
    lines = nix_settings({"NIX_CONFIG": "sandbox = false\ncores = 1"})["NIX_CONFIG"].splitlines()
    assert lines[:2] == ["sandbox = false", "cores = 1"]
    assert lines.index("sandbox = true") > 1
    assert {"sandbox-fallback = false", "substitute = false"} <= set(lines)
    assert "experimental-features = nix-command flakes" in lines


def test_a_clean_checkout_is_its_commit(checkout):
    tree = source_tree(checkout)
    assert tree.revision == git(checkout, "rev-parse", "HEAD")
    assert tree.reference == f"git+file://{str(checkout).replace(' ', '%20')}"
    assert remarks(tree) == []


def test_a_changed_checkout_says_so(checkout):
    (checkout / "flake.nix").write_text("{ outputs = _: { x = 1; }; }\n")
    tree = source_tree(checkout)
    assert tree.revision == git(checkout, "rev-parse", "HEAD") + "-dirty"
    assert "not committed" in remarks(tree)[0]


def test_files_that_git_does_not_know_are_named(checkout):
    for number in range(5):
        (checkout / f"new{number}.py").write_text("")
    tree = source_tree(checkout)
    assert not tree.dirty
    assert tree.untracked == ("new0.py", "new1.py", "new2.py")
    assert "new0.py" in remarks(tree)[0]


def test_a_folder_without_git_has_no_revision(tmp_path):
    (tmp_path / "flake.nix").write_text("{ }\n")
    tree = source_tree(tmp_path)
    assert (tree.revision, tree.reference) == (UNKNOWN_REVISION, f"path:{tmp_path}")
    assert "unknown" in remarks(tree)[0]


def test_a_folder_without_a_flake_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"holds no flake\.nix"):
        source_tree(tmp_path)


def test_a_checkout_whose_git_folder_is_broken_is_an_error(checkout):
    (checkout / ".git/HEAD").unlink()
    with pytest.raises(EnvironmentFault, match="not a git repository"):
        source_tree(checkout)


@pytest.mark.parametrize(
    ("said", "what", "code"),
    [
        ("error: writing to file: No space left on device", "the disk is full", 1),
        (
            (
                "error: this system does not support the kernel namespaces that are required for "
                "sandboxing; use '--no-sandbox' to disable sandboxing"
            ),
            "cannot build in a sandbox",
            1,
        ),
        ("fatal: detected dubious ownership in repository at '/x'", "git does not trust", 2),
        ("error: repository path '/x' is not owned by current user", "git does not trust", 2),
        (
            "error: opening lock file '/nix/var/nix/db/big-lock': Permission denied",
            "may not use the Nix store",
            1,
        ),
        (
            (
                "error: cannot connect to socket at '/nix/var/nix/daemon-socket/socket': "
                "Permission denied"
            ),
            "may not use the Nix store",
            1,
        ),
        (
            "error: unable to download 'preseed:click.whl': URL using bad/illegal format",
            "a pinned file is not in the Nix store",
            2,
        ),
        (
            (
                "layer-x> error: two packages own usr/a: one and two\n"
                "error: builder for '/nix/store/x.drv' failed with exit code 1"
            ),
            "two packages own usr/a: one and two",
            2,
        ),
        (
            (
                "error: 1 dependencies of derivation '/nix/store/x.drv' failed to build\n"
                "error: locks/x.json: a.whl is a wheel for another Python"
            ),
            "a.whl is a wheel for another Python",
            2,
        ),
        ("something new", "Nix failed:\nsomething new", 1),
    ],
)
def test_a_failure_of_nix_is_one_sentence(said, what, code):
    error = explained(said, "image runner")
    assert what in error.what
    assert error.fix
    assert error.exit_code == ExitCode(code)
