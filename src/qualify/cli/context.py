"""Where a command finds its project, results and ledger: from `ctx.obj` of the root group."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from qualify.evidence.ledger import Ledger
    from qualify.manifests.catalog import Catalog
    from qualify.results.projection import Lines


def project_folder(ctx: click.Context, *, required: bool = True) -> Path | None:
    """The project; `None` outside any when it is not required. Raises `UsageError`."""
    from qualify.core.errors import UsageError
    from qualify.manifests.catalog import find_project

    option = _option(ctx, "project")
    try:
        return find_project(Path(option) if option else None)
    except UsageError:
        if required or option:
            raise
        return None


def catalog(ctx: click.Context) -> Catalog:
    """Every manifest of the project. Raises `UsageError` and `ErrorList`."""
    from qualify.manifests.catalog import load_catalog

    project = project_folder(ctx)
    assert project is not None
    return load_catalog(project)


def results_folder(ctx: click.Context) -> Path:
    """Where evidence lives. Raises `UsageError`."""
    from qualify.evidence.places import results_folder as place

    option = _option(ctx, "results")
    return place(None if option else project_folder(ctx, required=False), option)


def ledger(ctx: click.Context) -> Ledger:
    """The ledger of the results folder. Creates nothing."""
    from qualify.evidence.ledger import open_ledger

    return open_ledger(results_folder(ctx))


def declared_lines(ctx: click.Context) -> Lines | None:
    """What the project's manifests declare, for the results database; `None` outside a project.

    Raises `ErrorList` when manifests are wrong.
    """
    if project_folder(ctx, required=False) is None:
        return None
    from qualify.manifests.configuration import resolve
    from qualify.results.projection import declared

    known = catalog(ctx)
    return declared(resolve(known, row) for row in known.rows)


def _option(ctx: click.Context, name: str) -> str | None:
    given: dict[str, Any] = ctx.obj or {}
    value = given.get(name)
    return None if value is None else str(value)
