"""`qualify lock`: make locks, generate requirements files from them, check that all are in step.

Parsing and printing only; the work is in `qualify.pins`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from qualify.pins.locks import Lock, LockInput


@click.group()
def lock() -> None:
    """Pin packages: host-free locks and the requirements files made from them."""


def _locks_folder(context: click.Context, parameter: click.Parameter, value: str | None) -> Path:
    from qualify.cli.context import project_folder

    if value is not None:
        return Path(value)
    project = project_folder(context)
    assert project is not None
    return project / "locks"


locks_option = click.option(
    "--locks", "folder", metavar="DIR", callback=_locks_folder, help="Folder of the locks."
)
_sets = click.argument("sets", nargs=-1, metavar="[SET]...")
_every = click.option(
    "--all", "every", is_flag=True, help="Every set of Python packages (debian must be named)."
)


@lock.command()
@_sets
@_every
@click.option(
    "--cutoff",
    metavar="DATE",
    help="Ignore files published later (2026-11-30 or 2026-11-30T00:00:00Z). "
    "Default: the cut-off of the present lock, else today. A set's own cut-off wins.",
)
@locks_option
def resolve(sets: tuple[str, ...], every: bool, cutoff: str | None, folder: Path) -> None:
    """Make locks/SET.json from locks/SET.in, and the requirements file with it.

    Sets that must agree on versions (`# together:` in their .in files) are always made together.
    """
    from qualify.core.errors import UsageError
    from qualify.pins.debian import SET as DEBIAN
    from qualify.pins.locks import read_input, set_paths
    from qualify.pins.resolution import resolve as solve

    if not sets and not every:
        raise UsageError("which sets?", fix="name them, or give --all")
    set_paths(folder, sets, ".in")
    inputs = [read_input(path) for path in set_paths(folder, (), ".in") if path.stem != DEBIAN]
    chosen = [entry for entry in inputs if every or entry.set in sets]
    groups = {entry.together for entry in chosen if entry.together}
    chosen = [entry for entry in inputs if entry in chosen or entry.together in groups]
    moment = _moment(cutoff) if cutoff else _present_cutoff(folder, chosen)
    for made in solve(chosen, moment):
        _write(folder, made)
        click.echo(f"{made.set}: {len(made.packages)} packages, {made.digest}")
    if DEBIAN in sets:
        _resolve_debian(folder)


def _resolve_debian(folder: Path) -> None:
    from qualify.pins.debian import SET, debian_lock_bytes, read_debian_input
    from qualify.pins.debian_resolution import resolve_debian
    from qualify.storage.folders import write_atomic

    made = resolve_debian(read_debian_input(folder / f"{SET}.in"))
    write_atomic(folder / f"{SET}.json", debian_lock_bytes(made))
    click.echo(f"{SET}: {len(made.packages)} packages, {made.digest}")


def _present_cutoff(folder: Path, chosen: list[LockInput]) -> str:
    from qualify.core.clock import Clock, format_time
    from qualify.core.errors import QualifyError
    from qualify.pins.locks import read_lock

    found = []
    for entry in chosen:
        if entry.cutoff:
            continue
        try:
            found.append(read_lock(folder / f"{entry.set}.json").cutoff)
        except QualifyError:
            continue
    return max(found) if found else format_time(Clock().now())[:10] + "T00:00:00Z"


def _moment(text: str) -> str:
    from qualify.core.clock import format_time, parse_time
    from qualify.core.errors import UsageError

    try:
        return format_time(parse_time(text if "T" in text else f"{text}T00:00:00Z"))
    except ValueError as error:
        raise UsageError(str(error), where="--cutoff", fix="write 2026-11-30") from error


def _write(folder: Path, made: Lock) -> None:
    from qualify.pins.locks import lock_bytes, requirements_text
    from qualify.storage.folders import write_atomic

    (folder / "requirements").mkdir(exist_ok=True)
    write_atomic(folder / f"{made.set}.json", lock_bytes(made))
    text = requirements_text(made).encode()
    write_atomic(folder / "requirements" / f"{made.set}.txt", text)


@lock.command()
@_sets
@click.option("--check", is_flag=True, help="Write nothing; exit 2 when a file is out of step.")
@locks_option
def requirements(sets: tuple[str, ...], check: bool, folder: Path) -> None:
    """Generate locks/requirements/SET.txt from locks/SET.json (every set without a name)."""
    from qualify.core.errors import UsageError
    from qualify.pins.debian import SET as DEBIAN
    from qualify.pins.locks import read_lock, requirements_text, set_paths
    from qualify.storage.folders import write_atomic

    stale = []
    for path in set_paths(folder, sets, ".json"):
        if path.stem == DEBIAN:
            continue
        wanted = requirements_text(read_lock(path)).encode()
        target = folder / "requirements" / f"{path.stem}.txt"
        if target.is_file() and target.read_bytes() == wanted:
            continue
        if check:
            stale.append(str(target))
            continue
        target.parent.mkdir(exist_ok=True)
        write_atomic(target, wanted)
        click.echo(f"wrote {target}")
    if stale:
        raise UsageError(
            "is not what its lock says",
            where=", ".join(stale),
            fix="run `qualify lock requirements`",
        )
