"""Rows that run inside an image: which image is theirs, and what is refused before it runs."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from qualify.core.errors import EnvironmentFault, QualifyError, UsageError
from qualify.images.errors import ImageFault, ImageTampered
from qualify.manifests.configuration import resolve
from qualify.pins.debian import read_debian_lock
from qualify.pins.locks import read_lock
from qualify.runner.image_place import VARIABLE, _versions_in, image_place
from qualify.runtimes import contained
from support.images import ImageBuilder, distribution, file, folder, link

ROOT = Path(__file__).parents[3]
ROW = "cpu-qwen2.5-coder-1.5b-image"
SITE = "usr/local/lib/python3.13/dist-packages"


@pytest.fixture(scope="module")
def labels():
    """What the llama.cpp image of this project says of itself."""
    return {
        "qualify.runtime": "llama-cpp-cpu",
        "qualify.closure": "llama-cpp-cpu",
        "qualify.lock.debian": read_debian_lock(ROOT / "locks/debian.json").digest,
        "qualify.lock.llama-cpp-cpu": read_lock(ROOT / "locks/llama-cpp-cpu.json").digest,
    }


@pytest.fixture(scope="module")
def packages():
    locked = read_lock(ROOT / "locks/llama-cpp-cpu.json").packages
    return {package.name: package.version for package in locked}


@pytest.fixture
def written(tmp_path, labels, packages, monkeypatch):
    """`written(labels=…, packages=…)` writes an image and returns its folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def make(more=None, **changes):
        system = [folder("usr/bin"), link("bin", "usr/bin"), file("usr/bin/python3", b"x", 0o755)]
        code = [file(contained.CODE[1:] + "/llama_cpp_server.py", "pass\n")]
        wheels = [
            entry
            for name, version in {**packages, **changes.get("packages", {})}.items()
            if version is not None
            for entry in distribution(name, version, {f"{name}/__init__.py": ""}, SITE)
        ]
        told = {k: v for k, v in {**labels, **changes.get("labels", {})}.items() if v is not None}
        image = ImageBuilder(
            layers=[system, wheels, code], labels=told, env={"LD_LIBRARY_PATH": "/opt/lib"}
        )
        return image.layout(tmp_path / "image")

    return make


def place(catalog, path, row=ROW):
    return image_place(catalog, resolve(catalog, row), path)


def test_the_rows_own_image_is_unpacked_once_and_named_by_its_digest(catalog, written):
    layout = written()
    root = place(catalog, layout)
    manifest = json.loads((layout / "index.json").read_text())["manifests"][0]
    assert root.digest == manifest["digest"]
    assert root.environment == {"LD_LIBRARY_PATH": "/opt/lib"}
    assert contained.holds(root, f"{contained.CODE}/llama_cpp_server.py")
    again = place(catalog, layout)
    assert again.path == root.path


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("qualify.runtime", "vllm-0.32.0-cpu"),
        ("qualify.runtime", None),
        ("qualify.closure", "runner"),
        ("qualify.lock.debian", "sha256:" + "0" * 64),
        ("qualify.lock.llama-cpp-cpu", "sha256:" + "0" * 64),
        ("qualify.lock.llama-cpp-cpu", None),
    ],
)
def test_an_image_of_another_runtime_or_lock_is_refused(catalog, written, name, value):
    with pytest.raises(UsageError, match=f"label {name}"):
        place(catalog, written(labels={name: value}))


@pytest.mark.parametrize("version", ["1.0.0", None])
def test_packages_are_looked_at_whatever_the_labels_say(catalog, written, version):
    with pytest.raises(UsageError, match="not as locked in llama-cpp-cpu"):
        place(catalog, written(packages={"xllamacpp": version}))


def test_the_package_that_python_would_import_is_the_one_looked_at(tmp_path):
    for place_, version in (
        ("usr/local/lib/python3.13/dist-packages", "1.0"),
        ("usr/lib/python3/dist-packages", "2.0"),
    ):
        info = tmp_path / place_ / f"pkg-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: pkg\nVersion: {version}\n")
    assert _versions_in(contained.ImageRoot(tmp_path, "sha256:" + "0" * 64))("pkg") == "1.0"


