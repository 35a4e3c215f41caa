"""Evidence in one folder that an outsider can check with a public key and nothing of ours.

    ledger/            the local ledger with its checkpoints, as it lies in the results
    sites/<id>/ledger/ ledgers of other sites that were merged here
    claims/            signed claims
    attestations/      statements about rows (in-toto), each also signed when there was a key
    README.md          how to check all of it
    export.json        a statement whose subjects are all of these files, and export.dsse.json

A file that is missing, changed or too many is named; what the export claims of the ledger is held
against what its checkpoints really cover; a trial's statement is made again from the ledger.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import orjson

from qualify.core.clock import format_time
from qualify.core.digests import digest_bytes, digest_file
from qualify.core.errors import EnvironmentFault
from qualify.core.errors import Refusal as Refused
from qualify.evidence.attestations import TEST_RESULT, trial_statement
from qualify.evidence.claims import FOLDER as CLAIMS
from qualify.evidence.findings import Fault, Verification
from qualify.evidence.ledger import ChainBroken, Ledger
from qualify.evidence.records import Count, Digest, Reservation, SiteId, Time, Trial
from qualify.evidence.signing.dsse import IN_TOTO, NotAnEnvelope, read_envelope, sign_envelope
from qualify.evidence.signing.keys import SigningKey
from qualify.evidence.signing.registry import Registry
from qualify.evidence.statements import (
    NotAStatement,
    Predicate,
    make_statement,
    read_document,
    read_predicate,
)
from qualify.storage.folders import read_plain
from qualify.storage.segments import ChainReader
from qualify.storage.staging import staged_folder

EXPORT = "urn:qualify:evidence-export:1"
STATEMENT = "export.json"
ENVELOPE = "export.dsse.json"
ATTESTATIONS = "attestations"
_MAX_STATEMENT = 8 << 20

type Progress = Callable[[int], None]
"""Called with the number of bytes of each chunk."""


class Export(Predicate):
    """What an export says of its ledger."""

    site: SiteId
    entries: Count
    head: Digest
    covered: Count
    """The first so many entries are signed, as its maker verified."""
    time: Time


@dataclass(frozen=True)
class MadeExport:
    """A finished export."""

    folder: Path
    files: int
    size: int
    digest: str
    """Of `export.json`: whoever is told it can check everything else without a key."""


def make_export(
    results: Path,
    target: Path,
    verified: Verification,
    statements: Mapping[str, bytes],
    key: SigningKey | None,
    now: datetime,
    progress: Progress | None = None,
) -> MadeExport:
    """Write the folder `target`, whole or not at all.

    `verified` is what was found out about the local ledger just now; `statements` are those about
    rows, by path below `attestations/`. Raises `Refusal` when a ledger changes into something else
    meanwhile, `UsageError` when the target is there, `EnvironmentFault` when it cannot be written.
    """
    assert verified.site is not None
    assert verified.head is not None
    try:
        with staged_folder(target) as folder:
            _copy_ledgers(results, folder, progress)
            _write_statements(folder / ATTESTATIONS, statements, key)
            if (results / CLAIMS).is_dir():
                shutil.copytree(results / CLAIMS, folder / CLAIMS)
            (folder / "README.md").write_text(_README, "utf-8")
            _require_copied(folder, verified)
            files = {name: digest_file(folder / name) for name in _files(folder)}
            said = Export(
                site=verified.site,
                entries=verified.count,
                head=verified.head,
                covered=verified.covered,
                time=format_time(now),
            )
            data = make_statement(sorted(files.items()), EXPORT, said)
            (folder / STATEMENT).write_bytes(data)
            if key is not None:
                (folder / ENVELOPE).write_bytes(sign_envelope(data, [key]))
            size = sum((folder / name).stat().st_size for name in files)
    except OSError as error:
        raise EnvironmentFault(
            f"the export cannot be written: {error.strerror or error}",
            where=str(target),
            fix="free some space or choose another place; nothing was left behind",
        ) from error
    return MadeExport(target, len(files), size, digest_bytes(data))


def _copy_ledgers(results: Path, folder: Path, progress: Progress | None) -> None:
    _copy_ledger(results / "ledger", folder / "ledger", progress)
    sites = results / "sites"
    for site in sorted(sites.iterdir()) if sites.is_dir() else []:
        if (site / "ledger").is_dir():
            _copy_ledger(site / "ledger", folder / "sites" / site.name / "ledger", progress)


def _copy_ledger(source: Path, target: Path, progress: Progress | None) -> None:
    """Segments, whole lines of the active file, label and checkpoints; no locks, no torn tails."""
    target.mkdir(parents=True)
    # The active file first: what is sealed meanwhile is copied under its new name below.
    with (source / "ledger.log").open("rb") as stream:
        data = stream.read()
    (target / "ledger.log").write_bytes(data[: data.rfind(b"\n") + 1])
    _tell(progress, len(data))
    for path in sorted(source.glob("segment-*.log")):
        shutil.copyfile(path, target / path.name)
        _tell(progress, path.stat().st_size)
    if (source / "site.json").is_file():
        shutil.copyfile(source / "site.json", target / "site.json")
    checkpoints = source / "checkpoints"
    if checkpoints.is_dir():
        (target / "checkpoints").mkdir()
        for path in sorted(checkpoints.glob("*[0-9a-z].json")) + sorted(checkpoints.glob("*.sig")):
            shutil.copyfile(path, target / "checkpoints" / path.name)


def _tell(progress: Progress | None, size: int) -> None:
    if progress is not None:
        progress(size)


def _require_copied(folder: Path, verified: Verification) -> None:
    """The copy is a chain that has the verified head; runs may have gone on meanwhile."""
    digest = None
    try:
        for line in ChainReader(folder / "ledger" / "ledger.log"):
            if line.seq == verified.count - 1:
                digest = f"sha256:{line.digest}"
    except ChainBroken as error:
        raise Refused(
            "the ledger was sealed into a new segment while it was copied",
            where=str(error.where),
            fix="export again",
        ) from error
    if digest != verified.head:
        raise Refused(
            "the ledger is another one than was verified a moment ago",
            where=str(folder),
            fix="`qualify evidence verify` tells what is wrong",
        )


def _write_statements(
    folder: Path, statements: Mapping[str, bytes], key: SigningKey | None
) -> None:
    for name, data in statements.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if key is not None:
            path.with_suffix(".dsse.json").write_bytes(sign_envelope(data, [key]))


def _files(folder: Path) -> Iterator[str]:
    """Every file but the export's own statement, by path; a link or a device is one as well."""
    for parent, folders, names in os.walk(folder):
        within = Path(parent).relative_to(folder)
        linked = [name for name in folders if (Path(parent) / name).is_symlink()]
        for name in (*names, *linked):
            path = (within / name).as_posix()
            if path not in (STATEMENT, ENVELOPE):
                yield path


