"""Locks: complete, host-free, in step with what is made from them, and not editable by hand."""

import json
import re
from pathlib import Path

import pytest

from qualify.core.errors import UsageError
from qualify.runtimes.lock_resolution import locked_package
from qualify.runtimes.locks import (
    Lock,
    LockedFile,
    LockedPackage,
    LockPlatform,
    disagreements,
    lock_bytes,
    parse_lock,
    read_input,
    read_lock,
    requirements_text,
    set_paths,
)

LOCKS = Path(__file__).parents[3] / "locks"
SETS = sorted(path.stem for path in LOCKS.glob("*.in"))
WHEEL = "demo-1.0-py3-none-any.whl"


def a_lock(**changes):
    content = {
        "set": "demo",
        "purpose": "a lock for tests",
        "together": "product",
        "cutoff": "2026-11-30T00:00:00Z",
        "inputs": ("demo>=1",),
        "platform": LockPlatform(
            libc="glibc", machine="x86_64", pythons=("3.12", "3.13"), system="linux"
        ),
        "packages": (
            LockedPackage(
                name="demo",
                version="1.0",
                files=(LockedFile(file=WHEEL, sha256="a" * 64, size=10),),
            ),
        ),
    }
    return Lock(**(content | changes))


def entry(**changes):
    wheel = {"url": f"https://index.invalid/x/{WHEEL}", "size": 10, "hashes": {"sha256": "a" * 64}}
    return {"name": "Demo", "version": "1.0", "wheels": [wheel | changes]}


def package_hosts():
    from pip._internal.models.index import PyPI

    return [PyPI.netloc, PyPI.file_storage_domain]


@pytest.mark.parametrize("name", SETS)
def test_every_set_is_locked_as_its_input_says(name):
    lock, asked = read_lock(LOCKS / f"{name}.json"), read_input(LOCKS / f"{name}.in")
    assert lock.inputs == asked.requirements
    assert (lock.purpose, lock.together) == (asked.purpose, asked.together)


@pytest.mark.parametrize("name", SETS)
def test_the_requirements_file_is_what_its_lock_says(name):
    committed = (LOCKS / "requirements" / f"{name}.txt").read_text("utf-8")
    assert committed == requirements_text(read_lock(LOCKS / f"{name}.json"))


def test_no_lock_or_requirements_file_is_left_over():
    assert sorted(path.stem for path in LOCKS.glob("*.json")) == SETS
    assert sorted(path.stem for path in LOCKS.glob("requirements/*.txt")) == SETS


def test_no_host_appears_under_locks():
    for path in LOCKS.rglob("*"):
        if path.is_file():
            text = path.read_text("utf-8")
            assert "://" not in text, path
            assert not re.search(r"--(extra-)?index|--find-links", text), path
            for host in package_hosts():
                assert host not in text, path


def test_sets_that_belong_together_agree_on_every_version():
    assert disagreements(read_lock(path) for path in set_paths(LOCKS, (), ".json")) == []


def test_a_disagreement_names_package_sets_and_versions():
    other = a_lock(
        set="other",
        packages=(a_lock().packages[0].model_copy(update={"version": "2.0"}),),
    )
    assert disagreements([a_lock(), other]) == ["demo is 1.0 in demo and 2.0 in other"]
    apart = other.model_copy(update={"together": None})
    assert disagreements([a_lock(), apart]) == []


def test_a_lock_reads_back_as_it_was_written():
    assert parse_lock(lock_bytes(a_lock()), "demo.json") == a_lock()


def test_a_lock_is_a_json_document_with_one_package_a_line():
    data = lock_bytes(a_lock())
    assert json.loads(data)["packages"][0]["name"] == "demo"
    assert sum(line.startswith(b'{"files"') for line in data.splitlines()) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"version":"1.0"', b'"version":"1.1"'),
        (b'"size":10', b'"size":11'),
        (b"a" * 64, b"b" * 64),
        (b"a lock for tests", b"a lock for all"),
        (b'["3.12","3.13"]', b'["3.12"]'),
    ],
)
def test_a_hand_edited_lock_is_refused(old, new):
    data = lock_bytes(a_lock())
    assert data.count(old) == 1
    with pytest.raises(UsageError, match="edited by hand"):
        parse_lock(data.replace(old, new), "demo.json")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b',"size":10', b"", "size"),
        (b'"sha256":"' + b"a" * 64 + b'",', b"", "sha256"),
        (b'"size":10', b'"size":0', "greater than 0"),
        (b'"size":10', b'"size":"10"', "integer"),
        (WHEEL.encode(), b"x/../" + WHEEL.encode(), "pattern"),
        (b'"name":"demo"', b'"name":"Demo"', "pattern"),
        (b'"purpose"', b'"url":"x","purpose"', "url"),
        (b"qualify-lock/1", b"qualify-lock/9", "schema"),
        (b"{\n", b"[\n", "JSON"),
        (b"{\n", b"{\n ", "layout"),
        (b'"packages":[', b'"packages":[[],', "packages"),
    ],
)
def test_a_malformed_lock_is_refused_with_its_reason(old, new, said):
    with pytest.raises(UsageError) as caught:
        parse_lock(lock_bytes(a_lock()).replace(old, new, 1), "demo.json")
    assert said in caught.value.what
    assert caught.value.where == "demo.json"
    assert caught.value.fix


