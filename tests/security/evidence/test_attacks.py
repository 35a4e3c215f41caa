"""Every attack on evidence that the adversary knows, and what it is called; and what is accepted.

Read `tests/support/tampering.py` for what each one does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest

from qualify.core.errors import QualifyError
from qualify.evidence.checkpoints import load_checkpoint, sign_checkpoint, sign_handover
from qualify.evidence.findings import Fault, Verification
from qualify.evidence.signing.registry import Signer
from qualify.evidence.signing.sshsig import allowed_signers
from qualify.evidence.verification import verify_ledger
from support.tampering import ATTACKS, RELEASE_DAY, Listed, Scene, new_key


def verified(scene: Scene, **more: bool) -> Verification:
    return verify_ledger(scene.ledger, scene.registry, RELEASE_DAY, at_least=scene.at_least, **more)


@pytest.mark.parametrize("listed", ATTACKS, ids=lambda listed: listed.name)
def test_attack(listed: Listed, tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    assert verified(scene).accepted
    listed.attack(scene)
    found = verified(scene)
    assert {each.fault for each in found.findings} == listed.faults, found.findings
    assert not found.accepted


def test_every_fault_is_the_outcome_of_some_attack() -> None:
    # What an export claims is attacked where exports are tested.
    caused = {fault for listed in ATTACKS for fault in listed.faults}
    assert set(Fault) - caused == {Fault.OVERCLAIMED, Fault.EXPORT, Fault.ATTESTATION}


def test_every_fault_is_described_and_no_other() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/evidence.md").read_text("utf-8")
    table = page.split("| fault | means |")[1].split("\n\n")[0]
    named = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(named) == sorted(fault.value for fault in Fault)


def test_a_signed_ledger_is_accepted_and_says_by_whom(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    found = verified(scene)
    assert (found.count, found.covered, found.checkpoints) == (9, 9, 2)
    assert found.signers == ["release"]
    assert found.freshness.startswith("unknown")


@pytest.mark.parametrize("attribute", ["envelope", "ssh_signature"])
def test_one_form_of_signature_is_enough(attribute: str, tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for stored in (scene.first, scene.second):
        getattr(stored, attribute).unlink()
    assert verified(scene).accepted


def test_a_remembered_checkpoint_shows_freshness(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for stored in (scene.first, scene.second):
        scene.remember(stored)
        assert verified(scene).at_least == stored.checkpoint.count


def test_what_is_covered_can_be_accepted_without_the_rest(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.run(1)
    assert not verified(scene).accepted
    found = verified(scene, allow_uncovered=True)
    assert found.accepted
    assert (found.covered, found.count) == (9, 11)


def test_old_evidence_survives_a_hand_over_whichever_key_is_pinned(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    new, newer = new_key(), new_key()
    sign_handover(scene.ledger, scene.key, new, "rotation", scene.time.clock())
    scene.run()
    sign_checkpoint(scene.ledger, new, scene.time.clock())
    sign_handover(scene.ledger, new, newer, "compromise", scene.time.clock())
    scene.run()
    sign_checkpoint(scene.ledger, newer, scene.time.clock())
    for key in (scene.key, new, newer):
        scene.signers = [Signer("pinned", key.public)]
        found = verified(scene)
        assert found.accepted, found.findings
        assert found.checkpoints == 4


def test_a_signer_that_expired_since_keeps_what_it_signed(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.signers = [
        Signer("release", scene.key.public, valid_until=scene.time.moment + timedelta(hours=1))
    ]
    assert verified(scene).accepted


def test_a_second_signature_by_somebody_else_does_no_harm(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.signers.append(Signer("other", scene.attacker.public))
    sign_checkpoint(scene.ledger, scene.attacker, scene.time.clock())
    assert verified(scene).accepted


def test_a_ledger_of_many_segments_is_accepted_and_none_can_be_taken_away(tmp_path: Path) -> None:
    scene = Scene(tmp_path, segment_bytes=4096)
    segments = sorted(scene.folder.glob("segment-*.log"))
    assert len(segments) >= 2
    assert verified(scene).accepted
    for path in segments:
        kept = path.read_bytes()
        path.unlink()
        assert {each.fault for each in verified(scene).findings} == {Fault.CHAIN}
        path.write_bytes(kept)
    segments[0].write_bytes(segments[1].read_bytes())
    assert {each.fault for each in verified(scene).findings} == {Fault.CHAIN}


@pytest.mark.parametrize("position", range(0, 2000, 37))
def test_no_bit_of_a_signed_statement_or_signature_can_be_turned(
    position: int, tmp_path: Path
) -> None:
    scene = Scene(tmp_path)
    for path in (scene.second.path, scene.second.envelope, scene.second.ssh_signature):
        data = bytearray(path.read_bytes())
        at = position % len(data)
        data[at] ^= 1
        kept = path.read_bytes()
        path.write_bytes(bytes(data))
        found = verified(scene)
        # A key id in an envelope is a hint; what it says is not signed. The SSH signature still
        # counts then, and nothing else is believed.
        if path != scene.second.envelope:
            assert not found.accepted, (path.name, at)
        assert found.covered in (5, 9)
        assert found.head == scene.second.checkpoint.head
        path.write_bytes(kept)


def test_ssh_keygen_accepts_what_we_sign_and_we_what_it_signs(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    allowed = tmp_path / "allowed"
    allowed.write_text(allowed_signers([("release", scene.key.public)]))
    done = subprocess.run(
        ["ssh-keygen", "-Y", "verify", "-f", allowed, "-I", "release", "-n", "qualify", "-s",
         scene.second.ssh_signature],
        input=scene.second.data, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b'Good "qualify" signature for release' in done.stdout
    # The other way: a key of ssh-keygen's, and its signature in place of ours.
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "id"], check=True
    )
    from qualify.evidence.signing.keys import read_public_key, read_signing_key

    for stored in (scene.first, scene.second):
        stored.envelope.unlink()
        stored.ssh_signature.unlink()
        subprocess.run(
            ["ssh-keygen", "-q", "-Y", "sign", "-n", "qualify", "-f", tmp_path / "id", stored.path],
            check=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    scene.signers = [Signer("ssh", read_public_key(tmp_path / "id.pub"))]
    assert verified(scene).accepted
    assert read_signing_key(tmp_path / "id").public == read_public_key(tmp_path / "id.pub")


def test_five_lines_of_securesystemslib_accept_what_we_sign(tmp_path: Path) -> None:
    import json

    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import SSlibKey  # type: ignore[attr-defined]

    scene = Scene(tmp_path)
    envelope = Envelope.from_dict(json.loads(scene.second.envelope.read_bytes()))
    key = SSlibKey.from_crypto(scene.key.public.key, keyid=scene.key.public.id)
    assert list(envelope.verify([key], threshold=1)) == [scene.key.public.id]
    assert envelope.payload == scene.second.data


def test_signing_twice_changes_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    before = {path.name: path.read_bytes() for path in scene.second.path.parent.iterdir()}
    again = sign_checkpoint(scene.ledger, scene.key, scene.time.clock())
    assert again == load_checkpoint(scene.second.path)
    after = {path.name: path.read_bytes() for path in scene.second.path.parent.iterdir()}
    assert after == before


def test_a_rewritten_ledger_is_not_signed_again(tmp_path: Path) -> None:
    from qualify.core.errors import UsageError

    scene = Scene(tmp_path)
    shutil.rmtree(scene.folder / "checkpoints")
    shutil.copytree(scene.older / "checkpoints", scene.folder / "checkpoints")
    payloads = scene.payloads()
    scene.rebuild(payloads[:1] + payloads[3:])
    with pytest.raises(UsageError, match="does not continue"):
        sign_checkpoint(scene.ledger, scene.key, scene.time.clock())


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["segment-000000000000.log", "segment-000000000009.log"])
def test_a_segment_without_lines_is_no_endless_one(name: str, tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    (scene.folder / name).write_bytes(b"")
    assert Fault.CHAIN in {each.fault for each in verified(scene).findings}


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "name",
    ["ledger.log", "segment-000000000000.log", "checkpoints/000000000009.json",
     "checkpoints/000000000009.dsse.json", "checkpoints/000000000009.json.sig",
     "checkpoints/000000000009.sigstore.json",
     "checkpoints/handover-000000000009-0123456789ab.dsse.json"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["fifo", "folder", "device", "endless"])
def test_what_is_no_plain_file_is_named_and_nobody_waits(
    name: str, kind: str, tmp_path: Path
) -> None:
    scene = Scene(tmp_path)
    path = scene.folder / name
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/null" if kind == "device" else "/dev/zero")
    try:
        assert not verified(scene).accepted
    except QualifyError as error:
        assert path.name in str(error)  # noqa: PT017 - either way is an answer
