"""The registry of signers: its format, and which one of several is in force."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from qualify.core.errors import UsageError
from qualify.evidence.signing import registry
from qualify.evidence.signing.registry import read_registry, signers_in_force
from support.tampering import new_key

KEY = new_key().public


def entry(**changes: Any) -> dict[str, Any]:
    made = {"name": "release", "public_key": KEY.ssh, "purposes": ["checkpoints"], **changes}
    return {name: value for name, value in made.items() if value is not ...}


def write(path: Path, *entries: dict[str, Any], schema: str = "qualify-signers/1") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schema": schema, "signers": list(entries)}))
    return path


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("QUALIFY_SIGNERS", raising=False)
    monkeypatch.setattr(registry, "DEPLOYMENT", tmp_path / "etc" / "signers.json")


def test_a_whole_entry_is_read(tmp_path: Path) -> None:
    path = write(
        tmp_path / "signers.json",
        entry(sites=["0" * 32], valid_from="2026-01-01T00:00:00Z",
              valid_until="2027-01-01T00:00:00Z"),
        entry(name="ci", public_key=KEY.pem, purposes=["ci", "assessments"]),
        entry(name="job", public_key=..., sigstore={
            "identity": "job@example.org", "issuer": "https://issuer.example",
            "trusted_root": "root.json"}),
    )  # fmt: skip
    release, ci, job = read_registry(path)
    assert release.key == ci.key == KEY
    assert release.may_sign("checkpoints", "0" * 32)
    assert not release.may_sign("checkpoints", "1" * 32)
    assert not release.may_sign("institution", "0" * 32)
    assert ci.sites is None
    assert job.identity is not None
    assert job.identity.trusted_root == tmp_path / "root.json"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], r"signers: List should have at least 1 item"),
        ([entry(public_key=...)], "needs one of public_key and sigstore"),
        ([entry(sigstore={"identity": "abc", "issuer": "https://x"})], "needs one of"),
        ([entry(purposes=[])], r"signers.0.purposes"),
        ([entry(purposes=["everything"])], r"signers.0.purposes.0"),
        ([entry(role="admin")], r"signers.0.role"),
        ([entry(sites=["mine"])], r"signers.0.sites.0"),
        ([entry(valid_until="tomorrow")], r"signers.0.valid_until"),
        ([entry(valid_until="2026-02-30T00:00:00Z")], r"signers.0.valid_until"),
        ([entry(name="Release Key")], r"signers.0.name"),
        ([entry(public_key="ssh-rsa AAAA")], r"signers.0.public_key: is no public key"),
        ([entry(), entry()], "second signer is called 'release'"),
        ([entry(valid_from="2027-01-01T00:00:00Z", valid_until="2026-01-01T00:00:00Z")],
         "ends before it begins"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_place(
    entries: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "signers.json", *entries)
    with pytest.raises(UsageError, match=message) as error:
        read_registry(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "Input should be"),
        ('{"schema":"qualify-signers/2","signers":[]}', "schema"),
    ],
)
def test_another_document_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "signers.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_registry(tmp_path / "signers.json")


def test_the_deployments_registry_outranks_the_users_and_that_the_projects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    assert signers_in_force(project) is None
    write(project / "signers.json", entry(name="project"))
    assert origin(project) == ("project", "project")
    write(tmp_path / "config" / "qualify" / "signers.json", entry(name="user"))
    assert origin(project) == ("user", "user")
    write(registry.DEPLOYMENT, entry(name="machine"))
    assert origin(project) == ("deployment", "machine")
    monkeypatch.setenv("QUALIFY_SIGNERS", str(write(tmp_path / "told.json", entry(name="told"))))
    assert origin(project) == ("deployment", "told")
    (tmp_path / "key.pub").write_text(KEY.ssh)
    found = signers_in_force(project, [tmp_path / "key.pub"])
    assert found is not None
    assert (found.origin, [s.name for s in found.signers]) == ("caller", ["given"])


def origin(project: Path) -> tuple[str, str]:
    found = signers_in_force(project)
    assert found is not None
    (signer,) = found.signers
    return found.origin, signer.name


def test_a_registry_that_is_told_and_not_there_is_an_error_and_not_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "project" / "signers.json", entry())
    monkeypatch.setenv("QUALIFY_SIGNERS", str(tmp_path / "gone.json"))
    with pytest.raises(UsageError, match="cannot be read"):
        signers_in_force(tmp_path / "project")


def test_a_registry_that_others_can_change_does_not_outrank(tmp_path: Path) -> None:
    path = write(registry.DEPLOYMENT, entry())
    path.chmod(0o666)
    with pytest.raises(UsageError, match="changed by other users"):
        signers_in_force(None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_registry_that_cannot_be_seen_is_not_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "project" / "signers.json", entry())
    write(registry.DEPLOYMENT, entry())
    registry.DEPLOYMENT.parent.chmod(0o700)
    for folder in (tmp_path, *tmp_path.parents[:-1]):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of other tests' libraries
        child = os.fork()
    if not child:
        code = 1
        try:
            os.setuid(54321)
            signers_in_force(tmp_path / "project")
        except UsageError as error:
            code = 7 if "cannot be looked for" in str(error) else 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
