"""Engines that are stopped at the end of a test, and the small real model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qualify.manifests.catalog import Catalog, load_catalog
from qualify.manifests.configuration import Configuration
from qualify.runtimes.engine import Engine, make_engine

ROOT = Path(__file__).parents[3]

type Start = Callable[..., Engine]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Start]:
    """`started(configuration, model_path=None)` makes and starts an engine."""
    made: list[Engine] = []

    def begin(configuration: Configuration, **options: Any) -> Engine:
        given = {"model_path": None, "private": tmp_path, "startup_budget_s": 90, **options}
        made.append(make_engine(configuration, **given))
        made[-1].start()
        return made[-1]

    yield begin
    for engine in made:
        engine.stop()


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    return load_catalog(ROOT)


@pytest.fixture(scope="session")
def smollm2(catalog: Catalog) -> Path:
    """The file of SmolLM2-135M, from this machine's store or acquired into it."""
    from qualify.models.store import acquire

    (path,) = acquire(catalog.model("smollm2-135m-instruct-q4_1")).path_of.values()
    return path
