"""`qualify manifest`: check every manifest of a project, export the JSON Schemas.

Parsing and printing only; the work is in `qualify.manifests`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from qualify.core.errors import ErrorList, QualifyError
    from qualify.manifests.catalog import Catalog


@click.group()
def manifest() -> None:
    """Check manifests and export their schemas."""


@manifest.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.pass_context
def check(ctx: click.Context, /, as_json: bool) -> None:
    """Read and cross-check every manifest; list all mistakes as file:line:column.

    Exit 0 when there is none, 2 otherwise.
    """
    import orjson

    from qualify.cli import context
    from qualify.core.errors import ErrorList, ExitCode

    counts: dict[str, int] = {}
    mistakes: list[dict[str, Any]] = []
    try:
        catalog = context.catalog(ctx)
        _require_known_contracts(catalog)
        for kind, _ in catalog.files:
            counts[kind] = counts.get(kind, 0) + 1
    except ErrorList as error:
        mistakes = [_as_json(each) for each in error.errors]
        if not as_json:
            _print_mistakes(error)
    if as_json:
        document = {
            "schema": "qualify-manifest-check/1",
            "sound": not mistakes,
            "manifests": counts if not mistakes else None,
            "mistakes": mistakes,
        }
        click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    elif not mistakes:
        total = sum(counts.values())
        parts = ", ".join(f"{kind} {count}" for kind, count in counts.items())
        click.echo(f"{total} manifests are sound: {parts}")
    if mistakes:
        raise click.exceptions.Exit(ExitCode.USAGE)


def _require_known_contracts(catalog: Catalog) -> None:
    """Every scenario asks for checks that this version has. Raises `ErrorList`."""
    from qualify.core.errors import ErrorList, UsageError
    from qualify.scenarios.contract import mismatches

    wrong = [
        UsageError(
            text,
            where=f"{catalog.files['scenarios', scenario.id]}:1:1",
            fix="see docs/reference/scenarios.md for this version's checks",
        )
        for scenario in catalog.scenarios.values()
        for text in mismatches(scenario)
    ]
    if wrong:
        raise ErrorList(wrong)


def _print_mistakes(errors: ErrorList) -> None:
    for error in errors.errors:
        click.echo(str(error), err=True)
    files = {_split(error.where)[0] for error in errors.errors}
    many = len(errors.errors)
    click.echo(
        f"{many} mistake{'s' if many != 1 else ''} in {len(files)} "
        f"file{'s' if len(files) != 1 else ''}",
        err=True,
    )


def _as_json(error: QualifyError) -> dict[str, Any]:
    file, line, column = _split(error.where)
    return {"file": file, "line": line, "column": column, "what": error.what, "fix": error.fix}


def _split(where: str) -> tuple[str, int | None, int | None]:
    file, _, rest = where.rpartition(".yaml:")
    line, _, column = rest.partition(":")
    if file and line.isdigit() and column.isdigit():
        return f"{file}.yaml", int(line), int(column)
    return where, None, None


@manifest.command()
@click.argument("kind", required=False)
@click.option(
    "--write", "folder", metavar="FOLDER", type=click.Path(), help="Write every schema there."
)
@click.option("--table", is_flag=True, help="Print the fields as a Markdown table instead.")
def schema(kind: str | None, folder: str | None, table: bool) -> None:
    """Print the JSON Schema of KIND, or list the kinds; --write makes one file for each."""
    from qualify.core.errors import EnvironmentFault, UsageError
    from qualify.manifests.field_tables import field_table
    from qualify.manifests.schema import schema_bytes, schema_names
    from qualify.storage.folders import write_atomic

    if kind and folder:
        raise UsageError("either a kind or --write, not both", fix="leave one out")
    if kind:
        click.echo(field_table(kind) if table else schema_bytes(kind).decode(), nl=False)
        return
    if folder is None:
        for name, where in schema_names().items():
            click.echo(f"{name:<10} {'corpora/ID/card' if name == 'corpus' else where + '/*'}.yaml")
        return
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name in schema_names():
            write_atomic(Path(folder) / f"{name}.json", schema_bytes(name))
    except OSError as error:
        raise EnvironmentFault(
            f"cannot be written: {error.strerror or error}",
            where=folder,
            fix="check the folder's permissions",
        ) from error
    click.echo(f"wrote {len(schema_names())} schemas to {folder}")
