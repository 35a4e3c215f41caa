"""Locks: complete, host-free, in step with what is made from them, and not editable by hand."""

import json
import re
from pathlib import Path

import pytest

from qualify.core.errors import UsageError
from qualify.pins.locks import (
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
from qualify.pins.resolution import IMAGE_GLIBC, Target, locked_package
from qualify.pins.tags import best, fits

LOCKS = Path(__file__).parents[3] / "locks"
SETS = sorted(path.stem for path in LOCKS.glob("*.in") if path.stem != "debian")
IMAGE_SETS = ["launcher", "nix-build", "runner", "vllm-cpu", "vllm-cu129", "vllm-cu130"]
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
    for wanted, found in (
        (asked.overrides, lock.overrides),
        (asked.excludes, lock.excludes),
        (asked.sdists, lock.sdists),
    ):
        assert wanted == (found or ())
    if asked.pythons:
        assert lock.platform.pythons == asked.pythons
    if asked.cutoff:
        assert lock.cutoff == asked.cutoff


@pytest.mark.parametrize("name", SETS)
def test_the_requirements_file_is_what_its_lock_says(name):
    committed = (LOCKS / "requirements" / f"{name}.txt").read_text("utf-8")
    assert committed == requirements_text(read_lock(LOCKS / f"{name}.json"))


def test_no_lock_or_requirements_file_is_left_over():
    assert sorted(path.stem for path in LOCKS.glob("*.json")) == sorted([*SETS, "debian"])
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
    assert disagreements(read_lock(path) for path in set_paths(LOCKS, SETS, ".json")) == []


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


IMAGE = Target(("3.13",), IMAGE_GLIBC)


def wheel(tag):
    return {"name": f"demo-1.0-{tag}.whl", "size": 1, "hashes": {"sha256": "a" * 64}}


@pytest.mark.parametrize("name", IMAGE_SETS)
def test_an_image_set_is_one_environment_for_debian_13(name):
    lock = read_lock(LOCKS / f"{name}.json")
    assert lock.is_image_set
    assert lock.platform.glibc == "2.41"
    assert lock.platform.pythons == ("3.13",)
    for package in lock.packages:
        (file,) = package.files
        assert package.marker is None
        assert package.name in (lock.sdists or ()) or fits(file.file, "3.13", 41)


def test_the_existing_sets_are_no_image_sets():
    assert not read_lock(LOCKS / "run.json").is_image_set


def test_the_runner_set_agrees_with_base_and_run_and_holds_all_of_them():
    runner = read_lock(LOCKS / "runner.json").versions
    for name in ("base", "run"):
        for package in read_lock(LOCKS / f"{name}.json").packages:
            if package.marker is None:
                assert runner[package.name] == package.version


@pytest.mark.parametrize("name", ["runner", "vllm-cpu", "vllm-cu129", "vllm-cu130"])
def test_every_set_that_starts_an_engine_or_the_command_holds_the_launcher(name):
    asked = set(read_input(LOCKS / "launcher.in").requirements)
    assert asked <= set(read_input(LOCKS / f"{name}.in").requirements)


def test_the_cuda_12_set_holds_12_9_and_no_cuda_13():
    versions = read_lock(LOCKS / "vllm-cu129.json").versions
    assert versions["vllm"] == "0.19.1"
    assert versions["nvidia-cuda-runtime-cu12"].startswith("12.9.")
    assert "nvidia-cuda-runtime" not in versions
    assert read_lock(LOCKS / "vllm-cu130.json").versions["nvidia-cuda-runtime"].startswith("13.0.")


def test_the_cpu_set_holds_no_part_of_cuda_that_its_overrides_exclude():
    versions = read_lock(LOCKS / "vllm-cpu.json").versions
    assert versions["vllm-cpu"] == "0.32.0"
    assert versions["torch"] == "2.13.0"
    assert not versions.keys() & {"torchvision", "torchaudio", "torchcodec", "vllm"}


def test_the_best_wheel_is_the_one_an_installer_would_take():
    tags = ["py3-none-any", "cp39-abi3-manylinux_2_17_x86_64", "cp313-cp313-manylinux_2_17_x86_64"]
    newest = "cp313-cp313-manylinux_2_39_x86_64"
    names = [f"demo-1.0-{tag}.whl" for tag in [*tags, newest]]
    assert best(names, "3.13", 41) == f"demo-1.0-{newest}.whl"
    assert best(names, "3.13", 36) == "demo-1.0-cp313-cp313-manylinux_2_17_x86_64.whl"
    assert best(names[:2], "3.13", 41) == "demo-1.0-cp39-abi3-manylinux_2_17_x86_64.whl"
    too_new = "demo-1.0-cp313-cp313-manylinux_2_42_x86_64.whl"
    assert best([too_new], "3.13", 41) is None
    assert best([too_new], "3.13", 42) == too_new


def test_of_two_builds_of_one_wheel_the_later_is_taken():
    first, second = "demo-1.0-2-py3-none-any.whl", "demo-1.0-10-py3-none-any.whl"
    assert best([second, first], "3.13", 41) == second


def test_an_image_set_keeps_one_file_of_each_package():
    tags = [
        "py3-none-any",
        "cp313-cp313-manylinux_2_34_x86_64",
        "cp312-cp312-manylinux_2_34_x86_64",
    ]
    document = {"name": "demo", "version": "1.0", "wheels": [wheel(tag) for tag in tags]}
    package = locked_package(document, IMAGE)
    assert package is not None
    assert [file.file for file in package.files] == [f"demo-1.0-{tags[1]}.whl"]
    everything = locked_package(document)
    assert everything is not None
    assert len(everything.files) == 3


def test_a_source_archive_enters_an_image_set_only_when_it_is_named():
    archive = {"name": "demo-1.0.tar.gz", "size": 1, "hashes": {"sha256": "a" * 64}}
    document = {"name": "demo", "version": "1.0", "sdist": archive}
    with pytest.raises(UsageError, match="no wheel for glibc"):
        locked_package(document, IMAGE)
    named = locked_package(document, Target(("3.13",), IMAGE_GLIBC, frozenset({"demo"})))
    assert named is not None
    assert named.files[0].file == "demo-1.0.tar.gz"


def test_a_wheel_for_another_machine_ends_the_resolution_of_an_image_set():
    document = {
        "name": "demo",
        "version": "1.0",
        "wheels": [wheel("cp313-cp313-manylinux_2_34_aarch64")],
    }
    with pytest.raises(UsageError, match=r"no wheel for glibc 2\.41 and Python 3\.13"):
        locked_package(document, IMAGE)


def an_image_lock(*files):
    platform = LockPlatform(
        glibc="2.41", libc="glibc", machine="x86_64", pythons=("3.13",), system="linux"
    )
    names = files or (WHEEL,)
    locked = tuple(LockedFile(file=name, sha256="a" * 64, size=10) for name in names)
    package = LockedPackage(name="demo", version="1.0", files=locked)
    return a_lock(platform=platform, packages=(package,))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (("demo-1.0-1-py3-none-any.whl", WHEEL), "holds one of each"),
        (("demo-1.0.tar.gz",), "is no wheel"),
    ],
)
def test_an_image_lock_that_leaves_a_choice_is_refused(files, said):
    assert parse_lock(lock_bytes(an_image_lock()), "demo.json").is_image_set
    with pytest.raises(UsageError, match=said):
        parse_lock(lock_bytes(an_image_lock(*files)), "demo.json")


