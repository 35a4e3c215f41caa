"""`qualify depot`: gather the files of locks, check them, carry them, give them to Nix.

Parsing and printing only; the work is in `qualify.pins`.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qualify.cli.lock import locks_option
from qualify.cli.tables import print_json

if TYPE_CHECKING:
    from qualify.pins.depot import Problem
    from qualify.pins.depot_fill import Progress

_depot = click.argument("depot", metavar="DIR", type=click.Path(path_type=Path))
_MEGABYTE = 1_000_000


@click.group()
def depot() -> None:
    """Gather the pinned files in one folder, for builds without a network."""


@depot.command()
@click.argument("sets", nargs=-1, required=True, metavar="SET...")
@click.option(
    "--to", "target", required=True, metavar="DIR", type=click.Path(path_type=Path),
    help="Folder of the depot; made when it is not there.",
)  # fmt: skip
@click.option(
    "--jobs", default=4, show_default=True, type=click.IntRange(1, 16),
    help="How many package clients work at a time.",
)  # fmt: skip
@locks_option
def fill(sets: tuple[str, ...], target: Path, jobs: int, folder: Path) -> None:
    """Fetch what is missing of SETs with this machine's own pip and apt, and check every byte.

    A SET is a lock of locks/; one closure of the Debian lock is written debian:runner. What has
    arrived is kept when this is interrupted: run the same command again.
    """
    from qualify.pins.depot_fill import fill as work
    from qualify.pins.wanted import wanted_sets

    wanted = wanted_sets(folder, sets)
    with _progress() as bar:
        done = work(wanted, target, jobs, _reporting(bar))
    for name in done.replaced:
        click.echo(f"replaced files/{name}: it was not what the lock says", err=True)
    for name in done.removed:
        click.echo(f"removed files/{name}: no set names it any more", err=True)
    assert done.index is not None
    click.echo(
        f"{target}: {', '.join(done.index.sets)}: {len(done.index.files)} files, "
        f"{_megabytes(done.index.size)}; fetched {done.fetched} "
        f"({_megabytes(done.fetched_size)}), had {done.kept}"
    )


@depot.command()
@_depot
@click.argument("sets", nargs=-1, metavar="[SET]...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--locks", "folder", metavar="DIR", help="Folder of the locks to compare with.")
@click.pass_context
def verify(
    context: click.Context, depot: Path, sets: tuple[str, ...], as_json: bool, folder: str | None
) -> None:
    """Read every file of the depot; exit 10 when one is missing, changed or extra.

    Inside a project, or with --locks, it is also checked that the depot was filled for its locks.
    """
    from qualify.core.errors import ExitCode
    from qualify.pins.depot import read_index
    from qualify.pins.depot import verify as work
    from qualify.pins.wanted import not_as_locked

    index = read_index(depot)
    with _progress() as bar:
        problems = work(depot, index, sets, _counting(bar, index.size))
    locks = Path(folder) if folder else _project_locks(context)
    if locks is not None:
        problems += not_as_locked(index, locks, sets or index.sets)
    if as_json:
        rows = [{"kind": p.kind, "name": p.name, "detail": p.detail} for p in problems]
        print_json({
            "schema": "qualify-depot-verify/1",
                "depot": str(depot),
            "files": len(index.files),
            "sets": {name: entry.digest for name, entry in index.sets.items()},
            "problems": rows,
        })  # fmt: skip
    else:
        _show(depot, len(index.files), problems)
    if problems:
        context.exit(ExitCode.NOT_A_PASS)


def _show(depot: Path, files: int, problems: list[Problem]) -> None:
    from qualify.pins.depot import first_ten

    listed, more = first_ten(problems)
    for problem in listed:
        click.echo(f"{problem.kind}: {problem.name}: {problem.detail}")
    if more:
        click.echo(f"and {more} more")
    if problems:
        click.echo(f"{depot}: {len(problems)} problems; fill it again with `qualify depot fill`")
    else:
        click.echo(f"{depot}: {files} files, all as pinned")


@depot.command()
@_depot
def seed(depot: Path) -> None:
    """Add every file of the depot to this machine's Nix store; skips what is valid there.

    The script DIR/seed does the same on a machine that has only Nix.
    """
    from qualify.pins.depot_seed import seed as work

    with _progress() as bar:

        def report(done: int, of: int) -> None:
            if bar is not None:
                bar("seeding", done, of)

        result = work(depot, report)
    click.echo(f"added {result.added}, valid before {result.valid}")


@depot.command()
@_depot
@click.option("--to", "target", required=True, metavar="FILE", type=click.Path(path_type=Path),
              help="The archive to write.")  # fmt: skip
def pack(depot: Path, target: Path) -> None:
    """Write the depot into one uncompressed tar; equal depots give equal bytes."""
    from qualify.pins.depot_archive import pack as work

    with _progress() as bar:
        digest = work(depot, target, _sizing(bar, "packing"))
    click.echo(f"{target}: {digest}")


@depot.command()
@click.argument("archive", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--to", "target", required=True, metavar="DIR", type=click.Path(path_type=Path),
              help="Folder to make; must not exist yet.")  # fmt: skip
def unpack(archive: Path, target: Path) -> None:
    """Make a depot from a carried archive: every byte is checked before DIR appears."""
    from qualify.pins.depot_archive import unpack as work

    with _progress() as bar:
        index = work(archive, target, _sizing(bar, "unpacking"))
    click.echo(f"{target}: {', '.join(index.sets)}: {len(index.files)} files, all as pinned")


def _project_locks(context: click.Context) -> Path | None:
    """The locks of the project around, where there is one."""
    from qualify.cli.context import project_folder

    project = project_folder(context, required=False)
    return project / "locks" if project else None


def _megabytes(size: int) -> str:
    return f"{size / _MEGABYTE:.1f} MB"


type _Draw = Callable[[str, int, int], None]


@contextlib.contextmanager
def _progress() -> Iterator[_Draw | None]:
    """A bar on a terminal's stderr, gone at the end; None where nobody watches."""
    watched = sys.stderr.isatty() and not os.environ.get("CI")
    if not watched or os.environ.get("TERM", "") in ("", "dumb"):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn(compact=True),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=None)
        yield lambda text, done, of: progress.update(
            task, description=text, completed=done, total=of
        )


def _reporting(bar: _Draw | None) -> Callable[[Progress], None]:
    def report(step: Progress) -> None:
        if bar is not None:
            text = (
                f"{step.phase} {step.files} of {step.all_files} files, "
                f"{_megabytes(step.size)} of {_megabytes(step.all_size)}"
            )
            bar(text, step.size, step.all_size)

    return report


def _sizing(bar: _Draw | None, verb: str) -> Callable[[int, int], None]:
    def report(done: int, of: int) -> None:
        if bar is not None:
            bar(f"{verb} {_megabytes(done)} of {_megabytes(of)}", done, of)

    return report


def _counting(bar: _Draw | None, total: int) -> Callable[[int], None]:
    report = _sizing(bar, "reading")
    done = 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        report(min(done, total), total)

    return count
