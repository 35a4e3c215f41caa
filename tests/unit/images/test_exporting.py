"""Exports are whole, verified, and the same bytes each time."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from qualify.core.errors import UsageError
from qualify.images import ImageFault, ImageTampered, open_image
from qualify.images.attestations import make_provenance, make_sbom, pins_of
from qualify.images.exporting import FORMATS, export_image
from qualify.images.scan import scan_image
from support.bundles import RUNNER, write_attested_project
from support.images import file, python_image, write_layout


def content(path: Path) -> dict[str, str]:
    """SHA-256 of each file."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return {str(f.relative_to(path)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def view(image):
    return [(path, node.mode, node.digest) for path, node in scan_image(image).tree.walk()]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("source", ["layout", "docker"])
def test_an_export_is_the_same_image_and_the_same_bytes_each_time(form, source, tmp_path):
    made = python_image()
    path = (
        made.layout(tmp_path / "image")
        if source == "layout"
        else made.docker_archive(tmp_path / "image.tar")
    )
    image = open_image(path)
    digests = {export_image(image, tmp_path / name, form) for name in ("one", "two")}
    assert content(tmp_path / "one") == content(tmp_path / "two")
    again = open_image(tmp_path / "one")
    assert digests == {again.digest}
    assert view(again) == view(image)
    assert again.config_bytes == image.config_bytes
    if form != "docker-archive" and source == "layout":
        assert again.digest == image.digest


def test_a_docker_archive_survives_the_way_there_and_back(tmp_path):
    image = open_image(python_image().layout(tmp_path / "image"))
    export_image(image, tmp_path / "docker.tar", "docker-archive")
    export_image(open_image(tmp_path / "docker.tar"), tmp_path / "oci", "oci")
    export_image(open_image(tmp_path / "oci"), tmp_path / "again.tar", "docker-archive")
    assert (tmp_path / "docker.tar").read_bytes() == (tmp_path / "again.tar").read_bytes()


def test_links_to_blobs_become_files_and_companions_come_along(tmp_path):
    layout = python_image().layout(tmp_path / "image")
    for blob in (layout / "blobs/sha256").iterdir():
        blob.symlink_to(blob.rename(tmp_path / blob.name))
    image = open_image(layout)
    (layout / "digest").write_text(image.digest + "\n")
    (layout / "private.txt").write_text("stays")
    export_image(image, tmp_path / "out", "oci")
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))
    assert (tmp_path / "out/digest").read_text() == image.digest + "\n"
    assert not (tmp_path / "out/private.txt").exists()


@pytest.mark.parametrize("name", ["sbom.cdx.json", "provenance.intoto.json", "digest"])
def test_a_companion_that_is_not_about_the_image_is_not_carried_on(name, tmp_path):
    layout = python_image().layout(tmp_path / "image")
    (layout / name).write_text("sha256:" + "0" * 64)
    with pytest.raises((ImageFault, ImageTampered)):
        export_image(open_image(layout), tmp_path / "out", "oci")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def attested(tmp_path: Path) -> Path:
    """An image of this project with everything that a build leaves beside it."""
    project = write_attested_project(tmp_path / "project")
    layout = RUNNER.write(tmp_path / "image", project)
    image = open_image(layout)
    pins = pins_of(image, project / "locks")
    (layout / "sbom.cdx.json").write_bytes(make_sbom(image, pins))
    (layout / "provenance.intoto.json").write_bytes(make_provenance(image, pins))
    (layout / "digest").write_text(f"{image.digest}\n")
    return layout


@pytest.mark.parametrize("form", ["oci", "oci-archive"])
def test_companions_that_are_right_are_carried_on_byte_for_byte(
    attested: Path, tmp_path: Path, form: str
) -> None:
    export_image(open_image(attested), tmp_path / "out", form)
    carried = open_image(tmp_path / "out")
    for name in ("sbom.cdx.json", "provenance.intoto.json", "digest"):
        with carried.store.open(name) as stream:
            assert stream.read() == (attested / name).read_bytes()


