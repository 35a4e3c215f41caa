"""Where evidence and the private stores of trials live. Decides paths; creates nothing.

Results are public (content-minimized); what a trial leaves beyond its records (conversation,
journal, logs, workspace) lives in the private store and never under the results.
"""

from __future__ import annotations

import os
from pathlib import Path

from qualify.core.digests import is_digest
from qualify.core.errors import UsageError
from qualify.storage.folders import xdg_data_home, xdg_state_home


def results_folder(project: Path | None, option: str | Path | None) -> Path:
    """`--results`, else `$QUALIFY_RESULTS`, else `results/` of the project, else the XDG data
    folder (outside any project).

    Relative paths are taken from the current folder. Raises `UsageError` when the place exists and
    is no folder.
    """
    chosen = str(option) if option else os.environ.get("QUALIFY_RESULTS", "")
    if chosen:
        try:
            folder = Path(chosen).expanduser().absolute()
        except RuntimeError as error:
            raise UsageError(
                "names the home of a user that is not known", where=chosen, fix="give a full path"
            ) from error
    elif project is not None:
        folder = project / "results"
    else:
        folder = xdg_data_home() / "results"
    if folder.exists() and not folder.is_dir():
        raise UsageError(
            "is not a folder", where=str(folder), fix="give --results or QUALIFY_RESULTS a folder"
        )
    return folder


def trials_folder(site: str) -> Path:
    """The private store of a site's trials (`<XDG state>/qualify/<site>/trials`)."""
    return xdg_state_home() / site / "trials"


def trial_folder(site: str, trial: str) -> Path:
    """The private store of one trial. Raises `ValueError` when `trial` is not a digest."""
    if not is_digest(trial):
        raise ValueError(f"{trial!r} is not a trial id")
    return trials_folder(site) / trial.removeprefix("sha256:")


RUN_LOCK = "run.lock"
"""Held in a run's folder while the run is at work."""


def runs_folder(site: str) -> Path:
    """What the runs of a site share among their trials: logs of engines and workers."""
    return xdg_state_home() / site / "runs"


def run_of(site: str, trial: str) -> Path | None:
    """The folder of the run that a trial belonged to; `None` when it is gone or not known."""
    try:
        name = (trial_folder(site, trial) / "run").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    folder = runs_folder(site) / Path(name).name
    return folder if name and folder.is_dir() else None
