"""Bundles whose lists were written anew after a change: what the parts still say of each other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qualify.core.canonical import canonical_json
from qualify.images.bundle import make_bundle
from qualify.images.bundle_check import Fault, check_bundle
from qualify.images.bundle_plan import plan_bundle
from qualify.images.declarations import declarations_digest
from qualify.manifests.catalog import load_catalog
from support.bundles import REVISION, two_layouts, write_attested_project
from support.forging import relabel, relist, rewrite

BILL = "attestations/runner/sbom.cdx.json"
PROVENANCE = "attestations/runner/provenance.intoto.json"
OTHER = "f" * 40

type Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    project = write_attested_project(folder / "project")
    layouts = two_layouts(folder, project)
    declared = load_catalog(project, cache_folder=folder / "cache").bundle("offline")
    make_bundle(plan_bundle(project, declared, {}, layouts), folder / "bundle")
    return folder / "bundle"


@pytest.fixture
def bundle(original: Path, tmp_path: Path) -> Path:
    shutil.copytree(original, tmp_path / "bundle")
    relist(tmp_path / "bundle")
    assert check_bundle(tmp_path / "bundle").accepted  # the positive control of every forgery
    return tmp_path / "bundle"


def told(bundle: Path) -> list[str]:
    """What a check says of a bundle in which every file has the bytes of the lists."""
    relist(bundle)
    report = check_bundle(bundle)
    assert not report.accepted
    assert {each.fault for each in report.findings} == {Fault.INCONSISTENT}
    return [f"{each.path}: {each.detail}" for each in report.findings]


def edit(path: Path, change: Change) -> None:
    document = json.loads(path.read_bytes())
    change(document)
    path.write_bytes(canonical_json(document))


# ── provenance ───────────────────────────────────────────────────────────────────────────────────


def definition(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["predicate"]["buildDefinition"]
    return found


def dependencies(document: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = definition(document)["resolvedDependencies"]
    return found


STRANGER = {"name": "evil.whl", "uri": "pkg:pypi/evil@1", "digest": {"sha256": "e" * 64}}

OTHER_PROVENANCE: dict[str, tuple[Change, str]] = {
    "revision": (
        lambda d: definition(d)["externalParameters"].update(revision=OTHER), "Parameters.revision",
    ),
    "flake output": (
        lambda d: definition(d)["externalParameters"].update(
            flakeOutput="packages.x86_64-linux.image-other"
        ), "Parameters.flakeOutput",
    ),
    "commit": (
        lambda d: dependencies(d)[0]["digest"].update(gitCommit=OTHER), "[0].digest.gitCommit",
    ),
    "source": (
        lambda d: dependencies(d)[0].update(uri="urn:other:source"), "Dependencies[0].uri",
    ),
    "label": (
        lambda d: definition(d)["internalParameters"].update({"qualify.closure": "full"}),
        "internalParameters.qualify.closure",
    ),
    "further label": (
        lambda d: definition(d)["internalParameters"].update({"qualify.reviewed": "yes"}),
        "internalParameters.qualify.reviewed",
    ),
    "builder": (
        lambda d: d["predicate"]["runDetails"]["builder"].update(id="urn:other:builder"),
        "runDetails.builder.id",
    ),
    "builder of another version": (
        lambda d: definition(d).update(buildType="urn:qualify:build:nix-image:v2"), "buildType",
    ),
    "further file": (lambda d: dependencies(d).append(STRANGER), "evil.whl"),
    "file twice": (lambda d: dependencies(d).insert(1, dependencies(d)[1]), "more than once"),
    "no source": (lambda d: dependencies(d).pop(0), "resolvedDependencies"),
    "no file": (lambda d: dependencies(d).pop(1), "does not name"),
    "no first program": (lambda d: dependencies(d).pop(), "resolvedDependencies"),
    "another order": (lambda d: dependencies(d).reverse(), "resolvedDependencies[0]"),
    "a role": (
        lambda d: dependencies(d)[1]["annotations"].update(role="build tool"), "annotations.role",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_PROVENANCE)
def test_a_provenance_may_say_nothing_but_what_labels_and_locks_say(
    bundle: Path, name: str
) -> None:
    change, place = OTHER_PROVENANCE[name]
    edit(bundle / PROVENANCE, change)
    lines = told(bundle)
    assert all(line.startswith(f"{PROVENANCE}: ") for line in lines)
    assert any(place in line for line in lines)


@pytest.mark.parametrize("path", [BILL, PROVENANCE])
def test_another_spelling_of_an_attestation_is_told(bundle: Path, path: str) -> None:
    data = (bundle / path).read_bytes()
    first = next(iter(json.loads(data)))
    for other in (
        data + b"\n",
        json.dumps(json.loads(data), indent=1).encode(),
        b'{"%s":"said first",' % first.encode() + data[1:],
    ):
        (bundle / path).write_bytes(other)
        assert told(bundle) == [f"{path}: is not written as the build writes it"]


# ── bill of materials ────────────────────────────────────────────────────────────────────────────


def part(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in document["components"] if each["name"] == name)


def another(document: dict[str, Any], name: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@1.0"
    return {**part(document, "beta"), "name": name, "purl": purl, "bom-ref": purl}


OTHER_BILL: dict[str, tuple[Change, str]] = {
    "a package more": (lambda d: d["components"].append(another(d, "evil")), "pkg:pypi/evil@1.0"),
    "a package without a digest": (
        lambda d: d["components"].append(
            {k: v for k, v in another(d, "evil").items() if k != "hashes"}
        ), "pkg:pypi/evil@1.0",
    ),
    "a package twice": (lambda d: d["components"].append(part(d, "beta")), "more than once"),
    "a package less": (lambda d: d["components"].remove(part(d, "beta")), "does not name"),
    "our own code left out": (
        lambda d: d["components"].remove(part(d, "qualify")), "pkg:generic/qualify@0.1.0 rightly",
    ),
    "our own code with a digest": (
        lambda d: part(d, "qualify").update(hashes=part(d, "beta")["hashes"]), "qualify@0.1.0",
    ),
    "another name for a package": (lambda d: part(d, "beta").update(name="b"), ".name: 'b'"),
    "another version": (lambda d: part(d, "beta").update(version="2"), ".version: '2'"),
    "a package within a package": (
        lambda d: part(d, "beta").update(components=[another(d, "evil")]), "].components",
    ),
    "another file": (
        lambda d: part(d, "beta")["properties"][0].update(value="b.whl"), "properties[0].value",
    ),
    "a second digest": (
        lambda d: part(d, "beta")["hashes"].append({"alg": "SHA-1", "content": "0" * 40}),
        "].hashes",
    ),
    "another name for the image": (
        lambda d: d["metadata"]["component"].update(name="other"), "metadata.component.name",
    ),
    "another revision": (
        lambda d: next(
            each for each in d["metadata"]["component"]["properties"] if each["value"] == REVISION
        ).update(value=OTHER), "metadata.component.properties",
    ),
    "another serial number": (lambda d: d.update(serialNumber="urn:uuid:0"), "serialNumber"),
    "another licence of our own code": (
        lambda d: part(d, "qualify").update(licenses=[{"expression": "MIT"}]), "unknown form",
    ),
    "statements about faults": (lambda d: d.update(vulnerabilities=[]), "vulnerabilities"),
    "services": (lambda d: d.update(services=[{"name": "x"}]), "services"),
    "a time": (lambda d: d["metadata"].update(timestamp="2026-01-01T00:00:00Z"), "timestamp"),
    "what depends on what": (lambda d: d["dependencies"].pop(), "dependencies"),
    "no licence but a page": (
        lambda d: part(d, "beta").update(licenses=[{"license": {"name": "x", "url": "urn:x:y"}}]),
        "unknown form",
    ),
    "two licences in one": (
        lambda d: part(d, "beta").update(
            licenses=[{"license": {"name": "x", "id": "MIT", "acknowledgement": "declared"}}]
        ), "unknown form",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHER_BILL)
def test_a_bill_may_say_nothing_but_what_labels_and_locks_say(bundle: Path, name: str) -> None:
    change, place = OTHER_BILL[name]
    edit(bundle / BILL, change)
    lines = told(bundle)
    assert all(line.startswith(f"{BILL}: ") for line in lines)
    assert any(place in line for line in lines)


def test_what_is_missing_and_what_is_too_much_are_named_ten_of_each(bundle: Path) -> None:
    def exchange(document: dict[str, Any]) -> None:
        kept = [each for each in document["components"] if each["name"] == "qualify"]
        more = [another(document, f"evil-{number:02}") for number in range(13)]
        document["components"] = [*kept, *more]

    edit(bundle / BILL, exchange)
    lines = [line.removeprefix(f"{BILL}: ") for line in told(bundle)]
    assert len([each for each in lines if each.startswith("does not name pkg:")]) == 6
    named = [each for each in lines if each.startswith("names 'pkg:pypi/evil-")]
    assert len(named) == 10
    assert "evil-09" in named[-1]
    assert lines[-1] == "names 3 more"
    # In turn, so that the first lines show both.
    assert lines[0].startswith("does not name")
    assert lines[1].startswith("names")


def test_other_licences_of_a_pinned_file_pass_and_the_report_says_so(bundle: Path) -> None:
    """The limit that the documentation states: they stand in layers, which nobody opens here."""
    stated = [{"license": {"acknowledgement": "declared", "name": "as you like"}}]
    edit(bundle / BILL, lambda document: part(document, "beta").update(licenses=stated))
    relist(bundle)
    report = check_bundle(bundle)
    assert report.accepted
    assert any("licences" in each for each in report.not_established)


@pytest.mark.parametrize("path", [BILL, PROVENANCE])
def test_a_huge_attestation_is_not_read(bundle: Path, path: str) -> None:
    with (bundle / path).open("r+b") as stream:
        stream.truncate((64 << 20) + 1)
    (line,) = told(bundle)
    assert line == f"{path}: has more than {64 << 20} bytes"


@pytest.mark.parametrize("path", [BILL, PROVENANCE])
@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"null", b"{}", b"\xff", b'{"a":' * 900, b"[" * 100_000,
        b'{"_type":"\\ud800"}', b'{"components":[1],"metadata":null}',
    ],
    ids=["empty", "list", "null", "object", "no text", "deep", "deeper", "half a character", "odd"],
)  # fmt: skip
def test_what_is_no_attestation_is_told(bundle: Path, path: str, data: bytes) -> None:
    (bundle / path).write_bytes(data)
    (line,) = told(bundle)
    assert line.startswith(f"{path}: ")


def test_a_deep_document_inside_an_attestation_is_told(bundle: Path) -> None:
    deep = b'{"a":' * 500 + b"1" + b"}" * 500
    data = (bundle / BILL).read_bytes()
    (bundle / BILL).write_bytes(data[:-1] + b',"zzz":' + deep + b"}")
    (line,) = told(bundle)
    assert "says zzz: an object; of this image it is nothing" in line


# ── images with other labels ─────────────────────────────────────────────────────────────────────


def test_relabelling_with_the_same_labels_changes_nothing(bundle: Path) -> None:
    before = (bundle / "bundle.json").read_bytes()
    relabel(bundle, "runner", {})
    assert (bundle / "bundle.json").read_bytes() == before
    assert check_bundle(bundle).accepted


@pytest.mark.parametrize("revision", [OTHER, f"{REVISION}-dirty"])
def test_an_image_of_another_revision_contradicts_its_attestations(
    bundle: Path, revision: str
) -> None:
    relabel(bundle, "runner", {"org.opencontainers.image.revision": revision})
    lines = told(bundle)
    assert any(f"{PROVENANCE}: says" in line and revision in line for line in lines)
    assert any(f"{BILL}: says" in line and revision in line for line in lines)


def test_an_image_of_another_source_contradicts_its_provenance(bundle: Path) -> None:
    relabel(bundle, "runner", {"org.opencontainers.image.source": "urn:other:source"})
    assert any(f"{PROVENANCE}: says" in line and "[0].uri" in line for line in told(bundle))


def test_an_image_without_a_revision_is_told(bundle: Path) -> None:
    relabel(bundle, "runner", {"org.opencontainers.image.revision": None})
    assert any("has no label org.opencontainers.image.revision" in line for line in told(bundle))
    document = json.loads((bundle / "bundle.json").read_bytes())
    next(each for each in document["images"] if each["name"] == "runner")["revision"] = REVISION
    rewrite(bundle, document)
    lines = told(bundle)
    assert any("image.revision is None, the bundle says 1234567" in line for line in lines)


@pytest.mark.parametrize(
    "labels",
    [
        {"qualify.ü": "x"},
        {"org.opencontainers.image.licenses": "((( AND"},
        {"org.opencontainers.image.licenses": "x" * 100_000},
        {"org.opencontainers.image.version": "\x00@?#/%"},
        {"org.opencontainers.image.version": None, "org.opencontainers.image.licenses": None},
        {"org.opencontainers.image.source": "urn:\x00"},
        {"org.opencontainers.image.revision": "\x1b[2J" * 20},
        {"org.opencontainers.image.revision": ""},
        {"qualify.lock.debian": None},
        {"qualify.lock.../../etc/passwd": "sha256:" + "0" * 64},
        {"qualify.closure": "none"},
        {"qualify.image": "../x"},
    ],
    ids=",".join,
)
def test_no_label_of_an_image_breaks_the_check(bundle: Path, labels: dict[str, str | None]) -> None:
    relabel(bundle, "runner", labels)
    lines = told(bundle)
    assert any("runner" in line for line in lines)


# ── the bundle's own manifest ────────────────────────────────────────────────────────────────────


def change_list(bundle: Path, change: Change) -> None:
    document = json.loads((bundle / "bundle.json").read_bytes())
    change(document)
    rewrite(bundle, document)


def test_rows_that_the_manifest_does_not_name_are_told(bundle: Path) -> None:
    change_list(bundle, lambda document: document.update(rows=["double"]))
    (line,) = told(bundle)
    assert line == (
        "manifests/bundles/offline.yaml: declares the rows one; bundle.json says double"
    )


def test_an_image_that_was_left_out_of_everything_is_told(bundle: Path) -> None:
    from qualify.images import bundle_format as form
    from qualify.images import open_image

    image = open_image(bundle / "images", reference="runner")
    other = open_image(bundle / "images", reference="engine")
    shared = {layer.digest for layer in other.layers}
    digests = [image.digest, image.manifest["config"]["digest"], image.layers[1].digest]
    assert not shared & set(digests)
    for digest in digests:
        (bundle / form.blob_path(str(digest))).unlink()
    shutil.rmtree(bundle / "attestations/runner")
    change_list(bundle, lambda document: document["images"].pop())
    (entry,) = json.loads((bundle / "bundle.json").read_bytes())["images"]
    images = [form.BundledImage.model_validate(entry)]
    (bundle / "images/index.json").write_bytes(form.layout_index(images))
    (line,) = told(bundle)
    assert "declares the images engine, runner; bundle.json says engine" in line


def test_a_bundle_that_no_manifest_declares_is_told(bundle: Path) -> None:
    change_list(bundle, lambda document: document.update(bundle="other"))
    (line,) = told(bundle)
    assert "a bundle other that no file of manifests/bundles declares" in line


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("id: offline\nimages: [runner, engine]\nrows: [one]\n", "declares that docs/ goes along"),
        (
            "id: other\nimages: [runner, engine]\ndocumentation: false\nrows: [one]\n",
            "the id other",
        ),
        ("id: [", ""),
        ("- list\n", ""),
        ("id: offline\n", ""),
    ],
    ids=["documentation", "another id", "no YAML", "a list", "no images"],
)
def test_a_manifest_of_the_bundle_that_says_otherwise_is_told(
    bundle: Path, text: str, what: str
) -> None:
    (bundle / "manifests/bundles/offline.yaml").write_text(text)
    lines = told(bundle)
    assert any(line.startswith("manifests/bundles/offline.yaml: ") for line in lines)
    assert any(what in line for line in lines)
    # And when the list follows the manifests, the images do not.
    digest = declarations_digest(bundle)
    change_list(bundle, lambda document: document.update(declarations=digest))
    assert any("the label qualify.declarations is" in line for line in told(bundle))


def test_a_bundle_made_up_in_one_piece_passes_without_the_announced_digest(bundle: Path) -> None:
    """What only memory outside the bundle can tell, and what the report says of it."""
    announced = check_bundle(bundle).digest
    (bundle / "README.md").write_text("Run this first: curl …\n")
    relist(bundle)
    report = check_bundle(bundle)
    assert report.accepted
    assert any("files and lists together" in each for each in report.not_established)
    assert not check_bundle(bundle, announced=announced).accepted
