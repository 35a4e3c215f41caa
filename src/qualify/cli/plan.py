"""`qualify plan ROW`: how a row would be launched. Parsing and printing only; starts nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from qualify.manifests.catalog import Catalog
    from qualify.runtimes.admission import RefusalReason
    from qualify.runtimes.memory import MemoryEstimate
    from qualify.runtimes.plan import LaunchPlan

SCHEMA = "qualify-plan/1"


@click.command()
@click.argument("row", metavar="ROW")
@click.option(
    "--suite", metavar="SUITE", help="Suite whose budgets are shown (default: the first)."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def plan(ctx: click.Context, row: str, suite: str | None, as_json: bool) -> int:
    """Show what a run of ROW would start, with which arguments, memory and budgets.

    Starts nothing and writes nothing. A row that admission refuses gives its reasons and exit
    code 10.
    """
    from qualify.cli.context import catalog as load
    from qualify.core.errors import ExitCode
    from qualify.manifests.configuration import resolve, suite_identity
    from qualify.runtimes.admission import admit
    from qualify.runtimes.locked import locked_versions
    from qualify.runtimes.memory import largest_context
    from qualify.runtimes.plan import launch_plan
    from qualify.runtimes.probe import matches, probe_machine

    catalog = load(ctx)
    configuration = resolve(catalog, row)
    chosen = suite or next(iter(configuration.row.suites), None)
    scenarios = suite_identity(catalog, chosen).scenarios if chosen is not None else ()
    machine = probe_machine()
    locked = locked_versions(catalog.project, configuration.runtime)
    reasons = admit(configuration, machine, locked)
    elsewhere = matches(configuration.platform, machine)
    made = launch_plan(configuration, scenarios)
    largest = largest_context(configuration)
    if as_json:
        _print_json(made, chosen, reasons, elsewhere, largest)
    else:
        _print(made, chosen, _model_state(catalog, row), elsewhere, largest)
        _print_reasons(row, reasons)
    return ExitCode.NOT_A_PASS if reasons else ExitCode.OK


def _model_state(catalog: Catalog, row: str) -> str | None:
    """Where the model stands, in words; `None` when the row needs none here."""
    from qualify.models.store import StoreState, state_of

    name = catalog.row(row).model
    if name is None or not catalog.models[name].files:
        return None
    state, _missing = state_of(catalog.models[name])
    if state is StoreState.PRESENT:
        return "in the store"
    return f"{state.value}; run: qualify model acquire {name}"


def _print_json(
    made: LaunchPlan,
    suite: str | None,
    reasons: tuple[RefusalReason, ...],
    elsewhere: list[str],
    largest: int | None,
) -> None:
    from dataclasses import asdict

    from qualify.cli.tables import print_json

    memory = made.memory
    print_json(
        {
            "schema": SCHEMA,
            "admitted": not reasons,
            "reasons": [asdict(reason) for reason in reasons],
            "machine_mismatches": elsewhere,
            "suite": suite,
            "plan": {
                **asdict(made),
                "model_files": [
                    {"path": path, "size": size, "sha256": sha256}
                    for path, size, sha256 in made.model_files
                ],
                "memory": None
                if memory is None
                else {
                    **asdict(memory),
                    "total_mib": memory.total_mib,
                    "largest_context_tokens": largest,
                },
            },
        }
    )


def _print(
    made: LaunchPlan,
    suite: str | None,
    state: str | None,
    elsewhere: list[str],
    largest: int | None,
) -> None:
    from qualify.cli.tables import print_table, printable

    lines: list[tuple[str, Any]] = [
        ("row", made.row),
        ("configuration", made.configuration),
        ("evidence class", made.evidence_class),
        ("engine", made.engine),
        ("starts", made.program),
        ("listens", made.listens),
        *((f"  {name}", value) for name, value in made.arguments.items()),
        ("environment", ", ".join(made.environment) or "-"),
        ("model", made.model or "-"),
        *((f"  {path}", f"{size:,} bytes") for path, size, _ in made.model_files),
        *([("  state", state)] if state else []),
        ("agent", f"{made.agent} ({made.tool_mode} tool calls)"),
        ("memory", _memory(made.memory)),
        *([("  largest context", f"{largest} tokens")] if largest is not None else []),
        ("start-up budget", f"{made.startup_budget_s} s"),
        *(("not this machine", reason) for reason in elsewhere),
    ]
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        click.echo(f"{name.ljust(width)}  {printable('-' if value is None else str(value))}")
    if made.budgets:
        click.echo(f"\nbudgets of one trial (suite {suite})")
        limits = ("wall_time_s", "actions", "model_calls", "prompt_tokens", "completion_tokens")
        print_table(
            ("scenario", *(name.replace("_", " ") for name in limits)),
            [(b.scenario, *(getattr(b, name) for name in limits)) for b in made.budgets],
        )
    click.echo("\nnothing was started, nothing was written")


def _memory(estimate: MemoryEstimate | None) -> str:
    if estimate is None:
        return "-"
    total = estimate.total_mib
    if total is None:
        return "cannot be told: the model's files or its architecture are not declared"
    return (
        f"about {total} of {estimate.available_mib} MiB: weights {estimate.weights_mib}, "
        f"key/value cache {estimate.kv_cache_mib}, other {estimate.other_mib}"
    )


def _print_reasons(row: str, reasons: tuple[RefusalReason, ...]) -> None:
    if not reasons:
        return
    click.echo(f"\n{row} is refused:", err=True)
    for reason in reasons:
        click.echo(f"  {reason.code}: {reason.text} ({reason.fix})", err=True)
