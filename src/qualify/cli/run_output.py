"""What `qualify run` shows: a live line while it works, and one summary that a tired person reads.

Progress goes to stderr, live on a terminal and as one plain line per trial elsewhere. The summary
goes to stdout.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from qualify.core.status import CheckOutcome, RowStatus, TrialOutcome

if TYPE_CHECKING:
    from rich.console import Console

    from qualify.assessment.rules import Assessment
    from qualify.manifests.kinds import Policy
    from qualify.models.progress import Report
    from qualify.runner.progress import TrialSummary
    from qualify.runner.run import Request, Result

_MARKS = {"passed": "✓", "failed": "✗", "unknown": "?"}
_COLOURS = {"passed": "green", "failed": "red", "unknown": "yellow"}


class Display:
    """The reporter of the command line."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._live: Any = None
        self._phase = self._detail = ""
        self._begun = time.monotonic()
        self._step = 0
        self._reading = ""
        self._number = 0
        self._tokens = self._tokens_before = 0
        self._trial = ""

    def __enter__(self) -> Display:
        if not self._quiet and sys.stderr.isatty() and not os.environ.get("CI"):
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True, highlight=False)
            self._live = Live(
                get_renderable=self._line, console=console, refresh_per_second=4, transient=True
            )
            self._live.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        if self._live is not None:
            self._live.__exit__(*exc)

    @contextlib.contextmanager
    def handed_over(self) -> Iterator[Report]:
        """Give the terminal to the bar of an acquisition, and take it back."""
        from qualify.cli.acquisition import acquisition_progress
        from qualify.models.progress import silent

        if self._quiet:
            yield silent
            return
        live = self._live
        if live is not None:
            live.stop()
        try:
            with acquisition_progress() as report:
                yield report
        finally:
            if live is not None:
                live.start()

    def _line(self) -> Any:
        from rich.spinner import Spinner

        elapsed = int(time.monotonic() - self._begun)
        parts = [self._phase]
        if self._trial:
            parts.append(f"step {self._step}")
            parts.append(self._reading or f"{self._tokens - self._tokens_before} tokens")
        elif self._detail:
            parts.append(self._detail)
        parts.append(f"{elapsed // 60}:{elapsed % 60:02d}")
        if not hasattr(self, "_spinner"):
            self._spinner = Spinner("dots")
        self._spinner.update(text=" · ".join(parts))
        return self._spinner

    # ── the reporter ─────────────────────────────────────────────────────────────────────────

    def phase(self, text: str) -> None:
        """The run is now doing `text`."""
        self._phase, self._detail, self._trial = text, "", ""
        self._begun = time.monotonic()
        if self._live is None and not self._quiet:
            click.echo(text, err=True)

    def detail(self, text: str) -> None:
        """More about the present phase; only shown live."""
        self._detail = text

    def trial_started(self, number: int, total: int, scenario: str) -> None:
        """Trial `number` of `total` starts."""
        self._number = number
        self.phase(f"trial {number} of {total} · {scenario}")
        self._trial, self._step, self._reading = scenario, 0, ""
        self._tokens_before = self._tokens

    def step(self, number: int, tool: str) -> None:
        """The agent takes a step."""
        self._step = number

    def tokens(self, count: int) -> None:
        """The model has written `count` tokens in this run."""
        if count != self._tokens:
            self._tokens, self._reading = count, ""

    def reading(self, done: int, total: int) -> None:
        """The model reads its prompt."""
        self._reading = f"reading {done} of {total} tokens"

    def trial_finished(self, summary: TrialSummary) -> None:
        """Say in one line how the trial ended."""
        self._trial = ""
        if self._quiet:
            return
        from rich.console import Console

        bad = [c for c in summary.checks if c.outcome is not CheckOutcome.PASSED]
        why = ", ".join(f"{c.check}: {c.reason or c.outcome.value}" for c in bad[:3])
        outcome = summary.outcome.value
        text = (
            f"  {_MARKS[outcome]} trial {self._number} {outcome}"
            f" in {summary.wall_ms / 1000:.1f} s{speed(summary)}"
        )
        console = self._live.console if self._live else Console(stderr=True, highlight=False)
        console.print(f"[{_COLOURS[outcome]}]{text}[/]" + (f"  {why}" if why else ""))


def speed(summary: TrialSummary) -> str:
    """`, 9.1 tokens/s, first token 1.2 s`, as far as known."""
    parts = ""
    if summary.tokens_per_s_milli is not None:
        parts += f", {summary.tokens_per_s_milli / 1000:.1f} tokens/s"
    if summary.first_token_ms is not None:
        parts += f", first token {summary.first_token_ms / 1000:.1f} s"
    return parts


