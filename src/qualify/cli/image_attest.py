"""`qualify image sbom` and `qualify image provenance`: what an image holds and came from.

Parsing and printing only; the work is in `qualify.images.sbom` and `provenance`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qualify.cli import context

if TYPE_CHECKING:
    from qualify.images import Image
    from qualify.images.pinned import ImagePins

_image = click.argument("path", metavar="IMAGE", type=click.Path(path_type=Path))
_reference = click.option(
    "--ref", "reference", metavar="NAME", help="Which image, where IMAGE holds several."
)
_out = click.option(
    "--out",
    "target",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write it there instead of to stdout.",
)


def _options[F: Callable[..., Any]](command: F) -> F:
    for option in (_out, _reference, _image):
        command = option(command)
    return command


@click.command()
@_options
@click.pass_context
def sbom(ctx: click.Context, path: Path, reference: str | None, target: Path | None) -> None:
    """Print the bill of materials of an image of this project (CycloneDX 1.6, JSON).

    Components come from the locks that the image's labels name, licences from what the packages in
    the image state. The same image gives the same bytes.
    """
    from qualify.cli.image_progress import progress_of
    from qualify.images.attestations import make_sbom

    image, pins = _opened(ctx, path, reference)
    with progress_of("reading layers", image.size) as report:
        data = make_sbom(image, pins, report)
    _deliver(data, target)


@click.command()
@_options
@click.pass_context
def provenance(ctx: click.Context, path: Path, reference: str | None, target: Path | None) -> None:
    """Print the provenance of an image of this project (SLSA v1 in an in-toto statement, unsigned).

    It names the source, the flake output and every pinned file by SHA-256. The same image gives the
    same bytes.
    """
    from qualify.images.attestations import make_provenance

    image, pins = _opened(ctx, path, reference)
    _deliver(make_provenance(image, pins), target)


def _opened(ctx: click.Context, path: Path, reference: str | None) -> tuple[Image, ImagePins]:
    from qualify.images import open_image
    from qualify.images.attestations import pins_of

    project = context.project_folder(ctx)
    assert project is not None
    image = open_image(path, reference=reference)
    return image, pins_of(image, project / "locks")


def _deliver(data: bytes, target: Path | None) -> None:
    from qualify.core.errors import EnvironmentFault
    from qualify.storage.folders import write_atomic

    if target is None:
        click.echo(data, nl=False)
        return
    try:
        write_atomic(target, data)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot be written: {error.strerror or error}",
            where=str(target),
            fix="check its folder and the free space",
        ) from error
