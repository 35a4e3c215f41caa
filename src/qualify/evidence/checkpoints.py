"""Checkpoints: signed statements of how long a ledger was and where its chain ended.

They lie in `<results>/ledger/checkpoints/`, named by the number of entries they cover, each a
statement (`000000000042.json`) and its signatures beside it:

- `.dsse.json`: a DSSE envelope that holds the statement;
- `.json.sig`: an SSH signature of the statement's bytes (`ssh-keygen -Y verify` takes it);
- `.sigstore.json`: a Sigstore bundle.

A hand-over (`handover-000000000042-<new key>.dsse.json`) passes on the right to sign: both keys
sign it. The old key may sign no longer ledger than it covers, and the new key vouches for all that
the old one signed before. Every checkpoint names the one before it, so that none can be left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qualify.core.clock import Clock, format_time
from qualify.core.digests import digest_bytes
from qualify.core.errors import EnvironmentFault, UsageError
from qualify.evidence.ledger import Ledger
from qualify.evidence.records import Count, Digest, SiteId, Time
from qualify.evidence.signing.dsse import IN_TOTO, NotAnEnvelope, read_envelope, sign_envelope
from qualify.evidence.signing.keys import PublicKey, SigningKey, parse_public_key
from qualify.evidence.signing.sigstore import sign_bundle
from qualify.evidence.signing.sshsig import sign_ssh
from qualify.evidence.statements import NotAStatement, Predicate, make_statement, read_predicate
from qualify.storage.folders import read_plain, write_atomic
from qualify.storage.locks import file_lock

CHECKPOINT = "urn:qualify:checkpoint:1"
HANDOVER = "urn:qualify:key-handover:1"
FOLDER = "checkpoints"
MAX_BYTES = 32 << 20
_STATEMENT = re.compile(r"([0-9]{12})\.json")
_ANY = re.compile(r"([0-9]{12})(?:\.json|\.dsse\.json|\.json\.sig|\.sigstore\.json)")
_HANDOVER = re.compile(r"handover-([0-9]{12})-([0-9a-f]{12})\.dsse\.json")
_LOCK_WAIT_S = 30


class Previous(Predicate):
    """The checkpoint before."""

    count: Count
    statement: Digest
    """Of its statement's bytes."""


class Checkpoint(Predicate):
    """What a checkpoint says."""

    site: SiteId
    count: Count
    """Entries of the ledger that it covers: the first ones."""
    head: Digest
    """Of the last of them."""
    time: Time
    previous: Previous | None


class Handover(Predicate):
    """The right to sign goes from one key to another."""

    site: SiteId
    count: Count
    """Entries at that moment: the most that the old key may cover."""
    head: Digest
    time: Time
    old_key: Digest
    old_public_key: str
    """`ssh-ed25519 …`"""
    new_key: Digest
    new_public_key: str
    reason: Literal["rotation", "retirement", "compromise"]

    @property
    def old(self) -> PublicKey:
        """The old key. Raises `NotAStatement` when it is not the one that is named."""
        return _named_key(self.old_key, self.old_public_key)

    @property
    def new(self) -> PublicKey:
        """The new key. Raises as `old`."""
        return _named_key(self.new_key, self.new_public_key)


def _named_key(name: str, text: str) -> PublicKey:
    try:
        key = parse_public_key(text.encode("utf-8"), "")
    except UsageError as error:
        raise NotAStatement(f"names a key that {error.what}") from error
    if key.id != name:
        raise NotAStatement("names another key than it holds")
    return key


@dataclass(frozen=True)
class StoredCheckpoint:
    """A statement as it lies there, and the files of its signatures."""

    path: Path
    data: bytes
    checkpoint: Checkpoint

    @property
    def digest(self) -> str:
        """Of the statement's bytes."""
        return digest_bytes(self.data)

    @property
    def envelope(self) -> Path:
        """Where its DSSE envelope lies."""
        return self.path.with_suffix(".dsse.json")

    @property
    def ssh_signature(self) -> Path:
        """Where its SSH signature lies: the name that `ssh-keygen -Y sign` chooses."""
        return self.path.with_name(self.path.name + ".sig")

    @property
    def bundle(self) -> Path:
        """Where its Sigstore bundle lies."""
        return self.path.with_suffix(".sigstore.json")


