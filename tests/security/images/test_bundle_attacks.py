"""Attacks on offline bundles, one a test: what changes, is left out, added, linked or forged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qualify.core.canonical import canonical_json
from qualify.core.errors import UsageError
from qualify.images import bundle_format as form
from qualify.images import open_image
from qualify.images.bundle import make_bundle
from qualify.images.bundle_check import BundleReport, Fault, check_bundle
from qualify.images.bundle_plan import plan_bundle
from qualify.manifests.catalog import load_catalog
from support.bundles import sha256, two_layouts, write_attested_project
from support.forging import relist, rewrite


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    project = write_attested_project(folder / "project")
    layouts = two_layouts(folder, project)
    declared = load_catalog(project, cache_folder=folder / "cache").bundle("offline")
    declared = declared.model_copy(update={"documentation": True})
    make_bundle(plan_bundle(project, declared, {}, layouts), folder / "bundle")
    return folder / "bundle"


@pytest.fixture
def bundle(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "bundle")
    assert check_bundle(tmp_path / "bundle").accepted  # the positive control of every attack
    return tmp_path / "bundle"


def faults(report: BundleReport) -> set[tuple[str, str]]:
    assert report.accepted is (report.count == 0)
    return {(str(each.fault), each.path) for each in report.findings}


def places(bundle: Path) -> dict[str, str]:
    """One file of each kind."""
    image = open_image(bundle / "images", reference="runner")
    return {
        "layer": f"images/{image.layers[0].name}",
        "configuration": form.blob_path(image.manifest["config"]["digest"]),
        "image manifest": form.blob_path(image.digest),
        "layout index": "images/index.json",
        "layout version": "images/oci-layout",
        "lock": "locks/runner.json",
        "manifest": "manifests/matrix/one.yaml",
        "corpus": "corpora/letters/cases.json",
        "documentation": "docs/reference/bundles.md",
        "licence": "LICENSE",
        "page": "README.md",
        "bill": "attestations/runner/sbom.cdx.json",
        "provenance": "attestations/engine/provenance.intoto.json",
        "sums": "SHA256SUMS",
        "list": "bundle.json",
    }


KINDS = [
    "layer", "configuration", "image manifest", "layout index", "layout version", "lock",
    "manifest", "corpus", "documentation", "licence", "page", "bill", "provenance", "sums", "list",
]  # fmt: skip


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def test_the_kinds_are_all_there(bundle: Path) -> None:
    assert list(places(bundle)) == KINDS
    assert all((bundle / path).is_file() for path in places(bundle).values())


@pytest.mark.parametrize("change", [flip, truncate, append])
@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_file_is_named(bundle: Path, kind: str, change: Callable[[Path], None]) -> None:
    path = places(bundle)[kind]
    change(bundle / path)
    assert ("changed", path) in faults(check_bundle(bundle))


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_file_is_named(bundle: Path, kind: str) -> None:
    path = places(bundle)[kind]
    (bundle / path).unlink()
    assert faults(check_bundle(bundle)) == {("missing", path)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_renamed_file_is_missing_and_extra(bundle: Path, kind: str) -> None:
    path = places(bundle)[kind]
    (bundle / path).rename(bundle / f"{path}.old")
    expected = {("missing", path), ("extra", f"{path}.old")}
    found = faults(check_bundle(bundle))
    # Without bundle.json nothing else can be judged.
    assert found == ({("missing", path)} if kind == "list" else expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_is_never_followed_even_to_the_right_bytes(bundle: Path, kind: str) -> None:
    path = places(bundle)[kind]
    (bundle / path).rename(bundle.parent / "same bytes")
    (bundle / path).symlink_to(bundle.parent / "same bytes")
    assert faults(check_bundle(bundle)) == {("unsafe", path)}


def test_a_linked_folder_is_unsafe(bundle: Path) -> None:
    (bundle / "locks").rename(bundle.parent / "locks")
    (bundle / "locks").symlink_to(bundle.parent / "locks")
    found = faults(check_bundle(bundle))
    assert ("unsafe", "locks") in found
    assert ("missing", "locks/runner.json") in found


@pytest.mark.parametrize("kind", ["layer", "lock", "sums"])
@pytest.mark.parametrize("mode", [0o4644, 0o2644, 0o1644, 0o646])
def test_an_odd_mode_is_unsafe(bundle: Path, kind: str, mode: int) -> None:
    path = places(bundle)[kind]
    (bundle / path).chmod(mode)
    assert faults(check_bundle(bundle)) == {("unsafe", path)}


@pytest.mark.parametrize("mode", [0o444, 0o600, 0o640, 0o664, 0o755])
def test_modes_that_copying_brings_about_are_fine(bundle: Path, mode: int) -> None:
    for path in bundle.rglob("*"):
        if path.is_file():
            path.chmod(mode)
    assert check_bundle(bundle).accepted


def test_a_bundle_that_all_may_write_is_unsafe(bundle: Path) -> None:
    bundle.chmod(0o777)
    assert faults(check_bundle(bundle)) == {("unsafe", ".")}
    bundle.chmod(0o775)
    assert check_bundle(bundle).accepted


def test_a_folder_that_all_may_write_is_unsafe(bundle: Path) -> None:
    (bundle / "images").chmod(0o777)
    assert faults(check_bundle(bundle)) == {("unsafe", "images")}
    (bundle / "images").chmod(0o2775)
    assert check_bundle(bundle).accepted


@pytest.mark.parametrize(
    "path",
    [
        "more", ".hidden", "images/more.json", "locks/requirements/x.txt", "images/blobs/sha512/a",
        f"images/blobs/sha256/{'a' * 64}", "attestations/runner/more.json", "docs/reference/~",
    ],
)  # fmt: skip
def test_an_extra_file_is_named(bundle: Path, path: str) -> None:
    (bundle / path).parent.mkdir(parents=True, exist_ok=True)
    (bundle / path).write_text("x")
    assert ("extra", path) in faults(check_bundle(bundle))


def test_an_extra_empty_folder_is_named(bundle: Path) -> None:
    (bundle / "docs/.git").mkdir()
    assert faults(check_bundle(bundle)) == {("extra", "docs/.git")}


def test_a_pipe_is_unsafe_and_nobody_waits_for_it(bundle: Path) -> None:
    os.mkfifo(bundle / "docs/pipe")
    (bundle / "LICENSE").unlink()
    os.mkfifo(bundle / "LICENSE")
    assert faults(check_bundle(bundle)) == {("unsafe", "docs/pipe"), ("unsafe", "LICENSE")}


@pytest.mark.parametrize("kind", ["list", "sums"])
def test_a_pipe_in_place_of_a_list_is_unsafe(bundle: Path, kind: str) -> None:
    path = places(bundle)[kind]
    (bundle / path).unlink()
    os.mkfifo(bundle / path)
    assert faults(check_bundle(bundle)) == {("unsafe", path)}


@pytest.mark.parametrize("name", ["license", "Readme.md", "bundle.JSON", "LOCKS/runner.json"])
def test_a_name_that_differs_in_case_is_extra(bundle: Path, name: str) -> None:
    """Elsewhere it would take the place of the file that was checked."""
    (bundle / name).parent.mkdir(exist_ok=True)
    (bundle / name).write_text("x")
    assert ("extra", name) in faults(check_bundle(bundle))


@pytest.mark.parametrize("name", ["a:b", "con", "Aux.txt", "a.", "a ", "a?", "COM1.x.y"])
def test_a_name_that_not_every_medium_has_is_unsafe(bundle: Path, name: str) -> None:
    (bundle / "docs" / name).write_text("x")
    assert faults(check_bundle(bundle)) == {("unsafe", f"docs/{name}")}


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[2Jb", "a\\b", "\udcff", "\u202egnp"])
def test_an_odd_name_is_shown_escaped(bundle: Path, name: str) -> None:
    (bundle / "docs" / name).write_text("x")
    (finding,) = check_bundle(bundle).findings
    assert finding.fault is Fault.UNSAFE
    assert finding.path.isascii()
    assert finding.path.isprintable()


def test_a_file_in_place_of_a_folder_is_named(bundle: Path) -> None:
    shutil.rmtree(bundle / "corpora")
    (bundle / "corpora").write_text("x")
    found = faults(check_bundle(bundle))
    assert ("extra", "corpora") in found
    assert ("missing", "corpora/letters/card.yaml") in found


def test_a_folder_in_place_of_a_file_is_named(bundle: Path) -> None:
    (bundle / "LICENSE").unlink()
    (bundle / "LICENSE").mkdir()
    assert faults(check_bundle(bundle)) == {("extra", "LICENSE"), ("missing", "LICENSE")}


def test_everything_that_is_wrong_is_counted(bundle: Path) -> None:
    for number in range(1500):
        (bundle / "docs" / f"more-{number}").write_text("")
    report = check_bundle(bundle)
    assert report.count == 1500
    assert len(report.findings) == 1000


# ── lists that are edited along ──────────────────────────────────────────────────────────────────


def test_relisting_an_untouched_bundle_changes_nothing(bundle: Path) -> None:
    before = (bundle / "bundle.json").read_bytes(), (bundle / "SHA256SUMS").read_bytes()
    relist(bundle)
    assert ((bundle / "bundle.json").read_bytes(), (bundle / "SHA256SUMS").read_bytes()) == before


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("sums", "list")])
def test_a_file_changed_along_with_the_sums_alone_is_named(bundle: Path, kind: str) -> None:
    path = places(bundle)[kind]
    flip(bundle / path)
    relist(bundle, index=False)
    assert faults(check_bundle(bundle)) == {("changed", path), ("changed", "SHA256SUMS")}


@pytest.mark.parametrize("kind", ["page", "documentation", "lock", "layer"])
def test_a_file_changed_along_with_the_list_alone_is_named(bundle: Path, kind: str) -> None:
    path = places(bundle)[kind]
    flip(bundle / path)
    relist(bundle, sums=False)
    assert ("changed", "SHA256SUMS") in faults(check_bundle(bundle))


def test_without_the_announced_digest_a_forged_page_passes_and_with_it_it_does_not(
    bundle: Path,
) -> None:
    """The limit that the documentation states: nothing in a bundle says who made it."""
    announced = check_bundle(bundle).digest
    flip(bundle / "README.md")
    relist(bundle)
    assert check_bundle(bundle).accepted
    report = check_bundle(bundle, announced=announced)
    assert faults(report) == {("changed", "bundle.json")}


SUMS: dict[str, Callable[[list[bytes]], bytes]] = {
    "a line twice": lambda lines: b"".join([lines[0], *lines]),
    "the wrong sum first": lambda lines: b"0" * 64 + lines[0][64:] + b"".join(lines),
    "out of order": lambda lines: b"".join(reversed(lines)),
    "line ends of another system": lambda lines: b"".join(lines).replace(b"\n", b"\r\n"),
    "no last line end": lambda lines: b"".join(lines)[:-1],
    "an empty line": lambda lines: b"".join([*lines, b"\n"]),
    "capitals": lambda lines: lines[0][:64].upper() + lines[0][64:] + b"".join(lines[1:]),
    "binary marks": lambda lines: b"".join(lines).replace(b"  ", b" *"),
    "a remark": lambda lines: b"".join([b"# checked by a person\n", *lines]),
    "a file outside": lambda lines: b"".join([*lines, b"0" * 64 + b"  ../passwd\n"]),
    "a line less": lambda lines: b"".join(lines[1:]),
    "nothing": lambda lines: b"",
    "no text": lambda lines: b"\xff\x00" * 40,
}


@pytest.mark.parametrize("name", SUMS)
def test_another_spelling_of_the_sums_is_not_accepted(bundle: Path, name: str) -> None:
    path = bundle / "SHA256SUMS"
    path.write_bytes(SUMS[name](path.read_bytes().splitlines(keepends=True)))
    assert faults(check_bundle(bundle)) == {("changed", "SHA256SUMS")}


def test_line_ends_of_another_system_in_the_list_are_not_accepted(bundle: Path) -> None:
    path = bundle / "bundle.json"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert faults(check_bundle(bundle)) == {("changed", "bundle.json")}


def test_what_a_check_leaves_open_is_said(bundle: Path) -> None:
    found = check_bundle(bundle)
    assert any("signed" in each for each in found.not_established)
    assert any("--digest" in each for each in found.not_established)
    assert not any("announced" in each for each in found.established)
    told = check_bundle(bundle, announced=found.digest)
    assert any("announced" in each for each in told.established)
    assert any("signed" in each for each in told.not_established)
    assert not any("--digest" in each for each in told.not_established)
    (bundle / "LICENSE").unlink()
    assert check_bundle(bundle, announced=found.digest).established == ()


# ── forgeries whose lists agree ──────────────────────────────────────────────────────────────────


def told(bundle: Path) -> list[str]:
    """What a check says of a bundle in which every file has the bytes of the lists."""
    relist(bundle)
    report = check_bundle(bundle)
    assert {each.fault for each in report.findings} == {Fault.INCONSISTENT}
    return [f"{each.path}: {each.detail}" for each in report.findings]


def test_another_manifest_contradicts_the_images(bundle: Path) -> None:
    path = bundle / "manifests/policies/release.yaml"
    path.write_text(path.read_text().replace("trials_needed: 3", "trials_needed: 1"))
    (line,) = told(bundle)
    assert line.startswith("bundle.json: declares manifests and corpora")
    # And when the list is made to agree, the images' labels do not.
    document = json.loads((bundle / "bundle.json").read_bytes())
    from qualify.images.declarations import declarations_digest

    document["declarations"] = declarations_digest(bundle)
    rewrite(bundle, document)
    lines = [each.detail for each in check_bundle(bundle).findings]
    assert len(lines) == 2
    assert all("the label qualify.declarations is" in line for line in lines)


def test_another_lock_contradicts_the_images(bundle: Path) -> None:
    from qualify.pins.locks import lock_bytes
    from support.bundles import python_lock

    (bundle / "locks/runner.json").write_bytes(lock_bytes(python_lock("runner", "alpha")))
    (line,) = told(bundle)
    assert "was built from another lock 'runner'" in line


def test_a_lock_that_was_left_out_is_named(bundle: Path) -> None:
    (bundle / "locks/runner.json").unlink()
    (line,) = told(bundle)
    assert "a lock 'runner' that is not in" in line


def test_images_that_change_names_are_noticed(bundle: Path) -> None:
    document = json.loads((bundle / "bundle.json").read_bytes())
    engine, runner = document["images"]
    for key in ("digest", "manifest_size", "runtime"):
        engine[key], runner[key] = runner[key], engine[key]
    images = [form.BundledImage.model_validate(each) for each in document["images"]]
    (bundle / "images/index.json").write_bytes(form.layout_index(images))
    rewrite(bundle, document)
    lines = told(bundle)
    assert any("image engine: the label qualify.image is runner" in line for line in lines)
    assert any("provenance.intoto.json: is about sha256:" in line for line in lines)
    assert any("sbom.cdx.json: is about sha256:" in line for line in lines)


def test_swapped_names_in_the_layout_alone_are_noticed(bundle: Path) -> None:
    index = json.loads((bundle / "images/index.json").read_bytes())
    first, second = index["manifests"]
    first["annotations"], second["annotations"] = second["annotations"], first["annotations"]
    (bundle / "images/index.json").write_bytes(canonical_json(index))
    lines = told(bundle)
    assert any("does not hold the images that bundle.json names" in line for line in lines)
    assert any("lies under the name" in line for line in lines)


def test_swapped_attestations_are_noticed(bundle: Path) -> None:
    for name in ("sbom.cdx.json", "provenance.intoto.json"):
        one, two = (bundle / "attestations" / image / name for image in ("runner", "engine"))
        first, second = one.read_bytes(), two.read_bytes()
        one.write_bytes(second)
        two.write_bytes(first)
    lines = told(bundle)
    assert len(lines) == 4
    assert all("is about sha256:" in line for line in lines)


@pytest.mark.parametrize("name", ["sbom.cdx.json", "provenance.intoto.json"])
def test_an_attestation_that_was_left_out_is_named(bundle: Path, name: str) -> None:
    (bundle / "attestations/runner" / name).unlink()
    (line,) = told(bundle)
    assert line == f"attestations/runner/{name}: is missing: image runner has none"


@pytest.mark.parametrize("name", ["sbom.cdx.json", "provenance.intoto.json"])
def test_another_wheel_in_an_attestation_is_named(bundle: Path, name: str) -> None:
    path = bundle / "attestations/runner" / name
    old, new = sha256(b"beta"), sha256(b"another beta")
    assert old.encode() in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old.encode(), new.encode()))
    (line,) = told(bundle)
    assert line.startswith(f"attestations/runner/{name}: does not name")
    assert "beta" in line


def test_a_blob_of_no_image_is_named(bundle: Path) -> None:
    (bundle / form.blob_path(sha256(b"x"))).write_bytes(b"x")
    (line,) = told(bundle)
    assert "belongs to no image" in line


def test_a_blob_under_a_wrong_name_is_named(bundle: Path) -> None:
    image = open_image(bundle / "images", reference="runner")
    flip(bundle / "images" / image.layers[0].name)
    assert any("is named for another digest than its own" in line for line in told(bundle))


def test_a_layer_that_was_left_out_is_named(bundle: Path) -> None:
    image = open_image(bundle / "images", reference="runner")
    (bundle / "images" / image.layers[0].name).unlink()
    assert any("belongs to an image and is not listed" in line for line in told(bundle))


def test_an_image_manifest_that_was_left_out_is_named(bundle: Path) -> None:
    image = open_image(bundle / "images", reference="runner")
    (bundle / form.blob_path(image.digest)).unlink()
    assert any("image runner:" in line for line in told(bundle))


@pytest.mark.parametrize("key", ["runtime", "revision", "declarations"])
def test_what_the_list_says_of_an_image_must_be_its_label(bundle: Path, key: str) -> None:
    document = json.loads((bundle / "bundle.json").read_bytes())
    if key == "declarations":
        document[key] = "sha256:" + "0" * 64
    else:
        document["images"][0][key] = "other"
    rewrite(bundle, document)
    assert any("the bundle says" in line for line in told(bundle))


# ── a list that is no list ───────────────────────────────────────────────────────────────────────

type Change = Callable[[dict[str, Any]], object]

MALFORMED: dict[str, Change] = {
    "another schema": lambda d: d.update(schema="qualify-bundle/2"),
    "an unknown field": lambda d: d.update(more=1),
    "no images": lambda d: d.update(images=[]),
    "no files": lambda d: d.update(files=[]),
    "files out of order": lambda d: d["files"].reverse(),
    "a file twice": lambda d: d["files"].insert(0, d["files"][0]),
    "an image twice": lambda d: d["images"].append(d["images"][1]),
    "a path upwards": lambda d: d["files"][0].update(path="../LICENSE"),
    "a path from the root": lambda d: d["files"][0].update(path="/etc/passwd"),
    "an empty part": lambda d: d["files"][0].update(path="a//b"),
    "a path on a drive": lambda d: d["files"][0].update(path="C:/x"),
    "a device": lambda d: d["files"][0].update(path="nul"),
    "a line end in a path": lambda d: d["files"][0].update(path="a\nb"),
    "itself": lambda d: d["files"].insert(0, {**d["files"][0], "path": "SHA256SUMS"}),
    "a negative size": lambda d: d["files"][0].update(size=-1),
    "a size as text": lambda d: d["files"][0].update(size="1"),
    "a digest in capitals": lambda d: d["files"][0].update(sha256="A" * 64),
    "a revision that is none": lambda d: d.update(revision="main"),
    "no revision": lambda d: d.pop("revision"),
    "an image name with a slash": lambda d: d["images"][0].update(name="../x"),
    "a huge number": lambda d: d["files"][0].update(size=2**53 - 1),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_list_is_not_accepted(bundle: Path, name: str) -> None:
    document = json.loads((bundle / "bundle.json").read_bytes())
    MALFORMED[name](document)
    rewrite(bundle, document)
    report = check_bundle(bundle)
    assert not report.accepted
    assert report.count


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("LICENSE", "license"),
        ("README.md", "readme.MD"),
        ("bundle.json", "Bundle.json"),
        ("locks/runner.json", "Locks/more.json"),
        ("docs/stra\N{LATIN SMALL LETTER SHARP S}e", "docs/STRASSE"),
        ("docs/\N{LATIN SMALL LETTER U WITH DIAERESIS}", "docs/u\N{COMBINING DIAERESIS}"),
    ],
)
def test_names_that_are_one_on_some_media_are_not_accepted(
    bundle: Path, one: str, other: str
) -> None:
    document = json.loads((bundle / "bundle.json").read_bytes())
    listed = {each["path"]: each for each in document["files"]}
    for name in {one, other} - {"bundle.json"}:
        (bundle / name).parent.mkdir(exist_ok=True)
        if not (bundle / name).exists():
            (bundle / name).write_text("x")
            listed[name] = {"path": name, "sha256": sha256(b"x"), "size": 1}
    document["files"] = [listed[name] for name in sorted(listed)]
    rewrite(bundle, document)
    (finding,) = check_bundle(bundle).findings
    assert (finding.fault, finding.path) == (Fault.CHANGED, "bundle.json")
    assert "where case does not count" in finding.detail


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b"null", b"\xff", b'{"schema":' + b"[" * 100_000, b"{" * 100_000],
    ids=["empty", "object", "list", "null", "no text", "deep", "deeper"],
)
def test_a_list_that_is_no_document_is_not_accepted(bundle: Path, data: bytes) -> None:
    (bundle / "bundle.json").write_bytes(data)
    assert faults(check_bundle(bundle)) == {("changed", "bundle.json")}


def test_another_spelling_of_the_same_list_is_not_accepted(bundle: Path) -> None:
    document = json.loads((bundle / "bundle.json").read_bytes())
    (bundle / "bundle.json").write_text(json.dumps(document, indent=1))
    assert faults(check_bundle(bundle)) == {("changed", "bundle.json")}


@pytest.mark.parametrize("kind", ["nothing", "a file", "another folder"])
def test_what_is_no_bundle_is_told_apart(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "place"
    match kind:
        case "a file":
            place.write_text("x")
        case "another folder":
            place.mkdir()
    with pytest.raises(UsageError) as error:
        check_bundle(place)
    assert error.value.exit_code == 2


def test_a_link_that_the_caller_names_is_followed(bundle: Path, tmp_path: Path) -> None:
    """What `nix build` leaves is a link; inside a bundle there is none."""
    (tmp_path / "result").symlink_to(bundle)
    assert check_bundle(tmp_path / "result").accepted


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_change_of_one_byte_anywhere_is_accepted(original: Path, data: st.DataObject) -> None:
    files = sorted(path for path in original.rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(files))
    content = path.read_bytes()
    position = data.draw(st.integers(0, len(content) - 1))
    bit = data.draw(st.integers(0, 7))
    changed = bytearray(content)
    changed[position] ^= 1 << bit
    try:
        path.write_bytes(changed)
        name = path.relative_to(original).as_posix()
        assert ("changed", name) in faults(check_bundle(original))
    finally:
        path.write_bytes(content)
    assert check_bundle(original).accepted
