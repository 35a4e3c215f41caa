"""What must hold before a run records anything: the row is free, the machine fits, there is space.

Each of these ends the run with one error and leaves no evidence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from qualify.core.digests import digest_file
from qualify.core.errors import EnvironmentFault, UsageError
from qualify.manifests.catalog import Catalog
from qualify.manifests.configuration import Configuration
from qualify.manifests.kinds import Scenario
from qualify.runtimes.probe import disk_free_mib, gpu_unknown, matches, probe_machine
from qualify.storage.folders import private_folder, xdg_state_home
from qualify.storage.locks import LockHeld, file_lock

_MINIMUM_FREE_MIB = 200


@contextlib.contextmanager
def row_lock(configuration: Configuration) -> Iterator[None]:
    """One run of a configuration at a time on this machine."""
    folder = private_folder(xdg_state_home() / "running")
    name = configuration.digest.removeprefix("sha256:")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(file_lock(folder / f"{name}.lock"))
        except LockHeld as error:
            raise UsageError(
                f"row {configuration.row.id} is being run by process {error.pid or 'unknown'}",
                fix="wait for that run to end; trials of one row run one after another",
            ) from error
        yield


def require_machine(configuration: Configuration) -> None:
    """Raise `UsageError` on another platform, `EnvironmentFault` where that cannot be told."""
    machine = probe_machine()
    wrong = matches(configuration.platform, machine)
    if wrong:
        raise UsageError(
            f"this machine is not platform {configuration.platform.id}: {'; '.join(wrong)}",
            where=f"row {configuration.row.id}",
            fix="run the row on its own platform; nothing was recorded",
        )
    broken = gpu_unknown(machine) if configuration.platform.gpu is not None else None
    if broken:
        raise EnvironmentFault(broken, where=f"row {configuration.row.id}", fix="repair the driver")


def require_space(*folders: Path) -> None:
    """Raise `EnvironmentFault` when a folder's disk is nearly full."""
    for folder in folders:
        free = disk_free_mib(folder)
        if free is not None and free < _MINIMUM_FREE_MIB:
            raise EnvironmentFault(
                f"only {free} MiB are free",
                where=str(folder),
                fix=f"free at least {_MINIMUM_FREE_MIB} MiB before a run; nothing was recorded",
            )


def require_unchanged(catalog: Catalog, scenario: Scenario) -> None:
    """The corpus is still the one that the suite's digest binds. Raises `EnvironmentFault`."""
    folder = catalog.project / "corpora" / scenario.corpus
    for file in catalog.corpora[scenario.corpus].files:
        try:
            same = digest_file(folder / file.path) == f"sha256:{file.sha256}"
        except OSError:
            same = False
        if not same:
            raise EnvironmentFault(
                "was changed while the run was at work; its finished trials are recorded",
                where=str(folder / file.path),
                fix="restore it, or renew its card and run again: that is another suite",
            )
