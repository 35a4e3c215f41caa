"""Which files of the project go into a bundle: those of the commit, and what is said otherwise."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from qualify.core.errors import QualifyError, UsageError
from qualify.images.bundle import make_bundle
from qualify.images.bundle_check import check_bundle
from qualify.images.bundle_format import collision, is_safe_path
from qualify.images.bundle_plan import BundlePlan, plan_bundle
from qualify.images.bundle_project import Carried, carried_files
from qualify.images.declarations import declarations_digest
from qualify.manifests.kinds import Bundle
from support.bundles import two_layouts, write_attested_project

BUNDLE = Bundle.model_validate(
    {"id": "offline", "images": ["runner", "engine"], "rows": ["one"], "documentation": True}
)
IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@t.invalid")


def git(project: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *IDENTITY, *arguments], cwd=project, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A project without git."""
    return write_attested_project(tmp_path / "project")


@pytest.fixture(params=["sha1", "sha256"])
def checkout(plain: Path, request: pytest.FixtureRequest) -> Path:
    """The same, committed."""
    git(plain, "init", "-q", f"--object-format={request.param}")
    git(plain, "add", ".")
    git(plain, "commit", "-qm", "x")
    return plain


def refused(project: Path) -> str:
    with pytest.raises(UsageError) as error:
        carried_files(project, BUNDLE)
    assert error.value.exit_code == 2
    assert error.value.fix
    return str(error.value)


def planned(project: Path, layouts: list[Path], *, changes: bool = False) -> BundlePlan:
    return plan_bundle(project, BUNDLE, {"one": "engine"}, layouts, changes=changes)


# ── a checkout ───────────────────────────────────────────────────────────────────────────────────


def test_a_clean_checkout_gives_what_its_commit_holds(checkout: Path) -> None:
    (checkout / "src").mkdir()
    (checkout / "src/mine.py").write_text("not part of a bundle\n")
    found = carried_files(checkout, BUNDLE)
    tracked = git(checkout, "ls-tree", "-r", "--name-only", "HEAD").splitlines()
    assert list(found.files) == sorted(tracked)
    assert found.revision == git(checkout, "rev-parse", "HEAD")
    assert (found.changed, found.untracked, found.remarks) == ((), (), [])
    assert carried_files(checkout, BUNDLE, changes=True) == found


def test_what_git_does_not_track_stays_behind_and_is_told(checkout: Path) -> None:
    before = carried_files(checkout, BUNDLE).files
    (checkout / ".gitignore").write_text("secret*\n")
    for name in ("docs/draft.md", "locks/secret.json", "corpora/page.md~", "manifests/a.pyc"):
        (checkout / name).write_text("x")
    (checkout / "docs/__pycache__").mkdir()
    (checkout / "docs/__pycache__/x.cpython-313.pyc").write_bytes(b"\0")
    (checkout / "docs/link").symlink_to("/etc/passwd")
    found = carried_files(checkout, BUNDLE)
    assert found.files == before
    assert found.untracked == ("docs/draft.md", "docs/link")
    (remark,) = found.remarks
    assert "docs/draft.md, docs/link" in remark
    assert "git does not track" in remark


def edit(project: Path) -> None:
    (project / "LICENSE").write_text("do something else\n")


def stage(project: Path) -> None:
    edit(project)
    git(project, "add", "LICENSE")


def hide(project: Path) -> None:
    """Git's own `status` says nothing of it."""
    git(project, "update-index", "--assume-unchanged", "LICENSE")
    edit(project)
    assert git(project, "status", "--porcelain") == ""


def skip(project: Path) -> None:
    git(project, "update-index", "--skip-worktree", "LICENSE")
    edit(project)
    assert git(project, "status", "--porcelain") == ""


def translate(project: Path) -> None:
    """Git takes other line ends for the same file."""
    (project / ".git/info/attributes").write_text("LICENSE text eol=crlf\n")
    (project / "LICENSE").unlink()
    git(project, "checkout", "LICENSE")
    assert b"\r\n" in (project / "LICENSE").read_bytes()
    assert git(project, "status", "--porcelain") == ""


def delete(project: Path) -> None:
    (project / "LICENSE").unlink()


def forget(project: Path) -> None:
    git(project, "rm", "-q", "--cached", "LICENSE")


CHANGES: list[Callable[[Path], None]] = [edit, stage, hide, skip, translate, delete, forget]


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_is_not_as_committed_is_refused_and_carried_only_when_asked(
    checkout: Path, change: Callable[[Path], None]
) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    change(checkout)
    told = refused(checkout)
    assert f"differs from its commit {head[:12]}: LICENSE" in told
    assert "--with-changes" in told
    found = carried_files(checkout, BUNDLE, changes=True)
    assert found.revision == f"{head}-dirty"
    assert found.changed == ("LICENSE",)
    assert ("LICENSE" in found.files) is (change not in (delete, forget))
    assert any("LICENSE" in each and "-dirty" in each for each in found.remarks)