SAID: dict[str, tuple[str, str, str]] = {
    "revision": ("provenance.intoto.json", '"revision":"1', '"revision":"f'),
    "commit": ("provenance.intoto.json", '"gitCommit":"1', '"gitCommit":"f'),
    "output": ("provenance.intoto.json", "image-runner", "image-other"),
    "label": ("provenance.intoto.json", '"qualify.closure":"base"', '"qualify.closure":"full"'),
    "lock of a file": ("provenance.intoto.json", '"lock":"runner"', '"lock":"other"'),
    "file of the provenance": ("provenance.intoto.json", "beta-1.0", "evil-1.0"),
    "file of the bill": ("sbom.cdx.json", "beta-1.0", "evil-1.0"),
    "serial number": ("sbom.cdx.json", "urn:uuid:", "urn:uuid:0"),
    "revision of the bill": ("sbom.cdx.json", '"value":"123456', '"value":"f23456'),
    "our own code": ("sbom.cdx.json", "pkg:generic/qualify", "pkg:generic/other"),
    "number for a name": ("sbom.cdx.json", '"name":"beta"', '"name":1'),
    "no file": ("sbom.cdx.json", '"qualify.file"', '"other"'),
    "odd URL": ("sbom.cdx.json", "pkg:pypi/beta@1.0", "no URL"),
    "spelling": ("sbom.cdx.json", '"bomFormat"', ' "bomFormat"'),
    "end of the digest": ("digest", "\n", f"{' ' * 200}and more"),
    "digest of another": ("digest", "sha256:", "sha256:0"),
}


@pytest.mark.parametrize("name", SAID)
def test_a_companion_that_says_otherwise_than_the_image_is_not_carried_on(
    attested: Path, tmp_path: Path, name: str
) -> None:
    file, said, instead = SAID[name]
    text = (attested / file).read_text()
    assert said in text
    (attested / file).write_text(text.replace(said, instead))
    with pytest.raises(ImageTampered) as error:
        export_image(open_image(attested), tmp_path / "out", "oci")
    assert file in error.value.what
    assert "remove the file" in error.value.fix
    assert not (tmp_path / "out").exists()
    # Without it the image itself is as good as before.
    for each in ("sbom.cdx.json", "provenance.intoto.json", "digest"):
        (attested / each).unlink()
    export_image(open_image(attested), tmp_path / "out", "oci")


def test_a_companion_is_judged_before_a_layer_is_copied(attested: Path, tmp_path: Path) -> None:
    (attested / "digest").write_text("sha256:" + "0" * 64)
    seen: list[int] = []
    with pytest.raises(ImageTampered):
        export_image(open_image(attested), tmp_path / "out", "oci", progress=seen.append)
    assert seen == []


def test_a_huge_companion_is_not_read(attested: Path, tmp_path: Path) -> None:
    with (attested / "digest").open("r+b") as stream:
        stream.truncate((64 << 20) + 1)
    with pytest.raises(ImageFault, match="has more than"):
        export_image(open_image(attested), tmp_path / "out", "oci")


def test_only_the_chosen_image_is_copied(tmp_path):
    images = [python_image(name="a:1"), python_image(name="b:1", more=[file("big", b"x" * 9999)])]
    image = open_image(write_layout(tmp_path / "image", images), reference="a:1")
    export_image(image, tmp_path / "out", "oci", tag="c:2")
    assert open_image(tmp_path / "out", reference="c:2").digest == image.digest
    assert len(list((tmp_path / "out/blobs/sha256").iterdir())) == len(image.layers) + 2


@pytest.mark.parametrize("form", FORMATS)
def test_a_changed_layer_is_not_exported_and_nothing_is_left(form, tmp_path):
    layout = python_image().layout(tmp_path / "image")
    image = open_image(layout)
    blob = layout / image.layers[0].name
    blob.write_bytes(blob.read_bytes()[:4] + b"\1" + blob.read_bytes()[5:])
    with pytest.raises(ImageTampered, match="layer 1"):
        export_image(image, tmp_path / "out", form)
    assert [path.name for path in tmp_path.iterdir()] == ["image"]


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_is_overwritten(form, tmp_path):
    image = open_image(python_image().layout(tmp_path / "image"))
    target = tmp_path / "out"
    target.mkdir()
    (target / "x").write_text("mine")
    with pytest.raises(UsageError, match="there already"):
        export_image(image, target, form)
    with pytest.raises(UsageError, match="make it first"):
        export_image(image, tmp_path / "no/where", form)
    assert (target / "x").read_text() == "mine"


def test_a_tag_alone_is_completed_by_the_title(tmp_path):
    labels = {"org.opencontainers.image.title": "qualify-runner"}
    image = open_image(python_image(name="latest", labels=labels).layout(tmp_path / "image"))
    export_image(image, tmp_path / "a.tar", "docker-archive")
    assert open_image(tmp_path / "a.tar").reference == "qualify-runner:latest"
    export_image(image, tmp_path / "b.tar", "docker-archive", tag="mine")
    assert open_image(tmp_path / "b.tar").reference == "mine:latest"
    bare = open_image(python_image(name="latest").layout(tmp_path / "bare"))
    export_image(bare, tmp_path / "c.tar", "docker-archive")
    assert open_image(tmp_path / "c.tar").reference is None