def test_doubled_packages_are_refused():
    with pytest.raises(UsageError, match="doubled"):
        parse_lock(lock_bytes(a_lock(packages=a_lock().packages * 2)), "demo.json")


def test_a_lock_under_another_name_is_refused(tmp_path):
    (tmp_path / "other.json").write_bytes(lock_bytes(a_lock()))
    with pytest.raises(UsageError, match="holds the set 'demo'"):
        read_lock(tmp_path / "other.json")


@pytest.mark.parametrize("missing", [{"hashes": {}}, {"size": None}, {"size": 0}])
def test_an_entry_without_hash_or_size_ends_the_resolution(missing):
    assert locked_package(entry()) is not None
    with pytest.raises(UsageError, match="comes without a"):
        locked_package(entry(**missing))


def test_only_the_file_name_of_an_entry_is_kept():
    package = locked_package(entry())
    assert package is not None
    assert package.name == "demo"
    assert package.files == (LockedFile(file=WHEEL, sha256="a" * 64, size=10),)


def test_files_of_other_platforms_are_dropped():
    def wheel(tag):
        return {"name": f"demo-1.0-{tag}.whl", "size": 1, "hashes": {"sha256": "a" * 64}}

    taken = ["cp312-abi3-manylinux_2_28_x86_64", "cp313-cp313-manylinux2014_x86_64"]
    left = ["cp313-cp313t-manylinux2014_x86_64", "cp312-cp312-win_amd64", "cp311-cp311-any"]
    left += ["cp312-abi3-musllinux_1_2_x86_64", "cp312-abi3-manylinux_2_28_aarch64"]
    document = {"name": "demo", "version": "1.0", "wheels": [wheel(t) for t in taken + left]}
    package = locked_package(document)
    assert package is not None
    assert [file.file for file in package.files] == [f"demo-1.0-{tag}.whl" for tag in taken]


def test_a_source_archive_is_kept_only_without_any_wheel():
    archive = {"name": "demo-1.0.tar.gz", "size": 1, "hashes": {"sha256": "a" * 64}}
    both = locked_package(entry() | {"sdist": archive})
    alone = locked_package({"name": "demo", "version": "1.0", "sdist": archive})
    assert both is not None
    assert alone is not None
    assert [file.file for file in both.files] == [WHEEL]
    assert [file.file for file in alone.files] == ["demo-1.0.tar.gz"]


def test_a_package_that_some_python_cannot_install_ends_the_resolution():
    wheel = {"name": "demo-1.0-cp312-cp312-manylinux2014_x86_64.whl", "size": 1}
    wheel |= {"hashes": {"sha256": "a" * 64}}
    with pytest.raises(UsageError, match=r"no file for Python 3\.13"):
        locked_package({"name": "demo", "version": "1.0", "wheels": [wheel]})


def test_markers_decide_whether_a_package_is_needed():
    assert locked_package(entry() | {"marker": "sys_platform == 'win32'"}) is None
    always = locked_package(entry() | {"marker": "sys_platform == 'linux'"})
    newer = locked_package(entry() | {"marker": "python_full_version >= '3.13'"})
    assert always is not None
    assert newer is not None
    assert always.marker is None
    assert newer.marker == "python_full_version >= '3.13'"
    lock = a_lock(packages=(newer,))
    assert "demo==1.0 ; python_full_version >= '3.13' \\\n" in requirements_text(lock)


@pytest.mark.parametrize(
    "line", ["--index-url x", "-r other.in", "demo @ file:///x", "https://index.invalid/x.whl"]
)
def test_an_input_can_hold_neither_options_nor_places(tmp_path, line):
    path = tmp_path / "demo.in"
    path.write_text(f"# purpose: test\nclick\n{line}\n")
    with pytest.raises(UsageError) as caught:
        read_input(path)
    assert caught.value.where == f"{path}:3"


def test_an_input_needs_a_purpose(tmp_path):
    path = tmp_path / "demo.in"
    path.write_text("click\n")
    with pytest.raises(UsageError, match="purpose"):
        read_input(path)


def test_an_unknown_set_is_answered_with_the_known_ones():
    with pytest.raises(UsageError) as caught:
        set_paths(LOCKS, ["nothing"], ".in")
    assert "agent-openhands" in caught.value.fix
