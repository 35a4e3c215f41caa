"""`qualify scan`: tells whether there is anything here that must not be published."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from qualify.scanning.scan import Finding, Report
    from qualify.scanning.selection import Chosen

_SHOWN = 200
"""Findings that the text lists; the document has them all."""


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path())
@click.option(
    "--allow", metavar="FILE", type=click.Path(), help="Default: scan.yaml of the project."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
def scan(ctx: click.Context, paths: tuple[str, ...], allow: str | None, as_json: bool) -> int:
    """Look for credentials, keys, local paths and data that looks personal.

    Without PATH: the files that Git tracks, and the results. A finding says where and what kind,
    never the value. Exit 10 when something was found or could not be looked into.
    """
    from qualify.cli.context import project_folder
    from qualify.cli.tables import print_json
    from qualify.core.clock import Clock
    from qualify.core.errors import ExitCode
    from qualify.results.strings import table_strings
    from qualify.scanning.allowed import FILE, read_allowances
    from qualify.scanning.scan import scan as look

    project = project_folder(ctx, required=not paths)
    given = Path(allow) if allow else (project / FILE if project else None)
    allowances = []
    if given is not None and (allow or given.is_file()):
        allowances = read_allowances(given, allow or FILE)
    files = _chosen(ctx, paths, project)
    report = look(files, today=Clock().now().date(), allowances=allowances, tables=table_strings)
    if paths:
        report.unused = []  # what was not looked at may need them
    if as_json:
        print_json(_document(report))
    else:
        _print(report)
    return ExitCode.OK if report.clean else ExitCode.NOT_A_PASS


def _chosen(ctx: click.Context, paths: tuple[str, ...], project: Path | None) -> list[Chosen]:
    from qualify.cli.context import results_folder
    from qualify.scanning.selection import named, tracked

    files: list[Chosen] = []
    if paths:
        for path in paths:
            files += named(Path(path), project)
    else:
        assert project is not None
        files = tracked(project)
        results = results_folder(ctx)
        if results.is_dir():
            files += named(results, project)
    known: dict[Path, Chosen] = {}
    for chosen in files:
        known.setdefault(chosen.path, chosen)
    return list(known.values())


def _print(report: Report) -> None:
    from qualify.cli.tables import printable

    for finding in report.findings[:_SHOWN]:
        click.echo(printable(_line(finding)))
    if len(report.findings) > _SHOWN:
        click.echo(f"… and {len(report.findings) - _SHOWN} more (--json lists them all)")
    for allowance in report.expired:
        click.echo(
            f"note: {allowance.where}: expired on {allowance.until} and allows nothing", err=True
        )
    for allowance in report.unused:
        click.echo(
            f"note: {allowance.where}: allows {allowance.kind} in {printable(allowance.files)},"
            " and nothing needs it",
            err=True,
        )
    counts = ", ".join(f"{count} {kind}" for kind, count in report.kinds.items())
    rest = f", {len(report.allowed)} allowed" if report.allowed else ""
    rest += f", {len(report.left_out)} left out" if report.left_out else ""
    click.echo(f"{report.files} files: {counts or 'nothing found'}{rest}")


def _line(finding: Finding) -> str:
    from qualify.scanning.kinds import KINDS

    if finding.why is not None:
        return f"{finding.position}: {finding.kind}: {finding.why}"
    where = " in the name" if finding.in_name else ""
    where += " in base64" if finding.wrapped else ""
    value = f"{finding.characters} characters, {finding.mark}"
    return f"{finding.position}: {finding.kind}{where}: {KINDS[finding.kind]} ({value})"


def _document(report: Report) -> dict[str, Any]:
    return {
        "schema": "qualify-scan/1",
        "clean": report.clean,
        "files": report.files,
        "kinds": report.kinds,
        "findings": [_as_json(finding) for finding in report.findings],
        "allowed": [_as_json(finding) for finding in report.allowed],
        "left_out": [{"place": place, "what": what} for place, what in report.left_out],
        "expired": [each.where for each in report.expired],
        "unused": [each.where for each in report.unused],
    }


def _as_json(finding: Finding) -> dict[str, Any]:
    return {
        "place": finding.place, "line": finding.line, "column": finding.column,
        "offset": finding.offset, "kind": finding.kind, "characters": finding.characters,
        "mark": finding.mark, "in_base64": finding.wrapped, "in_name": finding.in_name,
        "why": finding.why,
    }  # fmt: skip
