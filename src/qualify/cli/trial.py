"""`qualify trial`: list and show trials from the ledger; read and purge their private stores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from qualify.assessment.grading import TrialEvidence

_STATES = ("passed", "failed", "unknown", "incomplete", "running")
_TAIL_BYTES = 1 << 20


@click.group()
def trial() -> None:
    """Trials: what the ledger says of them, and what they left in the private store.

    A trial is named by its id or by the first digits of it (at least 6).
    """


@trial.command("list")
@click.option("--row", "rows", multiple=True, metavar="ROW", help="Only these rows.")
@click.option("--suite", "suites", multiple=True, metavar="SUITE", help="Only these suites.")
@click.option("--state", "states", multiple=True, type=click.Choice(_STATES), help="Only these.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(0), help="0: all.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
def list_(
    ctx: click.Context,
    rows: tuple[str, ...],
    suites: tuple[str, ...],
    states: tuple[str, ...],
    limit: int,
    as_json: bool,
) -> None:
    """List trials, newest first."""
    from qualify.cli.tables import print_json, print_table

    found = [
        t
        for t in sorted(_trials(ctx), key=lambda t: -t.seq)
        if (not rows or t.reservation.row in rows)
        and (not suites or t.reservation.suite in suites)
        and (not states or state_of(t) in states)
    ]
    shown = found[:limit] if limit else found
    if as_json:
        print_json(
            {
                "schema": "qualify-trials/1",
                "total": len(found),
                "trials": [summary(t) for t in shown],
            }
        )
        return
    columns = (
        "trial", "reserved", "row", "suite", "scenario", "n", "class", "state", "why", "tokens",
        "seconds",
    )  # fmt: skip
    print_table(columns, [_line(t) for t in shown])
    if not found:
        click.echo("no trials", err=True)
    if len(shown) < len(found):
        click.echo(f"… {len(found) - len(shown)} more; --limit 0 shows all", err=True)


@trial.command()
@click.argument("identifier", metavar="TRIAL")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
def show(ctx: click.Context, identifier: str, as_json: bool) -> None:
    """Show everything the ledger holds of TRIAL."""
    from qualify.cli.tables import print_json

    found = _find(_trials(ctx), identifier)
    if as_json:
        print_json(
            {
                "schema": "qualify-trial/1",
                **summary(found),
                "reservation": found.reservation.model_dump(mode="json"),
                "end": found.end.model_dump(mode="json") if found.end else None,
            }
        )
        return
    _print_trial(found)


@trial.command()
@click.argument("identifier", metavar="TRIAL")
@click.argument("file", required=False)
@click.option("--lines", default=60, show_default=True, type=click.IntRange(1), metavar="N")
@click.pass_context
def logs(ctx: click.Context, identifier: str, file: str | None, lines: int) -> None:
    """Read what TRIAL left in the private store: its files and the ends of its logs, or FILE.

    These files are private: they may hold prompts, outputs and file contents.
    """
    from qualify.core.errors import UsageError

    folder = _private(ctx, _find(_trials(ctx), identifier))
    if not folder.is_dir():
        raise UsageError(
            "the private store has nothing of this trial",
            where=str(folder),
            fix="it was purged, or the trial ran on another machine",
        )
    files = _files(folder, "") | _run_files(ctx, identifier)
    if file is not None:
        if file not in files:
            raise UsageError(
                f"has no file {file!r}", where=str(folder), fix="list them without FILE"
            )
        _print_tail(files[file], lines)
        return
    click.echo(f"{folder}")
    for name, path in files.items():
        click.echo(f"{path.stat().st_size:>12,}  {name}")
    for name, path in files.items():
        if (
            path.suffix == ".log"
            and name != "audit.log"
            and name.count("/") == name.startswith("run/")
        ):
            click.echo(f"\n── {name} (last {lines} lines)")
            _print_tail(path, lines)


def _files(folder: Path, prefix: str) -> dict[str, Path]:
    """Name → path of every plain file below `folder`."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink())
    return {prefix + path.relative_to(folder).as_posix(): path for path in paths}


