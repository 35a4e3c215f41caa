"""The matrix for people: a table on a wide terminal, blocks on a narrow one, plain lines otherwise.

Rich is imported only for a terminal and for at most 200 lines. Text from manifests is never
interpreted: no markup, no control characters.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from qualify.cli.matrix_json import newest_imported

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from qualify.assessment.grading import TrialEvidence
    from qualify.assessment.reasons import Reason
    from qualify.assessment.rules import Assessment
    from qualify.cli.matrix import Line
    from qualify.manifests.configuration import Configuration, Difference
    from qualify.manifests.kinds import ImportedOutcome, Policy

RICH_LIMIT = 200
REASONS_WIDTH = 30
"""Columns that the reasons need beside everything else; with fewer, each row is a block."""
UNKNOWN = "–"
_STYLES = {
    "qualified": "bold green", "passed": "green", "failed": "bold red", "unsupported": "magenta",
    "inconclusive": "yellow", "unknown": "yellow", "expired": "yellow", "incomplete": "yellow",
    "running": "cyan", "untested": "dim",
}  # fmt: skip


# ── words ────────────────────────────────────────────────────────────────────────────────────────


def clean(text: str) -> str:
    """One line without anything that could disturb a terminal."""
    return "".join(c if c.isprintable() else "�" for c in " ".join(text.split()))


def tools_words(configuration: Configuration) -> str:
    """How the agent asks for tools; a grammar helps the model and is therefore shown."""
    mode = configuration.row.tool_mode.value
    return f"{mode} + grammar" if configuration.agent.grammar is not None else mode


def declared_words(outcome: ImportedOutcome | None) -> str:
    """An outcome from elsewhere and its day."""
    if outcome is None:
        return UNKNOWN
    return f"{outcome.outcome} {outcome.date}" if outcome.date else outcome.outcome


def status_words(line: Line) -> str:
    """A status is always for a suite."""
    return f"{line.status} ({line.suite})" if line.suite else line.status


def count_words(verdict: Assessment | None) -> str:
    """K of n with the exact 95 % interval of the pass rate."""
    if verdict is None or verdict.interval is None:
        return UNKNOWN
    low, high = (value / 10 for value in verdict.interval)
    return f"{verdict.passed}/{verdict.total} ({low:g}–{high:g} %)"


def reason_words(line: Line) -> list[str]:
    """Why the status is what it is, shortest first words."""
    found = [_reason(reason) for reason in line.verdict.reasons] if line.verdict else ["no suite"]
    if line.status == "untested" and line.configuration.declared_only:
        found = ["declared only, cannot be run here"]
    outcome = newest_imported(line.configuration)
    if outcome is not None and outcome.reason:
        found.append(f"elsewhere: {clean(outcome.reason)}")
    return found


def _reason(reason: Reason) -> str:
    about = [*reason.checks, *reason.budgets, *reason.details]
    return f"{reason.code}: {', '.join(about)}" if about else reason.code


def _per_second(milli: int | None) -> str:
    return UNKNOWN if milli is None else f"{milli / 1000:.1f}/s"


def _seconds(milliseconds: int | None) -> str:
    return UNKNOWN if milliseconds is None else f"{milliseconds / 1000:.2f} s"


# ── the matrix ───────────────────────────────────────────────────────────────────────────────────


def show_matrix(lines: list[Line], policy: Policy) -> None:
    """Print the whole matrix."""
    if not lines:
        click.echo("no row matches", err=True)
        return
    cells: list[tuple[str, ...]] = [
        (
            line.configuration.row.id, line.configuration.row.platform, line.model,
            tools_words(line.configuration), declared_words(newest_imported(line.configuration)),
            status_words(line), count_words(line.verdict), "; ".join(reason_words(line)),
        )
        for line in lines
    ]  # fmt: skip
    titles = ("ROW", "PLATFORM", "MODEL", "TOOLS", "DECLARED", "STATUS", "PASSED", "REASONS")
    if _rich(len(lines)):
        console = _console()
        if _fits(console, titles, cells):
            _table(console, titles, _without_repeats(cells), status_column=5)
        else:
            _blocks(console, lines)
    else:
        _plain_table(titles, cells)
    if sys.stdout.isatty():
        click.echo(f"\n{_summary(lines)}. Policy {policy.id}: {_policy_words(policy)}.")


def _summary(lines: list[Line]) -> str:
    rows = len({line.configuration.row.id for line in lines})
    counts: dict[str, int] = {}
    for line in lines:
        counts[line.status] = counts.get(line.status, 0) + 1
    words = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    return f"{rows} row{'s' if rows != 1 else ''}; by row and suite: {words}"


def _policy_words(policy: Policy) -> str:
    return (
        f"the newest {policy.trials_needed} trials and {policy.minimum_pass_percent} % of all "
        f"within {policy.freshness_days} days"
    )


def _without_repeats(cells: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Leave a row's own columns empty where it goes on with its next suite."""
    shown, before = [], ""
    for cell in cells:
        shown.append(("",) * 5 + cell[5:] if cell[0] == before else cell)
        before = cell[0]
    return shown


