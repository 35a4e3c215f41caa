"""Exports: what an outsider gets, and everything that can be done to it on the way."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from qualify.core.digests import digest_file
from qualify.evidence.attestations import read_assessment
from qualify.evidence.exports import check_export
from qualify.evidence.findings import Fault
from qualify.evidence.ledger import Ledger
from qualify.evidence.schemas import PREDICATES, predicate_schema
from qualify.evidence.signing.dsse import read_envelope, sign_envelope
from qualify.evidence.signing.keys import read_signing_key, write_new_key
from qualify.evidence.signing.registry import Registry, Signer
from qualify.evidence.statements import make_statement
from qualify.evidence.verification import verify_ledger
from support.signed_site import ROW, Site

ROW_FOLDER = f"attestations/{ROW}/acceptance"


def exported(site: Site, *more: object) -> Path:
    target = site.folder / "export"
    done = site.qualify(
        "evidence", "export", "--to", target, "--row", ROW, "--key", site.key, *more
    )
    assert done.code == 0, done.err
    return target


def trial_files(folder: Path) -> list[Path]:
    found = sorted((folder / ROW_FOLDER).glob("trial-*.json"))
    return [path for path in found if not path.name.endswith(".dsse.json")]


def statement(folder: Path, name: str) -> Any:
    return json.loads((folder / ROW_FOLDER / name).read_bytes())


@pytest.fixture
def good(site: Site) -> Site:
    site.run("ppp")
    site.trust("checkpoints", "assessments")
    assert site.qualify("evidence", "sign", "--key", site.key).code == 0
    return site


def test_a_pass_is_told_in_three_kinds_of_statement(good: Site) -> None:
    folder = exported(good)
    said = read_assessment((folder / ROW_FOLDER / "assessment.json").read_bytes())
    assert (said.status, said.passed, said.total) == ("qualified", 3, 3)
    assert said.interval_per_mille == (292, 1000)
    assert said.automatic_promotion_allowed is False
    # Its trials ran on the host: no published artefact, so nothing beyond the first level.
    assert said.claim_levels == ("implemented",)
    summary = statement(folder, "summary.json")
    assert summary["predicateType"] == "https://slsa.dev/verification_summary/v1"
    assert summary["predicate"]["verificationResult"] == "PASSED"
    assert summary["predicate"]["verifiedLevels"] == ["QUALIFY_IMPLEMENTED"]
    trials = trial_files(folder)
    assert len(trials) == 3
    for path in trials:
        made = json.loads(path.read_bytes())
        assert made["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
        assert made["predicate"]["result"] == "PASSED"
        assert made["subject"][0]["digest"]["sha256"] == said.configuration[7:]
        envelope = read_envelope(path.with_suffix(".dsse.json").read_bytes())
        assert envelope.signed_by([good.public]) == [good.public]
    done = good.qualify("evidence", "verify", folder, "--signer", good.pub, "--json")
    assert done.code == 0, done.out


def test_a_failure_gives_no_verification_summary(good: Site) -> None:
    good.run("f")
    folder = exported(good)
    assert statement(folder, "assessment.json")["predicate"]["status"] == "failed"
    assert not (folder / ROW_FOLDER / "summary.json").exists()
    results = [json.loads(path.read_bytes())["predicate"]["result"] for path in trial_files(folder)]
    assert sorted(results) == ["FAILED", "PASSED", "PASSED"]


def test_the_same_ledger_and_time_give_the_same_statements(good: Site) -> None:
    first = exported(good)
    before = {path.name: digest_file(path) for path in (first / ROW_FOLDER).glob("trial-*")}
    shutil.rmtree(first)
    second = exported(good)
    assert {p.name: digest_file(p) for p in (second / ROW_FOLDER).glob("trial-*")} == before


def test_an_export_needs_no_project_and_no_key(good: Site) -> None:
    target = good.folder / "plain"
    done = good.qualify("evidence", "export", "--to", target, "--json", cwd=str(good.folder))
    assert done.code == 0, done.err
    assert done.document["signed"] is False
    assert done.document["attested"] == []
    assert good.qualify("evidence", "verify", target, "--signer", good.pub).code == 0


def test_an_existing_folder_is_not_touched(good: Site) -> None:
    target = exported(good)
    before = sorted(target.rglob("*"))
    done = good.qualify("evidence", "export", "--to", target, "--key", good.key)
    assert done.code == 2
    assert sorted(target.rglob("*")) == before


def edit(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))


def resealed(folder: Path, site: Site, key: Path | None = None) -> None:
    """As an attacker who has a key: the export's list is made again for what is there now."""
    said = json.loads((folder / "export.json").read_bytes())
    files = sorted(
        (path.relative_to(folder).as_posix(), digest_file(path))
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith("export.")
    )
    data = make_statement(files, said["predicateType"], said["predicate"])
    (folder / "export.json").write_bytes(data)
    signer = read_signing_key(key or site.key)
    (folder / "export.dsse.json").write_bytes(sign_envelope(data, [signer]))


def claim_more(folder: Path, site: Site) -> None:
    said = json.loads((folder / "export.json").read_bytes())
    files = [(each["name"], f"sha256:{each['digest']['sha256']}") for each in said["subject"]]
    predicate = said["predicate"] | {"covered": said["predicate"]["covered"] + 5}
    data = make_statement(files, said["predicateType"], predicate)
    (folder / "export.json").write_bytes(data)
    (folder / "export.dsse.json").write_bytes(sign_envelope(data, [read_signing_key(site.key)]))


