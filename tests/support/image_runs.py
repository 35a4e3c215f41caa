"""`qualify run` of a row inside an image, in a network namespace without any interface."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qualify.evidence.ledger import open_ledger
from qualify.evidence.records import Trial


@dataclass(frozen=True)
class Ran:
    """How it ended, what it printed, and the trials that it recorded."""

    code: int
    document: dict[str, Any]
    trials: list[Trial]


def run_the_fixture(project: Path, image: Path, place: Path) -> Trial:
    """One trial of the fixture model in a vLLM image of `project`, without a network."""
    source = project / "tests/fixtures/models/fixture-tools"
    acquired = subprocess.run(
        [sys.executable, "-P", "-m", "qualify", "--project", str(project), "model", "acquire",
         "fixture-tools", "--from", str(source)],
        env={**os.environ, "QUALIFY_MODEL_STORE": str(place / "store")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert acquired.returncode == 0, acquired.stderr
    (trial,) = run_without_network(
        project, "cpu-fixture-vllm", image, place, QUALIFY_MODEL_STORE=str(place / "store")
    ).trials
    return trial


def run_without_network(project: Path, row: str, image: Path, place: Path, **variables: str) -> Ran:
    """One trial of a row of `project`; evidence and unpacked image go below `place`."""
    results = place / "results"
    isolated = ["bwrap", "--dev-bind", "/", "/", "--unshare-net", "--"]
    done = subprocess.run(
        [*isolated, sys.executable, "-P", "-m", "qualify", "--project", str(project),
         "--results", str(results), "run", row, "--trials", "1", "--offline", "--json",
         "--image", str(image)],
        env={**os.environ, "XDG_STATE_HOME": str(place / "state"),
             "XDG_CACHE_HOME": str(place / "cache"), **variables},
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode in (0, 10), done.stderr[-4000:]
    entries = [stored.entry for stored in open_ledger(results).entries()]
    return Ran(
        done.returncode, json.loads(done.stdout), [e for e in entries if isinstance(e, Trial)]
    )
