"""The adversary: somebody who can change every file of the evidence, and has keys of their own.

Each attack is a function that changes a `Scene` in place. What it must be called by whoever
verifies stands beside it, in `ATTACKS`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from qualify.evidence.checkpoints import (
    CHECKPOINT,
    Checkpoint,
    StoredCheckpoint,
    sign_checkpoint,
    sign_handover,
)
from qualify.evidence.findings import Fault, Reference
from qualify.evidence.ledger import Ledger
from qualify.evidence.signing.dsse import read_envelope, sign_envelope
from qualify.evidence.signing.keys import SigningKey
from qualify.evidence.signing.registry import Purpose, Registry, Signer
from qualify.evidence.signing.sshsig import sign_ssh
from qualify.evidence.statements import make_statement
from qualify.storage.appendlog import Line, encode_line
from qualify.storage.segments import ChainReader
from support.evidence import NOW, SettableClock, reserve, trial

RELEASE_DAY = NOW + timedelta(days=1)
"""When the evidence is verified."""


def new_key(origin: str = "test") -> SigningKey:
    return SigningKey.of(Ed25519PrivateKey.generate(), origin)


class Scene:
    """A ledger with two runs of two trials each, signed after each, and who counts as signer."""

    def __init__(self, folder: Path, *, segment_bytes: int = 16 << 20) -> None:
        self.folder = folder / "ledger"
        self.segment_bytes = segment_bytes
        self.key = new_key()
        self.time = SettableClock()
        self.attacker = new_key("attacker")
        self.signers = [Signer("release", self.key.public)]
        self.at_least: Reference | None = None
        self.older = folder / "older"
        self.run()
        self.first = sign_checkpoint(self.ledger, self.key, self.time.clock())
        shutil.copytree(self.folder, self.older)
        self.run()
        self.second = sign_checkpoint(self.ledger, self.key, self.time.clock())

    @property
    def ledger(self) -> Ledger:
        """A new reader and writer: nothing is remembered."""
        return Ledger(self.folder, self.time.clock(), segment_bytes=self.segment_bytes)

    @property
    def registry(self) -> Registry:
        return Registry("caller", "test", tuple(self.signers))

    def run(self, trials: int = 2) -> None:
        for _ in range(trials):
            self.time.advance(minutes=1)
            made = reserve(self.ledger)
            self.ledger.finish(trial(made.trial, self.time.moment))

    def payloads(self) -> list[bytes]:
        return [line.payload for line in self.lines()]

    def lines(self) -> list[Line]:
        return list(ChainReader(self.folder / "ledger.log"))

    def rebuild(self, payloads: list[bytes]) -> None:
        """Write these records as a chain whose every digest is right."""
        prev, data = "0" * 64, []
        for seq, payload in enumerate(payloads):
            raw, prev = encode_line(seq, prev, payload)
            data.append(raw)
        self.raw(b"".join(data))

    def raw(self, data: bytes) -> None:
        for path in self.folder.glob("segment-*.log"):
            path.unlink()
        (self.folder / "ledger.log").write_bytes(data)

    def remember(self, stored: StoredCheckpoint) -> None:
        said = stored.checkpoint
        self.at_least = Reference(said.count, said.head, said.site)

    def sign(self, key: SigningKey, **changes: object) -> StoredCheckpoint:
        """A checkpoint that says whatever one wants, named by what it says."""
        said = self.second.checkpoint
        made = Checkpoint.model_validate(said.model_dump() | changes)
        data = make_statement([(f"ledger/{made.site}", made.head)], CHECKPOINT, made)
        stored = StoredCheckpoint(self.second.path.with_name(f"{made.count:012}.json"), data, made)
        stored.path.write_bytes(data)
        stored.envelope.write_bytes(sign_envelope(data, [key]))
        stored.ssh_signature.write_bytes(sign_ssh(key, data))
        return stored


type Attack = Callable[[Scene], None]


@dataclass(frozen=True)
class Listed:
    """One attack, and what it must be called."""

    attack: Attack
    faults: frozenset[Fault]

    @property
    def name(self) -> str:
        return self.attack.__name__.removeprefix("_").replace("_", " ")


ATTACKS: list[Listed] = []


def attack(*faults: Fault) -> Callable[[Attack], Attack]:
    def listed(function: Attack) -> Attack:
        ATTACKS.append(Listed(function, frozenset(faults)))
        return function

    return listed


def _passed(payload: bytes) -> bytes:
    assert b'"passed"' in payload
    return payload.replace(b'"passed"', b'"failed"', 1)


# ── on the ledger ────────────────────────────────────────────────────────────────────────────────


@attack(Fault.CHAIN)
def edit_a_record(scene: Scene) -> None:
    path = scene.folder / "ledger.log"
    path.write_bytes(path.read_bytes().replace(b'"passed"', b'"failed"', 1))


@attack(Fault.REWRITTEN, Fault.UNCOVERED)
def edit_a_record_and_mend_the_chain(scene: Scene) -> None:
    payloads = scene.payloads()
    payloads[-1] = _passed(payloads[-1])
    scene.rebuild(payloads)


@attack(Fault.CHAIN)
def drop_an_entry(scene: Scene) -> None:
    lines = (scene.folder / "ledger.log").read_bytes().splitlines(keepends=True)
    scene.raw(b"".join(lines[:3] + lines[4:]))


@attack(Fault.RECORD)
def drop_a_failed_trial_and_mend_the_chain(scene: Scene) -> None:
    """The ordinals of the trials have a gap then."""
    payloads = scene.payloads()
    scene.rebuild(payloads[:1] + payloads[3:])


@attack(Fault.CHAIN)
def reorder_entries(scene: Scene) -> None:
    lines = (scene.folder / "ledger.log").read_bytes().splitlines(keepends=True)
    lines[1], lines[2] = lines[2], lines[1]
    scene.raw(b"".join(lines))


@attack(Fault.RECORD)
def reorder_entries_and_mend_the_chain(scene: Scene) -> None:
    payloads = scene.payloads()
    payloads[1], payloads[2] = payloads[2], payloads[1]
    scene.rebuild(payloads)


@attack(Fault.CHAIN)
def repeat_an_entry(scene: Scene) -> None:
    lines = (scene.folder / "ledger.log").read_bytes().splitlines(keepends=True)
    scene.raw(b"".join([*lines, lines[-1]]))


@attack(Fault.RECORD)
def finish_a_trial_twice_and_mend_the_chain(scene: Scene) -> None:
    scene.rebuild([*scene.payloads(), scene.payloads()[-1]])


@attack(Fault.TRUNCATED, Fault.UNCOVERED)
def cut_off_the_end(scene: Scene) -> None:
    lines = (scene.folder / "ledger.log").read_bytes().splitlines(keepends=True)
    scene.raw(b"".join(lines[:-2]))


@attack(Fault.TRUNCATED, Fault.UNCOVERED)
def cut_off_half_a_line(scene: Scene) -> None:
    data = (scene.folder / "ledger.log").read_bytes()
    scene.raw(data[:-10])


@attack(Fault.EMPTY)
def remove_everything(scene: Scene) -> None:
    (scene.folder / "ledger.log").unlink()


@attack(Fault.REWRITTEN, Fault.FUTURE, Fault.UNCOVERED)
def rebuild_the_ledger_with_other_trials(scene: Scene) -> None:
    genesis = scene.payloads()[0]
    shutil.move(scene.folder / "checkpoints", scene.folder.parent / "kept")
    scene.rebuild([genesis])
    scene.time.advance(hours=1)
    scene.run(4)
    shutil.move(scene.folder.parent / "kept", scene.folder / "checkpoints")


@attack(Fault.FOREIGN, Fault.UNCOVERED)
def put_another_ledger_under_the_signatures(scene: Scene) -> None:
    other = Scene(scene.folder.parent / "other")
    scene.raw((other.folder / "ledger.log").read_bytes())


@attack(Fault.RECORD)
def write_a_record_with_free_text(scene: Scene) -> None:
    payloads = scene.payloads()
    payloads.append(payloads[-1].replace(b'"completed"', b'"see my notes: all is well"'))
    scene.rebuild(payloads)


@attack(Fault.RECORD)
def write_a_record_in_another_spelling(scene: Scene) -> None:
    payloads = scene.payloads()
    payloads[-1] = payloads[-1].replace(b",", b", ", 1)
    scene.rebuild(payloads)


# ── on what is signed ────────────────────────────────────────────────────────────────────────────


@attack(Fault.UNCOVERED)
def add_trials_that_nobody_signed(scene: Scene) -> None:
    scene.run(1)


@attack(Fault.UNKNOWN_SIGNER, Fault.UNCOVERED)
def add_trials_and_sign_them_with_another_key(scene: Scene) -> None:
    scene.run(1)
    sign_checkpoint(scene.ledger, scene.attacker, scene.time.clock())


@attack(Fault.UNKNOWN_SIGNER, Fault.UNCOVERED)
def rebuild_everything_and_sign_it_again(scene: Scene) -> None:
    genesis = scene.payloads()[0]
    shutil.rmtree(scene.folder / "checkpoints")
    scene.rebuild([genesis])
    scene.run(4)
    sign_checkpoint(scene.ledger, scene.attacker, scene.time.clock())


@attack(Fault.ROLLED_BACK)
def roll_back_to_an_older_copy(scene: Scene) -> None:
    scene.remember(scene.second)
    shutil.rmtree(scene.folder)
    shutil.copytree(scene.older, scene.folder)


@attack(Fault.ROLLED_BACK, Fault.UNCOVERED)
def take_away_the_newest_checkpoint(scene: Scene) -> None:
    scene.remember(scene.second)
    for path in (scene.second.path, scene.second.envelope, scene.second.ssh_signature):
        path.unlink()


@attack(Fault.FORKED)
def fork_an_older_copy_and_sign_that_with_the_right_key(scene: Scene) -> None:
    scene.remember(scene.second)
    shutil.rmtree(scene.folder)
    shutil.copytree(scene.older, scene.folder)
    scene.time.advance(hours=1)
    scene.run(4)
    sign_checkpoint(scene.ledger, scene.key, scene.time.clock())


@attack(Fault.MISSING, Fault.UNCOVERED)
def take_away_a_checkpoint_in_the_middle(scene: Scene) -> None:
    for path in (scene.first.path, scene.first.envelope, scene.first.ssh_signature):
        path.unlink()


@attack(Fault.MALFORMED, Fault.UNCOVERED)
def edit_a_statement(scene: Scene) -> None:
    data = scene.second.path.read_bytes()
    scene.second.path.write_bytes(data.replace(scene.second.checkpoint.time.encode(), b"x"))


@attack(Fault.REWRITTEN, Fault.BAD_SIGNATURE, Fault.UNCOVERED)
def let_a_statement_name_another_head(scene: Scene) -> None:
    said = scene.second.checkpoint
    made = said.model_copy(update={"head": scene.first.checkpoint.head})
    data = make_statement([(f"ledger/{made.site}", made.head)], CHECKPOINT, made)
    scene.second.path.write_bytes(data)


@attack(Fault.MALFORMED, Fault.TRUNCATED, Fault.UNCOVERED)
def claim_more_by_the_name_of_a_checkpoint(scene: Scene) -> None:
    for path in (scene.second.path, scene.second.envelope, scene.second.ssh_signature):
        path.rename(path.with_name(path.name.replace("0009", "0011")))
    scene.sign(scene.key, count=10, head=scene.second.checkpoint.head)


@attack(Fault.UNSIGNED, Fault.UNCOVERED)
def take_away_the_signatures(scene: Scene) -> None:
    scene.second.envelope.unlink()
    scene.second.ssh_signature.unlink()


@attack(Fault.BAD_SIGNATURE, Fault.UNCOVERED)
def put_the_signatures_of_another_checkpoint_there(scene: Scene) -> None:
    shutil.copy(scene.first.envelope, scene.second.envelope)
    shutil.copy(scene.first.ssh_signature, scene.second.ssh_signature)


@attack(Fault.BAD_SIGNATURE, Fault.UNCOVERED)
def claim_the_id_of_the_right_key(scene: Scene) -> None:
    data = sign_envelope(scene.second.data, [scene.attacker])
    scene.second.envelope.write_bytes(
        data.replace(scene.attacker.public.id.encode(), scene.key.public.id.encode())
    )
    scene.second.ssh_signature.unlink()


@attack(Fault.BAD_SIGNATURE, Fault.UNCOVERED)
def use_a_signature_made_for_something_else(scene: Scene) -> None:
    scene.second.envelope.write_bytes(sign_envelope(scene.second.data, [scene.key], "text/plain"))
    scene.second.ssh_signature.write_bytes(sign_ssh(scene.key, scene.second.data, "git"))


@attack(Fault.FUTURE, Fault.UNCOVERED)
def sign_in_the_future(scene: Scene) -> None:
    scene.sign(scene.key, time="2027-01-01T00:00:00Z")


@attack(Fault.FUTURE, Fault.UNCOVERED)
def sign_before_the_entries_were_written(scene: Scene) -> None:
    scene.sign(scene.key, time="2026-11-30T08:00:00Z")


@attack(Fault.FORKED, Fault.UNCOVERED)
def deny_the_checkpoint_before(scene: Scene) -> None:
    scene.sign(scene.key, previous=None)


# ── on who may sign ──────────────────────────────────────────────────────────────────────────────


def _instead(scene: Scene, **changes: object) -> None:
    values = {"name": "release", "key": scene.key.public, **changes}
    scene.signers = [Signer(**values)]  # type: ignore[arg-type]


@attack(Fault.UNKNOWN_SIGNER, Fault.UNCOVERED)
def sign_with_a_key_for_another_purpose(scene: Scene) -> None:
    purposes: tuple[Purpose, ...] = ("assessments", "ci", "institution")
    _instead(scene, purposes=purposes)


@attack(Fault.UNKNOWN_SIGNER, Fault.UNCOVERED)
def sign_with_the_key_of_another_site(scene: Scene) -> None:
    _instead(scene, sites=("0" * 32,))


@attack(Fault.EXPIRED, Fault.UNCOVERED)
def sign_with_an_expired_key(scene: Scene) -> None:
    _instead(scene, valid_until=NOW - timedelta(days=1))


@attack(Fault.EXPIRED, Fault.UNCOVERED)
def sign_with_a_key_before_its_time(scene: Scene) -> None:
    _instead(scene, valid_from=NOW + timedelta(days=1))


@attack(Fault.UNKNOWN_SIGNER, Fault.UNCOVERED)
def verify_without_any_signer(scene: Scene) -> None:
    scene.signers = []


@attack(Fault.HANDOVER, Fault.UNKNOWN_SIGNER, Fault.UNCOVERED)
def hand_over_to_oneself(scene: Scene) -> None:
    """The right key never signed it."""
    path = sign_handover(scene.ledger, scene.key, scene.attacker, "rotation", scene.time.clock())
    statement = read_envelope(path.read_bytes()).payload
    path.write_bytes(sign_envelope(statement, [scene.attacker]))
    scene.run(1)
    sign_checkpoint(scene.ledger, scene.attacker, scene.time.clock())


@attack(Fault.HANDOVER, Fault.UNKNOWN_SIGNER, Fault.UNCOVERED)
def hand_over_between_strangers(scene: Scene) -> None:
    stranger = new_key()
    sign_handover(scene.ledger, stranger, scene.attacker, "rotation", scene.time.clock())
    scene.run(1)
    sign_checkpoint(scene.ledger, scene.attacker, scene.time.clock())


@attack(Fault.RETIRED, Fault.UNCOVERED)
def sign_with_a_key_that_was_handed_over(scene: Scene) -> None:
    new = new_key()
    sign_handover(scene.ledger, scene.key, new, "compromise", scene.time.clock())
    scene.run(1)
    sign_checkpoint(scene.ledger, scene.key, scene.time.clock())


@attack(Fault.HANDOVER, Fault.UNKNOWN_SIGNER, Fault.UNCOVERED)
def hand_over_twice(scene: Scene) -> None:
    """A stolen key hands over as well: nobody knows which hand-over is true, so neither counts."""
    new = new_key()
    sign_handover(scene.ledger, scene.key, new, "rotation", scene.time.clock())
    sign_handover(scene.ledger, scene.key, scene.attacker, "rotation", scene.time.clock())
    scene.run(1)
    sign_checkpoint(scene.ledger, scene.attacker, scene.time.clock())


@attack(Fault.HANDOVER, Fault.UNKNOWN_SIGNER, Fault.UNCOVERED)
def bring_the_hand_over_of_another_ledger(scene: Scene) -> None:
    other = Scene(scene.folder.parent / "other")
    path = sign_handover(other.ledger, scene.key, scene.attacker, "rotation", scene.time.clock())
    shutil.copy(path, scene.folder / "checkpoints" / path.name)
    scene.run(1)
    sign_checkpoint(scene.ledger, scene.attacker, scene.time.clock())
