"""Measures what a person waits for, as ratios against something public in the same run.

`./test bench` prints one Markdown table: median and spread of each figure, and what it was measured
against. Nothing here passes or fails: machines differ, ratios tell.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = 1000


@dataclass(frozen=True)
class Figure:
    """Seconds of ours and of the yardstick, run in turn."""

    name: str
    ours: list[float]
    yardstick: str
    theirs: list[float]

    def line(self) -> str:
        """One row of the table."""
        mine, other = statistics.median(self.ours), statistics.median(self.theirs)
        ratio = statistics.median(a / b for a, b in zip(self.ours, self.theirs, strict=True))
        return (
            f"| {self.name} | {mine:.3f} ({min(self.ours):.3f} to {max(self.ours):.3f}) "
            f"| {self.yardstick} | {other:.3f} | {ratio:.2f} |"
        )


def pair(
    name: str,
    ours: Callable[[], object],
    yardstick: str,
    theirs: Callable[[], object],
    runs: int = 5,
    before: Callable[[], object] = lambda: None,
) -> Figure:
    """Time both in turn, `runs` times after one warm-up; `before` runs ahead of each of ours."""
    mine, other = [], []
    for run in range(runs + 1):
        before()
        first, second = _timed(ours), _timed(theirs)
        if run:
            mine.append(first)
            other.append(second)
    return Figure(name, mine, yardstick, other)


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def command(*words: str, cwd: Path = ROOT, **environment: str) -> Callable[[], object]:
    """A command to be timed as a whole process."""
    full = {**os.environ, **environment}
    return lambda: subprocess.run(words, cwd=cwd, env=full, check=True, capture_output=True)


def help_text() -> Figure:
    """The start of every command."""
    return pair(
        "`qualify --help`",
        command(sys.executable, "-m", "qualify", "--help"),
        "`python -c 'import click'`",
        command(sys.executable, "-c", "import click"),
        runs=9,
    )


def matrix(place: Path) -> list[Figure]:
    """A matrix of 1,000 generated row files, with a cold and a warm parse cache."""
    project = generated_project(place)
    cache = place / "cache"
    ask = command(
        sys.executable, "-m", "qualify", "matrix", "--json", cwd=project,
        XDG_CACHE_HOME=str(cache), XDG_STATE_HOME=str(place / "state"),
    )  # fmt: skip
    read = (
        "import sys, pathlib\nfrom ruamel.yaml import YAML\nfrom ruamel.yaml.nodes import Node\n"
        "for p in pathlib.Path(sys.argv[1]).rglob('*.yaml'):\n"
        "    YAML(typ='rt', pure=True).compose(p.read_text())\n"
    )
    compose = command(sys.executable, "-c", read, str(project / "manifests"))
    return [
        pair(
            f"`qualify matrix --json`, {ROWS} rows, cold", ask,
            "ruamel.yaml composing the same files", compose, runs=3,
            before=lambda: shutil.rmtree(cache, ignore_errors=True),
        ),
        pair(
            f"`qualify matrix --json`, {ROWS} rows, warm", ask,
            "ruamel.yaml composing the same files", compose, runs=3,
        ),
    ]  # fmt: skip


def generated_project(place: Path) -> Path:
    """A copy of the project's manifests with 1,000 rows more."""
    project = place / "project"
    for part in ("manifests", "corpora", "locks"):
        shutil.copytree(ROOT / part, project / part)
    folder = project / "manifests" / "matrix"
    text = (folder / "cpu-qwen2.5-coder-1.5b.yaml").read_text()
    for number in range(ROWS):
        row = text.replace("id: cpu-qwen2.5-coder-1.5b\n", f"id: generated-{number:04}\n")
        row = row.replace("context_tokens: 16384", f"context_tokens: {1024 + number}")
        (folder / f"generated-{number:04}.yaml").write_text(row)
    return project


def hashing(place: Path) -> Figure:
    """Verifying a model file of 512 MiB."""
    from qualify.core.digests import digest_file

    file = place / "weights.bin"
    file.write_bytes(os.urandom(1 << 20) * 512)
    return pair(
        "SHA-256 of 512 MiB", lambda: digest_file(file),
        "`openssl dgst -sha256`", command("openssl", "dgst", "-sha256", str(file)), runs=3,
    )  # fmt: skip


def appending(place: Path) -> Figure:
    """One durable ledger line, against a bare write and fsync of the same bytes."""
    from qualify.storage.appendlog import AppendLog, encode_line

    payload = b'{"kind":"benchmark","text":"' + b"x" * 1300 + b'"}'
    log = AppendLog(place / "log")
    raw, _ = encode_line(0, "0" * 64, payload)
    handle = os.open(place / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def bare() -> None:
        for _ in range(200):
            os.write(handle, raw)
            os.fsync(handle)

    def ours() -> None:
        for _ in range(200):
            log.append(payload)

    return pair("200 durable appends of 1.3 KB", ours, "write and fsync", bare)


def scripted_trials(place: Path) -> list[Figure]:
    """Scripted acceptance after imports, against the same conversation on the SDK alone."""
    sys.path.insert(0, str(ROOT / "tests"))
    from benchmarks.bare_conversation import BareConversation
    from qualify.manifests.catalog import load_catalog
    from qualify.runner.progress import Silent
    from qualify.runner.run import Request, execute
    from qualify.sessions.construction import preload
    from support.forked import fork_worker

    os.environ["XDG_STATE_HOME"] = str(place / "state")
    preload()
    catalog = load_catalog(ROOT)
    bare = BareConversation(catalog, place)

    def ours() -> None:
        execute(
            catalog, Request("scripted-passes", "acceptance", 5, place / "results"), Silent(),
            acquire=lambda *_: None, verify=lambda *_: None, start_worker=fork_worker,
        )  # fmt: skip

    with bare:
        return [
            pair(
                "run of 5 scripted trials after imports (engine, worker, journal, replay, record)",
                ours, "5 of the same conversations on the SDK alone", bare.five, runs=3,
            )
        ]  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qualify-bench-") as name:
        place = Path(name)
        figures = [help_text(), *matrix(place), hashing(place), appending(place)]
        figures += scripted_trials(place)
    print("| what | seconds: median (min to max) | against | seconds | ratio |")
    print("|---|---|---|---|---|")
    for figure in figures:
        print(figure.line())


if __name__ == "__main__":
    main()
