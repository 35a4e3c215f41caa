"""Making offline bundles: what is in them, equal bytes, and what is refused before writing."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from qualify.core.errors import EnvironmentFault, QualifyError, UsageError
from qualify.images import open_image
from qualify.images.attestations import make_provenance, make_sbom, pins_of
from qualify.images.bundle import MadeBundle, make_bundle
from qualify.images.bundle_check import check_bundle
from qualify.images.bundle_plan import plan_bundle
from qualify.images.errors import ImageTampered
from qualify.images.sbom import sbom_bytes
from qualify.manifests.catalog import load_catalog
from support.bundles import (
    ENGINE,
    RUNNER,
    Layout,
    sha256,
    two_layouts,
    write_attested_project,
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project and its two layouts."""
    folder = tmp_path_factory.mktemp("source")
    two_layouts(folder, write_attested_project(folder / "project"))
    return folder


def layouts(source: Path) -> list[Path]:
    return [source / "image-runner", source / "image-engine"]


def make(
    source: Path,
    target: Path,
    images: list[Path] | None = None,
    changes: dict[str, object] | None = None,
) -> MadeBundle:
    project = source / "project"
    declared = load_catalog(project, cache_folder=source / "cache").bundle("offline")
    declared = declared.model_copy(update=changes or {})
    plan = plan_bundle(project, declared, {"one": "engine"}, images or layouts(source))
    return make_bundle(plan, target)


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_made_bundle_is_accepted(source: Path, tmp_path: Path) -> None:
    made = make(source, tmp_path / "bundle")
    report = check_bundle(tmp_path / "bundle")
    assert report.findings == []
    assert report.accepted
    assert report.digest == made.digest
    assert check_bundle(tmp_path / "bundle", announced=made.digest).accepted


def test_a_bundle_holds_images_and_everything_about_them(source: Path, tmp_path: Path) -> None:
    make(source, tmp_path / "bundle", changes={"documentation": True})
    found = tree(tmp_path / "bundle")
    project = tree(source / "project")
    for name, data in project.items():
        assert found[name] == data
    for image in ("runner", "engine"):
        assert json.loads(found[f"attestations/{image}/sbom.cdx.json"])["bomFormat"] == "CycloneDX"
        assert f"attestations/{image}/provenance.intoto.json" in found
    others = found.keys() - project.keys()
    assert {name.split("/")[0] for name in others} == {
        "README.md", "SHA256SUMS", "attestations", "bundle.json", "images",
    }  # fmt: skip


def test_documentation_can_be_left_out(source: Path, tmp_path: Path) -> None:
    make(source, tmp_path / "bundle", changes={"documentation": False})
    assert not (tmp_path / "bundle/docs").exists()
    assert "docs/" not in (tmp_path / "bundle/README.md").read_text()


def test_the_same_input_gives_the_same_bytes(source: Path, tmp_path: Path) -> None:
    first = make(source, tmp_path / "one")
    copy = tmp_path / "elsewhere"
    shutil.copytree(source, copy)
    second = make(copy, tmp_path / "one/../two", list(reversed(layouts(copy))))
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert first.digest == second.digest
    assert b"/tmp" not in b"".join(tree(tmp_path / "one").values())