def _run_files(ctx: click.Context, identifier: str) -> dict[str, Path]:
    """What the trial's run left for all of its trials: the logs of engine and worker."""
    from qualify.cli.context import ledger
    from qualify.evidence.places import run_of

    site = ledger(ctx).site()
    folder = run_of(site, _find(_trials(ctx), identifier).trial) if site else None
    return _files(folder, "run/") if folder else {}


@trial.command()
@click.argument("identifiers", nargs=-1, metavar="[TRIAL]...")
@click.option("--older-than", type=click.IntRange(0), metavar="DAYS", help="All that ended before.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_context
def purge(
    ctx: click.Context, identifiers: tuple[str, ...], older_than: int | None, as_json: bool
) -> None:
    """Remove the private stores of trials. The ledger keeps every record; running trials stay."""
    from qualify.cli.tables import print_json, short
    from qualify.core.clock import Clock
    from qualify.core.errors import UsageError

    if bool(identifiers) == (older_than is not None):
        raise UsageError("which trials?", fix="name them, or give --older-than DAYS")
    everything = _trials(ctx)
    if identifiers:
        chosen = [_find(everything, identifier) for identifier in identifiers]
    else:
        now = Clock().now()
        chosen = [t for t in everything if (now - t.ended).days >= (older_than or 0)]
    running = [t for t in chosen if t.running]
    if running and identifiers:
        raise UsageError("is running", where=running[0].trial, fix="wait for its end")
    removed = [t for t in chosen if not t.running and _remove(_private(ctx, t))]
    _remove_unused_runs(ctx)
    if as_json:
        print_json({"schema": "qualify-purge/1", "purged": [t.trial for t in removed]})
    else:
        names = " ".join(short(t.trial) for t in removed)
        click.echo(f"purged {len(removed)} of {len(chosen)} private stores: {names}".rstrip(": "))


def _remove_unused_runs(ctx: click.Context) -> None:
    """Remove the shared logs of runs of which no trial has a private store any more."""
    import shutil

    from qualify.cli.context import ledger
    from qualify.evidence.places import RUN_LOCK, runs_folder, trials_folder
    from qualify.storage.locks import is_locked

    site = ledger(ctx).site()
    if site is None or not runs_folder(site).is_dir():
        return
    used = {path.read_text().strip() for path in trials_folder(site).glob("*/run")}
    for folder in runs_folder(site).iterdir():
        if folder.name not in used and not is_locked(folder / RUN_LOCK):
            shutil.rmtree(folder, ignore_errors=True)


# ── plain data ───────────────────────────────────────────────────────────────────────────────────


def state_of(found: TrialEvidence) -> str:
    """Outcome, `running`, or `incomplete`."""
    if found.end is not None:
        return found.end.outcome.value
    return "running" if found.running else "incomplete"


def summary(found: TrialEvidence) -> dict[str, Any]:
    """The fields of `trial list --json`. An incomplete trial's end is its reservation's time."""
    from qualify.core.clock import format_time

    reservation, end = found.reservation, found.end
    return {
        "trial": found.trial,
        "seq": found.seq,
        "row": reservation.row,
        "configuration": reservation.configuration,
        "suite": reservation.suite,
        "scenario": reservation.scenario,
        "ordinal": reservation.ordinal,
        "evidence_class": reservation.evidence_class.value,
        "experimental": reservation.experimental,
        "state": state_of(found),
        "stop_reason": end.stop_reason if end else None,
        "reserved": reservation.time,
        "ended": format_time(found.ended),
        "completion_tokens": end.usage.completion_tokens if end else None,
        "wall_ms": end.timings.wall_ms if end else None,
    }


def _line(found: TrialEvidence) -> tuple[Any, ...]:
    facts = summary(found)
    wall = facts["wall_ms"]
    mark = " (experimental)" if facts["experimental"] else ""
    return (
        facts["trial"], facts["reserved"], facts["row"], facts["suite"], facts["scenario"],
        facts["ordinal"], facts["evidence_class"] + mark, facts["state"], facts["stop_reason"],
        facts["completion_tokens"], None if wall is None else round(wall / 1000, 1),
    )  # fmt: skip


def _print_trial(found: TrialEvidence) -> None:
    from qualify.cli.tables import print_table

    facts: dict[str, Any] = {"trial": found.trial, "state": state_of(found)}
    record = {**found.reservation.model_dump(mode="json")}
    if found.end:
        record.update(found.end.model_dump(mode="json", exclude={"checks", "budgets_exceeded"}))
        record["time"] = f"{found.reservation.time} to {found.end.time}"
    for name in ("kind", "schema_version", "required_checks"):
        record.pop(name, None)
    facts.update(_flat(record))
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else value
        click.echo(f"{name.ljust(width)}  {'-' if text in (None, '') else text}")
    if found.end is None:
        click.echo("\nno end was recorded: its end is taken to be the time of its reservation")
        return
    click.echo()
    required = set(found.reservation.required_checks)
    checks = found.end.checks
    missing = sorted(required - {check.check for check in checks})
    print_table(
        ("check", "required", "outcome", "reason"),
        [(c.check, c.check in required, c.outcome.value, c.reason) for c in checks]
        + [(name, True, "missing", None) for name in missing],
    )
    if found.end.budgets_exceeded:
        click.echo()
        print_table(
            ("budget exceeded", "limit", "used"),
            [(use.budget, use.limit, use.used) for use in found.end.budgets_exceeded],
        )


def _flat(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


# ── the ledger and the private store ─────────────────────────────────────────────────────────────


def _trials(ctx: click.Context) -> list[TrialEvidence]:
    from qualify.assessment.matrix import collect
    from qualify.cli.context import ledger

    book = ledger(ctx)
    return collect(book.entries(), book.is_running).all_trials


def _find(trials: list[TrialEvidence], identifier: str) -> TrialEvidence:
    from qualify.core.errors import UsageError

    digits = identifier.removeprefix("sha256:").lower()
    if len(digits) < 6:
        raise UsageError(f"{identifier!r} is too short", fix="give at least 6 digits of the id")
    found = [t for t in trials if t.trial.removeprefix("sha256:").startswith(digits)]
    if len(found) != 1:
        what = "is not the id of a trial here" if not found else f"fits {len(found)} trials"
        fix = "see `qualify trial list`" if not found else "give more digits"
        raise UsageError(f"{identifier!r} {what}", fix=fix)
    return found[0]


def _private(ctx: click.Context, found: TrialEvidence) -> Path:
    from qualify.cli.context import ledger
    from qualify.evidence.places import trial_folder

    site = ledger(ctx).site()
    assert site is not None
    return trial_folder(site, found.trial)


def _remove(folder: Path) -> bool:
    """Remove a trial's folder whatever the modes inside; links are removed, never followed."""
    import shutil

    from qualify.core.errors import EnvironmentFault

    if not folder.is_dir() or folder.is_symlink():
        return False
    try:
        for path in (folder, *(p for p in folder.rglob("*") if p.is_dir() and not p.is_symlink())):
            path.chmod(0o700)
        shutil.rmtree(folder)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot be removed: {error.strerror or error}",
            where=str(folder),
            fix="check who owns it; what was removed so far is gone, the ledger is untouched",
        ) from error
    return True


def _print_tail(path: Path, lines: int) -> None:
    """The last lines of a file, control characters shown and never sent to the terminal."""
    from qualify.cli.tables import printable

    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        data = stream.read()
    for line in data.decode("utf-8", "replace").splitlines()[-lines:]:
        click.echo(printable(line))
