"""Whose signature covers how much of one ledger: pinned signers, and what they handed over.

A hand-over counts when both keys signed it and the ledger has the head that it names. Then the new
key may sign from there on and vouches for what the old one signed up to there; the old one may sign
nothing beyond. It works from either end: whoever pins the old key follows it forward, whoever pins
the new key accepts the old one's past.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qualify.core.clock import parse_time
from qualify.evidence.checkpoints import Handover, parse_handover
from qualify.evidence.signing.dsse import IN_TOTO, Envelope, NotAnEnvelope, read_envelope
from qualify.evidence.signing.keys import PublicKey
from qualify.evidence.signing.registry import Signer
from qualify.evidence.statements import NotAStatement
from qualify.storage.folders import read_plain

_MAX_BYTES = 1 << 20
ENDLESS = 2**63


@dataclass(frozen=True)
class Trusted:
    """A key, under whose name, and the counts of entries for which its signature is taken."""

    signer: Signer
    key: PublicKey
    first: int = 0
    last: int = ENDLESS

    def covers(self, count: int) -> bool:
        """Whether it may sign a ledger of so many entries."""
        return self.first <= count <= self.last


@dataclass(frozen=True)
class ReadHandover:
    """A hand-over and the envelope that holds it."""

    path: Path
    handover: Handover
    envelope: Envelope

    def is_signed_by_both(self) -> bool:
        """Whether both keys that it names really signed it."""
        return len(self.envelope.signed_by([self.handover.old, self.handover.new])) == 2


def read_handover(path: Path) -> ReadHandover:
    """Read one. Raises `ValueError` with the reason when it is none."""
    try:
        envelope = read_envelope(read_plain(path, _MAX_BYTES))
        if envelope.payload_type != IN_TOTO:
            raise NotAStatement("is no in-toto statement")
        return ReadHandover(path, parse_handover(envelope.payload), envelope)
    except (NotAnEnvelope, NotAStatement) as error:
        raise ValueError(str(error)) from error
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from error


@dataclass(frozen=True)
class Chain:
    """The keys that count, and the hand-overs that do not: path → why."""

    keys: tuple[Trusted, ...]
    refused: dict[Path, str]

    def of(self, key: PublicKey) -> Trusted | None:
        """The entry of a key."""
        return next((each for each in self.keys if each.key == key), None)


def follow(pinned: Sequence[Signer], handovers: Sequence[ReadHandover]) -> Chain:
    """Follow hand-overs of this ledger from the pinned keys, in both directions."""
    trusted = {s.key.id: Trusted(s, s.key) for s in pinned if s.key is not None}
    refused: dict[Path, str] = {}
    open_ = []
    for each in handovers:
        if _rivals(each, handovers):
            refused[each.path] = "the old key handed over twice, at different places or keys"
        elif not each.is_signed_by_both():
            refused[each.path] = "it is not signed by both keys"
        else:
            open_.append(each)
    added = True
    while added:
        added = False
        for each in list(open_):
            said = each.handover
            forward, backward = trusted.get(said.old_key), trusted.get(said.new_key)
            known = forward or backward
            if known is None:
                continue
            open_.remove(each)
            added = True
            if forward is not None and not forward.signer.is_valid_at(parse_time(said.time)):
                refused[each.path] = "the old key's time was over"
                continue
            first = forward.first if forward is not None else 0
            trusted[said.old_key] = Trusted(known.signer, said.old, first, said.count)
            trusted.setdefault(said.new_key, Trusted(known.signer, said.new, said.count))
    for each in open_:
        refused[each.path] = "neither of its keys is one that counts here"
    return Chain(tuple(trusted.values()), refused)


def _rivals(one: ReadHandover, among: Sequence[ReadHandover]) -> bool:
    """Whether the same old key also handed over otherwise: then nobody knows which one is true."""
    return any(
        other is not one
        and other.handover.old_key == one.handover.old_key
        and other.handover != one.handover
        for other in among
    )
