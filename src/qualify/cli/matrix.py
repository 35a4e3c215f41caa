"""`qualify matrix`: the compatibility matrix with its derived status, what a row binds, why two
rows differ.

Parsing and printing only: verdicts come from `qualify.assessment`, configurations from
`qualify.manifests`. Status is always computed from the ledger here and now, with the project's
release policy; nothing is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from datetime import datetime

    from qualify.assessment.cases import EvidenceSource
    from qualify.assessment.rules import Assessment
    from qualify.evidence.ledger import Ledger
    from qualify.manifests.catalog import Catalog
    from qualify.manifests.configuration import Configuration
    from qualify.manifests.kinds import Policy

POLICY = "release"
"""The policy of the matrix. Others are what-if questions, see `qualify assess`."""
NEWEST = 10
"""Trials shown by `matrix show`."""
STATUSES = (
    "qualified", "failed", "unsupported", "inconclusive", "expired", "incomplete", "untested",
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One line of the matrix: a row and one of its suites (`None`: the row lists none)."""

    configuration: Configuration
    suite: str | None
    verdict: Assessment | None

    @property
    def status(self) -> str:
        """Derived status; without a suite nothing can have been tested."""
        return self.verdict.status.value if self.verdict else "untested"

    @property
    def model(self) -> str:
        """Id of the model, or of the script in its place."""
        row = self.configuration.row
        return row.model or f"script {row.script}"


@click.group(invoke_without_command=True)
@click.option("--platform", "platforms", multiple=True, metavar="ID", help="Only these platforms.")
@click.option("--model", "models", multiple=True, metavar="ID", help="Only these models.")
@click.option("--suite", "suites", multiple=True, metavar="ID", help="Only these suites.")
@click.option(
    "--status", "statuses", multiple=True, type=click.Choice(STATUSES), help="Only these statuses."
)
@click.option(
    "--sort",
    type=click.Choice(["row", "platform", "model", "status"]),
    default="row",
    show_default=True,
    help="Order of the lines.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.pass_context
def matrix(ctx: click.Context, /, sort: str, as_json: bool, **filters: tuple[str, ...]) -> None:
    """Show every row with what was declared elsewhere and what the evidence here says.

    Status is derived from the ledger for each suite of a row, never typed by hand. Rows that are
    unsupported or inconclusive are shown and never retried by themselves.
    """
    if ctx.invoked_subcommand is not None:
        return
    from qualify.cli import matrix_json, matrix_text

    view = _View.open(ctx)
    lines = _sorted(_filtered(view, filters), sort)
    if as_json:
        _echo_json(matrix_json.matrix(lines, view.policy, view.now))
    else:
        matrix_text.show_matrix(lines, view.policy)


@matrix.command()
@click.argument("row")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.pass_context
def show(ctx: click.Context, /, row: str, as_json: bool) -> None:
    """Show everything that ROW binds, its digest, its verdicts and its newest trials' speed."""
    from qualify.cli import matrix_json, matrix_text

    view = _View.open(ctx, row)
    lines = view.lines([row])
    trials = view.newest_trials(row)
    if as_json:
        _echo_json(matrix_json.row(lines, trials))
    else:
        matrix_text.show_row(lines, trials)


@matrix.command()
@click.argument("a")
@click.argument("b")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.pass_context
def diff(ctx: click.Context, /, a: str, b: str, as_json: bool) -> None:
    """Tell why the digests of rows A and B differ: every bound input that is not the same."""
    from qualify.cli import context, matrix_json, matrix_text
    from qualify.manifests.configuration import diff as compare
    from qualify.manifests.configuration import resolve

    catalog = context.catalog(ctx)
    left, right = resolve(catalog, a), resolve(catalog, b)
    differences = compare(left, right)
    if as_json:
        _echo_json(matrix_json.differences(left, right, differences))
    else:
        matrix_text.show_differences(left, right, differences)


def _echo_json(document: dict[str, Any]) -> None:
    import orjson

    click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())


@dataclass(frozen=True)
class _View:
    """The project, its evidence and the present moment, read once."""

    catalog: Catalog
    policy: Policy
    evidence: EvidenceSource
    ledger: Ledger
    now: datetime

    @classmethod
    def open(cls, ctx: click.Context, row: str | None = None) -> _View:
        """Read manifests and ledger; an unknown `row` is told before the ledger is read."""
        from qualify.cli import context
        from qualify.core.clock import Clock
        from qualify.runner.verdicts import evidence_for_verdicts, known_scenarios

        catalog = context.catalog(ctx)
        if row is not None:
            catalog.row(row)
        policy = catalog.policy(POLICY)
        ledger = context.ledger(ctx)
        evidence = ctx.with_resource(
            evidence_for_verdicts(context.results_folder(ctx), ledger, known_scenarios(catalog))
        )
        return cls(catalog, policy, evidence, ledger, Clock().now())

    def lines(self, rows: list[str]) -> list[Line]:
        """One line for each of the rows and each suite that it lists."""
        from qualify.assessment.rules import assess
        from qualify.manifests.configuration import resolve, suite_identity

        suites = {name: suite_identity(self.catalog, name) for name in self.catalog.suites}
        lines = []
        for name in rows:
            configuration = resolve(self.catalog, name)
            for suite in configuration.row.suites:
                verdict = assess(
                    name,
                    configuration.digest,
                    suites[suite],
                    self.evidence,
                    self.policy,
                    self.now,
                )
                lines.append(Line(configuration, suite, verdict))
            if not configuration.row.suites:
                lines.append(Line(configuration, None, None))
        return lines

    def newest_trials(self, row: str) -> list[Any]:
        """The newest trials of a row's present configuration, newest first."""
        from qualify.assessment.matrix import Evidence, collect
        from qualify.manifests.configuration import resolve

        digest = resolve(self.catalog, row).digest
        known = self.evidence
        if not isinstance(known, Evidence):
            known = collect(self.ledger.entries(), self.ledger.is_running)
        return known.of_configuration(digest)[:NEWEST]


def _filtered(view: _View, filters: dict[str, tuple[str, ...]]) -> list[Line]:
    """The lines that pass every filter. A name that is no platform, model or suite is an error."""
    catalog = view.catalog
    for name in filters["platforms"]:
        catalog.platform(name)
    for name in filters["models"]:
        catalog.model(name)
    for name in filters["suites"]:
        catalog.suite(name)
    rows = [
        name
        for name, row in catalog.rows.items()
        if (not filters["platforms"] or row.platform in filters["platforms"])
        and (not filters["models"] or row.model in filters["models"])
    ]
    return [
        line
        for line in view.lines(rows)
        if (not filters["suites"] or line.suite in filters["suites"])
        and (not filters["statuses"] or line.status in filters["statuses"])
    ]


def _sorted(lines: list[Line], by: str) -> list[Line]:
    def key(line: Line) -> tuple[int, str, str]:
        row = line.configuration.row
        word = {"platform": row.platform, "model": line.model}.get(by, "")
        return STATUSES.index(line.status) if by == "status" else 0, word, row.id

    return sorted(lines, key=key)