def checkpoints_folder(ledger: Ledger) -> Path:
    """Where the checkpoints of a ledger lie."""
    return ledger.folder / FOLDER


def checkpoint_name(count: int) -> str:
    """The file name of the statement that covers `count` entries."""
    return f"{count:012}.json"


def parse_checkpoint(data: bytes) -> Checkpoint:
    """Read a statement. Raises `NotAStatement`."""
    subjects, found = read_predicate(data, CHECKPOINT, Checkpoint)
    if subjects != [(f"ledger/{found.site}", found.head)]:
        raise NotAStatement("is about something else than its ledger's head")
    if found.previous is not None and found.previous.count >= found.count:
        raise NotAStatement("names a checkpoint before it that covers as much")
    if found.count == 0:
        raise NotAStatement("covers nothing")
    return found


def parse_handover(data: bytes) -> Handover:
    """Read a hand-over's statement. Raises `NotAStatement`."""
    subjects, found = read_predicate(data, HANDOVER, Handover)
    if subjects != [(f"ledger/{found.site}", found.head)]:
        raise NotAStatement("is about something else than its ledger's head")
    if found.old == found.new:
        raise NotAStatement("hands over to the same key")
    return found


def statement_files(folder: Path) -> list[tuple[int, Path]]:
    """(entries covered, by the name; path) of the statements in a folder, in order."""
    return sorted((int(match[1]), path) for path, match in _named(folder, _STATEMENT))


def statement_counts(folder: Path) -> list[int]:
    """Counts that any file of a checkpoint names: a statement may be gone and its signature not."""
    return sorted({int(match[1]) for _, match in _named(folder, _ANY)})


def handover_files(folder: Path) -> list[Path]:
    """The hand-overs in a folder, in order."""
    return sorted(path for path, _ in _named(folder, _HANDOVER))


def newest_checkpoint(folder: Path) -> StoredCheckpoint | None:
    """The statement that covers most; its signatures are not looked at.

    Raises `UsageError` when it cannot be used.
    """
    files = statement_files(folder)
    return load_checkpoint(files[-1][1]) if files else None


def load_checkpoint(path: Path) -> StoredCheckpoint:
    """Read one statement. Raises `UsageError`."""
    try:
        data = read_plain(path, MAX_BYTES)
        return StoredCheckpoint(path, data, parse_checkpoint(data))
    except NotAStatement as error:
        raise UsageError(str(error), where=str(path), fix="is it a checkpoint?") from error
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror or error}", where=str(path)) from error


def next_statement(
    ledger: Ledger, clock: Clock | None = None, *, whole: bool = True
) -> tuple[bytes, Checkpoint]:
    """The statement that covers the ledger as it is now: every byte of the chain is verified, or
    when not `whole` what was added since this user verified it last.

    Raises as `Ledger.verify`, and `UsageError` when there is nothing to cover.
    """
    folder = checkpoints_folder(ledger)
    before = newest_checkpoint(folder)
    head = ledger.verify() if whole else ledger.head()
    site = ledger.site()
    if not head.count or site is None:
        raise UsageError(
            "holds nothing that could be signed", where=str(ledger.folder), fix="run trials first"
        )
    if before is not None and before.checkpoint.count == head.count:
        _require_of(ledger, before)
        return before.data, before.checkpoint
    if before is not None:
        _require_of(ledger, before)
    made = Checkpoint(
        site=site,
        count=head.count,
        head=f"sha256:{head.digest}",
        time=format_time((clock or Clock()).now()),
        previous=Previous(count=before.checkpoint.count, statement=before.digest)
        if before
        else None,
    )
    return make_statement([(f"ledger/{site}", made.head)], CHECKPOINT, made), made


def _require_of(ledger: Ledger, before: StoredCheckpoint) -> None:
    """Never sign a ledger that is not the continuation of the one that was signed before."""
    said = before.checkpoint
    digest = ledger.digest_at(said.count)
    if said.site != ledger.site() or digest is None or f"sha256:{digest}" != said.head:
        raise UsageError(
            f"does not continue what the checkpoint {before.path.name} covers",
            where=str(ledger.folder),
            fix="nothing was signed; `qualify evidence verify` tells what is wrong",
        )


