"""The JSON documents of `qualify matrix`: stable keys, unknown is null.

Described in docs/reference/manifests.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qualify.core.clock import format_time

if TYPE_CHECKING:
    from datetime import datetime

    from qualify.assessment.grading import TrialEvidence
    from qualify.cli.matrix import Line
    from qualify.manifests.configuration import Configuration, Difference
    from qualify.manifests.kinds import ImportedOutcome, Policy


def matrix(lines: list[Line], policy: Policy, now: datetime) -> dict[str, Any]:
    """The whole matrix: one object for each row and suite."""
    counts: dict[str, int] = {}
    for line in lines:
        counts[line.status] = counts.get(line.status, 0) + 1
    return {
        "schema": "qualify-matrix/1",
        "time": format_time(now),
        "policy": policy.id,
        "automatic_promotion_allowed": False,
        "counts": counts,
        "lines": [_line(line) for line in lines],
    }


def row(lines: list[Line], trials: list[TrialEvidence]) -> dict[str, Any]:
    """One row: everything bound, its verdicts, its newest trials."""
    configuration = lines[0].configuration
    return {
        "schema": "qualify-matrix-row/1",
        **_identity(configuration),
        "bound": configuration.bound,
        "startup_budget_s": configuration.startup_budget_s,
        "cannot_run_here": list(configuration.declared_only),
        "notes": configuration.row.notes,
        "imported": [_imported(outcome) for outcome in configuration.row.imported],
        "suites": [line.verdict.as_json() for line in lines if line.verdict],
        "trials": [_trial(trial) for trial in trials],
    }


def differences(a: Configuration, b: Configuration, found: list[Difference]) -> dict[str, Any]:
    """Why two digests differ."""
    return {
        "schema": "qualify-matrix-diff/1",
        "a": {"row": a.row.id, "configuration": a.digest},
        "b": {"row": b.row.id, "configuration": b.digest},
        "differences": [{"path": each.path, "a": each.a, "b": each.b} for each in found],
    }


def newest_imported(configuration: Configuration) -> ImportedOutcome | None:
    """The newest outcome declared elsewhere; one without a date counts as the oldest."""
    outcomes = configuration.row.imported
    if not outcomes:
        return None
    return max(outcomes, key=lambda each: each.date.isoformat() if each.date else "")


def _identity(configuration: Configuration) -> dict[str, Any]:
    row = configuration.row
    return {
        "row": row.id,
        "configuration": configuration.digest,
        "evidence_class": configuration.evidence_class.value,
        "runtime": row.runtime,
        "model": row.model,
        "script": row.script,
        "platform": row.platform,
        "agent": row.agent,
        "tool_mode": row.tool_mode.value,
        "grammar": configuration.agent.grammar is not None,
    }


def _line(line: Line) -> dict[str, Any]:
    verdict = line.verdict
    declared = newest_imported(line.configuration)
    interval = verdict.interval if verdict else None
    return {
        **_identity(line.configuration),
        "declared": _imported(declared) if declared else None,
        "suite": line.suite,
        "suite_digest": verdict.suite_digest if verdict else None,
        "status": line.status,
        "passed": verdict.passed if verdict else 0,
        "total": verdict.total if verdict else 0,
        "interval_low_per_mille": interval[0] if interval else None,
        "interval_high_per_mille": interval[1] if interval else None,
        "reasons": [reason.as_json() for reason in verdict.reasons] if verdict else [],
    }


def _imported(outcome: ImportedOutcome) -> dict[str, Any]:
    return outcome.model_dump(mode="json")


def _trial(trial: TrialEvidence) -> dict[str, Any]:
    end, reservation = trial.end, trial.reservation
    return {
        "trial": trial.trial,
        "suite": reservation.suite,
        "scenario": reservation.scenario,
        "ordinal": reservation.ordinal,
        "experimental": reservation.experimental,
        "reserved": reservation.time,
        "ended": end.time if end else None,
        "outcome": end.outcome.value if end else None,
        "running": trial.running,
        "stop_reason": end.stop_reason if end else None,
        "timings": end.timings.model_dump(mode="json") if end else None,
    }
