"""One checkpoint against the ledger that it is about, and against those who may sign it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from qualify.core.clock import parse_time
from qualify.core.errors import UsageError
from qualify.evidence.checkpoints import StoredCheckpoint
from qualify.evidence.findings import Fault, Verification
from qualify.evidence.signing.dsse import IN_TOTO, NotAnEnvelope, read_envelope
from qualify.evidence.signing.keys import PublicKey
from qualify.evidence.signing.registry import Signer
from qualify.evidence.signing.sigstore import NotABundle, verify_bundle
from qualify.evidence.signing.sshsig import NotASignature, verify_ssh
from qualify.evidence.trust import Chain
from qualify.storage.folders import read_plain

SKEW = timedelta(minutes=5)
"""How far another machine's clock may be ahead (as for entries)."""
MAX_SIGNATURE = 32 << 20


@dataclass(frozen=True)
class HeadAt:
    """The chain after some number of entries."""

    digest: str
    time: str
    """Of the last of them."""


type Heads = Mapping[int, HeadAt]
"""Count of entries → the chain there."""


def head_digest(heads: Heads, count: int) -> str | None:
    """The digest after `count` entries; `None` when the ledger is shorter."""
    head = heads.get(count)
    return head.digest if head is not None else None


def check_checkpoint(
    found: Verification,
    each: StoredCheckpoint,
    previous: StoredCheckpoint | None,
    heads: Heads,
    chain: Chain,
    pinned: list[Signer],
    now: datetime,
) -> None:
    """One checkpoint: what it says, then who signed it. Only a faultless one covers anything."""
    before = len(found.findings)
    said = each.checkpoint
    if said.site != found.site:
        found.add(Fault.FOREIGN, each.path, f"is about the ledger {said.site[:12]}, not this one")
        return
    time = parse_time(said.time)
    if time > now + SKEW:
        found.add(Fault.FUTURE, each.path, f"was signed at {said.time}, which is still to come")
    _check_head(found, each, heads)
    _check_previous(found, each, previous)
    last = heads.get(said.count)
    if last is not None and time + SKEW < parse_time(last.time):
        found.add(
            Fault.FUTURE,
            each.path,
            f"covers an entry of {last.time}, but was signed at {said.time}",
        )
    names = _signers(found, each, chain, pinned, time)
    if names and len(found.findings) == before:
        found.checkpoints += 1
        found.covered, found.signers, found.signed_at = said.count, names, said.time


def _check_head(found: Verification, each: StoredCheckpoint, heads: Heads) -> None:
    said = each.checkpoint
    if said.count > found.count:
        found.add(
            Fault.TRUNCATED, each.path, f"covers {said.count} entries, there are {found.count}"
        )
    elif head_digest(heads, said.count) != said.head:
        found.add(
            Fault.REWRITTEN,
            each.path,
            f"names another head for the first {said.count} entries than they have",
        )


def _check_previous(
    found: Verification, each: StoredCheckpoint, previous: StoredCheckpoint | None
) -> None:
    said = each.checkpoint.previous
    if said is None and previous is not None:
        found.add(
            Fault.FORKED,
            each.path,
            f"says that it is the first one, and {previous.path.name} is there",
        )
    elif said is not None and (previous is None or said.count != previous.checkpoint.count):
        found.add(Fault.MISSING, each.path, f"the one before it (of {said.count} entries) is gone")
    elif said is not None and previous is not None and said.statement != previous.digest:
        found.add(Fault.FORKED, each.path, f"follows another {previous.path.name} than this one")


def _signers(
    found: Verification,
    each: StoredCheckpoint,
    chain: Chain,
    pinned: list[Signer],
    time: datetime,
) -> list[str]:
    """Names of those who signed it and may; notes what is wrong with signatures."""
    before = len(found.findings)
    keys, any_ = _signing_keys(found, each, chain)
    names = []
    for key in keys:
        trusted = chain.of(key)
        if trusted is None:
            continue
        if not trusted.covers(each.checkpoint.count):
            what = f"{trusted.signer.name}: the key was handed over at {trusted.last} entries"
            if each.checkpoint.count < trusted.first:
                what = f"{trusted.signer.name}: the key counts from {trusted.first} entries on"
            found.add(Fault.RETIRED, each.path, what)
        elif not trusted.signer.is_valid_at(time):
            found.add(
                Fault.EXPIRED,
                each.path,
                f"{trusted.signer.name} could not sign at {each.checkpoint.time}",
            )
        else:
            names.append(trusted.signer.name)
    bundle = read_optional(each.bundle)
    if bundle is not None:
        any_ = True
        names += _bundle_signers(found, each, bundle, pinned, time)
    if not any_:
        found.add(Fault.UNSIGNED, each.path, "is not signed")
    elif not names and len(found.findings) == before:
        found.add(
            Fault.UNKNOWN_SIGNER,
            each.path,
            "is signed by nobody that counts here"
            + (f" (key {', '.join(key.id[7:19] for key in keys)})" if keys else ""),
        )
    return list(dict.fromkeys(names))


def _signing_keys(
    found: Verification, each: StoredCheckpoint, chain: Chain
) -> tuple[list[PublicKey], bool]:
    """The keys with which it is signed, as far as they can be told, and whether it is at all."""
    keys: list[PublicKey] = []
    any_ = False
    data = read_optional(each.envelope)
    if data is not None:
        any_ = True
        try:
            envelope = read_envelope(data)
            if envelope.payload != each.data or envelope.payload_type != IN_TOTO:
                found.add(Fault.BAD_SIGNATURE, each.envelope, "signs something else")
            else:
                keys += envelope.signed_by([trusted.key for trusted in chain.keys])
                claimed = {name for name, _ in envelope.signatures}
                for trusted in chain.keys:
                    if trusted.key.id in claimed and trusted.key not in keys:
                        name = trusted.signer.name
                        found.add(
                            Fault.BAD_SIGNATURE,
                            each.envelope,
                            f"is not a signature of {name}'s key",
                        )
        except NotAnEnvelope as error:
            found.add(Fault.BAD_SIGNATURE, each.envelope, str(error))
    data = read_optional(each.ssh_signature)
    if data is not None:
        any_ = True
        try:
            key = verify_ssh(data, each.data)
            if key not in keys:
                keys.append(key)
        except NotASignature as error:
            found.add(Fault.BAD_SIGNATURE, each.ssh_signature, str(error))
    return keys, any_


def _bundle_signers(
    found: Verification, each: StoredCheckpoint, bundle: bytes, pinned: list[Signer], time: datetime
) -> list[str]:
    names, why = [], ""
    for signer in pinned:
        if signer.identity is None:
            continue
        try:
            verify_bundle(bundle, each.data, signer.identity)
        except NotABundle as error:
            why = str(error)
            continue
        if signer.is_valid_at(time):
            names.append(signer.name)
        else:
            found.add(Fault.EXPIRED, each.bundle, f"{signer.name} could not sign at that time")
    if why and not names:
        found.add(Fault.BAD_SIGNATURE, each.bundle, why)
    return names


def read_optional(path: Path) -> bytes | None:
    """A file's bytes, at most `MAX_SIGNATURE`; `None` when it is not there. Raises `UsageError`."""
    try:
        return read_plain(path, MAX_SIGNATURE)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
