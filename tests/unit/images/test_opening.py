"""Which files are images, and which image of several is meant."""

from __future__ import annotations

import gzip
import json
import tarfile
from dataclasses import replace

import pytest

from qualify.core.errors import ExitCode, UsageError
from qualify.images import ImageFault, ImageTampered, open_image
from qualify.images.scan import scan_image
from support.images import (
    INDEX,
    ImageBuilder,
    file,
    link,
    put_blob,
    python_image,
    sha256,
    tarred,
    write_layout,
)


def paths(image):
    return [path for path, node in scan_image(image).tree.walk() if node.kind == "file"]


@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_every_form_gives_the_same_image(compression, tmp_path):
    made = python_image(compression=compression)
    layout = made.layout(tmp_path / "layout")
    forms = [
        open_image(layout),
        open_image(tarred(layout, tmp_path / "layout.tar")),
        open_image(made.docker_archive(tmp_path / "docker.tar")),
    ]
    assert [each.kind for each in forms] == ["oci-layout", "oci-archive", "docker-archive"]
    assert len({json.dumps([each.labels, each.command, paths(each)]) for each in forms}) == 1
    assert forms[0].digest == forms[1].digest
    assert forms[2].digest == sha256(made.config())
    assert "configuration" in forms[2].notes[0]


def test_blobs_may_be_links_out_of_the_layout(tmp_path):
    layout = python_image().layout(tmp_path / "layout")
    for blob in (layout / "blobs/sha256").iterdir():
        moved = blob.rename(tmp_path / blob.name)
        blob.symlink_to(moved)
    assert "etc/passwd" in paths(open_image(layout))


def test_linked_layers_of_an_old_docker_archive_are_found(tmp_path):
    made = python_image()
    made.layers.append(made.layers[0])
    plain = made.docker_archive(tmp_path / "plain.tar")
    linked = tmp_path / "linked.tar"
    with tarfile.open(plain) as source, tarfile.open(linked, "w") as target:
        for member in source:
            if member.name == "2/layer.tar":
                other = tarfile.TarInfo(member.name)
                other.type, other.linkname = tarfile.SYMTYPE, "../0/layer.tar"
                target.addfile(other)
            else:
                target.addfile(member, source.extractfile(member))
    assert paths(open_image(linked)) == paths(open_image(plain))


# ── several images ───────────────────────────────────────────────────────────────────────────────


def test_of_several_platforms_amd64_is_taken_and_it_says_so(tmp_path):
    arm = python_image(architecture="arm64", user="1")
    image = open_image(write_layout(tmp_path / "i", [arm, python_image()]))
    assert image.platform == "linux/amd64"
    assert image.notes == ("linux/amd64 was chosen; there are also linux/arm64",)


def test_an_index_without_amd64_is_refused_and_lists_what_there_is(tmp_path):
    arm = python_image(architecture="arm64")
    with pytest.raises(ImageFault, match="linux/arm64"):
        open_image(write_layout(tmp_path / "i", [arm]))


def test_of_several_names_one_must_be_given(tmp_path):
    images = [python_image(name="a:1"), python_image(name="b:1", user="77")]
    layout = write_layout(tmp_path / "i", images)
    with pytest.raises(ImageFault, match=r"holds 2 images.*a:1.*b:1"):
        open_image(layout)
    assert open_image(layout, reference="b:1").run_settings["User"] == "77"
    with pytest.raises(ImageFault, match="named 'c:1'"):
        open_image(layout, reference="c:1")


def test_two_names_of_one_image_need_no_choice(tmp_path):
    layout = write_layout(tmp_path / "i", [python_image(name="a:1"), python_image(name="b:1")])
    assert open_image(layout).kind == "oci-layout"


def test_a_nested_index_is_followed_and_attestations_are_not_images(tmp_path):
    made = python_image()
    layout = made.layout(tmp_path / "i")
    descriptor = made.descriptor(made.blobs()[2])
    attestation = {
        **descriptor,
        "digest": "sha256:" + "0" * 64,
        "platform": {"os": "unknown", "architecture": "unknown"},
        "annotations": {"vnd.docker.reference.type": "attestation-manifest"},
    }
    inner = json.dumps({"schemaVersion": 2, "manifests": [attestation, descriptor]}).encode()
    put_blob(layout, inner)
    outer = {"mediaType": INDEX, "digest": sha256(inner), "size": len(inner)}
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [outer]}))
    assert open_image(layout).platform == "linux/amd64"


def test_an_index_that_contains_itself_in_effect_ends(tmp_path):
    layout = python_image().layout(tmp_path / "i")
    inner = json.dumps({"manifests": []}).encode()
    for _ in range(8):
        put_blob(layout, inner)
        entry = {"mediaType": INDEX, "digest": sha256(inner), "size": len(inner)}
        inner = json.dumps({"manifests": [entry]}).encode()
    (layout / "index.json").write_bytes(inner)
    with pytest.raises(ImageFault, match="bottomless"):
        open_image(layout)


