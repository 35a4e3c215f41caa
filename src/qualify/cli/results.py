"""`qualify results`: how ledger and database stand, other sites' ledgers, Parquet."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from qualify.evidence.ledger import Ledger
    from qualify.results.database import DatabaseState
    from qualify.results.merging import Merged


@click.group()
def results() -> None:
    """The ledger (the evidence) and the database made from it."""


@results.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
def rebuild(ctx: click.Context, as_json: bool) -> None:
    """Make the database anew from the ledger and the manifests."""
    from qualify.cli.context import catalog, declared_lines, project_folder, results_folder
    from qualify.cli.tables import print_json
    from qualify.evidence.ledger import open_ledger
    from qualify.results import database
    from qualify.runner.verdicts import rebuild_for_verdicts

    folder = results_folder(ctx)
    declared = declared_lines(ctx) or {}
    known = catalog(ctx) if project_folder(ctx, required=False) else None
    with _busy("making the database anew"):
        done = rebuild_for_verdicts(folder, open_ledger(folder), declared, known)
    if as_json:
        print_json(
            {
                "schema": "qualify-results-rebuild/1",
                "database": str(database.database_path(folder)),
                "entries": done.entries,
            }
        )
    else:
        click.echo(f"{database.database_path(folder)}: {done.entries} entries")


@results.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> int:
    """Verify the ledger and say whether the database follows it.

    Exit 10 when the ledger is damaged or the database cannot be used.
    """
    from qualify.cli.context import results_folder
    from qualify.cli.tables import print_json
    from qualify.core.errors import ExitCode
    from qualify.evidence.ledger import open_ledger
    from qualify.results import database

    folder = results_folder(ctx)
    ledger = open_ledger(folder)
    evidence = _ledger_facts(ledger)
    found = database.state(folder, ledger)
    if as_json:
        print_json(
            {
                "schema": "qualify-results-status/1",
                "results": str(folder),
                "ledger": evidence,
                "database": {
                    "state": found.state,
                    "entries": found.entries,
                    "schema_version": found.schema_version,
                    "error": str(found.fault) if found.fault else None,
                },
            }
        )
    else:
        _print_status(str(folder), evidence, found)
    return ExitCode.NOT_A_PASS if found.state in ("corrupt", "newer") else ExitCode.OK


@results.command()
@click.argument("folders", nargs=-1, required=True, metavar="SITE_FOLDER...")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
def merge(ctx: click.Context, folders: tuple[str, ...], as_json: bool) -> None:
    """Keep the ledgers of other sites' results folders beside the one here.

    Each is verified whole before it is copied. They are in every table, under a number of their
    own, and count for no verdict here.
    """
    from qualify.cli.context import results_folder
    from qualify.cli.tables import print_json
    from qualify.core.clock import Clock
    from qualify.core.errors import ErrorList, QualifyError
    from qualify.results.merging import merge_site

    results = results_folder(ctx)
    done, errors = [], list[QualifyError]()
    for folder in folders:
        try:
            with _busy(f"verifying {folder}"):
                done.append(merge_site(results, Path(folder).absolute(), Clock().now()))
        except QualifyError as error:
            errors.append(error)
    if as_json:
        merged = [
            {
                "site": each.site,
                "label": each.label,
                "outcome": each.outcome,
                "entries": each.entries,
                "added": each.added,
                "ahead_of_now": each.ahead,
            }
            for each in done
        ]
        refused = [str(error) for error in errors]
        print_json({"schema": "qualify-results-merge/1", "merged": merged, "refused": refused})
    else:
        for each in done:
            _print_merged(each)
    if any(each.added for each in done):
        _follow(ctx, results)
    if errors:
        raise ErrorList(errors)


_OUTCOMES = {
    "added": "added",
    "extended": "continued",
    "already-there": "nothing new",
    "own": "a copy of the ledger here, nothing new",
}


def _print_merged(each: Merged) -> None:
    from qualify.cli.tables import printable

    label = f" ({printable(each.label)})" if each.label else ""
    more = f", {each.added} new" if each.added else ""
    outcome = _OUTCOMES[each.outcome]
    click.echo(f"site {each.site[:12]}{label}: {outcome}, {each.entries} entries{more}")
    if each.ahead:
        click.echo(
            f"note: {each.ahead} entries are more than 5 minutes ahead of now and count as unknown",
            err=True,
        )


def _follow(ctx: click.Context, folder: Path) -> None:
    """Let the database take in what is new; what keeps it from that costs no evidence."""
    from qualify.cli.context import catalog, declared_lines, project_folder
    from qualify.core.errors import QualifyError
    from qualify.evidence.ledger import open_ledger
    from qualify.runner.verdicts import follow_for_verdicts

    try:
        if project_folder(ctx, required=False) is not None:
            declared = declared_lines(ctx) or {}
            with _busy("the database follows"):
                follow_for_verdicts(folder, open_ledger(folder), declared, catalog(ctx))
    except QualifyError as error:
        click.echo(f"note: the database was not updated, the ledgers are safe: {error}", err=True)


@results.command()
@click.option("--to", "target", required=True, metavar="FOLDER", help="A new or empty folder.")
@click.option("--site", "sites", multiple=True, metavar="ID", help="Only this site (its digits).")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
def export(ctx: click.Context, target: str, sites: tuple[str, ...], as_json: bool) -> None:
    """Write every evidence table as Parquet, by site and month, with a manifest of digests."""
    from qualify.cli.context import results_folder
    from qualify.cli.tables import print_json
    from qualify.evidence.ledger import open_ledger
    from qualify.results.parquet import export_tables

    folder = results_folder(ctx)
    place = Path(target).absolute()
    with _busy("exporting"):
        done = export_tables(folder, open_ledger(folder), place, sites)
    if done.note is not None:
        click.echo(f"note: {done.note}; exported from the ledger itself", err=True)
    if as_json:
        print_json(
            {
                "schema": "qualify-results-exported/1",
                "folder": str(place),
                "files": done.files,
                "lines": done.lines,
            }
        )
    else:
        click.echo(f"{place}: {done.lines} lines in {done.files} files, listed in manifest.json")


def _ledger_facts(ledger: Ledger) -> dict[str, Any]:
    """Verifies and validates every entry on the way."""
    from qualify.assessment.matrix import collect
    from qualify.evidence.records import Genesis

    entries = list(ledger.entries())
    head = ledger.head()
    trials = collect(entries, ledger.is_running).all_trials
    genesis = entries[0].entry if entries else None
    return {
        "site": genesis.site if isinstance(genesis, Genesis) else None,
        "entries": head.count,
        "head": f"sha256:{head.digest}" if head.count else None,
        "torn_tail_bytes": head.torn_bytes,
        "clock_went_back": sum(stored.clock_went_back for stored in entries),
        "trials": len(trials),
        "finished": sum(t.end is not None for t in trials),
        "running": sum(t.running for t in trials),
        "incomplete": sum(t.end is None and not t.running for t in trials),
    }


def _print_status(folder: str, evidence: dict[str, Any], found: DatabaseState) -> None:
    from qualify.cli.tables import short

    click.echo(f"results    {folder}")
    if evidence["entries"]:
        click.echo(
            f"ledger     intact: {evidence['entries']} entries, head {short(evidence['head'])}, "
            f"site {evidence['site'][:12]} (whether entries are missing at its end cannot be told "
            "from the ledger alone)"
        )
        click.echo(
            f"trials     {evidence['trials']}: {evidence['finished']} finished, "
            f"{evidence['running']} running, {evidence['incomplete']} incomplete"
        )
    else:
        click.echo("ledger     empty: nothing has been run here")
    if evidence["torn_tail_bytes"]:
        click.echo(
            f"           {evidence['torn_tail_bytes']} bytes of an unfinished line at its end; "
            "the next append keeps them aside"
        )
    if evidence["clock_went_back"]:
        click.echo(
            f"           {evidence['clock_went_back']} entries after a clock that stepped back"
        )
    entries = f", {found.entries} entries" if found.entries is not None else ""
    click.echo(f"database   {found.state}{entries}")
    if found.fault:
        click.echo(f"           {found.fault}")
    elif found.state in ("missing", "behind"):
        click.echo("           it follows with the next run; `qualify results rebuild` does it now")


@contextlib.contextmanager
def _busy(what: str) -> Iterator[None]:
    """A spinner on stderr, only on a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield
