"""`qualify assess`: the verdict on a row, from the evidence that is there. Runs nothing."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from qualify.assessment.reasons import Reason
    from qualify.assessment.rules import Assessment
    from qualify.evidence.ledger import StoredEntry
    from qualify.manifests.catalog import Catalog


@click.command()
@click.argument("row")
@click.option("--suite", "suites", multiple=True, metavar="SUITE", help="Default: the row's own.")
@click.option("--policy", metavar="POLICY", help="What if another policy held? Exit 10 at best.")
@click.option(
    "--at", metavar="TIME", help="What if it were TIME (2026-11-30T20:46:58Z)? Exit 10 at best."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
def assess(
    ctx: click.Context,
    row: str,
    suites: tuple[str, ...],
    policy: str | None,
    at: str | None,
    as_json: bool,
) -> int:
    """Judge the evidence of ROW. Exit 0 only when it is qualified for every suite asked for."""
    from qualify.assessment.matrix import collect
    from qualify.assessment.rules import DEFAULT_POLICY
    from qualify.assessment.rules import assess as judge
    from qualify.cli.context import catalog, ledger, results_folder
    from qualify.cli.tables import print_json
    from qualify.core.clock import Clock
    from qualify.core.errors import ExitCode
    from qualify.core.status import RowStatus
    from qualify.manifests.configuration import policy_digest, resolve, suite_identity
    from qualify.runner.verdicts import evidence_for_verdicts, known_scenarios

    known = catalog(ctx)
    configuration = resolve(known, row)
    rules = known.policy(policy or DEFAULT_POLICY)
    other = policy is not None and policy_digest(rules) != policy_digest(
        known.policy(DEFAULT_POLICY)
    )
    moment = _moment(at)
    book = ledger(ctx)
    with contextlib.ExitStack() as stack:
        if moment is None:
            evidence = stack.enter_context(
                evidence_for_verdicts(results_folder(ctx), book, known_scenarios(known))
            )
        else:
            evidence = collect(
                (e for e in book.entries() if _not_after(e, moment)), book.is_running
            )
        verdicts = [
            judge(
                row,
                configuration.digest,
                suite_identity(known, suite),
                evidence,
                rules,
                moment or Clock().now(),
                what_if=other or at is not None,
            )
            for suite in _suites(known, row, suites)
        ]
    if as_json:
        print_json(
            {
                "schema": "qualify-assess/1",
                "row": row,
                "configuration": configuration.digest,
                "assessments": [verdict.as_json() for verdict in verdicts],
            }
        )
    else:
        for verdict in verdicts:
            print_assessment(row, verdict)
    good = all(v.status is RowStatus.QUALIFIED and not v.what_if for v in verdicts)
    return ExitCode.OK if good else ExitCode.NOT_A_PASS


def _suites(known: Catalog, row: str, asked: tuple[str, ...]) -> tuple[str, ...]:
    from qualify.core.errors import UsageError

    chosen = asked or known.row(row).suites
    if not chosen:
        raise UsageError("lists no suites", where=row, fix="name one with --suite")
    return tuple(known.suite(name).id for name in chosen)


def _moment(at: str | None) -> datetime | None:
    from qualify.core.clock import parse_time
    from qualify.core.errors import UsageError

    if at is None:
        return None
    try:
        return parse_time(at)
    except ValueError as error:
        raise UsageError(str(error), where="--at", fix="write 2026-11-30T20:46:58Z") from error


def _not_after(stored: StoredEntry, moment: datetime) -> bool:
    from qualify.core.clock import parse_time

    return parse_time(stored.entry.time) <= moment


def print_assessment(row: str, verdict: Assessment) -> None:
    """A verdict for a person: status, counts, each reason with what to do next."""
    from qualify.cli.tables import short

    label = "  [what if: not a verdict]" if verdict.what_if else ""
    click.echo(f"{row} · {verdict.suite}: {verdict.status.value}{label}")
    click.echo(f"  {count_text(verdict.passed, verdict.total)}, policy {verdict.policy}")
    if verdict.scenarios:
        click.echo(f"  {aspects_text(verdict)}")
    for result in verdict.scenarios:
        if len(verdict.scenarios) > 1:
            counts = count_text(result.passed, result.total)
            click.echo(f"  {result.scenario}: {result.status.value}, {counts}")
    for reason in verdict.reasons:
        about = [short(trial) for trial in reason.trials[:5]]
        about += ["…"] if len(reason.trials) > 5 else []
        named = " ".join((*reason.checks, *reason.budgets, *reason.details))
        tail = "".join(
            f"; {word}: {text}"
            for word, text in (("about", named), ("trials", " ".join(about)))
            if text
        )
        mark = "✗" if reason.blocking else "·"
        click.echo(f"  {mark} {reason.code}: {reason.kind.meaning}{tail}")
        if reason.blocking:
            click.echo(f"      → {next_step(reason, row)}")
    if verdict.trials_used:
        click.echo(f"  newest trials: {' '.join(short(trial) for trial in verdict.trials_used)}")


_ASPECT_MARKS = {"passed": "✓", "failed": "✗", "unknown": "?", "not-tested": "–"}


def aspects_text(verdict: Assessment) -> str:
    """`✓ connection  ✓ tool-use  – code`: each aspect apart."""
    return "  ".join(
        f"{_ASPECT_MARKS[found.value]} {aspect.value}" for aspect, found in verdict.aspects.items()
    )


def next_step(reason: Reason, row: str) -> str:
    """What to do about a reason, with the row and the newest trial that it is about."""
    from qualify.cli.tables import short

    step = reason.kind.next_step.replace("ROW", row)
    return step.replace("TRIAL", short(reason.trials[0])) if reason.trials else step


def count_text(passed: int, total: int) -> str:
    """`3 of 3 trials in the window passed (95 % interval 29.2 % to 100 %)`."""
    from qualify.assessment.intervals import pass_rate_interval
    from qualify.cli.tables import percent

    interval = pass_rate_interval(passed, total)
    if interval is None:
        return "no trial in the window"
    low, high = interval
    return (
        f"{passed} of {total} trials in the window passed "
        f"(95 % interval {percent(low)} to {percent(high)})"
    )
