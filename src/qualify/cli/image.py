"""`qualify image`: look at images, guard, compare, export and unpack them.

Parsing and printing only; the work is in `qualify.images`. Building and attesting stand in modules
of their own and are imported when they are used.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qualify.images.image import Image
    from qualify.manifests.kinds import Runtime

ELSEWHERE = {
    "build": ("image_build", "Build an image of this project with Nix."),
    "sbom": ("image_attest", "The components of an image (CycloneDX)."),
    "provenance": ("image_attest", "What an image was built from (SLSA)."),
}
"""Sub-command → module of `qualify.cli` that holds it, and its summary."""


class _ImageGroup(click.Group):
    """A group some of whose commands are imported only when they run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        present = [name for name, (module, _) in ELSEWHERE.items() if _exists(module)]
        return [*super().list_commands(ctx), *present]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module, _ = ELSEWHERE.get(cmd_name, ("", ""))
        if not module or not _exists(module):
            return super().get_command(ctx, cmd_name)
        command: click.Command = getattr(importlib.import_module(f"qualify.cli.{module}"), cmd_name)
        return command


def _exists(module: str) -> bool:
    return importlib.util.find_spec(f"qualify.cli.{module}") is not None


@click.group(cls=_ImageGroup)
def image() -> None:
    """Container images: look at them, guard, compare, export and unpack them.

    IMAGE is an OCI layout (a folder or a tar) or what `docker save` wrote.
    """


_image = click.argument("path", metavar="IMAGE", type=click.Path(path_type=Path))
_ref = click.option("--ref", metavar="NAME", help="Which image, where IMAGE holds several.")
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


@image.command()
@_image
@_ref
@_json
def inspect(path: Path, ref: str | None, as_json: bool) -> None:
    """Show what IMAGE says of itself: digest, settings, labels, layers. Reads no layer."""
    from qualify.cli.image_output import inspection_document, print_inspection
    from qualify.cli.tables import print_json
    from qualify.images.image import open_image

    opened = open_image(path, reference=ref)
    if as_json:
        print_json(inspection_document(opened))
    else:
        print_inspection(opened)


@image.command()
@_image
@click.option(
    "--runtime", metavar="ID", help="Hold it to this runtime (default: the label qualify.runtime)."
)
@click.option(
    "--depot",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Compare installed files with the locked wheels in this depot too.",
)
@_ref
@_json
@click.pass_context
def guard(
    ctx: click.Context,
    path: Path,
    runtime: str | None,
    depot: Path | None,
    ref: str | None,
    as_json: bool,
) -> int:
    """Judge IMAGE without a GPU and without running it; a folder without an image in it is
    judged as an environment.

    Exit 10 when a guard fails or cannot judge.
    """
    from qualify.cli.image_output import guard_document, print_guards
    from qualify.cli.image_progress import progress_of
    from qualify.cli.tables import print_json
    from qualify.core.errors import ExitCode
    from qualify.images.expectations import expectations
    from qualify.images.guards import Subject, accepts
    from qualify.images.guards import guard as judge
    from qualify.images.image import open_image
    from qualify.images.scan import scan_folder, scan_image

    is_environment = path.is_dir() and not (path / "oci-layout").exists()
    opened = None if is_environment else open_image(path, reference=ref)
    project, runtimes = _project(ctx, opened, runtime)
    expected = expectations(opened.labels if opened else {}, project, runtimes, runtime, depot)
    if runtime is not None and expected.runtime_missing:
        from qualify.core.errors import UsageError

        raise UsageError(expected.runtime_missing, fix="see manifests/runtimes/")
    with progress_of("reading", opened.size if opened else None) as report:
        if opened is None:
            scan = scan_folder(path, progress=report)
        else:
            scan = scan_image(opened, progress=report, tolerant=True)
    if opened is None and not Subject(scan, expected).installed:
        from qualify.core.errors import UsageError

        raise UsageError(
            "is neither an image nor an environment: no Python distribution is installed in it",
            where=str(path),
            fix="name an OCI layout, an image archive, or the root or site-packages of a system",
        )
    with progress_of("compiling again", opened.size if opened else None) as report:
        results = judge(Subject(scan, expected, opened, report))
    if as_json:
        print_json(guard_document(opened, path, expected, results))
    else:
        print_guards(opened, path, results)
    return ExitCode.OK if accepts(results) else ExitCode.NOT_A_PASS


