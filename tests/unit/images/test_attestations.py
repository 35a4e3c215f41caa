"""SBOM and provenance: what they hold, that they are the same every time, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qualify.core.canonical import canonical_json
from qualify.core.errors import QualifyError
from qualify.images import open_image
from qualify.images.attestations import (
    make_provenance,
    make_sbom,
    pins_of,
    provenance_mistakes,
    sbom_mistakes,
)
from qualify.images.errors import ImageFault, ImageTampered
from qualify.images.provenance import parse_statement
from support.bundles import (
    COPYRIGHT,
    FILES,
    LOCKS,
    METADATA,
    REVISION,
    Layout,
    debian_lock,
    layer_bytes,
    python_lock,
    sha256,
    write_attested_project,
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_attested_project(tmp_path_factory.mktemp("project"))


def bill(project: Path, folder: Path, layout: Layout | None = None) -> dict[str, Any]:
    image = open_image((layout or Layout("runner", ("runner",))).write(folder, project))
    value: dict[str, Any] = json.loads(make_sbom(image, pins_of(image, project / "locks")))
    return value


def statement(project: Path, folder: Path, layout: Layout | None = None) -> dict[str, Any]:
    image = open_image((layout or Layout("runner", ("runner",))).write(folder, project))
    value: dict[str, Any] = json.loads(make_provenance(image, pins_of(image, project / "locks")))
    return value


def component(document: dict[str, Any], name: str) -> dict[str, Any]:
    found = [part for part in document["components"] if part["name"] == name]
    assert len(found) == 1
    value: dict[str, Any] = found[0]
    return value


# ── bill of materials ────────────────────────────────────────────────────────────────────────────


def test_the_bill_satisfies_the_official_schema(project: Path, tmp_path: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    document = bill(project, tmp_path / "image")
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(document)) is None
    document["components"][0]["hashes"] = [{"alg": "SHA-256", "content": "no digest"}]
    assert validator.validate_str(json.dumps(document)) is not None


def test_the_bill_is_about_the_image_by_its_digest(project: Path, tmp_path: Path) -> None:
    layout = Layout("runner", ("runner",))
    document = bill(project, tmp_path / "image", layout)
    digest = open_image(tmp_path / "image").digest
    subject = document["metadata"]["component"]
    assert subject["type"] == "container"
    assert subject["name"] == "runner"
    assert subject["hashes"] == [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")}]
    assert {each["name"] for each in subject["properties"]} >= {
        "qualify.lock.runner", "qualify.lock.debian", "qualify.declarations",
    }  # fmt: skip


def test_every_wheel_and_debian_package_of_the_locks_is_a_component(
    project: Path, tmp_path: Path
) -> None:
    document = bill(project, tmp_path / "image")
    assert {part["name"] for part in document["components"]} == {
        "qualify", "alpha", "beta", "gamma", "libc6", "libstdc++6", "python3.13-minimal",
    }  # fmt: skip
    assert component(document, "alpha")["purl"] == "pkg:pypi/alpha@1.0"
    libc6 = component(document, "libc6")
    assert libc6["purl"] == "pkg:deb/debian/libc6@2.41-12?arch=amd64&distro=trixie"
    assert libc6["hashes"] == [{"alg": "SHA-256", "content": sha256(b"libc6")}]
    library = component(document, "libstdc++6")
    assert library["purl"] == "pkg:deb/debian/libstdc%2B%2B6@2:14.2.0-19?arch=amd64&distro=trixie"
    assert library["bom-ref"] == library["purl"]
    python = component(document, "python3.13-minimal")
    assert python["purl"].startswith("pkg:deb/debian/python3.13-minimal@3.13.5-2%2Bb1?")
    (graph,) = [each for each in document["dependencies"] if "dependsOn" in each]
    assert sorted(graph["dependsOn"]) == sorted(p["bom-ref"] for p in document["components"])


def test_what_only_the_builders_run_is_not_in_the_bill(project: Path, tmp_path: Path) -> None:
    names = {part["name"] for part in bill(project, tmp_path / "image")["components"]}
    assert not names & {"installer", "busybox-static"}


def test_a_licence_that_is_stated_is_told_as_it_stands(project: Path, tmp_path: Path) -> None:
    document = bill(project, tmp_path / "image")
    assert component(document, "alpha")["licenses"] == [
        {"expression": "MIT OR 0BSD", "acknowledgement": "declared"}
    ]
    (beta,) = component(document, "beta")["licenses"]
    assert beta["license"]["name"] == "BSD, as in the file"
    found = [each["license"] for each in component(document, "libc6")["licenses"]]
    assert {each.get("id") or each["name"] for each in found} == {"LGPL-2.1+", "MIT"}


def test_a_licence_that_is_not_stated_is_absent(project: Path, tmp_path: Path) -> None:
    document = bill(project, tmp_path / "image")
    for name in ("gamma", "python3.13-minimal"):
        assert "licenses" not in component(document, name)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ("License: Apache-2.0\n", {"Apache-2.0"}),
        ("License: one\n        two\n", None),
        ("License-Expression: not ( an expression\n", {"not ( an expression"}),
        (
            "Classifier: License :: OSI Approved\nClassifier: License :: DFSG :: MIT License\n",
            {"MIT License"},
        ),
        ("Classifier: Topic :: Software Development\n", None),
    ],
)
def test_each_way_in_which_a_wheel_states_its_licence(
    project: Path, tmp_path: Path, headers: str, expected: set[str] | None
) -> None:
    files = {
        METADATA.format("alpha"): f"Metadata-Version: 2.1\nName: alpha\n{headers}\nLicense: X\n"
    }
    part = component(
        bill(project, tmp_path / "i", Layout("runner", ("runner",), files=files)), "alpha"
    )
    found = {e["license"].get("id") or e["license"]["name"] for e in part.get("licenses", [])}
    assert found == (expected or set())


def test_a_licence_in_a_file_that_a_later_layer_hides_is_not_told(
    project: Path, tmp_path: Path
) -> None:
    hidden = METADATA.format("alpha").replace("METADATA", ".wh.METADATA")
    folder = Layout("runner", ("runner",), files={**FILES, hidden: ""}).write(
        tmp_path / "i", project
    )
    image = open_image(folder)
    # Within one layer a whiteout hides nothing: the positive control.
    assert b"0BSD" in make_sbom(image, pins_of(image, project / "locks"))
    apart = Layout("runner", ("runner",), upper={hidden: ""}).write(tmp_path / "j", project)
    image = open_image(apart)
    assert b"0BSD" not in make_sbom(image, pins_of(image, project / "locks"))


def test_a_damaged_layer_gives_no_bill(project: Path, tmp_path: Path) -> None:
    folder = Layout("runner", ("runner",)).write(tmp_path / "image", project)
    image = open_image(folder)
    path = folder / image.layers[0].name
    other = layer_bytes({**FILES, COPYRIGHT.format("libc6"): "other"})
    path.write_bytes(other)
    with pytest.raises((ImageTampered, ImageFault)):
        make_sbom(image, pins_of(image, project / "locks"))


# ── provenance ───────────────────────────────────────────────────────────────────────────────────


def test_provenance_names_subject_source_and_output(project: Path, tmp_path: Path) -> None:
    document = statement(project, tmp_path / "image")
    digest = open_image(tmp_path / "image").digest.removeprefix("sha256:")
    assert document["_type"] == "https://in-toto.io/Statement/v1"
    assert document["predicateType"] == "https://slsa.dev/provenance/v1"
    assert document["subject"] == [{"name": "runner", "digest": {"sha256": digest}}]
    definition = document["predicate"]["buildDefinition"]
    assert definition["externalParameters"] == {
        "flakeOutput": "packages.x86_64-linux.image-runner",
        "revision": REVISION,
    }
    assert definition["resolvedDependencies"][0] == {
        "name": "source", "uri": "urn:qualify:source", "digest": {"gitCommit": REVISION},
    }  # fmt: skip


def test_provenance_names_every_pinned_file_and_the_tools(project: Path, tmp_path: Path) -> None:
    document = statement(project, tmp_path / "image")
    found = {
        each["name"]: each.get("digest", {})
        for each in document["predicate"]["buildDefinition"]["resolvedDependencies"]
    }
    pinned = [file for name in ("runner", "nix-build") for file in LOCKS[name].files]
    for file in (*pinned, *debian_lock().files):
        assert found[file.file] == {"sha256": file.sha256}
    assert found["busybox-elf"] == {"narSha256": "b" * 64}
    assert len(found) == len(pinned) + len(debian_lock().files) + 2


def test_a_changed_tree_has_no_commit_digest(project: Path, tmp_path: Path) -> None:
    labels: dict[str, str | None] = {"org.opencontainers.image.revision": f"{REVISION}-dirty"}
    document = statement(project, tmp_path / "i", Layout("runner", ("runner",), labels=labels))
    source = document["predicate"]["buildDefinition"]["resolvedDependencies"][0]
    assert "digest" not in source
    assert source["annotations"] == {"revision": f"{REVISION}-dirty"}


type Change = Callable[[dict[str, Any]], object]

BROKEN: dict[str, Change] = {
    "another type": lambda d: d.update(_type="https://in-toto.io/Statement/v0.1"),
    "another predicate": lambda d: d.update(predicateType="https://slsa.dev/provenance/v0.2"),
    "no subject": lambda d: d.update(subject=[]),
    "a subject without a digest": lambda d: d["subject"][0].pop("digest"),
    "a digest in capitals": lambda d: d["subject"][0]["digest"].update(sha256="A" * 64),
    "a short digest": lambda d: d["subject"][0]["digest"].update(sha256="a" * 63),
    "an unknown field": lambda d: d.update(more=1),
    "no build type": lambda d: d["predicate"]["buildDefinition"].pop("buildType"),
    "no parameters": lambda d: d["predicate"]["buildDefinition"].pop("externalParameters"),
    "a dependency without uri and digest": lambda d: d["predicate"]["buildDefinition"][
        "resolvedDependencies"
    ].append({"name": "x"}),
    "no builder": lambda d: d["predicate"]["runDetails"].pop("builder"),
    "a builder that is no URI": lambda d: d["predicate"]["runDetails"]["builder"].update(id="me"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_statement_that_breaks_the_field_rules_is_refused(
    project: Path, tmp_path: Path, name: str
) -> None:
    document = statement(project, tmp_path / "image")
    assert parse_statement(json.dumps(document).encode(), "x").subject_digest
    BROKEN[name](document)
    with pytest.raises(ImageFault, match="is no SLSA provenance v1"):
        parse_statement(json.dumps(document).encode(), "x")


# ── both ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("make", [make_sbom, make_provenance])
def test_one_image_has_one_text_wherever_it_lies(
    project: Path, tmp_path: Path, make: Callable[..., bytes]
) -> None:
    texts = set()
    for place in ("one", "two/deeper"):
        image = open_image(Layout("runner", ("runner",)).write(tmp_path / place, project))
        texts.add(make(image, pins_of(image, project / "locks")))
    (text,) = texts
    assert text == canonical_json(json.loads(text))
    assert str(tmp_path).encode() not in text


@pytest.mark.parametrize(
    ("labels", "what"),
    [
        ({"qualify.image": None}, "has no label qualify.image"),
        ({"qualify.lock.runner": "sha256:" + "0" * 64}, "another lock 'runner'"),
        ({"qualify.lock.debian": "sha256:" + "0" * 64}, "another lock 'debian'"),
        ({"qualify.lock.nix-build": "sha256:" + "0" * 64}, "another lock 'nix-build'"),
        ({"qualify.lock.gone": "sha256:" + "0" * 64}, "a lock 'gone' that is not in"),
        ({"qualify.lock.../../x": "sha256:" + "0" * 64}, "that is not in"),
        ({"qualify.lock.debian": None}, r"has no label qualify\.lock\.debian"),
        ({"qualify.closure": None}, r"has no label qualify\.closure"),
        ({"qualify.closure": "gone"}, "there is no Debian closure 'gone'"),
    ],
)
def test_an_image_of_other_locks_is_refused_with_what_to_do(
    project: Path, tmp_path: Path, labels: dict[str, str | None], what: str
) -> None:
    sound = open_image(Layout("runner", ("runner",)).write(tmp_path / "sound", project))
    assert pins_of(sound, project / "locks").image == "runner"
    other = Layout("runner", ("runner",), labels=labels).write(tmp_path / "other", project)
    with pytest.raises(QualifyError, match=what) as error:
        pins_of(open_image(other), project / "locks")
    assert error.value.exit_code == 2
    assert error.value.fix


def test_a_lock_with_several_files_for_a_package_is_no_image_set(
    project: Path, tmp_path: Path
) -> None:
    from qualify.pins.locks import lock_bytes

    lock = python_lock("several", "alpha")
    package = lock.packages[0]
    second = package.files[0].model_copy(update={"file": "alpha-1.0-py2-none-any.whl"})
    twice = package.model_copy(update={"files": (second, package.files[0])})
    lock = lock.model_copy(update={"packages": (twice,)})
    locks = tmp_path / "locks"
    locks.mkdir()
    for path in (project / "locks").iterdir():
        (locks / path.name).write_bytes(path.read_bytes())
    (locks / "several.json").write_bytes(lock_bytes(lock))
    labels: dict[str, str | None] = {"qualify.lock.several": lock.digest}
    image = open_image(Layout("runner", (), labels=labels).write(tmp_path / "i", project))
    with pytest.raises(QualifyError, match="alpha has 2 files"):
        pins_of(image, locks)


def test_mistakes_in_either_are_named_and_a_right_one_has_none(
    project: Path, tmp_path: Path
) -> None:
    image = open_image(Layout("runner", ("runner",)).write(tmp_path / "image", project))
    pins = pins_of(image, project / "locks")
    for make, mistakes in (
        (make_sbom, sbom_mistakes),
        (make_provenance, provenance_mistakes),
    ):
        text = make(image, pins)  # type: ignore[operator]
        assert mistakes(text, image, pins) == []
        other = replace(image, digest="sha256:" + "0" * 64)
        assert mistakes(text, other, pins)[0].startswith("is about sha256:")
        changed = text.replace(sha256(b"alpha").encode(), sha256(b"other").encode())
        assert "alpha" in mistakes(changed, image, pins)[0]
        assert mistakes(text[:-1], image, pins) != []
        assert mistakes(b"[]", image, pins) != []


@pytest.mark.parametrize(
    ("said", "instead", "place"),
    [
        ("packages.x86_64-linux.image-runner", "packages.x86_64-linux.image-other", "flakeOutput"),
        ('"qualify.image":"runner"', '"qualify.image":"other"', "internalParameters.qualify.image"),
    ],
)
def test_a_provenance_that_says_another_build_is_told_by_its_place(
    said: str, instead: str, place: str, project: Path, tmp_path: Path
) -> None:
    image = open_image(Layout("runner", ("runner",)).write(tmp_path / "image", project))
    pins = pins_of(image, project / "locks")
    text = make_provenance(image, pins)
    assert said.encode() in text
    (mistake,) = provenance_mistakes(text.replace(said.encode(), instead.encode()), image, pins)
    assert place in mistake
    assert image.labels["org.opencontainers.image.revision"].encode() in text
    revision = image.labels["org.opencontainers.image.revision"]
    moved = text.replace(revision.encode(), revision[::-1].encode())
    assert any("revision" in each for each in provenance_mistakes(moved, image, pins))


def test_a_bill_with_more_than_the_locks_hold_is_told(project: Path, tmp_path: Path) -> None:
    image = open_image(Layout("runner", ("runner",)).write(tmp_path / "image", project))
    pins = pins_of(image, project / "locks")
    document = json.loads(make_sbom(image, pins))
    extra = dict(document["components"][0])
    extra |= {"purl": "pkg:pypi/smuggled@1.0", "bom-ref": "pkg:pypi/smuggled@1.0"}
    document["components"].append(extra)
    (mistake,) = sbom_mistakes(json.dumps(document).encode(), image, pins)
    assert "pkg:pypi/smuggled@1.0" in mistake


def test_a_docker_archive_has_no_digest_to_speak_of(project: Path, tmp_path: Path) -> None:
    import tarfile

    folder = Layout("runner", ("runner",)).write(tmp_path / "image", project)
    image = open_image(folder)
    (tmp_path / "config.json").write_bytes(image.config_bytes)
    entry = {"Config": "config.json", "RepoTags": [], "Layers": [e.name for e in image.layers]}
    (tmp_path / "manifest.json").write_text(json.dumps([entry]))
    with tarfile.open(tmp_path / "image.tar", "w") as archive:
        for name in ("config.json", "manifest.json"):
            archive.add(tmp_path / name, name)
        for layer in image.layers:
            archive.add(folder / layer.name, layer.name)
    with pytest.raises(ImageFault, match="docker-archive"):
        pins_of(open_image(tmp_path / "image.tar"), project / "locks")
