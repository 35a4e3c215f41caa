"""`qualify evidence export|publish|claim|schema`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qualify.cli.evidence import as_json_option, key_option

if TYPE_CHECKING:
    from datetime import datetime

    from qualify.evidence.ledger import Ledger
    from qualify.evidence.signing.registry import Registry
    from qualify.runner.attesting import Attested


@click.command()
@click.option(
    "--to", "target", required=True, metavar="FOLDER", type=click.Path(path_type=Path),
    help="New folder to make.",
)  # fmt: skip
@click.option(
    "--row", "rows", multiple=True, metavar="ROW", help="Attest these rows (default: all)."
)
@key_option
@click.option("--unsigned", is_flag=True, help="Do not sign statements, also when there is a key.")
@as_json_option
@click.pass_context
def export(
    ctx: click.Context,
    target: Path,
    rows: tuple[str, ...],
    key: Path | None,
    unsigned: bool,
    as_json: bool,
) -> None:
    """Write everything that an outsider needs into one folder.

    Ledger, checkpoints, claims and how to check them. Inside a project the verdicts of its rows go
    along as statements: trials as in-toto test results, verdicts, and a SLSA verification summary
    for a pass.
    """
    from qualify.cli.context import ledger as open_
    from qualify.cli.context import project_folder, results_folder
    from qualify.cli.evidence import signing_key
    from qualify.cli.image_progress import progress_of
    from qualify.cli.tables import print_json
    from qualify.core.clock import Clock
    from qualify.core.errors import Refusal
    from qualify.evidence.exports import make_export
    from qualify.evidence.signing.keys import signing_key_path
    from qualify.evidence.signing.registry import signers_in_force
    from qualify.evidence.verification import verify_ledger

    now = Clock().now()
    ledger, results = open_(ctx), results_folder(ctx)
    project = project_folder(ctx, required=False)
    registry = signers_in_force(project)
    signer = None
    if not unsigned and signing_key_path(key) is not None:
        signer = signing_key(ctx, key)
    found = verify_ledger(ledger, registry, now)
    if found.head is None or found.site is None:
        first = found.findings[0]
        raise Refusal(first.detail, where=first.where, fix="there is nothing to export")
    attested = _attested(ctx, ledger, rows, registry, now) if project is not None else []
    statements = {
        f"{each.row}/{each.suite}/{name}": data
        for each in attested
        for name, data in each.statements.items()
    }
    size = sum(path.stat().st_size for path in ledger.folder.glob("*.log"))
    with progress_of(f"exporting to {target.name}", size) as report:
        made = make_export(results, target, found, statements, signer, now, report)
    if as_json:
        print_json(
            {
                "schema": "qualify-evidence-export/1",
                "folder": str(made.folder),
                "digest": made.digest,
                "files": made.files,
                "size_bytes": made.size,
                "site": found.site,
                "entries": found.count,
                "covered": found.covered,
                "signed": signer is not None,
                "attested": [_attested_json(each) for each in attested],
            }
        )
        return
    click.echo(f"{made.folder}: {found.count} entries, {made.files} files")
    for each in attested:
        reached = [level.level.value for level in each.levels if level.reached]
        click.echo(f"  {each.row} ({each.suite}): {each.status.value}; {', '.join(reached)}")
    if not found.covered:
        click.echo("  no signer that counts here covers the ledger (qualify evidence sign)")
    click.echo(f"  export.json {made.digest}")


def _attested(
    ctx: click.Context,
    ledger: Ledger,
    rows: tuple[str, ...],
    registry: Registry | None,
    now: datetime,
) -> list[Attested]:
    from qualify.cli.context import catalog, results_folder
    from qualify.evidence.claims import signed_claims
    from qualify.runner.attesting import attest

    known = catalog(ctx)
    claims, refused = signed_claims(results_folder(ctx), registry, now)
    for why in refused:
        click.echo(f"note: a claim counts for nothing: {why}", err=True)
    chosen = [known.row(row).id for row in rows] if rows else list(known.rows)
    return attest(known, ledger, chosen, claims, now)


def _attested_json(each: Attested) -> dict[str, Any]:
    from qualify.evidence.claims import NEEDS, highest

    level = highest(each.levels)
    return {
        "row": each.row,
        "suite": each.suite,
        "status": each.status.value,
        "claim_level": level.value if level else None,
        "claim_levels": [
            {
                "level": one.level.value,
                "reached": one.reached,
                "by": one.by,
                "needs": NEEDS[one.level],
            }
            for one in each.levels
        ],
        "automatic_promotion_allowed": False,
    }


@click.command()
@click.option(
    "--to", "target", required=True, metavar="PLACE",
    help="A folder, or the URL of a service (https, or http on this machine).",
)  # fmt: skip
@as_json_option
@click.pass_context
def publish(ctx: click.Context, target: str, as_json: bool) -> None:
    """Put checkpoints where their owner cannot change them.

    Nothing is replaced. Exit 10 when the place holds something else, or lost what was published.
    """
    from qualify.cli.context import ledger as open_
    from qualify.cli.tables import print_json
    from qualify.evidence.publishing import open_place
    from qualify.evidence.publishing import publish as put

    done = put(open_(ctx), open_place(target))
    if as_json:
        print_json(
            {
                "schema": "qualify-evidence-publish/1",
                "place": done.place,
                "published": done.new,
                "already_there": done.kept,
            }
        )
    else:
        click.echo(
            f"{done.place}: {len(done.new)} checkpoints published, {len(done.kept)} were there"
        )


@click.command()
@click.argument("level", type=click.Choice(("ci-validated", "institution-approved")))
@click.argument("row", metavar="ROW")
@click.option("--suite", metavar="SUITE", help="Default: the row's first.")
@click.option("--valid-until", metavar="TIME", help="2027-01-31T00:00:00Z; default: no end.")
@key_option
@click.pass_context
def claim(
    ctx: click.Context,
    level: str,
    row: str,
    suite: str | None,
    valid_until: str | None,
    key: Path | None,
) -> None:
    """Sign that ROW, as it is configured now, reached LEVEL. Promotes nothing.

    It counts only where the key is registered for the purpose: `ci`, or `institution`.
    """
    from qualify.cli.context import catalog, results_folder
    from qualify.cli.evidence import signing_key
    from qualify.core.clock import Clock, format_time, parse_time
    from qualify.core.errors import UsageError
    from qualify.evidence.checkpoints import write
    from qualify.evidence.claims import FOLDER, Claim, ClaimLevel, claim_name, sign_claim
    from qualify.manifests.configuration import resolve, suite_identity

    known = catalog(ctx)
    configuration = resolve(known, row)
    identity = suite_identity(known, suite or known.row(row).suites[0])
    try:
        end = format_time(parse_time(valid_until)) if valid_until else None
    except ValueError as error:
        raise UsageError(str(error), where="--valid-until") from error
    said = Claim(
        level=ClaimLevel(level),
        row=configuration.row.id,
        configuration=configuration.digest,
        suite=identity.id,
        suite_digest=identity.digest,
        time=format_time(Clock().now()),
        valid_until=end,
    )
    signer = signing_key(ctx, key)
    folder = results_folder(ctx) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / claim_name(said, signer)
    write(path, sign_claim(said, signer))
    click.echo(f"{path}: {level}, {configuration.row.id} ({identity.id})")


@click.command()
@click.argument(
    "name",
    type=click.Choice(("assessment", "checkpoint", "key-handover", "claim", "evidence-export")),
)
def schema(name: str) -> None:
    """Print the JSON Schema of one of our predicates."""
    from qualify.cli.tables import print_json
    from qualify.evidence.schemas import predicate_schema

    print_json(predicate_schema(name))
