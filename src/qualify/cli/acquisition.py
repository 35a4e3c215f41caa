"""Draws the progress of an acquisition: a bar with rate and time left on a terminal's stderr, one
line per phase where stderr is not a terminal. Used by every command that may acquire a model.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from qualify.models.progress import Report, Step


@contextlib.contextmanager
def acquisition_progress() -> Iterator[Report]:
    """Yield a report to hand to `models.store.acquire`; the bar is gone when the block ends."""
    if not _animated():
        yield _Lines().report
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[detail]}", style="dim"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _Bar(progress).report


def _animated() -> bool:
    return (
        sys.stderr.isatty()
        and not os.environ.get("CI")
        and os.environ.get("TERM", "") not in ("", "dumb")
    )


class _Lines:
    """One line at the start of each phase of each file; hashing is too quick to be worth one."""

    def __init__(self) -> None:
        self._last: tuple[str, str] | None = None

    def report(self, step: Step) -> None:
        from qualify.models.errors import bytes_text

        if step.phase != "checking" and (step.phase, step.file) != self._last:
            self._last = (step.phase, step.file)
            detail = f": {step.detail}" if step.phase == "waiting" else ""
            click.echo(f"{step.phase} {step.file} ({bytes_text(step.total)}){detail}", err=True)


class _Bar:
    """One bar for the phase that is running now."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._now: tuple[str, str] | None = None
        self._task: TaskID | None = None

    def report(self, step: Step) -> None:
        if (step.phase, step.file) != self._now:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._now = (step.phase, step.file)
            self._task = self._progress.add_task(step.phase, total=step.total, detail="")
            if step.done:
                # What an earlier acquisition left is no speed of this one.
                self._progress.reset(self._task, completed=step.done, detail=step.detail)
        assert self._task is not None
        self._progress.update(self._task, completed=step.done, detail=step.detail)
