"""Statements that others' tools read: results of trials, verdicts on rows, and passes.

- A trial is an in-toto test-result statement (`https://in-toto.io/attestation/test-result/v0.1`)
  about the configuration it ran. `PASSED` is said only of a counted real-model trial that passed;
  a trial of another class that passed is `WARNED`, because it qualifies nothing; everything else,
  unknown and unfinished included, is `FAILED`.
- A verdict is a statement with a predicate of our own (`urn:qualify:assessment:1`).
- A pass, and nothing else, is also a SLSA verification summary (`…/verification_summary/v1`).

None of them promotes anything, and all of them follow from the ledger alone, the policy's numbers
and the time that they name: whoever has these can make the same bytes again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from qualify import __version__
from qualify.core.status import CheckOutcome, EvidenceClass, RowStatus, TrialOutcome
from qualify.evidence.claims import ClaimLevel
from qualify.evidence.records import (
    Count,
    Digest,
    Id,
    ReasonCode,
    Reservation,
    SiteId,
    Time,
    Trial,
)
from qualify.evidence.statements import Predicate, make_statement, read_predicate

TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
ASSESSMENT = "urn:qualify:assessment:1"
SUMMARY = "https://slsa.dev/verification_summary/v1"
VERIFIER = "urn:qualify:assessor:1"


class LedgerState(Predicate):
    """How far the ledger went when the verdict was given."""

    site: SiteId
    count: Count
    head: Digest


class PolicyNumbers(Predicate):
    """The numbers of the policy."""

    id: Id
    digest: Digest
    trials_needed: Count
    freshness_days: Count
    minimum_pass_percent: Count


class Scenario(Predicate):
    """The verdict on one scenario."""

    scenario: Id
    status: RowStatus
    passed: Count
    total: Count
    interval_per_mille: tuple[Count, Count] | None
    """Exact 95 % interval (Clopper-Pearson) of the pass rate."""


class AspectSaid(Predicate):
    """What the newest trials show of one aspect; none is implied by another one."""

    aspect: Id
    outcome: Literal["passed", "failed", "unknown", "not-tested"]


class Assessment(Predicate):
    """A verdict, with everything that it stands on."""

    row: Id
    configuration: Digest
    suite: Id
    suite_digest: Digest
    policy: PolicyNumbers
    time: Time
    status: RowStatus
    evidence_class: EvidenceClass | None
    passed: Count
    total: Count
    interval_per_mille: tuple[Count, Count] | None
    scenarios: tuple[Scenario, ...]
    aspects: tuple[AspectSaid, ...]
    reasons: tuple[ReasonCode, ...]
    trials_used: tuple[Digest, ...]
    image: Digest | None
    """The one image that every trial used ran in; `None`: there is none."""
    ledger: LedgerState
    claim_levels: tuple[ClaimLevel, ...]
    """Those that are reached, each for itself; none follows from another."""
    automatic_promotion_allowed: Literal[False] = Field(False)


def trial_statement(trial: str, reservation: Reservation, end: Trial | None) -> bytes:
    """The test-result statement of a trial; `end` is `None` for one that never ended."""
    by_outcome: dict[CheckOutcome, list[str]] = {outcome: [] for outcome in CheckOutcome}
    for check in end.checks if end is not None else ():
        by_outcome[check.outcome].append(check.check)
    answered = {check.check for check in end.checks} if end is not None else set()
    missing = [name for name in reservation.required_checks if name not in answered]
    annotations = {
        "row": reservation.row,
        "suite": reservation.suite,
        "suiteDigest": reservation.suite_digest,
        "scenario": reservation.scenario,
        "ordinal": str(reservation.ordinal),
        "evidenceClass": reservation.evidence_class.value,
        "experimental": "true" if reservation.experimental else "false",
        "outcome": end.outcome.value if end is not None else "incomplete",
        "reserved": reservation.time,
        "ended": end.time if end is not None else "never",
    }
    subjects = [(f"configuration/{reservation.row}", reservation.configuration)]
    if end is not None and end.engine.image is not None:
        subjects.append(("image", end.engine.image))
    predicate: dict[str, Any] = {
        "result": _result(reservation, end),
        "configuration": [
            {
                "name": "trial",
                "digest": {"sha256": trial.removeprefix("sha256:")},
                "annotations": annotations,
            }
        ],
        "passedTests": sorted(by_outcome[CheckOutcome.PASSED]),
        "warnedTests": [],
        "failedTests": sorted(
            [*by_outcome[CheckOutcome.FAILED], *by_outcome[CheckOutcome.UNKNOWN], *missing]
        ),
    }
    return make_statement(subjects, TEST_RESULT, predicate)


def _result(reservation: Reservation, end: Trial | None) -> str:
    if end is None or end.outcome is not TrialOutcome.PASSED:
        return "FAILED"
    counted = reservation.evidence_class is EvidenceClass.REAL_MODEL
    return "PASSED" if counted and not reservation.experimental else "WARNED"


def assessment_statement(said: Assessment) -> bytes:
    """The statement of a verdict, about the configuration and the image it ran in."""
    return make_statement(_subjects(said), ASSESSMENT, said)


def read_assessment(data: bytes) -> Assessment:
    """Inverse of `assessment_statement`. Raises `NotAStatement`."""
    _, found = read_predicate(data, ASSESSMENT, Assessment)
    return found


def summary_statement(said: Assessment, inputs: Sequence[tuple[str, str]]) -> bytes | None:
    """SLSA's verification summary of a pass; `None` for any other verdict.

    `inputs` are the (name, digest) of the statements that it sums up.
    """
    if said.status is not RowStatus.QUALIFIED:
        return None
    predicate = {
        "verifier": {"id": VERIFIER, "version": {"qualify": __version__}},
        "timeVerified": said.time,
        "resourceUri": f"urn:qualify:configuration:{said.configuration}",
        "policy": {
            "uri": f"urn:qualify:policy:{said.policy.id}",
            "digest": {"sha256": said.policy.digest.removeprefix("sha256:")},
        },
        "inputAttestations": [
            {"uri": name, "digest": {"sha256": digest.removeprefix("sha256:")}}
            for name, digest in inputs
        ],
        "verificationResult": "PASSED",
        "verifiedLevels": [
            f"QUALIFY_{level.value.upper().replace('-', '_')}" for level in said.claim_levels
        ],
    }
    return make_statement(_subjects(said), SUMMARY, predicate)


def _subjects(said: Assessment) -> list[tuple[str, str]]:
    subjects = [(f"configuration/{said.row}", said.configuration)]
    if said.image is not None:
        subjects.append(("image", said.image))
    return subjects
