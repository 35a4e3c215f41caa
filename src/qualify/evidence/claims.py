"""Claim levels: how far one may go in speaking of a row, each with what it needs.

`implemented` < `ci-validated` < `live-synthetic-validated` < `institution-approved`. Each level is
reached by its own evidence and never by another one's; the highest that may be claimed is the last
of those that are reached without a gap from below. Nothing is promoted by reaching one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from qualify.core.clock import parse_time
from qualify.core.errors import UsageError
from qualify.evidence.records import Digest, Id, Time
from qualify.evidence.signing.dsse import IN_TOTO, NotAnEnvelope, read_envelope, sign_envelope
from qualify.evidence.signing.keys import SigningKey
from qualify.evidence.signing.registry import Purpose, Registry
from qualify.evidence.statements import NotAStatement, Predicate, make_statement, read_predicate
from qualify.storage.folders import read_plain

CLAIM = "urn:qualify:claim:1"
FOLDER = "claims"
_MAX_BYTES = 1 << 20


class ClaimLevel(StrEnum):
    """What may be said of a row."""

    IMPLEMENTED = "implemented"
    CI_VALIDATED = "ci-validated"
    LIVE_SYNTHETIC_VALIDATED = "live-synthetic-validated"
    INSTITUTION_APPROVED = "institution-approved"


NEEDS = {
    ClaimLevel.IMPLEMENTED: "the row is declared, and its suite's checks have contract tests",
    ClaimLevel.CI_VALIDATED: "a claim signed by a signer for `ci`: it ran in the documented "
    "automated environment",
    ClaimLevel.LIVE_SYNTHETIC_VALIDATED: "qualified by real-model trials that all ran inside one "
    "published image, known by digest, on the row's platform with synthetic data",
    ClaimLevel.INSTITUTION_APPROVED: "a claim signed by a signer for `institution`",
}
SIGNED: dict[ClaimLevel, Purpose] = {
    ClaimLevel.CI_VALIDATED: "ci",
    ClaimLevel.INSTITUTION_APPROVED: "institution",
}
"""The levels that need a separate signed statement, and the purpose its signer must have."""


class Claim(Predicate):
    """What a signer says of a configuration and a suite."""

    level: ClaimLevel
    row: Id
    configuration: Digest
    suite: Id
    suite_digest: Digest
    time: Time
    valid_until: Time | None


@dataclass(frozen=True)
class Level:
    """One level and whether it is reached."""

    level: ClaimLevel
    reached: bool
    by: str
    """Who signed, or what is lacking."""


def sign_claim(said: Claim, key: SigningKey) -> bytes:
    """The envelope of a claim. Raises `UsageError` for a level that nobody signs."""
    if said.level not in SIGNED:
        raise UsageError(
            f"{said.level.value} is reached by evidence, not by a signature",
            fix=f"claims are for {' and '.join(level.value for level in SIGNED)}",
        )
    subjects = [(f"configuration/{said.row}", said.configuration)]
    return sign_envelope(make_statement(subjects, CLAIM, said), [key])


def claim_name(said: Claim, key: SigningKey) -> str:
    """The file's name below `claims/`."""
    parts = (said.configuration, said.suite_digest, key.public.id)
    return "-".join([said.level.value, *(part[7:19] for part in parts)]) + ".dsse.json"


def signed_claims(
    results: Path, registry: Registry | None, now: datetime
) -> tuple[list[tuple[Claim, str]], list[str]]:
    """((claim, signer's name) of those that count, why others do not)."""
    found: list[tuple[Claim, str]] = []
    refused: list[str] = []
    folder = results / FOLDER
    for path in sorted(folder.glob("*.dsse.json")) if folder.is_dir() else []:
        try:
            said, name = _signed(path, registry, now)
            found.append((said, name))
        except (NotAnEnvelope, NotAStatement) as error:
            refused.append(f"{path.name}: {error}")
        except OSError as error:
            refused.append(f"{path.name}: cannot be read: {error.strerror or error}")
    return found, refused


def _signed(path: Path, registry: Registry | None, now: datetime) -> tuple[Claim, str]:
    envelope = read_envelope(read_plain(path, _MAX_BYTES))
    if envelope.payload_type != IN_TOTO:
        raise NotAStatement("is no in-toto statement")
    subjects, said = read_predicate(envelope.payload, CLAIM, Claim)
    if subjects != [(f"configuration/{said.row}", said.configuration)]:
        raise NotAStatement("is about something else than it says")
    purpose = SIGNED.get(said.level)
    if purpose is None:
        raise NotAStatement(f"claims {said.level.value}, which no signature gives")
    if said.valid_until is not None and parse_time(said.valid_until) < now:
        raise NotAStatement(f"expired at {said.valid_until}")
    for signer in registry.for_purpose(purpose, None) if registry else []:
        if signer.key is not None and envelope.signed_by([signer.key]):
            if not signer.is_valid_at(parse_time(said.time)):
                raise NotAStatement(f"{signer.name} could not sign at {said.time}")
            return said, signer.name
    raise NotAStatement(f"is signed by nobody that may sign for {purpose}")


def levels(
    *,
    configuration: str,
    suite_digest: str,
    qualified: bool,
    image: str | None,
    claims: Iterable[tuple[Claim, str]],
) -> list[Level]:
    """Every level of a declared row, from what there is. `image` is the one image of the trials."""
    made = [Level(ClaimLevel.IMPLEMENTED, True, "declared")]
    signed = {
        said.level: name
        for said, name in claims
        if (said.configuration, said.suite_digest) == (configuration, suite_digest)
    }
    for level in (ClaimLevel.CI_VALIDATED, ClaimLevel.LIVE_SYNTHETIC_VALIDATED,
                  ClaimLevel.INSTITUTION_APPROVED):  # fmt: skip
        if level in SIGNED:
            made.append(Level(level, level in signed, signed.get(level, "nobody signed it")))
        elif not qualified:
            made.append(Level(level, False, "not qualified"))
        elif image is None:
            made.append(Level(level, False, "its trials did not all run inside one image"))
        else:
            made.append(Level(level, True, image))
    return made


def highest(found: Iterable[Level]) -> ClaimLevel | None:
    """The last level that is reached without a gap from below."""
    last = None
    for each in found:
        if not each.reached:
            break
        last = each.level
    return last
