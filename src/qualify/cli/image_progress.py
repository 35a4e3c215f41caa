"""How far the reading of an image is: a bar on a terminal's stderr, nothing elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_of(what: str, total: int | None) -> Iterator[Callable[[int], None] | None]:
    """Yield what to call with each number of bytes read; `total` is in bytes, `None` unknown."""
    if not sys.stderr.isatty() or os.environ.get("CI") or os.environ.get("TERM") in ("", "dumb"):
        yield None
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
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
