"""Is this ledger what the pinned signers signed, and how much of it? Needs no project.

What is checked, in this order: every byte of the chain and every record; each checkpoint (form,
site, time, signatures, the head it names, the checkpoint before it); hand-overs; how many entries
are covered; and, when the caller remembers a checkpoint, that the ledger continues it. Everything
that is wrong is listed; nothing is repaired.

What no check can tell: whether entries were dropped after the last checkpoint that the caller
knows, and whether the holder of a key told the truth.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from qualify.core.digests import is_digest
from qualify.core.errors import UsageError
from qualify.evidence.checkpoint_check import (
    MAX_SIGNATURE,
    HeadAt,
    Heads,
    check_checkpoint,
    head_digest,
    read_optional,
)
from qualify.evidence.checkpoints import (
    StoredCheckpoint,
    checkpoints_folder,
    handover_files,
    parse_checkpoint,
    statement_counts,
)
from qualify.evidence.findings import Fault, Reference, Verification
from qualify.evidence.ledger import ChainBroken, InvalidRecord, Ledger
from qualify.evidence.signing.dsse import NotAnEnvelope, read_envelope
from qualify.evidence.signing.registry import Registry
from qualify.evidence.statements import NotAStatement
from qualify.evidence.trust import ReadHandover, follow, read_handover
from qualify.storage.folders import read_plain


def parse_reference(text: str) -> Reference:
    """`COUNT:DIGEST`, or the path of a checkpoint's statement or envelope. Raises `UsageError`."""
    count, _, head = text.partition(":")
    if count.isascii() and count.isdigit() and is_digest(head):
        return Reference(int(count), head)
    path = Path(text)
    try:
        data = read_plain(path, MAX_SIGNATURE)
        if path.name.endswith(".dsse.json"):
            data = read_envelope(data).payload
        said = parse_checkpoint(data)
    except OSError as error:
        raise UsageError(
            f"is neither COUNT:sha256:… nor a file that can be read ({error.strerror})",
            where=f"--at-least {text}",
            fix="give a checkpoint as `qualify evidence sign` prints it, or its file",
        ) from error
    except (NotAStatement, NotAnEnvelope) as error:
        raise UsageError(str(error), where=text, fix="give the file of a checkpoint") from error
    return Reference(said.count, said.head, said.site)


def verify_ledger(
    ledger: Ledger,
    registry: Registry | None,
    now: datetime,
    *,
    at_least: Reference | None = None,
    allow_uncovered: bool = False,
) -> Verification:
    """Verify everything that can be verified of one ledger.

    With `allow_uncovered` entries after the newest checkpoint are no finding. Raises `NewerLedger`
    and `EnvironmentFault` (files that cannot be read).
    """
    found = Verification(ledger.folder)
    pinned = list(registry.signers) if registry else []
    stored = _read_checkpoints(found, checkpoints_folder(ledger))
    handovers = _read_handovers(found, checkpoints_folder(ledger))
    wanted = {each.checkpoint.count for each in stored}
    wanted |= {each.handover.count for each in handovers}
    if at_least is not None:
        wanted.add(at_least.count)
    heads = _read_chain(found, ledger, wanted)
    if found.site is None:
        return found
    fitting = [each for each in handovers if _fits(found, each, heads)]
    for_it = [signer for signer in pinned if signer.may_sign("checkpoints", found.site)]
    chain = follow(for_it, fitting)
    for path, why in chain.refused.items():
        found.add(Fault.HANDOVER, path, why)
    previous: StoredCheckpoint | None = None
    for each in stored:
        check_checkpoint(found, each, previous, heads, chain, for_it, now)
        previous = each
    _check_cover(found, bool(pinned), allow_uncovered)
    if at_least is not None:
        _check_reference(found, at_least, heads)
    return found


