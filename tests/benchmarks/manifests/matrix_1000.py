"""Measure `qualify matrix --json` on 1,000 generated row files: whole process, cold and warm.

    python tests/benchmarks/manifests/matrix_1000.py [ROWS]

Prints the best of five warm runs and of two cold ones (empty parse cache), wall and CPU seconds,
and the same for `python -c pass`, so that a busy machine shows. Asserts nothing.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).parents[3]
TEMPLATE = "manifests/matrix/cpu-qwen2.5-coder-1.5b.yaml"


def generate(folder: Path, rows: int) -> None:
    """The shipped project and `rows` more row files that differ in their context."""
    for name in ("manifests", "corpora", "locks"):
        shutil.copytree(PROJECT / name, folder / name)
    text = (PROJECT / TEMPLATE).read_text()
    (context,) = [line for line in text.splitlines() if line.startswith("context_tokens:")]
    for number in range(rows):
        made = text.replace(f"id: {Path(TEMPLATE).stem}\n", f"id: made-{number:05}\n")
        made = made.replace(context, f"context_tokens: {1000 + number}")
        (folder / f"manifests/matrix/made-{number:05}.yaml").write_text(made)


def measure(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Wall and CPU seconds of one process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu


def best(runs: list[tuple[float, float]]) -> str:
    """The smallest wall and CPU seconds."""
    walls, cpus = zip(*runs, strict=True)
    return f"{min(walls):.2f} s wall, {min(cpus):.2f} s CPU (best of {len(runs)})"


def main() -> None:
    """Generate, measure, print."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate(folder / "project", rows)
        environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}
        command = [sys.executable, "-m", "qualify", "--project", str(folder / "project")]
        command += ["matrix", "--json"]
        cold = []
        for _ in range(2):
            shutil.rmtree(folder / "cache", ignore_errors=True)
            cold.append(measure(command, environment))
        warm = [measure(command, environment) for _ in range(5)]
        idle = [measure([sys.executable, "-c", "pass"], environment) for _ in range(5)]
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {rows} rows")
    print(f"cold    {best(cold)}")
    print(f"warm    {best(warm)}")
    print(f"python  {best(idle)}")


if __name__ == "__main__":
    main()