def print_summary(
    result: Result,
    assessment: Assessment,
    request: Request,
    policy: Policy,
    note: str | None,
    signed: str | None = None,
) -> None:
    """Status, checks, why, what to do next, where the evidence is."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=False)
    row, suite = result.configuration.row.id, result.suite.id
    console.print()
    _print_status(console, row, suite, assessment)
    if result.trials:
        _print_checks(console, result)
    _print_reasons(console, result, assessment, row, policy)
    shows = [f"qualify trial show {trial.trial[7:19]}" for trial in result.trials[-3:]]
    place = escape(f"{request.results}/ledger/ledger.log")
    _print_labelled(console, "Evidence", [place, *shows])
    if signed is not None:
        _print_labelled(console, "Signed", [f"remember {signed[:-52]}… (--json has it whole)"])
    notes = [_plain(note)] if note else []
    if result.isolation == "none" and result.trials:
        notes.append(
            "the agent's commands ran unconfined, and the records say so: install bubblewrap"
        )
    _print_labelled(console, "Note", notes)
    if request.experimental or request.seed is not None:
        console.print("\n  [yellow]Experimental: no assessment counts these trials.[/]")


def _print_status(console: Console, row: str, suite: str, assessment: Assessment) -> None:
    colour = {
        RowStatus.QUALIFIED: "bold green",
        RowStatus.FAILED: "bold red",
        RowStatus.UNSUPPORTED: "bold red",
    }.get(assessment.status, "bold yellow")
    console.print(f"  [{colour}]{assessment.status.value.upper()}[/] ({suite})  [bold]{row}[/]")
    if assessment.total:
        interval = assessment.interval
        span = (
            f", exact 95 % interval {interval[0] / 10:.0f} to {interval[1] / 10:.0f} %"
            if interval
            else ""
        )
        console.print(f"  {assessment.passed} of {assessment.total} trials passed{span}")


def _print_checks(console: Console, result: Result) -> None:
    """One line per check: how each of this run's trials did."""
    count = len(result.trials)
    of = "this run's trial" if count == 1 else f"this run's {count} trials"
    console.print(f"\n  [bold]Checks[/] of {of}")
    names = list(dict.fromkeys(check.check for trial in result.trials for check in trial.checks))
    for name in names:
        lines = [c for trial in result.trials for c in trial.checks if c.check == name]
        passed = sum(c.outcome is CheckOutcome.PASSED for c in lines)
        worst = next((c for c in lines if c.outcome is CheckOutcome.FAILED), None) or next(
            (c for c in lines if c.outcome is CheckOutcome.UNKNOWN), None
        )
        outcome = worst.outcome.value if worst else "passed"
        reason = f"  {worst.reason}" if worst and worst.reason else ""
        console.print(
            f"  [{_COLOURS[outcome]}]{_MARKS[outcome]}[/] {name:<20} {passed} of {len(lines)}"
            f"[{_COLOURS[outcome]}]{reason}[/]"
        )


def _print_reasons(
    console: Console, result: Result, assessment: Assessment, row: str, policy: Policy
) -> None:
    if result.refused:
        why = [f"{_plain(text)} [dim]({code})[/]" for code, text, _ in result.refused]
        steps = [_plain(fix) for _, _, fix in result.refused]
    elif result.start_failure is not None:
        fault = result.start_failure
        why, steps = [f"{_plain(fault.what)} [dim]({fault.reason_code})[/]"], [_plain(fault.fix)]
        steps += [_plain(fault.where)] if fault.where else []
    else:
        from qualify.cli.assess import next_step

        shown = [r for r in assessment.reasons if r.blocking] or list(assessment.reasons)
        why = [f"{reason.kind.meaning} [dim]({reason.code})[/]" for reason in shown]
        steps = [next_step(reason, row) for reason in shown]
        if assessment.status is RowStatus.QUALIFIED:
            steps.append(
                f"the verdict holds until {_holds_until(assessment, policy)}, while no newer trial"
                " fails and nothing of the configuration changes"
            )
    _print_labelled(console, "Why", why)
    _print_labelled(console, "Next", [step for step in dict.fromkeys(steps) if step])


def _holds_until(assessment: Assessment, policy: Policy) -> str:
    """The day on which the oldest trial that the verdict stands on stops being fresh."""
    from datetime import timedelta

    oldest = min(g.evidence.ended for s in assessment.scenarios for g in s.newest)
    return (oldest + timedelta(days=policy.freshness_days)).strftime("%Y-%m-%d")


def _plain(text: str) -> str:
    """Text from outside (a server's log, a path) that neither the terminal nor rich acts upon."""
    from rich.markup import escape

    from qualify.cli.tables import printable

    return escape(printable(text))


def _print_labelled(console: Console, label: str, lines: list[str]) -> None:
    """A label, and its lines beside it with a hanging indent."""
    from rich.table import Table

    if not lines:
        return
    table = Table.grid(padding=(0, 1))
    table.add_column(width=10)
    table.add_column(overflow="fold")
    for index, line in enumerate(lines):
        table.add_row(f"  [bold]{label}[/]" if index == 0 else "", line)
    console.print()
    console.print(table)


def summary_json(
    result: Result, assessment: Assessment, note: str | None = None, signed: str | None = None
) -> str:
    """The summary as one JSON document (docs/reference/commands.md)."""
    import json

    return json.dumps(
        {
            "schema": "qualify-run/1",
            "row": result.configuration.row.id,
            "suite": result.suite.id,
            "status": assessment.status.value,
            "refused": [
                {"code": code, "reason": text, "fix": fix} for code, text, fix in result.refused
            ],
            "start_failure": result.start_failure.reason_code if result.start_failure else None,
            "trials": [
                {
                    "trial": t.trial,
                    "scenario": t.scenario,
                    "ordinal": t.ordinal,
                    "outcome": t.outcome.value,
                    "stop_reason": t.stop_reason,
                    "checks": [
                        {"check": c.check, "outcome": c.outcome.value, "reason": c.reason}
                        for c in t.checks
                    ],
                    "wall_ms": t.wall_ms,
                    "model_ms": t.model_ms,
                    "own_ms": t.own_ms,
                }
                for t in result.trials
            ],
            "passed_now": sum(t.outcome is TrialOutcome.PASSED for t in result.trials),
            "assessment": assessment.as_json(),
            "note": note,
            "checkpoint": signed,
        },
        indent=2,
        sort_keys=True,
    )
