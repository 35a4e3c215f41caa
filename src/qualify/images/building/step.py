"""How a build step starts: what it is to make comes in a file, where it goes in the environment."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qualify.images.building.layer_writer import BuildError


@dataclass(frozen=True)
class Step:
    """One run of a builder."""

    spec: dict[str, Any]
    """What to make; each builder documents its own."""
    out: Path
    """Folder for the result; made by `step_of`."""
    cores: int
    """Processors that may be used. Changes the time, never the bytes."""


def step_of(environment: Mapping[str, str]) -> Step:
    """Read `specPath` (a JSON file), `out` and `NIX_BUILD_CORES` (0 is all).

    Raises `KeyError` and `OSError`: only Nix and tests start a builder.
    """
    spec = json.loads(Path(environment["specPath"]).read_text(encoding="utf-8"))
    out = Path(environment["out"])
    out.mkdir()
    cores = int(environment.get("NIX_BUILD_CORES", "0")) or len(os.sched_getaffinity(0))
    return Step(spec, out, cores)


def run(main: Callable[[Step], None]) -> None:
    """Run a builder; an error a person can cause is one line, without a traceback."""
    os.umask(0o022)
    try:
        if "NIX_BUILD_TOP" in os.environ and Path("/var/lib").exists():
            raise BuildError("Nix builds without a sandbox here: set sandbox = true")
        main(step_of(os.environ))
    except BuildError as error:
        sys.exit(f"error: {error}")
