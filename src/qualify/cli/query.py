"""`qualify query`: named questions and read-only SQL over the results."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from qualify.results.projection import Lines
    from qualify.results.queries import Answer, Question

_FORMATS = ("table", "json", "csv", "parquet")


@click.command()
@click.argument("name", required=False)
@click.option(
    "--param", "params", multiple=True, metavar="NAME=VALUE", help="A parameter of the question."
)
@click.option("--sql", metavar="SQL", help="One reading statement; `-` reads it from stdin.")
@click.option("--format", "kind", type=click.Choice(_FORMATS), help="Default: table.")
@click.option(
    "--output", type=click.Path(), metavar="FILE", help="A new file for json, csv or parquet."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
def query(
    ctx: click.Context,
    name: str | None,
    params: tuple[str, ...],
    sql: str | None,
    kind: str | None,
    output: str | None,
    as_json: bool,
) -> None:
    """Ask the results database; without NAME or --sql, list the named queries.

    Runs on a copy in memory from which no file, network or setting can be reached.
    """
    from qualify.core.clock import Clock
    from qualify.core.errors import UsageError
    from qualify.results.queries import Question, named_question

    form = _form(kind, as_json)
    target = _target(form, output)
    if name and sql is not None:
        raise UsageError("both NAME and --sql", fix="give one of them")
    if params and not name:
        raise UsageError("--param without NAME", fix="name the question that it belongs to")
    if name:
        question = named_question(name, _given(params), Clock().now())
    elif sql is not None:
        question = Question(_statement(sql))
    else:
        _list(form, target)
        return
    if form in ("table", "json"):
        _show(ctx, question, form, target)
    else:
        _export(ctx, question, form, target)


def _form(kind: str | None, as_json: bool) -> str:
    from qualify.core.errors import UsageError

    if as_json and kind not in (None, "json"):
        raise UsageError(f"both --json and --format {kind}", fix="give one of them")
    return "json" if as_json else kind or "table"


def _target(form: str, output: str | None) -> Path | None:
    from qualify.core.errors import UsageError

    if output is None:
        if form == "parquet":
            raise UsageError("Parquet is no text for a terminal", fix="give --output FILE")
        return None
    if form == "table":
        raise UsageError(
            "a table is for reading, not for a file", fix="give --format json, csv or parquet"
        )
    from qualify.results.exporting import require_free

    require_free(target := Path(output).absolute())
    return target


def _given(params: tuple[str, ...]) -> dict[str, str]:
    from qualify.core.errors import UsageError

    found: dict[str, str] = {}
    for text in params:
        name, equals, value = text.partition("=")
        if not equals or name in found:
            what = "is given twice" if equals else "is no NAME=VALUE"
            raise UsageError(what, where=f"--param {text}", fix="write each once, like limit=20")
        found[name] = value
    return found


def _statement(sql: str) -> str:
    return sys.stdin.buffer.read().decode("utf-8", "surrogateescape") if sql == "-" else sql


def _list(form: str, target: Path | None) -> None:
    """The named questions with their parameters."""
    from qualify.cli.tables import print_json, print_table
    from qualify.core.errors import UsageError
    from qualify.results.queries import named_queries

    if form not in ("table", "json") or target is not None:
        raise UsageError("nothing is asked", fix="give NAME or --sql")
    known = named_queries().values()
    if form == "json":
        listed = [
            {
                "name": each.name,
                "description": each.description,
                "parameters": [
                    {
                        "name": parameter.name,
                        "kind": parameter.kind,
                        "default": parameter.default,
                        "description": parameter.description,
                    }
                    for parameter in each.parameters
                ],
            }
            for each in known
        ]
        print_json({"schema": "qualify-queries/1", "queries": listed})
        return
    rows = [
        [
            each.name,
            " ".join(
                p.name if p.default is None else f"{p.name}={p.default}" for p in each.parameters
            ),
            each.description,
        ]
        for each in known
    ]
    print_table(("query", "parameters", "answers"), rows)


def _show(ctx: click.Context, question: Question, form: str, target: Path | None) -> None:
    """Answer as text, or as one JSON document."""
    from qualify.cli.context import results_folder
    from qualify.cli.tables import print_table
    from qualify.evidence.ledger import open_ledger
    from qualify.results.database import snapshot
    from qualify.results.queries import answer

    results = results_folder(ctx)
    with snapshot(results, open_ledger(results), _declared(ctx, question)) as (connection, note):
        _tell(note)
        found = answer(connection, question)
    if form == "table":
        print_table(found.columns, found.rows)
    elif target is None:
        click.echo(_document(found))
    else:
        from qualify.results.exporting import new_file

        with new_file(target) as file:
            file.write_text(_document(found) + "\n", encoding="utf-8")
    if found.cut:
        _tell_cut(len(found.rows))


def _document(found: Answer) -> str:
    document = {"schema": "qualify-query/1", **found.as_json()}
    return json.dumps(document, indent=2, ensure_ascii=False)


def _export(ctx: click.Context, question: Question, form: str, target: Path | None) -> None:
    """Answer as CSV or Parquet: into a new file, or CSV to stdout."""
    import tempfile

    from qualify.cli.context import results_folder
    from qualify.evidence.ledger import open_ledger
    from qualify.results.exporting import export_answer

    results = results_folder(ctx)
    ledger, declared = open_ledger(results), _declared(ctx, question)
    with tempfile.TemporaryDirectory(prefix="qualify-") as scratch:
        file = target or Path(scratch) / "answer"
        done = export_answer(results, ledger, declared, question, form, file)
        _tell(done.note)
        if target is None:
            with file.open("rb") as stream:
                while part := stream.read(1 << 20):
                    click.echo(part, nl=False)
    if done.cut:
        _tell_cut(done.lines)


def _tell(note: Exception | None) -> None:
    if note is not None:
        click.echo(f"note: {note}; answered from the ledger itself", err=True)


def _tell_cut(lines: int) -> None:
    click.echo(f"note: {lines} lines; there are more (--param limit=0 for all)", err=True)


def _declared(ctx: click.Context, question: Question) -> Lines | None:
    """What the manifests declare; faulty manifests do not stand between an analyst and evidence.

    Reading all manifests takes longer than most answers, and most do not look at them.
    """
    from qualify.cli.context import declared_lines
    from qualify.core.errors import QualifyError
    from qualify.results.projection import DECLARED_TABLES

    if not any(table in question.sql for table in DECLARED_TABLES):
        return None
    try:
        return declared_lines(ctx)
    except QualifyError as error:
        first = str(error).splitlines()[0]
        click.echo(f"note: declared rows are as of the last run: {first}", err=True)
        return None
