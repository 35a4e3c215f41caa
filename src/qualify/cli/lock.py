"""`qualify lock`: make locks, generate requirements files from them, check that all are in step.

Parsing and printing only; the work is in `qualify.runtimes.locks` and `lock_resolution`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from qualify.runtimes.locks import Lock, LockInput


@click.group()
def lock() -> None:
    """Pin packages: host-free locks and the requirements files made from them."""


def _locks_folder(context: click.Context, parameter: click.Parameter, value: str | None) -> Path:
    from qualify.core.errors import UsageError

    if value is not None:
        return Path(value)
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "locks").is_dir() and (folder / "manifests").is_dir():
            return folder / "locks"
    raise UsageError(
        "no project here",
        where=str(here),
        fix="go to the folder that holds locks/, or give --locks",
    )


_folder = click.option(
    "--locks", "folder", metavar="DIR", callback=_locks_folder, help="Folder of the locks."
)
_sets = click.argument("sets", nargs=-1, metavar="[SET]...")
_every = click.option("--all", "every", is_flag=True, help="Every set.")


@lock.command()
@_sets
@_every
@click.option(
    "--cutoff",
    metavar="DATE",
    help="Ignore files published later (2026-11-30 or 2026-11-30T00:00:00Z). "
    "Default: the cut-off of the present lock, else today.",
)
@_folder
def resolve(sets: tuple[str, ...], every: bool, cutoff: str | None, folder: Path) -> None:
    """Make locks/SET.json from locks/SET.in, and the requirements file with it.

    Sets that must agree on versions (`# together:` in their .in files) are always made together.
    """
    from qualify.core.errors import UsageError
    from qualify.runtimes.lock_resolution import resolve as solve
    from qualify.runtimes.locks import read_input, set_paths

    if not sets and not every:
        raise UsageError("which sets?", fix="name them, or give --all")
    inputs = [read_input(path) for path in set_paths(folder, (), ".in")]
    set_paths(folder, sets, ".in")
    chosen = [entry for entry in inputs if every or entry.set in sets]
    groups = {entry.together for entry in chosen if entry.together}
    chosen = [entry for entry in inputs if entry in chosen or entry.together in groups]
    moment = _moment(cutoff) if cutoff else _present_cutoff(folder, chosen)
    for made in solve(chosen, moment):
        _write(folder, made)
        click.echo(f"{made.set}: {len(made.packages)} packages, {made.digest}")


def _present_cutoff(folder: Path, chosen: list[LockInput]) -> str:
    from qualify.core.clock import Clock, format_time
    from qualify.core.errors import QualifyError
    from qualify.runtimes.locks import read_lock

    found = []
    for entry in chosen:
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
    from qualify.runtimes.locks import lock_bytes, requirements_text
    from qualify.storage.folders import write_atomic

    (folder / "requirements").mkdir(exist_ok=True)
    write_atomic(folder / f"{made.set}.json", lock_bytes(made))
    text = requirements_text(made).encode()
    write_atomic(folder / "requirements" / f"{made.set}.txt", text)


@lock.command()
@_sets
@click.option("--check", is_flag=True, help="Write nothing; exit 2 when a file is out of step.")
@_folder
def requirements(sets: tuple[str, ...], check: bool, folder: Path) -> None:
    """Generate locks/requirements/SET.txt from locks/SET.json (every set without a name)."""
    from qualify.core.errors import UsageError
    from qualify.runtimes.locks import read_lock, requirements_text, set_paths
    from qualify.storage.folders import write_atomic

    stale = []
    for path in set_paths(folder, sets, ".json"):
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