def is_export(folder: Path) -> bool:
    """Whether a folder says that it is an export."""
    return os.path.lexists(folder / STATEMENT) or os.path.lexists(folder / ENVELOPE)


def check_export(folder: Path, found: Verification, registry: Registry | None) -> None:
    """Check an export against its statement, and add to `found` what is wrong.

    `found` is the verification of its ledger.
    """
    try:
        data = read_plain(folder / STATEMENT, _MAX_STATEMENT)
        subjects, said = read_predicate(data, EXPORT, Export)
    except (OSError, NotAStatement) as error:
        found.add(Fault.EXPORT, folder / STATEMENT, _sentence(error))
        return
    _check_files(folder, dict(subjects), found)
    if said.site != found.site or said.entries > found.count:
        found.add(Fault.EXPORT, folder / STATEMENT, "is about another ledger than the one here")
    if said.covered > found.covered:
        found.add(
            Fault.OVERCLAIMED,
            folder / STATEMENT,
            f"claims that {said.covered} entries are signed; {found.covered} are",
        )
    _check_envelope(folder / ENVELOPE, data, found, registry)
    _check_attestations(folder, found, registry)


def _check_files(folder: Path, named: Mapping[str, str], found: Verification) -> None:
    there = set(_files(folder))
    for name in sorted(named.keys() | there):
        path = folder / name
        if name not in there:
            found.add(Fault.EXPORT, path, "is missing")
        elif name not in named:
            found.add(Fault.EXPORT, path, "is not part of the export")
        elif path.is_symlink() or not path.is_file():
            found.add(Fault.EXPORT, path, "is no plain file")
        elif digest_file(path) != named[name]:
            found.add(Fault.EXPORT, path, "has other bytes than were exported")