def _project(
    ctx: click.Context, opened: Image | None, runtime: str | None
) -> tuple[Path | None, Mapping[str, Runtime]]:
    """The project to compare with, where anything is to be compared."""
    from qualify.cli import context
    from qualify.images.pinned import IMAGE_LABEL

    asked = runtime is not None or (opened is not None and IMAGE_LABEL in opened.labels)
    if not asked:
        return None, {}
    project = context.project_folder(ctx, required=runtime is not None)
    return project, {} if project is None else context.catalog(ctx).runtimes


@image.command()
@click.argument("before", metavar="IMAGE", type=click.Path(path_type=Path))
@click.argument("after", metavar="OTHER", type=click.Path(path_type=Path))
@click.option("--limit", metavar="N", type=click.IntRange(min=0), default=20, show_default=True,
              help="Lines of each topic; 0: all.")  # fmt: skip
@_json
def diff(before: Path, after: Path, limit: int, as_json: bool) -> int:
    """Show what changed from IMAGE to OTHER: settings, labels, layers, packages, files.

    Exit 10 when they differ.
    """
    from qualify.cli.image_output import difference_document, print_difference
    from qualify.cli.image_progress import progress_of
    from qualify.cli.tables import print_json
    from qualify.core.errors import ExitCode
    from qualify.images.difference import difference
    from qualify.images.image import open_image
    from qualify.images.scan import scan_image

    a, b = open_image(before), open_image(after)
    with progress_of("reading", a.size + b.size) as report:
        found = difference(a, scan_image(a, progress=report), b, scan_image(b, progress=report))
    if as_json:
        print_json(difference_document(a, b, found))
    else:
        print_difference(found, limit)
    return ExitCode.NOT_A_PASS if found.changes else ExitCode.OK


@image.command()
@_image
@click.option("--to", "target", metavar="TARGET", required=True,
              type=click.Path(path_type=Path), help="New folder or file.")  # fmt: skip
@click.option(
    "--format",
    "form",
    type=click.Choice(["oci", "oci-archive", "docker-archive"]),
    default="oci",
    show_default=True,
    help="What to write.",
)
@click.option("--tag", metavar="NAME", help="Name inside (default: the one it has).")
@_ref
@_json
def export(
    path: Path, target: Path, form: str, tag: str | None, ref: str | None, as_json: bool
) -> None:
    """Write a self-contained copy of IMAGE, every blob verified; same image, same bytes."""
    from qualify.cli.image_progress import progress_of
    from qualify.cli.tables import print_json
    from qualify.images.exporting import export_image
    from qualify.images.image import open_image

    opened = open_image(path, reference=ref)
    with progress_of("writing", opened.size) as report:
        digest = export_image(opened, target, form, tag=tag, progress=report)
    if as_json:
        document = {"path": str(target), "format": form, "digest": digest}
        print_json({"schema": "qualify-image-export/1", **document})
    else:
        click.echo(f"wrote {target} ({form}) {digest}")


@image.command()
@_image
@click.option(
    "--to",
    "target",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="New folder (default: in the user's cache, by digest).",
)
@_ref
@_json
def unpack(path: Path, target: Path | None, ref: str | None, as_json: bool) -> None:
    """Unpack IMAGE's root file system, verified, without devices and setuid bits."""
    from qualify.cli.image_progress import progress_of
    from qualify.cli.tables import print_json
    from qualify.images.image import open_image
    from qualify.images.unpacking import unpack_image

    opened = open_image(path, reference=ref)
    with progress_of("unpacking", opened.size) as report:
        made = unpack_image(opened, target, progress=report)
    if as_json:
        document = {"digest": made.digest, "root": str(made.root), "labels": dict(made.labels)}
        print_json({"schema": "qualify-image-unpack/1", **document})
    else:
        click.echo(f"{made.digest}\n{made.root}")
