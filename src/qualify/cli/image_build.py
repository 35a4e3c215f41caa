"""`qualify image build`: an image of this project, built with Nix.

Parsing and printing only; the work is in `qualify.images.nix_build`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from qualify.cli import context


@click.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--out",
    "link",
    metavar="LINK",
    type=click.Path(path_type=Path),
    help="Leave a link to the image there, which also keeps it from Nix's garbage collection.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def build(ctx: click.Context, name: str, link: Path | None, as_json: bool) -> None:
    """Build the image NAME (runner, llama-cpp-cpu, vllm-cpu, …) from the pinned files.

    Prints its digest and where it lies: an OCI layout in the Nix store. Needs Nix and a seeded
    store (`qualify depot seed`), and no network. The same commit gives the same digest on every
    machine.
    """
    from qualify.images.nix_build import build_image

    project = context.project_folder(ctx)
    assert project is not None
    with _progress() as report:
        built = build_image(project, name, link.absolute() if link else None, report)
    if as_json:
        from qualify.cli.tables import print_json

        print_json(
            {
                "schema": "qualify-image-build/1",
                "image": built.name,
                "digest": built.digest,
                "path": str(built.path),
                "revision": built.revision,
                "milliseconds": round(built.seconds * 1000),
            }
        )
        return
    click.echo(f"image {built.name}: {built.digest}")
    click.echo(f"revision {built.revision}, built in {built.seconds:.1f} s")
    click.echo(str(link or built.path))


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """One line on stderr for each part as its build starts."""

    def report(text: str) -> None:
        click.echo(f"  {text}", err=True)

    yield report
