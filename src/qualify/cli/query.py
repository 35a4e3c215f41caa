"""`qualify query`: named questions and read-only SQL over the results."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from qualify.results.projection import Lines


@click.command()
@click.argument("name", required=False)
@click.option("--sql", metavar="SQL", help="One reading statement; `-` reads it from stdin.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
def query(ctx: click.Context, name: str | None, sql: str | None, as_json: bool) -> None:
    """Ask the results database; without NAME or --sql, list the named queries.

    Runs on a copy in memory from which no file, network or setting can be reached.
    """
    from qualify.cli.context import results_folder
    from qualify.cli.tables import print_json, print_table
    from qualify.core.errors import UsageError
    from qualify.evidence.ledger import open_ledger
    from qualify.results.database import snapshot
    from qualify.results.projection import DECLARED_TABLES
    from qualify.results.queries import ask, named_queries, named_query

    if name and sql is not None:
        raise UsageError("both NAME and --sql", fix="give one of them")
    if not name and sql is None:
        listed = [[known.name, known.description] for known in named_queries().values()]
        if as_json:
            print_json(
                {
                    "schema": "qualify-queries/1",
                    "queries": [{"name": n, "description": d} for n, d in listed],
                }
            )
        else:
            print_table(("query", "answers"), listed)
        return
    text = named_query(name).sql if name else _given(str(sql))
    results = results_folder(ctx)
    # Reading all manifests takes longer than most answers, and most do not look at them.
    asked = any(table in text for table in DECLARED_TABLES)
    declared = _declared(ctx) if asked else None
    with snapshot(results, open_ledger(results), declared) as (connection, note):
        if note is not None:
            click.echo(f"note: {note}; answered from the ledger itself", err=True)
        answer = ask(connection, text)
    if as_json:
        print_json({"schema": "qualify-query/1", **answer.as_json()})
    else:
        print_table(answer.columns, answer.rows)


def _given(sql: str) -> str:
    return sys.stdin.buffer.read().decode("utf-8", "surrogateescape") if sql == "-" else sql


def _declared(ctx: click.Context) -> Lines | None:
    """What the manifests declare; faulty manifests do not stand between an analyst and evidence."""
    from qualify.cli.context import declared_lines
    from qualify.core.errors import QualifyError

    try:
        return declared_lines(ctx)
    except QualifyError as error:
        first = str(error).splitlines()[0]
        click.echo(f"note: declared rows are as of the last run: {first}", err=True)
        return None
