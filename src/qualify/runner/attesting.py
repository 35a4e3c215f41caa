"""Statements about a row, from the ledger and the assessment of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from qualify.assessment.intervals import pass_rate_interval
from qualify.assessment.matrix import collect
from qualify.assessment.rules import DEFAULT_POLICY, ScenarioResult, assess
from qualify.assessment.rules import Assessment as Verdict
from qualify.core.digests import digest_bytes
from qualify.core.status import RowStatus
from qualify.evidence import attestations as form
from qualify.evidence.claims import Claim, Level, levels
from qualify.evidence.ledger import Ledger
from qualify.evidence.records import Reservation, Trial
from qualify.manifests.catalog import Catalog
from qualify.manifests.configuration import resolve, suite_identity
from qualify.manifests.kinds import Policy


@dataclass(frozen=True)
class Attested:
    """The statements about one row and suite, by file name, and the levels that it reached."""

    row: str
    suite: str
    status: RowStatus
    levels: tuple[Level, ...]
    statements: dict[str, bytes]


def attest(
    catalog: Catalog,
    ledger: Ledger,
    rows: Iterable[str],
    claims: Iterable[tuple[Claim, str]],
    now: datetime,
) -> list[Attested]:
    """Judge the rows for each of their suites, and say it in statements. Reads the ledger once.

    Rows without any trial here are left out: nothing can be said of them.
    """
    claims = list(claims)
    policy = catalog.policy(DEFAULT_POLICY)
    entries = list(ledger.entries())
    evidence = collect(entries, ledger.is_running)
    reserved = {s.digest: s.entry for s in entries if isinstance(s.entry, Reservation)}
    ended = {s.entry.trial: s.entry for s in entries if isinstance(s.entry, Trial)}
    if not entries:
        return []
    site = ledger.site()
    assert site is not None
    state = form.LedgerState(site=site, count=len(entries), head=entries[-1].digest)
    made = []
    for row in rows:
        configuration = resolve(catalog, row)
        if not any(r.configuration == configuration.digest for r in reserved.values()):
            continue
        for suite in catalog.row(row).suites:
            identity = suite_identity(catalog, suite)
            verdict = assess(row, configuration.digest, identity, evidence, policy, now)
            used = {trial: ended.get(trial) for trial in verdict.trials_used}
            image = _one_image(used.values())
            reached = levels(
                configuration=configuration.digest,
                suite_digest=identity.digest,
                qualified=verdict.status is RowStatus.QUALIFIED,
                image=image,
                claims=claims,
            )
            said = _predicate(row, verdict, policy, image, state, reached)
            statements = {
                f"trial-{trial[7:19]}.json": form.trial_statement(trial, reserved[trial], end)
                for trial, end in used.items()
            }
            statements["assessment.json"] = form.assessment_statement(said)
            inputs = [(name, digest_bytes(data)) for name, data in sorted(statements.items())]
            summary = form.summary_statement(said, inputs)
            if summary is not None:
                statements["summary.json"] = summary
            made.append(Attested(row, suite, verdict.status, tuple(reached), statements))
    return made


def _one_image(trials: Iterable[Trial | None]) -> str | None:
    images = {trial.engine.image if trial is not None else None for trial in trials}
    return images.pop() if len(images) == 1 else None


def _predicate(
    row: str,
    verdict: Verdict,
    policy: Policy,
    image: str | None,
    state: form.LedgerState,
    reached: Iterable[Level],
) -> form.Assessment:
    return form.Assessment(
        row=row,
        configuration=verdict.configuration,
        suite=verdict.suite,
        suite_digest=verdict.suite_digest,
        policy=form.PolicyNumbers(
            id=verdict.policy,
            digest=verdict.policy_digest,
            trials_needed=policy.trials_needed,
            freshness_days=policy.freshness_days,
            minimum_pass_percent=policy.minimum_pass_percent,
        ),
        time=verdict.time,
        status=verdict.status,
        evidence_class=verdict.evidence_class,
        passed=verdict.passed,
        total=verdict.total,
        interval_per_mille=verdict.interval,
        scenarios=tuple(_scenario(each) for each in verdict.scenarios),
        aspects=tuple(
            form.AspectSaid(aspect=aspect.value, outcome=found.value)
            for aspect, found in verdict.aspects.items()
        ),
        reasons=tuple(dict.fromkeys(reason.code for reason in verdict.reasons)),
        trials_used=verdict.trials_used,
        image=image,
        ledger=state,
        claim_levels=tuple(each.level for each in reached if each.reached),
        automatic_promotion_allowed=False,
    )


def _scenario(result: ScenarioResult) -> form.Scenario:
    return form.Scenario(
        scenario=result.scenario,
        status=result.status,
        passed=result.passed,
        total=result.total,
        interval_per_mille=pass_rate_interval(result.passed, result.total),
    )