def _check_envelope(
    path: Path, data: bytes, found: Verification, registry: Registry | None
) -> None:
    """A signed statement; one that is not signed at all is the ledger's matter alone."""
    try:
        envelope = read_envelope(read_plain(path, _MAX_STATEMENT * 2))
    except FileNotFoundError:
        return
    except (OSError, NotAnEnvelope) as error:
        found.add(Fault.BAD_SIGNATURE, path, _sentence(error))
        return
    if (envelope.payload, envelope.payload_type) != (data, IN_TOTO):
        found.add(Fault.BAD_SIGNATURE, path, "signs something else")
        return
    signers = registry.for_purpose("assessments", found.site) if registry else []
    if not envelope.signed_by([each.key for each in signers if each.key is not None]):
        found.add(Fault.UNKNOWN_SIGNER, path, "is signed by nobody that may sign assessments here")


def _check_attestations(folder: Path, found: Verification, registry: Registry | None) -> None:
    statements = {}
    for path in sorted((folder / ATTESTATIONS).rglob("*.json")):
        if path.name.endswith(".dsse.json"):
            continue
        try:
            data = read_plain(path, _MAX_STATEMENT)
            document = read_document(data)
        except (OSError, NotAStatement) as error:
            found.add(Fault.ATTESTATION, path, _sentence(error))
            continue
        _check_envelope(path.with_suffix(".dsse.json"), data, found, registry)
        if document["predicateType"] == TEST_RESULT:
            statements[path] = data
    # What a damaged ledger holds cannot be compared with anything.
    if statements and found.site is not None:
        _check_trials(folder, statements, found)


def _check_trials(folder: Path, statements: Mapping[Path, bytes], found: Verification) -> None:
    """Make each trial's statement again from the ledger: nothing else may be said of it."""
    wanted: dict[str, list[Path]] = {}
    for path, data in statements.items():
        try:
            trial = orjson.loads(data)["predicate"]["configuration"][0]["digest"]["sha256"]
        except (KeyError, TypeError, IndexError):
            found.add(Fault.ATTESTATION, path, "names no trial")
            continue
        wanted.setdefault(f"sha256:{trial}", []).append(path)
    reserved: dict[str, Reservation] = {}
    ended: dict[str, Trial] = {}
    for stored in Ledger(folder / "ledger").entries():
        entry = stored.entry
        if stored.digest in wanted and isinstance(entry, Reservation):
            reserved[stored.digest] = entry
        elif isinstance(entry, Trial) and entry.trial in wanted:
            ended[entry.trial] = entry
    for trial, paths in wanted.items():
        for path in paths:
            if trial not in reserved:
                found.add(Fault.ATTESTATION, path, "is about a trial that the ledger does not hold")
            elif trial_statement(trial, reserved[trial], ended.get(trial)) != statements[path]:
                found.add(Fault.ATTESTATION, path, "says something else than the ledger")


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return str(error)


_README = """# Evidence

What lies here can be checked with the public key of whoever signed it. Get that key from them by
another way than this folder.

With Qualify: `qualify evidence verify FOLDER --signer KEY.pub`

With standard tools, the newest checkpoint (the highest number N in `ledger/checkpoints/`):

    echo 'signer namespaces="qualify" ssh-ed25519 AAAA…' > allowed
    ssh-keygen -Y verify -f allowed -I signer -n qualify \\
        -s ledger/checkpoints/N.json.sig < ledger/checkpoints/N.json

It names how many entries the ledger had (`count`) and the digest of the last of them (`head`). Each
line of the ledger, `segment-*.log` in order and then `ledger.log`, is

    SEQUENCE PREVIOUS-DIGEST DIGEST JSON

where DIGEST is the SHA-256 of `SEQUENCE PREVIOUS-DIGEST JSON` (one space between them, no line
feed), and PREVIOUS-DIGEST that of the line before (64 zeros at the beginning).

`attestations/` holds in-toto statements; those ending in `.dsse.json` are DSSE envelopes of them.
`export.json` names every file by its SHA-256.

Nothing here shows that no entry was dropped after the newest checkpoint: for that, compare with a
checkpoint that was kept elsewhere (`--at-least`).
"""