# ── what is no image ─────────────────────────────────────────────────────────────────────────────


def test_what_does_not_exist_and_what_is_no_image_say_so(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        open_image(tmp_path / "gone")
    with pytest.raises(ImageFault, match="without the file oci-layout"):
        open_image(tmp_path)
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ImageFault, match="is no sound tar"):
        open_image(tmp_path / "text")
    with tarfile.open(tmp_path / "other.tar", "w") as archive:
        archive.add(tmp_path / "text", "text")
    with pytest.raises(ImageFault, match=r"without index\.json or manifest\.json"):
        open_image(tmp_path / "other.tar")


def test_a_compressed_archive_says_what_to_do(tmp_path):
    plain = python_image().docker_archive(tmp_path / "x.tar")
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(plain.read_bytes()))
    with pytest.raises(ImageFault, match=r"compressed with gzip.*decompress it first"):
        open_image(tmp_path / "x.tar.gz")


@pytest.mark.parametrize("part", ["manifest", "configuration"])
def test_a_changed_manifest_or_configuration_is_tampered(part, tmp_path):
    made = python_image()
    layout = made.layout(tmp_path / "i")
    _, config, manifest = made.blobs()
    data = manifest if part == "manifest" else config
    blob = layout / "blobs/sha256" / sha256(data).removeprefix("sha256:")
    blob.write_bytes(data.replace(b"linux", b"linuy").replace(b"schemaVersion", b"schemaVersioN"))
    with pytest.raises(ImageTampered) as caught:
        open_image(layout)
    assert caught.value.exit_code is ExitCode.NOT_A_PASS


def edit(layout, change):
    index = json.loads((layout / "index.json").read_text())
    change(index)
    (layout / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda i: i.update(manifests="x"), "without a list"),
        (lambda i: i["manifests"].append(7), "no JSON object"),
        (lambda i: i["manifests"][0].update(digest="md5:0"), "no SHA-256 digest"),
        (lambda i: i["manifests"][0].update(digest="sha256:../../etc/passwd"), "no SHA-256 digest"),
        (lambda i: i["manifests"][0].update(size=-1), "has no size"),
        (lambda i: i["manifests"][0].update(mediaType="text/plain"), "media type 'text/plain'"),
        (lambda i: i["manifests"][0].update(digest="sha256:" + "1" * 64), "cannot be read"),
    ],
)
def test_a_broken_index_says_what_is_wrong(change, said, tmp_path):
    layout = python_image().layout(tmp_path / "i")
    edit(layout, change)
    with pytest.raises(ImageFault, match=said):
        open_image(layout)


@pytest.mark.parametrize(
    "media_type",
    ["application/vnd.oci.image.layer.v1.tar+gzip+encrypted", "application/x-squashfs"],
)
def test_an_unknown_layer_type_is_refused_with_advice(media_type, tmp_path):
    made = python_image(layer_type=media_type)
    with pytest.raises(ImageFault, match=r"is not known here.*skopeo"):
        open_image(made.layout(tmp_path / "i"))


@pytest.mark.parametrize(
    "rootfs", [None, {"type": "layers", "diff_ids": []}, {"type": "x", "diff_ids": ["a", "b"]}]
)
def test_layers_and_diff_ids_must_agree(rootfs, tmp_path):
    made = python_image(changes={"rootfs": rootfs})
    with pytest.raises(ImageFault):
        open_image(made.layout(tmp_path / "i"))


def test_a_document_without_end_is_not_read(tmp_path):
    layout = python_image().layout(tmp_path / "i")
    with (layout / "index.json").open("wb") as stream:
        stream.truncate(1 << 34)
    with pytest.raises(ImageFault, match="has more than"):
        open_image(layout)


def test_a_strange_configuration_is_no_reason_to_fail(tmp_path):
    made = python_image(changes={"config": None, "history": "x"})
    image = open_image(made.layout(tmp_path / "i"))
    assert (image.labels, image.command, image.environment) == ({}, (), {})
    odd = {"Env": ["A=1=2", 5, "B"], "Labels": ["x"], "Entrypoint": "sh"}
    image = open_image(replace(made, changes={"config": odd}).layout(tmp_path / "j"))
    assert image.environment == {"A": "1=2", "B": ""}


def test_an_image_without_layers_is_an_image(tmp_path):
    assert paths(open_image(ImageBuilder().layout(tmp_path / "i"))) == []
    assert paths(open_image(ImageBuilder(layers=[[]]).layout(tmp_path / "j"))) == []
    one = ImageBuilder(layers=[[file("./a"), link("b", "a")]])
    assert paths(open_image(one.layout(tmp_path / "k"))) == ["a"]