def test_a_tampered_image_is_refused(catalog, written):
    layout = written()
    largest = max((layout / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    with pytest.raises(ImageTampered):
        place(catalog, layout)


def test_what_is_no_image_is_refused(catalog, tmp_path):
    (tmp_path / "nothing").mkdir()
    with pytest.raises(ImageFault):
        place(catalog, tmp_path / "nothing")
    with pytest.raises(UsageError):
        place(catalog, tmp_path / "missing")


def test_without_bubblewrap_no_image_is_unpacked(catalog, written, monkeypatch, tmp_path):
    layout = written()
    contained.require_bubblewrap.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EnvironmentFault, match="bubblewrap"):
        place(catalog, layout)
    contained.require_bubblewrap.cache_clear()
    assert not (tmp_path / "cache/qualify").exists()


def test_an_image_row_without_an_image_records_nothing(qualify, places):
    ended = qualify("run", ROW, cwd=ROOT)
    assert ended.code == 2
    assert "--image" in ended.err
    assert not places.exists()


def test_a_row_on_the_host_takes_no_image(qualify, places, written):
    ended = qualify("run", "scripted-passes", "--image", str(written()), cwd=ROOT)
    assert ended.code == 2
    assert "placement image" in ended.err
    assert not places.exists()


def test_the_environment_names_an_image_for_image_rows_only(qualify, places, tmp_path):
    elsewhere = {VARIABLE: str(tmp_path / "missing")}
    ended = qualify("run", ROW, environment=elsewhere, cwd=ROOT)
    assert ended.code == 2
    assert "missing" in ended.err
    assert not places.exists()
    host = qualify("run", "scripted-passes", "--trials", "1", environment=elsewhere, cwd=ROOT)
    assert host.code == 10
    assert places.exists()


def test_an_accelerator_is_not_handed_to_an_image_by_this_version(catalog):
    from qualify.runtimes.admission import admit
    from support import rows

    row = {"placement": "image", "tool_parser": "qwen3_coder"}
    codes = {reason.code for reason in admit(rows.vllm(row=row))}
    assert "placement-not-available" in codes
    assert "placement-not-available" not in {
        reason.code for reason in admit(resolve(catalog, "cpu-fixture-vllm"))
    }


def test_the_model_stamp_of_a_snapshot_sees_every_file(tmp_path):
    from qualify.runner.identity import file_stamp

    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    for name in ("one", "two"):
        (tmp_path / "blobs" / name).write_text(name)
        (tmp_path / "snapshot" / name).symlink_to(f"../blobs/{name}")
    before = file_stamp(tmp_path / "snapshot")
    assert before == file_stamp(tmp_path / "snapshot")
    (tmp_path / "blobs/two").write_text("another")
    assert file_stamp(tmp_path / "snapshot") != before
    shutil.rmtree(tmp_path / "snapshot")
    assert file_stamp(tmp_path / "snapshot") is None


def test_the_record_names_the_image_and_the_network(catalog):
    from qualify.core.status import EngineKind
    from qualify.runner.identity import engine_record
    from qualify.runtimes.engine import EngineFacts

    facts = EngineFacts(EngineKind.VLLM, "1", None, 1, None, 1, None, None, False, 5)
    configuration = resolve(catalog, ROW)
    assert engine_record(facts, configuration).image is None
    digest = "sha256:" + "a" * 64
    told = replace(facts, image=digest, network="loopback-only")
    record = engine_record(told, configuration)
    assert (record.image, record.network) == (digest, "loopback-only")


def test_no_refusal_is_without_advice(catalog, written):
    for path, row in ((None, ROW), (Path("/x"), "scripted-passes")):
        with pytest.raises(QualifyError) as caught:
            place(catalog, path, row)
        assert caught.value.fix
