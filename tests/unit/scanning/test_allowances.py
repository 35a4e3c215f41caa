"""`scan.yaml`: what an entry covers, until when, and how a wrong one is refused."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from qualify.core.errors import ErrorList, QualifyError
from qualify.scanning.allowed import Allowance, read_allowances
from qualify.scanning.scan import Report, scan
from qualify.scanning.selection import named

TODAY = date(2026, 12, 1)
MAIL = "lindqvist@" + "uni-west.edu"
ENTRY = """\
  - files: a/notes.md
    kind: e-mail
    until: 2026-12-31
    reason: the author of the data set
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "scan.yaml"
    path.write_text(text)
    return path


def messages(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(QualifyError) as caught:
        read_allowances(written(tmp_path, text), "scan.yaml")
    error = caught.value
    assert error.exit_code == 2
    return [str(e) for e in error.errors] if isinstance(error, ErrorList) else [str(error)]


def test_an_entry_is_read_with_its_place(tmp_path: Path) -> None:
    (entry,) = read_allowances(
        written(tmp_path, f"schema: qualify-scan/1\nallow:\n{ENTRY}"), "scan.yaml"
    )
    assert (entry.files, entry.kind, entry.until) == ("a/notes.md", "e-mail", date(2026, 12, 31))
    assert entry.where == "scan.yaml:3:5"


WRONG: dict[str, tuple[str, str, str]] = {
    "an unknown field": (
        ENTRY.replace("reason:", "reson:"), "scan.yaml:6:5", "did you mean 'reason'"),
    "no reason": (ENTRY.replace("    reason: the author of the data set\n", ""),
                  "scan.yaml:3:5", "lacks `reason`"),
    "an empty reason": (ENTRY.replace("the author of the data set", "ok"),
                        "scan.yaml:6:13", "say why this may stay"),
    "an unknown kind": (
        ENTRY.replace("e-mail", "email"), "scan.yaml:4:11", "did you mean 'e-mail'"),
    "no day": (ENTRY.replace("2026-12-31", "2026-02-30"), "scan.yaml:5:12", "2027-06-30"),
    "no end": (ENTRY.replace("    until: 2026-12-31\n", ""), "scan.yaml:3:5", "lacks `until`"),
    "everything": (ENTRY.replace("a/notes.md", '"**/*"'), "scan.yaml:3:12", "covers everything"),
    "a word": ("  - everything\n", "scan.yaml:3:5", "must be a mapping"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_entry_is_refused_with_place_and_fix(what: str, tmp_path: Path) -> None:
    entry, place, fix = WRONG[what]
    found = messages(tmp_path, f"schema: qualify-scan/1\nallow:\n{entry}")
    assert any(line.startswith(f"{place}: ") and fix in line for line in found), found


@pytest.mark.parametrize(
    ("text", "place", "fix"),
    [
        ("", "scan.yaml: ", "is empty"),
        ("allow: []\n", "scan.yaml:1:1: ", "qualify-scan/1"),
        ("schema: qualify-scan/1\nallow: []\nmore: 1\n", "scan.yaml:1:1: ", "`allow`"),
        ("schema: qualify-scan/2\nallow: []\n", "scan.yaml:1:9: ", "another schema"),
        ("schema: qualify-scan/1\nallow: all\n", "scan.yaml:2:8: ", "list"),
        ("schema: qualify-scan/1\nallow:\n  - files: [a\n", "scan.yaml:", ""),
        ("schema: qualify-scan/1\nschema: x\n", "scan.yaml:2:1: ", ""),
    ],
)
def test_a_wrong_file_is_refused_with_place_and_fix(
    text: str, place: str, fix: str, tmp_path: Path
) -> None:
    (found, *_) = messages(tmp_path, text)
    assert found.startswith(place)
    assert fix in found


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    entry = ENTRY.replace("e-mail", "email").replace("2026-12-31", "soon")
    assert len(messages(tmp_path, f"schema: qualify-scan/1\nallow:\n{entry}{entry}")) == 4


@pytest.mark.parametrize(
    ("pattern", "place", "covered"),
    [
        ("a/b.md", "a/b.md", True),
        ("a/b.md", "a/b.mdx", False),
        ("a/b.md", "x/a/b.md", False),
        ("a/*.md", "a/b.md", True),
        ("a/*.md", "a/b/c.md", False),
        ("a/**", "a/b/c.md", True),
        ("**/c.md", "c.md", True),
        ("**/c.md", "a/b/c.md", True),
        ("a/?.md", "a/b.md", True),
        ("a/b.md", "a/bxmd", False),
    ],
)
def test_patterns(pattern: str, place: str, covered: bool) -> None:
    entry = Allowance(pattern, "e-mail", TODAY, "a reason", "here")
    assert entry.covers(place, "e-mail", TODAY) is covered
    assert not entry.covers(place, "telephone", TODAY)


def scanned(tmp_path: Path, entry: Allowance) -> Report:
    root = tmp_path / "tree"
    (root / "a").mkdir(parents=True)
    (root / "a/notes.md").write_text(f"ask {MAIL}\n")
    return scan(named(root, root), today=TODAY, allowances=[entry])


def test_what_is_allowed_is_counted_and_not_found(tmp_path: Path) -> None:
    report = scanned(tmp_path, Allowance("a/notes.md", "e-mail", TODAY, "the author", "here"))
    assert report.clean
    assert [f.kind for f in report.allowed] == ["e-mail"]
    assert report.unused == []


def test_an_entry_that_has_expired_allows_nothing(tmp_path: Path) -> None:
    entry = Allowance("a/notes.md", "e-mail", date(2026, 11, 30), "the author", "here")
    report = scanned(tmp_path, entry)
    assert [f.kind for f in report.findings] == ["e-mail"]
    assert report.expired == [entry]


def test_an_entry_that_nothing_needs_is_named(tmp_path: Path) -> None:
    entry = Allowance("a/other.md", "e-mail", TODAY, "the author", "here")
    report = scanned(tmp_path, entry)
    assert not report.clean
    assert report.unused == [entry]


def test_a_file_cannot_allow_anything_in_itself(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "a.md").write_text(f"# qualify-scan: allow e-mail until 2030-01-01: fine\n{MAIL}\n")
    assert not scan(named(root, root), today=TODAY).clean