def test_an_input_tells_python_cut_off_overrides_exclusions_and_sources(tmp_path):
    path = tmp_path / "demo.in"
    path.write_text(
        "# purpose: test\n# pythons: 3.13\n# cutoff: 2026-05-15\n# override: b==2\n"
        "# override: a==1.*\n# exclude: c\n# sdist: d\n# a remark\nclick\n"
    )
    asked = read_input(path)
    assert asked.pythons == ("3.13",)
    assert asked.cutoff == "2026-05-15T00:00:00Z"
    assert asked.overrides == ("a==1.*", "b==2")
    assert (asked.excludes, asked.sdists) == (("c",), ("d",))


@pytest.mark.parametrize("line", ["# override: a==1", "# exclude: a", "# cutoff: 2026-05-15"])
def test_what_only_an_image_set_can_have_is_refused_elsewhere(tmp_path, line):
    path = tmp_path / "demo.in"
    path.write_text(f"# purpose: test\n{line}\nclick\n")
    with pytest.raises(UsageError, match="only an image set"):
        read_input(path)


def test_an_override_can_name_no_place(tmp_path):
    path = tmp_path / "demo.in"
    path.write_text("# purpose: t\n# pythons: 3.13\n# override: a @ https://index.invalid/a\nb\n")
    with pytest.raises(UsageError, match="only plain requirements"):
        read_input(path)