def test_a_file_that_is_only_staged_is_a_change(checkout: Path) -> None:
    (checkout / "docs/new.md").write_text("x")
    git(checkout, "add", "docs/new.md")
    assert "docs/new.md" in refused(checkout)
    assert "docs/new.md" in carried_files(checkout, BUNDLE, changes=True).files


def test_the_first_three_changes_are_named_and_the_rest_counted(checkout: Path) -> None:
    for number in range(5):
        (checkout / f"docs/{number}.md").write_text("x")
    git(checkout, "add", ".")
    assert "docs/0.md, docs/1.md, docs/2.md and 2 more" in refused(checkout)


def test_a_change_elsewhere_does_not_matter(checkout: Path) -> None:
    (checkout / "README.md").write_text("x")
    git(checkout, "add", "README.md")
    assert carried_files(checkout, BUNDLE).changed == ()


@pytest.mark.parametrize("where", ["a file", "a folder", "a folder instead of a file", "a pipe"])
def test_links_and_devices_in_place_of_what_is_tracked_are_refused(
    checkout: Path, tmp_path: Path, where: str
) -> None:
    match where:
        case "a file":
            (checkout / "LICENSE").rename(tmp_path / "moved")
            (checkout / "LICENSE").symlink_to(tmp_path / "moved")
        case "a folder":
            (checkout / "docs").rename(tmp_path / "moved")
            (checkout / "docs").symlink_to(tmp_path / "moved")
        case "a folder instead of a file":
            (checkout / "LICENSE").unlink()
            (checkout / "LICENSE").mkdir()
        case _:
            (checkout / "LICENSE").unlink()
            os.mkfifo(checkout / "LICENSE")
    for changes in (False, True):
        with pytest.raises(UsageError, match=r"is no (plain file|folder)"):
            carried_files(checkout, BUNDLE, changes=changes)


def test_a_link_that_is_committed_is_refused(checkout: Path) -> None:
    (checkout / "docs/link").symlink_to("reference")
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "y")
    assert "docs/link: is no plain file" in refused(checkout)


def test_a_manifest_of_the_bundle_that_is_not_committed_is_refused(checkout: Path) -> None:
    other = BUNDLE.model_copy(update={"id": "mine"})
    (checkout / "manifests/bundles/mine.yaml").write_text("id: mine\nimages: [runner]\n")
    with pytest.raises(UsageError, match="'mine' is not part of the commit"):
        carried_files(checkout, other)
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "y")
    assert "manifests/bundles/mine.yaml" in carried_files(checkout, other).files


def test_a_checkout_that_git_cannot_read_is_refused_whatever_lies_around_it(
    plain: Path, tmp_path: Path
) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "around")
    (plain / ".git").mkdir()
    assert "git cannot tell" in refused(plain)
    (plain / ".git").rmdir()
    # Without .git it is an export, and the repository around it is none of its business.
    assert carried_files(plain, BUNDLE).revision == "unknown"


def test_a_checkout_without_a_commit_is_refused(plain: Path) -> None:
    git(plain, "init", "-q")
    git(plain, "add", ".")
    assert "git cannot tell" in refused(plain)


def test_the_callers_settings_for_git_name_no_other_repository(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = carried_files(checkout, BUNDLE)
    (tmp_path / "other").mkdir()
    git(tmp_path / "other", "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other/.git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "none"))
    assert carried_files(checkout, BUNDLE) == expected


def test_a_replaced_object_is_not_taken_for_the_committed_one(checkout: Path) -> None:
    expected = carried_files(checkout, BUNDLE)
    (checkout / "LICENSE").write_text("do something else\n")
    other = git(checkout, "hash-object", "-w", "LICENSE")
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "y")
    new = git(checkout, "rev-parse", "HEAD")
    git(checkout, "reset", "-q", "--hard", "HEAD^")
    git(checkout, "replace", expected.revision, new)
    assert other
    assert carried_files(checkout, BUNDLE) == expected


# ── without git ──────────────────────────────────────────────────────────────────────────────────


def test_without_git_everything_goes_along_that_is_not_derived(plain: Path) -> None:
    before = carried_files(plain, BUNDLE)
    assert before.revision == "unknown"
    assert "revision is unknown" in before.remarks[0]
    for name in (
        "docs/a.md~", "docs/#a.md#", "docs/.a.md.swp", "locks/.DS_Store", "corpora/x.pyc",
        "manifests/x.pyo", "corpora/__pycache__/x", "manifests/Thumbs.db",
    ):  # fmt: skip
        (plain / name).parent.mkdir(exist_ok=True)
        (plain / name).write_text("x")
    (plain / "docs/.#a.md").symlink_to("somebody@somewhere.1")
    assert carried_files(plain, BUNDLE) == before
    (plain / "docs/a.md").write_text("x")
    assert carried_files(plain, BUNDLE).files.keys() - before.files.keys() == {"docs/a.md"}


@pytest.mark.parametrize("part", ["docs", "LICENSE", "docs/reference"])
def test_without_git_links_are_refused(plain: Path, tmp_path: Path, part: str) -> None:
    (plain / part).rename(tmp_path / "moved")
    (plain / part).symlink_to(tmp_path / "moved")
    assert "is no " in refused(plain)


def test_a_file_that_may_not_be_read_is_named(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.open

    def guarded(self: Path, *arguments: object, **more: object) -> object:
        if self.name == "LICENSE":
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, *arguments, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", guarded)
    assert "LICENSE: cannot be read: Permission denied" in refused(plain)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("docs/Page.md", "docs/page.md"),
        ("docs/A/x.md", "docs/a/y.md"),
        ("docs/\N{LATIN SMALL LETTER U WITH DIAERESIS}", "docs/u\N{COMBINING DIAERESIS}"),
    ],
)
def test_names_that_are_one_on_some_media_are_refused(plain: Path, one: str, other: str) -> None:
    for name in (one, other):
        (plain / name).parent.mkdir(parents=True, exist_ok=True)
        (plain / name).write_text("x")
    assert "case does not count" in refused(plain)