def _read_chain(found: Verification, ledger: Ledger, wanted: set[int]) -> Heads:
    """The chain at each wanted count of entries."""
    heads = {}
    try:
        for stored in ledger.entries():
            found.count = stored.seq + 1
            found.head = stored.digest
            if found.count in wanted:
                heads[found.count] = HeadAt(stored.digest, stored.entry.time)
        found.site = ledger.site()
    except ChainBroken as error:
        found.add(Fault.CHAIN, error.where, error.what)
    except InvalidRecord as error:
        found.add(Fault.RECORD, error.where, error.what)
    else:
        if not found.count:
            found.add(Fault.EMPTY, ledger.folder, "holds no entries")
    return heads


def _read_checkpoints(found: Verification, folder: Path) -> list[StoredCheckpoint]:
    """Every checkpoint in order. One whose statement is gone is read from its envelope."""
    made = []
    for count in statement_counts(folder):
        path = folder / f"{count:012}.json"
        try:
            data = read_optional(path)
            if data is None:
                envelope = read_optional(path.with_suffix(".dsse.json"))
                if envelope is None:
                    found.add(Fault.MALFORMED, path, "is gone; signatures of it are there")
                    continue
                data = read_envelope(envelope).payload
            said = parse_checkpoint(data)
        except (NotAStatement, NotAnEnvelope) as error:
            found.add(Fault.MALFORMED, path, str(error))
            continue
        if said.count != count:
            found.add(Fault.MALFORMED, path, f"covers {said.count} entries, its name says {count}")
            continue
        made.append(StoredCheckpoint(path, data, said))
    return made


def _read_handovers(found: Verification, folder: Path) -> list[ReadHandover]:
    made = []
    for path in handover_files(folder):
        try:
            made.append(read_handover(path))
        except ValueError as error:
            found.add(Fault.HANDOVER, path, str(error))
    return made


def _fits(found: Verification, each: ReadHandover, heads: Heads) -> bool:
    said = each.handover
    if said.site != found.site:
        found.add(Fault.HANDOVER, each.path, "is about another ledger")
    elif head_digest(heads, said.count) != said.head:
        found.add(Fault.HANDOVER, each.path, f"this ledger has no such head at {said.count}")
    else:
        return True
    return False


def _check_cover(found: Verification, has_signers: bool, allow_uncovered: bool) -> None:
    if found.covered == found.count or (allow_uncovered and found.covered):
        return
    if not has_signers:
        detail = "no signer is known, so nothing is covered"
    elif not found.covered:
        detail = "no checkpoint covers anything"
    else:
        detail = f"only the first {found.covered} of {found.count} entries are signed"
    found.add(Fault.UNCOVERED, found.folder, detail)


def _check_reference(found: Verification, reference: Reference, heads: Heads) -> None:
    where = "--at-least"
    if reference.site is not None and reference.site != found.site:
        found.add(Fault.FOREIGN, where, "that checkpoint is about another ledger")
    elif reference.count > found.count:
        found.add(
            Fault.ROLLED_BACK,
            where,
            f"that checkpoint covers {reference.count} entries, there are {found.count}",
        )
    elif head_digest(heads, reference.count) != reference.head:
        found.add(
            Fault.FORKED, where, f"the first {reference.count} entries are not those that it covers"
        )
    elif found.covered < reference.count:
        found.add(
            Fault.ROLLED_BACK,
            where,
            f"that checkpoint covers {reference.count} entries, the newest here {found.covered}",
        )
    else:
        found.at_least = reference.count


def ledgers_below(folder: Path) -> list[Ledger]:
    """The ledgers of a results folder, an export or a ledger folder: the local one first, then
    those that were merged. Raises `UsageError` when there is none.
    """
    if not folder.is_dir():
        raise UsageError("is no folder", where=str(folder), fix="give the folder of the evidence")
    if (folder / "ledger.log").exists():
        return [Ledger(folder)]
    found = [folder / "ledger"] if (folder / "ledger").is_dir() else []
    sites = folder / "sites"
    if sites.is_dir():
        found += sorted(each / "ledger" for each in sites.iterdir() if (each / "ledger").is_dir())
    if not found:
        raise UsageError(
            "holds no ledger",
            where=str(folder),
            fix="give a results folder, an export, or the folder that holds ledger.log",
        )
    return [Ledger(each) for each in found]
