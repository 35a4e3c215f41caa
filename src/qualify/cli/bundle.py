"""`qualify bundle`: make an offline bundle, and check one that was received.

Parsing and printing only; the work is in `qualify.images.bundle` and `bundle_check`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qualify.cli import context

if TYPE_CHECKING:
    from qualify.images.bundle_check import BundleReport
    from qualify.manifests.catalog import Catalog
    from qualify.manifests.kinds import Bundle

_SHOWN = 10
_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group()
def bundle() -> None:
    """Offline bundles: images, locks, manifests, corpora and documentation in one folder."""


@bundle.command()
@click.argument("name", metavar="[BUNDLE]", default="offline")
@click.option(
    "--image",
    "layouts",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    help="OCI layout of an image that the bundle declares; repeat it for each.",
)
@click.option(
    "--to",
    "target",
    metavar="DIR",
    type=click.Path(path_type=Path),
    required=True,
    help="New folder to make.",
)
@click.option(
    "--with-changes",
    "changes",
    is_flag=True,
    help="Carry files that differ from the commit; the revision then ends in -dirty.",
)
@_as_json
@click.pass_context
def make(
    ctx: click.Context,
    name: str,
    layouts: tuple[Path, ...],
    target: Path,
    changes: bool,
    as_json: bool,
) -> None:
    """Make the bundle that manifests/bundles/BUNDLE.yaml declares (default: offline).

    The same images and the same project give the same bytes. Prints the bundle's digest: tell it to
    the receiving person by another way than the bundle takes.
    """
    from qualify.cli.image_progress import progress_of
    from qualify.images.bundle import make_bundle
    from qualify.images.bundle_plan import plan_bundle

    known = context.catalog(ctx)
    declared = known.bundle(name)
    plan = plan_bundle(
        known.project, declared, _runtimes(known, declared), list(layouts), changes=changes
    )
    for remark in plan.project_files.remarks:
        click.echo(remark, err=True)
    with progress_of(f"making {target.name}", plan.work) as report:
        made = make_bundle(plan, target, report)
    images = [{"name": each.name, "digest": each.image.digest} for each in plan.images]
    if as_json:
        from qualify.cli.tables import print_json

        print_json(
            {
                "schema": "qualify-bundle-make/1",
                "bundle": name,
                "revision": plan.project_files.revision,
                "folder": str(made.folder),
                "digest": made.digest,
                "files": made.files,
                "size_bytes": made.size,
                "images": images,
            }
        )
        return
    from qualify.models.errors import bytes_text

    for each in images:
        click.echo(f"{each['name']}: {each['digest']}")
    click.echo(f"{made.folder}: {made.files} files, {bytes_text(made.size)}")
    click.echo(f"bundle digest: {made.digest}")


def _runtimes(known: Catalog, declared: Bundle) -> dict[str, str]:
    """The runtime of each row of the bundle that needs an engine from an image."""
    from qualify.core.status import EngineKind

    served = (EngineKind.LLAMA_CPP, EngineKind.VLLM)
    needed = {row: known.row(row).runtime for row in declared.rows}
    return {row: name for row, name in needed.items() if known.runtime(name).engine in served}


def _announced(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    from qualify.core.digests import is_digest
    from qualify.core.errors import UsageError

    if value is not None and not is_digest(value):
        raise UsageError(
            f"{value[:90]!a} is no digest",
            where="--digest",
            fix="give sha256: and 64 hexadecimal digits, as `qualify bundle make` printed them",
        )
    return value


@bundle.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--digest",
    "announced",
    metavar="SHA256",
    callback=_announced,
    help="The bundle's digest, as its maker told you by another way.",
)
@_as_json
def verify(folder: Path, announced: str | None, as_json: bool) -> None:
    """Check a bundle: every file, nothing else, and that its parts speak of each other rightly.

    Needs no network and no project. Exit 10 when it is not accepted, 2 when it is no bundle.
    """
    from qualify.cli.image_progress import progress_of
    from qualify.core.errors import ExitCode
    from qualify.images.bundle_check import check_bundle, total_size

    with progress_of("checking", total_size(folder)) as report:
        found = check_bundle(folder, announced=announced, progress=report)
    if as_json:
        from qualify.cli.tables import print_json

        print_json(_document(found))
    else:
        _print_report(found)
    if not found.accepted:
        raise click.exceptions.Exit(ExitCode.NOT_A_PASS)


def _document(found: BundleReport) -> dict[str, Any]:
    images = found.index.images if found.index else ()
    return {
        "schema": "qualify-bundle-verify/1",
        "folder": str(found.folder),
        "accepted": found.accepted,
        "digest": found.digest,
        "digest_announced": found.announced,
        "bundle": found.index.bundle if found.index else None,
        "revision": found.index.revision if found.index else None,
        "images": [
            {
                "name": each.name,
                "digest": each.digest,
                "runtime": each.runtime,
                "revision": each.revision,
            }
            for each in images
        ],
        "established": list(found.established),
        "not_established": list(found.not_established),
        "files": found.files,
        "size_bytes": found.size,
        "findings_total": found.count,
        "findings": [
            {"fault": str(each.fault), "path": each.path, "detail": each.detail}
            for each in found.findings
        ],
    }


def _print_report(found: BundleReport) -> None:
    from qualify.cli.tables import printable
    from qualify.models.errors import bytes_text

    for each in found.findings[:_SHOWN]:
        click.echo(f"{each.fault:<12}  {each.path}: {printable(each.detail)}")
    if found.count > _SHOWN:
        click.echo(f"and {found.count - _SHOWN} more (--json lists them)")
    if not found.accepted or found.index is None:
        plural = "" if found.count == 1 else "s"
        click.echo(f"NOT ACCEPTED: {found.count} thing{plural} wrong with {found.folder}")
        return
    for image in found.index.images:
        click.echo(f"{image.name}: {image.digest}, revision {printable(image.revision)}")
    click.echo(f"bundle {found.index.bundle}: {found.digest}, revision {found.index.revision}")
    click.echo(f"accepted: {found.files} files, {bytes_text(found.size)}")
    for sentence in found.established:
        click.echo(f"established: {sentence}")
    for sentence in found.not_established:
        click.echo(f"not established: {sentence}")