def test_collisions_are_found_in_files_and_folders_alike() -> None:
    assert collision(["a/b", "a/c", "b/a"]) is None
    assert collision(["a/b", "A/c"]) == ("a", "A")
    assert collision(["a/b/c", "a/B"]) == ("a/b", "a/B")


@pytest.mark.parametrize(
    "path",
    ["/a", "a/", "a//b", ".", "..", "a/../b", "a/.", "a\\b", "a:b", "a*", "a\n", "a ", "a.", "",
     "con", "x/NUL.txt", "lpt1", "a\x7f", "\u202ea", "a" * 256, "/".join(["a" * 100] * 11)],
)  # fmt: skip
def test_a_path_that_not_every_medium_can_hold_is_none(path: str) -> None:
    assert not is_safe_path(path)


@pytest.mark.parametrize(
    "path", ["a", ".a", "a/b.c", "console", "com", "a b", "ü", "a" * 255, "x/~", "nul-x", "..a"]
)
def test_a_path_that_every_medium_can_hold_is_one(path: str) -> None:
    assert is_safe_path(path)


# ── in the bundle ────────────────────────────────────────────────────────────────────────────────


def test_a_bundle_tells_the_revision_of_its_files(checkout: Path, tmp_path: Path) -> None:
    layouts = two_layouts(tmp_path, checkout)
    head = git(checkout, "rev-parse", "HEAD")
    make_bundle(planned(checkout, layouts), tmp_path / "clean")
    edit(checkout)
    with pytest.raises(QualifyError, match="LICENSE"):
        planned(checkout, layouts)
    make_bundle(planned(checkout, layouts, changes=True), tmp_path / "dirty")
    for name, revision in (("clean", head), ("dirty", f"{head}-dirty")):
        report = check_bundle(tmp_path / name)
        assert report.accepted
        assert report.index is not None
        assert report.index.revision == revision
        assert f"revision `{revision}`" in (tmp_path / name / "README.md").read_text()
    assert (tmp_path / "dirty/LICENSE").read_text() == "do something else\n"


def test_images_are_held_against_the_files_that_go_along(checkout: Path, tmp_path: Path) -> None:
    layouts = two_layouts(tmp_path, checkout)
    built_from = declarations_digest(checkout)
    (checkout / "manifests/stray.txt").write_text("x")
    assert declarations_digest(checkout) != built_from
    plan = planned(checkout, layouts)
    assert plan.declarations == built_from
    make_bundle(plan, tmp_path / "bundle")
    assert check_bundle(tmp_path / "bundle").accepted


def test_a_file_that_changes_after_it_was_looked_at_is_refused(plain: Path, tmp_path: Path) -> None:
    plan = planned(plain, two_layouts(tmp_path, plain))
    edit(plain)
    with pytest.raises(UsageError, match="LICENSE: was changed while the bundle was being made"):
        make_bundle(plan, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_every_made_bundle_is_a_bundle_for_the_next(plain: Path, tmp_path: Path) -> None:
    """A bundle is a project: what is made from it holds the same files."""
    layouts = two_layouts(tmp_path, plain)
    first = planned(plain, layouts)
    make_bundle(first, tmp_path / "first")
    second = planned(tmp_path / "first", layouts)
    make_bundle(second, tmp_path / "second")
    lists = [(tmp_path / n / "bundle.json").read_bytes() for n in ("first", "second")]
    assert json.loads(lists[0]) == json.loads(lists[1])
    assert isinstance(second.project_files, Carried)
