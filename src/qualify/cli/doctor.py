"""`qualify doctor`: what this machine has, and what a row lacks. Parsing and printing only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from qualify.cli.tables import print_json

if TYPE_CHECKING:
    from qualify.runner.findings import Finding

_MARKS = {"ok": "✓", "note": "·", "warning": "!", "lacking": "✗"}
_STYLES = {"ok": "green", "note": "dim", "warning": "yellow", "lacking": "bold red"}


@click.command()
@click.argument("row", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def doctor(context: click.Context, row: str | None, as_json: bool) -> int:
    """Tell what this machine has, and what ROW needs and lacks, each with a fix.

    Starts nothing and writes nothing. Exit 10 when something that is required is lacking.
    """
    from dataclasses import asdict

    from qualify.cli.acquisition import acquisition_progress
    from qualify.core.errors import ExitCode
    from qualify.models.progress import Phase, Step
    from qualify.runner.diagnosis import diagnose
    from qualify.runner.findings import Level

    project = context.obj["project"]
    with acquisition_progress() as report:
        findings = diagnose(
            Path(project) if project else None,
            context.obj["results"],
            row,
            lambda done, total: report(Step(Phase.CHECKING, "model", done, total)),
        )
    lacking = sum(finding.level is Level.LACKING for finding in findings)
    if as_json:
        print_json(
            {
                "row": row,
                "healthy": lacking == 0,
                "findings": [asdict(finding) for finding in findings],
            }
        )
    else:
        _print(findings)
        _print_summary(row, findings, lacking)
    return ExitCode.NOT_A_PASS if lacking else ExitCode.OK


def _print(findings: tuple[Finding, ...]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    area = ""
    table: Table | None = None
    for finding in findings:
        if finding.area != area or table is None:
            if table is not None:
                console.print(table)
            area = finding.area
            console.print(Text(area, style="bold"))
            table = Table.grid(padding=(0, 1))
            table.add_column(width=3, justify="right")
            table.add_column(width=12, no_wrap=True)
            table.add_column(overflow="fold")
        style = _STYLES[finding.level]
        text = Text(finding.text)
        if finding.fix:
            text.append(f"\n→ {finding.fix}", style="cyan" if finding.level != "note" else "dim")
        table.add_row(Text(_MARKS[finding.level], style=style), finding.subject, text)
    if table is not None:
        console.print(table)


def _print_summary(row: str | None, findings: tuple[Finding, ...], lacking: int) -> None:
    warnings = sum(finding.level == "warning" for finding in findings)
    extra = f", {warnings} warning{'s' if warnings != 1 else ''}" if warnings else ""
    click.echo()
    if lacking:
        what = f"{lacking} thing{'s' if lacking != 1 else ''} lacking"
        click.echo(click.style(f"{what}{extra}", fg="red", bold=True))
    elif row is not None:
        click.echo(f"{row} can run here{extra}. Next: qualify run {row}")
    else:
        click.echo(f"nothing is lacking{extra}")
