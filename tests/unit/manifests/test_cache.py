"""The parse cache saves work and never changes an answer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qualify.core.errors import ErrorList
from qualify.manifests import cache, catalog
from qualify.manifests.catalog import Catalog, load_catalog
from support.projects import SOUND, edited, write_project

ROW = "manifests/matrix/one.yaml"


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for each file that is really parsed."""
    calls: list[int] = []
    real = catalog.parse

    def counting(data: bytes) -> Any:
        calls.append(len(data))
        return real(data)

    monkeypatch.setattr(catalog, "parse", counting)
    return calls


def load(project: Path) -> Catalog:
    return load_catalog(project, cache_folder=project / "cache")


def only_cache_file(project: Path) -> Path:
    (path,) = (project / "cache").iterdir()
    return path


def test_a_second_load_parses_nothing_and_gives_the_same(tmp_path: Path, parsed: list[int]) -> None:
    project = write_project(tmp_path)
    first = load(project)
    assert len(parsed) == sum(name.endswith(".yaml") for name in SOUND)
    parsed.clear()
    assert load(project) == first
    assert parsed == []


def test_only_a_changed_file_is_parsed_again_even_with_equal_size_and_time(
    tmp_path: Path, parsed: list[int]
) -> None:
    project = write_project(tmp_path)
    load(project)
    parsed.clear()
    path = project / ROW
    before = path.stat()
    path.write_text(SOUND[ROW].replace("4096", "8192"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert load(project).row("one").context_tokens == 8192
    assert len(parsed) == 1


def test_equal_bytes_under_another_kind_are_another_entry(tmp_path: Path) -> None:
    project = write_project(tmp_path)
    load(project)
    twin = project / "manifests/suites/double.yaml"
    twin.write_text(SOUND["manifests/runtimes/double.yaml"])
    with pytest.raises(ErrorList, match="unknown key 'engine'"):
        load(project)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[:80] + bytes([data[80] ^ 1]) + data[81:],
        lambda data: b"0" * 64 + data[64:],
        lambda data: b"\x80\x04pickle",
        lambda data: data + b" ",
    ],
    ids=["empty", "cut", "flipped bit", "wrong checksum", "pickle", "longer"],
)
def test_a_damaged_cache_is_ignored_and_made_anew(
    tmp_path: Path, parsed: list[int], spoil: Any
) -> None:
    project = write_project(tmp_path)
    first = load(project)
    path = only_cache_file(project)
    path.write_bytes(spoil(path.read_bytes()))
    assert load(project) == first
    parsed.clear()
    load(project)
    assert parsed == []


def test_a_cache_with_a_right_checksum_and_wrong_content_is_validated_again(
    tmp_path: Path, parsed: list[int]
) -> None:
    project = write_project(tmp_path)
    first = load(project)
    path = only_cache_file(project)
    body = path.read_bytes().partition(b"\n")[2].replace(b'"context_tokens":4096', b'"bad":4096')
    path.write_bytes(cache.hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    parsed.clear()
    assert load(project) == first
    assert len(parsed) == 2


def test_other_code_does_not_read_the_cache(
    tmp_path: Path, parsed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    project = write_project(tmp_path)
    load(project)
    parsed.clear()
    monkeypatch.setattr(cache, "code_digest", lambda: "another")
    load(project)
    assert parsed


def test_a_cache_that_others_could_write_is_not_believed(tmp_path: Path, parsed: list[int]) -> None:
    project = write_project(tmp_path)
    load(project)
    assert (project / "cache").stat().st_mode & 0o777 == 0o700
    assert only_cache_file(project).stat().st_mode & 0o777 == 0o600
    (project / "cache").chmod(0o777)
    parsed.clear()
    load(project)
    assert parsed


def test_a_cache_that_cannot_be_written_is_no_fault(tmp_path: Path) -> None:
    project = write_project(tmp_path)
    (project / "blocked").write_text("a file where the folder should be")
    catalog_read = load_catalog(project, cache_folder=project / "blocked/cache")
    assert catalog_read.row("one").id == "one"


def test_a_file_with_mistakes_is_not_cached_and_told_each_time(tmp_path: Path) -> None:
    project = write_project(tmp_path, edited(ROW, "precision: q4", "precision: 1e3"))
    for _ in range(2):
        with pytest.raises(ErrorList, match=r"one\.yaml:6:12: precision: '1e3'"):
            load(project)


def test_a_mistake_between_warm_files_has_its_place(tmp_path: Path) -> None:
    project = write_project(tmp_path)
    load(project)
    (project / "manifests/models/small.yaml").unlink()
    for _ in range(2):
        with pytest.raises(ErrorList, match=r"one\.yaml:4:8: there is no model 'small'"):
            load(project)


def test_files_that_are_gone_leave_the_cache(tmp_path: Path) -> None:
    project = write_project(tmp_path)
    load(project)
    size = only_cache_file(project).stat().st_size
    (project / "manifests/bundles/offline.yaml").unlink()
    load(project)
    assert only_cache_file(project).stat().st_size < size


def test_a_warm_load_does_not_even_import_the_yaml_library(tmp_path: Path) -> None:
    project = write_project(tmp_path)
    code = (
        "import sys; from pathlib import Path; from qualify.manifests.catalog import load_catalog; "
        f"p = Path({str(project)!r}); load_catalog(p, cache_folder=p / 'cache'); "
        "print('ruamel.yaml' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    answers = [subprocess.check_output(command, text=True) for _ in range(2)]
    assert answers == ["True\n", "False\n"]


def test_a_value_that_rotted_into_another_valid_one_is_not_believed(tmp_path: Path) -> None:
    project = write_project(tmp_path)
    load(project)
    path = only_cache_file(project)
    data = path.read_bytes()
    assert data.count(b'"context_tokens":4096') == 2
    path.write_bytes(data.replace(b'"context_tokens":4096', b'"context_tokens":4097'))
    assert load(project).row("one").context_tokens == 4096