def sign_checkpoint(
    ledger: Ledger, key: SigningKey, clock: Clock | None = None, *, whole: bool = True
) -> StoredCheckpoint:
    """Sign the ledger as it is now, in both forms. Signing twice what is signed changes nothing;
    another key's signature joins those in the envelope (a file of SSH's holds only the first).

    Raises as `next_statement`, and `EnvironmentFault` when it cannot be written: the signatures
    come before the statement, so that there is no statement without them.
    """
    with checkpoint_lock(ledger):
        data, made = next_statement(ledger, clock, whole=whole)
        path = checkpoints_folder(ledger) / checkpoint_name(made.count)
        stored = StoredCheckpoint(path, data, made)
        write(stored.envelope, _joined(stored, key))
        if not stored.ssh_signature.exists():
            write(stored.ssh_signature, sign_ssh(key, data))
        write(path, data)
    return stored


def _joined(stored: StoredCheckpoint, key: SigningKey) -> bytes:
    """The envelope with the key's signature beside those that are there already."""
    try:
        there = read_envelope(read_plain(stored.envelope, MAX_BYTES))
    except (OSError, NotAnEnvelope):
        there = None
    if there is None or (there.payload, there.payload_type) != (stored.data, IN_TOTO):
        return sign_envelope(stored.data, [key])
    return sign_envelope(stored.data, [key], before=there.signatures)


def sign_checkpoint_keyless(ledger: Ledger, clock: Clock | None = None) -> StoredCheckpoint:
    """As `sign_checkpoint`, by Sigstore with the identity of the place where it runs.

    Raises also as `signing.sigstore.sign_bundle`.
    """
    with checkpoint_lock(ledger):
        data, made = next_statement(ledger, clock)
        path = checkpoints_folder(ledger) / checkpoint_name(made.count)
        stored = StoredCheckpoint(path, data, made)
        write(stored.bundle, sign_bundle(data))
        write(path, data)
    return stored


def sign_handover(
    ledger: Ledger,
    old: SigningKey,
    new: SigningKey,
    reason: Literal["rotation", "retirement", "compromise"],
    clock: Clock | None = None,
) -> Path:
    """Hand over from one key to another, and sign a checkpoint with the new one. Raises as
    `sign_checkpoint`.
    """
    if old.public.id == new.public.id:
        raise UsageError("hands over to itself", where=new.origin, fix="make a new key")
    with checkpoint_lock(ledger):
        _, here = next_statement(ledger, clock)
        made = Handover(
            site=here.site,
            count=here.count,
            head=here.head,
            time=format_time((clock or Clock()).now()),
            old_key=old.public.id,
            old_public_key=old.public.ssh,
            new_key=new.public.id,
            new_public_key=new.public.ssh,
            reason=reason,
        )
        statement = make_statement([(f"ledger/{here.site}", here.head)], HANDOVER, made)
        name = f"handover-{here.count:012}-{new.public.id[7:19]}.dsse.json"
        path = checkpoints_folder(ledger) / name
        write(path, sign_envelope(statement, [old, new]))
    return path


@contextmanager
def checkpoint_lock(ledger: Ledger) -> Iterator[None]:
    """One signer at a time. Raises `EnvironmentFault` and `LockHeld`."""
    folder = checkpoints_folder(ledger)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file_lock(folder / ".lock", timeout_s=_LOCK_WAIT_S):
            yield
    except OSError as error:
        raise _unwritable(folder, error) from error


def write(path: Path, data: bytes) -> None:
    """Write one file whole and durably. Raises `EnvironmentFault`; nothing half-written stays."""
    try:
        write_atomic(path, data)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> EnvironmentFault:
    return EnvironmentFault(
        f"cannot be written: {error.strerror or error}",
        where=str(path),
        fix="check the free space and the folder's permissions; the ledger itself is untouched",
    )


def _named(folder: Path, pattern: re.Pattern[str]) -> list[tuple[Path, re.Match[str]]]:
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise EnvironmentFault(
            f"cannot be read: {error.strerror or error}", where=str(folder)
        ) from error
    return [(folder / name, match) for name in names if (match := pattern.fullmatch(name))]