def say_another_result(folder: Path, site: Site) -> None:
    path = trial_files(folder)[0]
    edit(path, b'"PASSED"', b'"WARNED"')
    path.with_suffix(".dsse.json").write_bytes(
        sign_envelope(path.read_bytes(), [read_signing_key(site.key)])
    )
    resealed(folder, site)


def invent_a_trial(folder: Path, site: Site) -> None:
    path = trial_files(folder)[0]
    trial = json.loads(path.read_bytes())["predicate"]["configuration"][0]["digest"]["sha256"]
    edit(path, trial.encode(), b"0" * 64)
    path.with_suffix(".dsse.json").unlink()
    resealed(folder, site)


def sign_with_a_stranger(folder: Path, site: Site) -> None:
    other = site.folder / "other"
    write_new_key(other)
    resealed(folder, site, other)


def link_out(folder: Path, site: Site) -> None:
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to("/etc/hostname")


ATTACKS: list[tuple[Callable[[Path, Site], object], set[Fault]]] = [
    (lambda f, s: edit(f / "README.md", b"Evidence", b"evidence"), {Fault.EXPORT}),
    (lambda f, s: (f / "README.md").unlink(), {Fault.EXPORT}),
    (lambda f, s: (f / "more").write_text("x"), {Fault.EXPORT}),
    (lambda f, s: (f / "ledger" / "segment-000000000000.log").write_text(""),
     {Fault.EXPORT, Fault.CHAIN, Fault.OVERCLAIMED}),
    (link_out, {Fault.EXPORT}),
    (lambda f, s: (f / "export.json").unlink(), {Fault.EXPORT}),
    (lambda f, s: edit(f / "export.json", b'"covered":7', b'"covered":6'), {Fault.BAD_SIGNATURE}),
    (lambda f, s: (f / "export.dsse.json").write_text("{}"), {Fault.BAD_SIGNATURE}),
    (claim_more, {Fault.OVERCLAIMED}),
    (say_another_result, {Fault.ATTESTATION}),
    (invent_a_trial, {Fault.ATTESTATION}),
    (sign_with_a_stranger, {Fault.UNKNOWN_SIGNER}),
]  # fmt: skip


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """One signed export, made once."""
    site = Site(tmp_path_factory.mktemp("pristine"))
    site.run("ppp")
    assert site.qualify("evidence", "sign", "--key", site.key).code == 0
    site.trust("checkpoints", "assessments")
    exported(site)
    return site


@pytest.mark.parametrize(("attack", "faults"), ATTACKS, ids=range(len(ATTACKS)))
def test_what_was_done_to_an_export_is_named(
    attack: Callable[[Path, Site], object], faults: set[Fault], pristine: Site, tmp_path: Path
) -> None:
    folder = tmp_path / "export"
    shutil.copytree(pristine.folder / "export", folder)
    assert checked(folder, pristine) == set()
    attack(folder, pristine)
    assert checked(folder, pristine) == faults


def checked(folder: Path, site: Site) -> set[Fault]:
    registry = Registry("caller", "test", (Signer("release", site.public),))
    found = verify_ledger(Ledger(folder / "ledger"), registry, datetime.now(UTC))
    check_export(folder, found, registry)
    return {each.fault for each in found.findings}


def test_claims_count_only_from_signers_for_their_purpose(good: Site) -> None:
    ci = ("evidence", "claim", "ci-validated", ROW, "--key", good.key)
    assert good.qualify(*ci).code == 0
    assert (
        good.qualify("evidence", "claim", "institution-approved", ROW, "--key", good.key).code == 0
    )

    def levels() -> tuple[dict[str, bool], str]:
        target = good.folder / "levels"
        done = good.qualify(
            "evidence", "export", "--to", target, "--row", ROW, "--key", good.key, "--json"
        )
        assert done.code == 0, done.err
        shutil.rmtree(target)
        row = next(each for each in done.document["attested"] if each["suite"] == "acceptance")
        return {one["level"]: one["reached"] for one in row["claim_levels"]}, row["claim_level"]

    nothing = {
        "implemented": True, "ci-validated": False,
        "live-synthetic-validated": False, "institution-approved": False,
    }  # fmt: skip
    assert levels() == (nothing, "implemented")
    good.trust("checkpoints", "assessments", "ci")
    assert levels() == (nothing | {"ci-validated": True}, "ci-validated")
    good.trust("checkpoints", "assessments", "ci", "institution")
    # Approved is not reached past a gap: its trials ran in no published image.
    reached, level = levels()
    assert reached == nothing | {"ci-validated": True, "institution-approved": True}
    assert level == "ci-validated"


@pytest.mark.parametrize("name", PREDICATES)
def test_the_schemas_in_the_documentation_are_those_of_the_models(name: str, site: Site) -> None:
    path = Path(__file__).parents[3] / "docs/reference/predicates" / f"{name}.schema.json"
    done = site.qualify("evidence", "schema", name)
    assert path.read_text("utf-8") == done.out, f"qualify evidence schema {name} > {path.name}"


def test_what_is_exported_fits_the_schemas(good: Site) -> None:
    folder = exported(good)
    for name, path in (
        ("assessment", folder / ROW_FOLDER / "assessment.json"),
        ("evidence-export", folder / "export.json"),
        ("checkpoint", next((folder / "ledger/checkpoints").glob("0*[0-9].json"))),
    ):
        document = json.loads(path.read_bytes())
        jsonschema.validate(document["predicate"], predicate_schema(name))
        assert document["predicateType"] == PREDICATES[name][0]