def _fits(console: Console, titles: tuple[str, ...], cells: list[tuple[str, ...]]) -> bool:
    """Whether the table can stand without breaking names in two."""
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    return sum(widths[:-1]) + 2 * len(widths) + min(widths[-1], REASONS_WIDTH) <= console.width


def _blocks(console: Console, lines: list[Line]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    def print_indented(text: Text) -> None:
        console.print(Padding(text, (0, 0, 0, 2), expand=False))

    before = ""
    for line in lines:
        row = line.configuration.row
        if row.id != before:
            before = row.id
            console.print(Text(row.id, "bold"))
            facts = f"{row.platform} · {line.model} · {tools_words(line.configuration)}"
            print_indented(Text(facts, "dim"))
        text = Text(status_words(line), _STYLES[line.status])
        outcome = newest_imported(line.configuration)
        parts = [count_words(line.verdict)] if line.verdict and line.verdict.total else []
        parts += [f"elsewhere {declared_words(outcome)}"] if outcome else []
        for part in (*parts, "; ".join(reason_words(line))):
            text.append(f"  {part}" if part else "", "none")
        print_indented(text)


# ── one row ──────────────────────────────────────────────────────────────────────────────────────


def show_row(lines: list[Line], trials: list[TrialEvidence]) -> None:
    """Print everything that one row binds, its verdicts and its newest trials."""
    from qualify.manifests.configuration import flat

    configuration = lines[0].configuration
    row = configuration.row
    click.echo(f"{_bold(row.id)}\n{configuration.digest}")
    click.echo(f"evidence class {configuration.evidence_class.value}")
    if row.notes:
        click.echo(clean(row.notes))
    if configuration.declared_only:
        click.echo("cannot be run here: " + "; ".join(configuration.declared_only))
    _heading("Status here")
    for line in lines:
        words = f"{status_words(line)}  {count_words(line.verdict)}"
        click.echo(f"  {words}\n    " + "\n    ".join(reason_words(line) or ["no objection"]))
    if row.imported:
        _heading("Declared elsewhere")
        _pairs([(declared_words(each), _imported(each)) for each in row.imported])
    _heading("Newest trials of this configuration")
    _show_trials(trials)
    _heading("Bound into the digest")
    _pairs([(path, _value(value)) for path, value in flat(configuration.bound).items()])
    _heading("Not bound")
    _pairs(
        [
            ("startup_budget_s", str(configuration.startup_budget_s)),
            ("suites", ", ".join(row.suites) or UNKNOWN),
        ]
    )


def _show_trials(trials: list[TrialEvidence]) -> None:
    if not trials:
        click.echo("  none")
        return
    titles = ("TRIAL", "SUITE", "RESERVED", "OUTCOME", "TOKENS", "FIRST TOKEN", "ENGINE START")
    cells = [_trial_cells(trial) for trial in trials]
    if _rich(len(cells)):
        _table(_console(), titles, cells, status_column=3)
    else:
        _plain_table(titles, cells)


def _trial_cells(trial: TrialEvidence) -> tuple[str, ...]:
    timings = trial.end.timings if trial.end else None
    outcome = trial.end.outcome.value if trial.end else "running" if trial.running else "incomplete"
    return (
        trial.trial.removeprefix("sha256:")[:12],
        trial.reservation.suite + (" (experimental)" if trial.reservation.experimental else ""),
        trial.reservation.time,
        outcome,
        _per_second(timings.completion_tokens_per_s_milli if timings else None),
        _seconds(timings.first_token_ms_median if timings else None),
        _seconds(timings.engine_start_ms if timings else None),
    )


def _imported(outcome: ImportedOutcome) -> str:
    parts = [clean(outcome.reason)] if outcome.reason else []
    parts += [f"driver {outcome.driver}"] if outcome.driver else []
    return "; ".join([*parts, outcome.evidence])


def _value(value: Any) -> str:
    """A bound value as text: lines on a terminal, otherwise JSON for what is not one clean line."""
    if isinstance(value, str) and value:
        if clean(value) == value:
            return value
        if sys.stdout.isatty() and all(line.isprintable() for line in value.split("\n")):
            return value.rstrip("\n")
    return json.dumps(value, ensure_ascii=not str(value).isascii())


# ── two rows ─────────────────────────────────────────────────────────────────────────────────────


def show_differences(a: Configuration, b: Configuration, found: list[Difference]) -> None:
    """Print why two digests differ."""
    for side in (a, b):
        click.echo(f"{side.digest}  {side.row.id}")
    if not found:
        click.echo("\nthe same configuration: every bound input is equal")
        return
    many = len(found)
    click.echo(f"\n{many} bound input{'s differ' if many != 1 else ' differs'}")
    for each in found:
        click.echo(f"\n{_bold(each.path)}")
        click.echo(f"  - {_side(each.a)}\n  + {_side(each.b)}")


def _side(value: Any) -> str:
    return "(not there)" if value is None else _value(value)


# ── drawing ──────────────────────────────────────────────────────────────────────────────────────


def _rich(lines: int) -> bool:
    return sys.stdout.isatty() and lines <= RICH_LIMIT


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def _bold(text: str) -> str:
    return click.style(text, bold=True) if _colours() else text


def _colours() -> bool:
    import os

    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _heading(text: str) -> None:
    click.echo(f"\n{_bold(text)}")


def _pairs(pairs: list[tuple[str, str]]) -> None:
    """Names and values: values folded under themselves on a terminal, whole lines otherwise."""
    width = min(max(len(name) for name, _ in pairs), 40)
    if not _rich(len(pairs)):
        for name, value in pairs:
            click.echo(f"  {name.ljust(width)}  {value}")
        return
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=width, no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(Text(f"  {name}", "dim"), Text(value))
    _console().print(table)


def _table(
    console: Console, titles: tuple[str, ...], cells: list[tuple[str, ...]], *, status_column: int
) -> None:
    from rich.table import Table
    from rich.text import Text

    def styled(column: int, text: str) -> Text:
        style = _STYLES.get(text.split(" ", maxsplit=1)[0], "") if column == status_column else ""
        return Text(text, style or ("bold" if column == 0 else ""))

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in titles:
        table.add_column(title, overflow="fold", no_wrap=title != titles[-1])
    for cell in cells:
        table.add_row(*(styled(column, text) for column, text in enumerate(cell)))
    console.print(table)


def _plain_table(titles: tuple[str, ...], cells: list[tuple[str, ...]]) -> None:
    """Aligned columns, one line each, nothing cut: for pipes and for long matrices."""
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    for row in (titles, *cells):
        parts = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(parts).rstrip())
