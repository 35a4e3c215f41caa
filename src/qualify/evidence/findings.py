"""What a verification of evidence reports: findings, and how much is covered by whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class Fault(StrEnum):
    """What can be wrong; the value is what machines read."""

    CHAIN = "broken-chain"
    RECORD = "invalid-record"
    EMPTY = "empty"
    MALFORMED = "malformed-checkpoint"
    FOREIGN = "foreign-checkpoint"
    FUTURE = "from-the-future"
    UNSIGNED = "unsigned-checkpoint"
    UNKNOWN_SIGNER = "unknown-signer"
    BAD_SIGNATURE = "bad-signature"
    EXPIRED = "signer-not-valid"
    RETIRED = "retired-key"
    TRUNCATED = "truncated"
    REWRITTEN = "rewritten"
    MISSING = "missing-checkpoint"
    HANDOVER = "refused-handover"
    UNCOVERED = "uncovered"
    OVERCLAIMED = "covers-less-than-claimed"
    EXPORT = "changed-export"
    ATTESTATION = "wrong-attestation"
    ROLLED_BACK = "rolled-back"
    FORKED = "forked"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong."""

    fault: Fault
    where: str
    detail: str


@dataclass(frozen=True)
class Reference:
    """A checkpoint that the caller remembers."""

    count: int
    head: str
    site: str | None = None


@dataclass
class Verification:
    """What was found out about one ledger."""

    folder: Path
    site: str | None = None
    count: int = 0
    head: str | None = None
    covered: int = 0
    """The first so many entries are signed by a signer that counts."""
    signers: list[str] = field(default_factory=list)
    """Who signed the checkpoint that covers most."""
    signed_at: str | None = None
    checkpoints: int = 0
    """That are signed by a signer that counts."""
    at_least: int | None = None
    """The caller's checkpoint, when the ledger continues it."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def accepted(self) -> bool:
        """Everything that was asked for was shown."""
        return not self.findings

    @property
    def freshness(self) -> str:
        """What is known about the ledger's end, in one sentence."""
        if self.at_least is not None:
            return f"continues the checkpoint of {self.at_least} entries that you gave"
        return "unknown: give the newest checkpoint that you know (--at-least)"

    def add(self, fault: Fault, where: str | Path, detail: str) -> None:
        """Note one more."""
        self.findings.append(Finding(fault, str(where), detail))
