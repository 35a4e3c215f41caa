"""The project's own files in an image are those of the commit that the image names."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from qualify.images import open_image
from qualify.images.building import project_layer
from qualify.images.expectations import expectations
from qualify.images.guards import Outcome, Subject
from qualify.images.guards.source import source
from qualify.images.project_source import COMMAND_FILE, project_source
from qualify.images.scan import scan_image
from support.images import ImageBuilder, file, link
from support.nix import git

COMMAND = b"#!/usr/bin/python3 -P\n"
FILES = {
    "LICENSE": "free\n",
    "corpora/a/card.yaml": "id: a\n",
    "locks/one.json": "{}\n",
    "manifests/matrix/one.yaml": "id: one\n",
    "src/qualify/__init__.py": "",
    "src/qualify/gate.py": "def accepts(trial):\n    return trial.passed\n",
    COMMAND_FILE: f"_COMMAND = {COMMAND!r}\n",
}


@pytest.fixture
def checkout(tmp_path):
    """A project with one commit, and files of other kinds beside it."""
    project = tmp_path / "project"
    for name, text in {**FILES, "docs/page.md": "x\n", "pyproject.toml": "\n"}.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(project, "init", "--quiet")
    git(project, "add", ".")
    git(project, "commit", "--quiet", "-m", "one")
    return project


def judge(tmp_path, project, revision, changes=None, more=()):
    """The guard's answer on an image of `FILES` with changes (`None`: left out)."""
    content = {**FILES, **(changes or {})}
    made = ImageBuilder(
        layers=[
            [
                *(file(f"opt/qualify/{name}", text)
                  for name, text in content.items() if text is not None),
                file("usr/bin/qualify", COMMAND, 0o755),
                *more,
            ]
        ],
        labels={"qualify.image": "runner"},
    )  # fmt: skip
    if revision is not None:
        made.labels["org.opencontainers.image.revision"] = revision
    image = open_image(made.layout(tmp_path / f"image-{len(list(tmp_path.iterdir()))}"))
    expected = expectations(image.labels, project, {})
    return source(Subject(scan_image(image), expected, image))


def test_an_image_of_the_commit_passes(checkout, tmp_path):
    head = git(checkout, "rev-parse", "HEAD")
    found = judge(tmp_path, checkout, head)
    assert found.outcome is Outcome.PASSED
    assert found.summary == f"{len(FILES)} files as in commit {head[:12]}"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"src/qualify/gate.py": "def accepts(trial):\n    return True\n"},
         "differs: src/qualify/gate.py"),
        ({"locks/one.json": None}, "missing: locks/one.json"),
        ({"src/qualify/extra.py": "x = 1\n"}, "extra: src/qualify/extra.py"),
        ({"manifests/matrix/one.yaml": "id: two\n"}, "differs: manifests/matrix/one.yaml"),
        ({"corpora/a/card.yaml": "id: b\n"}, "differs: corpora/a/card.yaml"),
        ({"sitecustomize.py": "x = 1\n"}, "extra: sitecustomize.py"),
        ({"src/qualify/gate.pyc": "x"}, "extra: src/qualify/gate.pyc"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_the_commit_s_is_named(changes, said, checkout, tmp_path):
    found = judge(tmp_path, checkout, git(checkout, "rev-parse", "HEAD"), changes)
    assert found.outcome is Outcome.FAILED
    assert found.details == (said,)


def test_a_link_in_place_of_a_file_is_named(checkout, tmp_path):
    more = [link("opt/qualify/src/qualify/other.py", "/tmp/other.py")]
    found = judge(tmp_path, checkout, git(checkout, "rev-parse", "HEAD"), more=more)
    assert (found.outcome, found.details) == (Outcome.FAILED, ("extra: src/qualify/other.py",))


def test_another_program_qualify_is_named(checkout, tmp_path):
    more = [file("usr/bin/qualify", COMMAND + b"import os\n", 0o755)]
    found = judge(tmp_path, checkout, git(checkout, "rev-parse", "HEAD"), more=more)
    assert (found.outcome, found.details) == (Outcome.FAILED, ("differs: /usr/bin/qualify",))


def test_the_command_of_the_real_builder_is_found():
    known = project_source(Path(__file__).parents[3], None)
    assert known.command == hashlib.sha256(project_layer._COMMAND).hexdigest()


def test_the_commit_counts_and_not_what_is_checked_out(checkout, tmp_path):
    head = git(checkout, "rev-parse", "HEAD")
    (checkout / "src/qualify/gate.py").write_text("changed = True\n")
    (checkout / "src/qualify/new.py").write_text("new = True\n")
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "-m", "two")
    assert judge(tmp_path, checkout, head).outcome is Outcome.PASSED
    found = judge(tmp_path, checkout, git(checkout, "rev-parse", "HEAD"))
    assert found.outcome is Outcome.FAILED
    assert found.details == ("differs: src/qualify/gate.py", "missing: src/qualify/new.py")


def test_an_object_that_git_would_replace_is_read_as_it_was(checkout, tmp_path):
    """`git replace` makes git show other bytes under an old name."""
    head = git(checkout, "rev-parse", "HEAD")
    evil = checkout / "evil.py"
    evil.write_text("evil = True\n")
    old = git(checkout, "rev-parse", "HEAD:src/qualify/gate.py")
    git(checkout, "replace", old, git(checkout, "hash-object", "-w", str(evil)))
    changes = {"src/qualify/gate.py": "evil = True\n"}
    assert judge(tmp_path, checkout, head).outcome is Outcome.PASSED
    assert judge(tmp_path, checkout, head, changes).outcome is Outcome.FAILED


@pytest.mark.parametrize("revision", [None, "f" * 40, "unknown", "dirty"])
def test_without_the_commit_the_folder_decides_and_a_difference_is_unknown(
    revision, checkout, tmp_path
):
    if revision == "dirty":
        revision = git(checkout, "rev-parse", "HEAD") + "-dirty"
    (checkout / "src/qualify/untracked.py").write_text("not in any image\n")
    found = judge(tmp_path, checkout, revision)
    assert found.outcome is Outcome.PASSED
    assert "the project's folder" in found.summary
    found = judge(tmp_path, checkout, revision, {"src/qualify/gate.py": "x = 1\n"})
    assert (found.outcome, found.details) == (Outcome.UNKNOWN, ("differs: src/qualify/gate.py",))


def test_a_project_that_is_no_checkout_is_compared_by_its_folder(tmp_path):
    project = tmp_path / "plain"
    for name, text in FILES.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    cache = project / "src/qualify/__pycache__/gate.cpython-313.pyc"
    cache.parent.mkdir()
    cache.write_bytes(b"x")
    assert judge(tmp_path, project, "f" * 40).outcome is Outcome.PASSED
    assert judge(tmp_path, project, "f" * 40, {"LICENSE": "none"}).outcome is Outcome.UNKNOWN


def test_without_a_project_it_is_unknown_and_another_s_image_is_not_asked(checkout, tmp_path):
    assert judge(tmp_path, None, "f" * 40).outcome is Outcome.UNKNOWN
    image = open_image(ImageBuilder(layers=[[file("x")]]).layout(tmp_path / "theirs"))
    subject = Subject(scan_image(image), expectations({}, checkout, {}), image)
    assert source(subject).outcome is Outcome.NOT_APPLICABLE