def test_every_file_is_plain_and_readable_by_all(source: Path, tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        make(source, tmp_path / "bundle")
    finally:
        os.umask(old)
    for path in (tmp_path / "bundle", *(tmp_path / "bundle").rglob("*")):
        mode = path.lstat().st_mode & 0o7777
        assert (path.is_dir(), mode) in ((True, 0o755), (False, 0o644)), path


def test_plain_sha256sum_accepts_the_sums(source: Path, tmp_path: Path) -> None:
    make(source, tmp_path / "bundle")
    command = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    assert subprocess.run(command, cwd=tmp_path / "bundle", check=False).returncode == 0
    (tmp_path / "bundle/locks/runner.json").write_bytes(b"x")
    assert subprocess.run(command, cwd=tmp_path / "bundle", check=False, stderr=-3).returncode == 1
    sums = (tmp_path / "bundle/SHA256SUMS").read_text().splitlines()
    listed = {line[66:] for line in sums}
    assert listed == tree(tmp_path / "bundle").keys() - {"SHA256SUMS"}


def test_a_shared_layer_is_carried_once(source: Path, tmp_path: Path) -> None:
    make(source, tmp_path / "bundle")
    images = [open_image(tmp_path / "bundle/images", reference=n) for n in ("runner", "engine")]
    shared = {layer.digest for layer in images[0].layers} & {
        each.digest for each in images[1].layers
    }
    assert len(shared) == 1
    # Two layers each, one of them common; a configuration and a manifest each.
    assert len(list((tmp_path / "bundle/images/blobs/sha256").iterdir())) == 7


def test_images_keep_their_digests(source: Path, tmp_path: Path) -> None:
    make(source, tmp_path / "bundle")
    for name in ("runner", "engine"):
        carried = open_image(tmp_path / "bundle/images", reference=name)
        assert carried.digest == open_image(source / f"image-{name}").digest


@pytest.mark.parametrize("name", ["runner", "engine"])
def test_skopeo_reads_each_image_by_its_name(source: Path, tmp_path: Path, name: str) -> None:
    make(source, tmp_path / "bundle")
    place = f"oci:{tmp_path}/bundle/images:{name}"
    told = json.loads(subprocess.check_output(["skopeo", "inspect", place]))
    assert told["Digest"] == open_image(source / f"image-{name}").digest
    assert told["Labels"]["qualify.image"] == name


def test_a_bundle_is_a_project(source: Path, tmp_path: Path) -> None:
    make(source, tmp_path / "bundle")
    catalog = load_catalog(tmp_path / "bundle", cache_folder=tmp_path / "cache")
    assert set(catalog.rows) == {"one", "double"}


def test_linked_blobs_become_files(source: Path, tmp_path: Path) -> None:
    project = source / "project"
    linked = [
        Layout("runner", ("runner",), linked_blobs=True).write(tmp_path / "a/runner", project),
        Layout("engine", ("tools",), runtime="engine", linked_blobs=True).write(
            tmp_path / "a/engine", project
        ),
    ]
    make(source, tmp_path / "from-links", linked)
    make(source, tmp_path / "from-files")
    assert tree(tmp_path / "from-links") == tree(tmp_path / "from-files")
    assert not any(path.is_symlink() for path in (tmp_path / "from-links").rglob("*"))


def test_what_the_build_left_beside_an_image_is_taken(source: Path, tmp_path: Path) -> None:
    images = two_layouts(tmp_path, source / "project")
    for folder in images:
        image = open_image(folder)
        pins = pins_of(image, source / "project/locks")
        (folder / "sbom.cdx.json").write_bytes(make_sbom(image, pins))
        (folder / "provenance.intoto.json").write_bytes(make_provenance(image, pins))
    make(source, tmp_path / "bundle", images)
    make(source, tmp_path / "other")
    assert tree(tmp_path / "bundle") == tree(tmp_path / "other")


@pytest.mark.parametrize("name", ["sbom.cdx.json", "provenance.intoto.json"])
def test_a_bill_or_provenance_of_another_image_is_refused(
    source: Path, tmp_path: Path, name: str
) -> None:
    images = two_layouts(tmp_path, source / "project")
    other = open_image(images[1])
    pins = pins_of(other, source / "project/locks")
    text = (make_sbom if name.startswith("sbom") else make_provenance)(other, pins)  # type: ignore[operator]
    (images[0] / name).write_bytes(text)
    with pytest.raises(ImageTampered, match="is about sha256:"):
        make(source, tmp_path / "bundle", images)
    assert not (tmp_path / "bundle").exists()


def test_a_digest_beside_an_image_that_is_another_ones_is_refused(
    source: Path, tmp_path: Path
) -> None:
    images = two_layouts(tmp_path, source / "project")
    (images[0] / "digest").write_text(open_image(images[0]).digest + "\n")
    make(source, tmp_path / "sound", images)
    (images[0] / "digest").write_text(open_image(images[1]).digest + "\n")
    with pytest.raises(ImageTampered, match="digest says"):
        make(source, tmp_path / "bundle", images)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("name", ["sbom.cdx.json", "provenance.intoto.json"])
def test_a_bill_or_provenance_that_names_more_is_refused(
    source: Path, tmp_path: Path, name: str
) -> None:
    images = two_layouts(tmp_path, source / "project")
    image = open_image(images[0])
    pins = pins_of(image, source / "project/locks")
    text = (make_sbom if name.startswith("sbom") else make_provenance)(image, pins)  # type: ignore[operator]
    document = json.loads(text)
    if name.startswith("sbom"):
        extra = {**document["components"][-1], "purl": "pkg:pypi/evil@1"}
        document["components"].append(extra)
    else:
        listed = document["predicate"]["buildDefinition"]["resolvedDependencies"]
        listed.append({**listed[1], "name": "evil"})
    (images[0] / name).write_text(json.dumps(document))
    with pytest.raises(ImageTampered, match=r"evil.*which no lock of it holds"):
        make(source, tmp_path / "bundle", images)
    assert not (tmp_path / "bundle").exists()


# ── refused before anything is written ───────────────────────────────────────────────────────────


def refused(
    source: Path,
    folder: Path,
    images: list[Path] | None = None,
    changes: dict[str, object] | None = None,
) -> str:
    """The error; nothing may have been written."""
    target = folder / "bundle"
    before = sorted(target.parent.iterdir())
    with pytest.raises(QualifyError) as error:
        make(source, target, images, changes)
    assert error.value.fix
    assert sorted(target.parent.iterdir()) == before
    return str(error.value)


def test_an_image_that_was_not_given_is_named(source: Path, tmp_path: Path) -> None:
    told = refused(source, tmp_path, layouts(source)[:1])
    assert "holds an image 'engine', which was not given" in told
    assert "qualify image build engine" in told


def test_an_image_that_is_not_declared_is_named(source: Path, tmp_path: Path) -> None:
    told = refused(source, tmp_path, changes={"images": ("runner",), "rows": ()})
    assert "does not hold an image 'engine'" in told


def test_an_image_given_twice_is_refused(source: Path, tmp_path: Path) -> None:
    assert "a second time" in refused(source, tmp_path, [*layouts(source), layouts(source)[0]])


def test_a_row_that_no_image_serves_is_refused(source: Path, tmp_path: Path) -> None:
    images = [
        RUNNER.write(tmp_path / "r", source / "project"),
        Layout("engine", ("tools",), runtime="other").write(tmp_path / "e", source / "project"),
    ]
    assert "none of its images serves its runtime 'engine'" in refused(source, tmp_path, images)


@pytest.mark.parametrize(
    ("label", "what"),
    [
        ("qualify.declarations", "built from other manifests and corpora"),
        ("qualify.lock.runner", "another lock 'runner'"),
    ],
)
def test_an_image_of_another_state_of_the_project_is_refused(
    source: Path, tmp_path: Path, label: str, what: str
) -> None:
    labels: dict[str, str | None] = {label: "sha256:" + "0" * 64}
    other = Layout("runner", ("runner",), labels=labels).write(tmp_path / "r", source / "project")
    assert what in refused(source, tmp_path, [other, layouts(source)[1]])


def test_a_folder_that_is_no_layout_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "oci-layout" in refused(source, tmp_path, [tmp_path / "empty"])
    assert "is no folder" in refused(source, tmp_path, [tmp_path / "gone"])


def test_a_blob_that_is_missing_or_short_is_found_first(source: Path, tmp_path: Path) -> None:
    for change in ("missing", "short"):
        folder = RUNNER.write(tmp_path / change, source / "project")
        layer = folder / open_image(folder).layers[0].name
        data = layer.read_bytes()
        layer.unlink()
        if change == "short":
            layer.write_bytes(data[:-1])
        told = refused(source, tmp_path, [folder, layouts(source)[1]])
        assert sha256(data) in told


def test_a_target_that_exists_is_left_alone(source: Path, tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle/mine").write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        make(source, tmp_path / "bundle")
    assert tree(tmp_path / "bundle") == {"mine": b"mine"}
    (tmp_path / "empty").mkdir()
    make(source, tmp_path / "empty")
    assert check_bundle(tmp_path / "empty").accepted


@pytest.mark.parametrize("kind", ["link", "pipe", "odd name", "same but for case"])
def test_what_cannot_be_carried_is_refused(source: Path, tmp_path: Path, kind: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(source, copy)
    docs = copy / "project/docs"
    match kind:
        case "link":
            (docs / "here").symlink_to("/etc/passwd")
        case "pipe":
            os.mkfifo(docs / "here")
        case "odd name":
            (docs / "a\nb").write_text("")
        case _:
            (docs / "Page.md").write_text("")
            (docs / "page.md").write_text("")
    place = tmp_path / "place"
    place.mkdir()
    refused(copy, place, changes={"documentation": True})
    # The positive control: without documentation none of it is carried.
    make(copy, place / "bundle", changes={"documentation": False})


# ── faults while writing ─────────────────────────────────────────────────────────────────────────


def test_a_changed_blob_is_found_while_it_is_copied(source: Path, tmp_path: Path) -> None:
    folder = RUNNER.write(tmp_path / "runner", source / "project")
    layer = folder / open_image(folder).layers[1].name
    data = bytearray(layer.read_bytes())
    data[-1] ^= 1
    layer.write_bytes(data)
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(ImageTampered, match="is not what its name says"):
        make(source, place / "bundle", [folder, layouts(source)[1]])
    assert list(place.iterdir()) == []


def test_a_full_disk_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentFault, match="No space left") as error:
        make(source, tmp_path / "bundle")
    assert "free space" in error.value.fix
    assert list(tmp_path.iterdir()) == []


def test_too_little_space_is_told_with_figures(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=1000))
    assert "0.00 GB are free" in refused(source, tmp_path)


def test_an_interrupt_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import qualify.images.bundle as module

    def interrupt(*_args: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "readme_bytes", interrupt)
    with pytest.raises(KeyboardInterrupt):
        make(source, tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed_and_another_ones_work_is_not(
    source: Path, tmp_path: Path
) -> None:
    import fcntl

    (tmp_path / ".bundle.partial-dead/images").mkdir(parents=True)
    (tmp_path / ".bundle.partial-alive").mkdir()
    handle = os.open(tmp_path / ".bundle.partial-alive", os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        make(source, tmp_path / "bundle")
    finally:
        os.close(handle)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".bundle.partial-alive", "bundle"]


def test_memory_does_not_grow_with_a_blob(source: Path, tmp_path: Path) -> None:
    import tracemalloc

    folder = ENGINE.write(tmp_path / "engine", source / "project")
    index = json.loads((folder / "index.json").read_bytes())
    manifest_path = folder / "blobs/sha256" / index["manifests"][0]["digest"][7:]
    manifest = json.loads(manifest_path.read_bytes())
    # A layer that nobody opens here: the bill is given.
    state, size = hashlib.sha256(), 64 << 20
    with (folder / "big").open("wb") as stream:
        for _ in range(size >> 20):
            stream.write(bytes(1 << 20))
            state.update(bytes(1 << 20))
    (folder / "big").rename(folder / "blobs/sha256" / state.hexdigest())
    manifest["layers"][1].update(digest=f"sha256:{state.hexdigest()}", size=size)
    data = json.dumps(manifest).encode()
    (folder / "blobs/sha256" / sha256(data)).write_bytes(data)
    index["manifests"][0].update(digest=f"sha256:{sha256(data)}", size=len(data))
    (folder / "index.json").write_text(json.dumps(index))
    image = open_image(folder)
    pins = pins_of(image, source / "project/locks")
    (folder / "sbom.cdx.json").write_bytes(sbom_bytes(pins, image.labels, image.digest, {}))
    tracemalloc.start()
    try:
        make(source, tmp_path / "bundle", [layouts(source)[0], folder])
        assert check_bundle(tmp_path / "bundle").accepted
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_what_is_derived_or_not_part_of_the_commit_stays_behind(
    source: Path, tmp_path: Path
) -> None:
    shutil.copytree(source, tmp_path / "source")
    made_here = tmp_path / "source"
    project = made_here / "project"
    shutil.rmtree(made_here / "cache", ignore_errors=True)
    make(made_here, tmp_path / "before")
    cache = project / "corpora" / "__pycache__"
    cache.mkdir()
    (cache / "tool.cpython-313.pyc").write_bytes(b"\0")
    (project / "corpora" / "stray.pyc").write_bytes(b"\0")
    make(made_here, tmp_path / "derived")
    assert tree(tmp_path / "derived") == tree(tmp_path / "before")
    for command in (
        ["init", "-q"], ["add", "LICENSE", "locks", "manifests", "corpora", "docs"],
        ["-c", "user.name=t", "-c", "user.email=t@t.invalid", "commit", "-qm", "x"],
    ):  # fmt: skip
        subprocess.run(["git", *command], cwd=project, check=True)
    (project / "locks" / "notes.txt").write_text("mine")
    make(made_here, tmp_path / "tracked")
    assert "locks/notes.txt" not in tree(tmp_path / "tracked")
    (project / ".git" / "HEAD").unlink()
    with pytest.raises(UsageError, match="git cannot tell"):
        make(made_here, tmp_path / "broken")


def test_a_bundle_that_would_not_be_accepted_is_not_made(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qualify.images import bundle

    real = bundle._write_lists

    def then_change(writer, plan, entries):
        digest = real(writer, plan, entries)
        (writer._folder / "locks" / "late").write_text("slipped in")
        return digest

    monkeypatch.setattr(bundle, "_write_lists", then_change)
    with pytest.raises(ImageTampered, match="locks/late"):
        make(source, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
