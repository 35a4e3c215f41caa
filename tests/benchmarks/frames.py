"""The newest three trials of each case, as a popular evaluation framework answers it.

`./test bench` runs it with the Python of the set `bench`, which has inspect_ai: it writes logs in
that framework's own formats (one sample a trial, 200 to a log, no messages: less than a real log
holds), reads them into a data frame by `samples_df`, and groups that. Prints one Markdown line for
each format. The yardstick for `qualify query latest-three` on as many trials; nothing passes or
fails.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

TASKS, MODELS, SAMPLES = 10, 20, 200


def write_logs(folder: Path, trials: int, suffix: str) -> None:
    """As many samples, spread over tasks and models."""
    from inspect_ai.log import (
        EvalConfig,
        EvalDataset,
        EvalLog,
        EvalSample,
        EvalSpec,
        write_eval_log,
    )
    from inspect_ai.scorer import Score

    for number in range(trials // SAMPLES):
        log = EvalLog(
            status="success",
            eval=EvalSpec(
                created=f"2026-11-{1 + number % 30:02}T12:00:00+00:00",
                task=f"task-{number % TASKS}",
                dataset=EvalDataset(),
                config=EvalConfig(),
                model=f"local/model-{number // TASKS % MODELS}",
            ),
            samples=[
                EvalSample(
                    id=str(sample), epoch=1, input="a task", target="done",
                    scores={"check": Score(value="C" if sample % 10 else "I")},
                )
                for sample in range(SAMPLES)
            ],
        )  # fmt: skip
        # Files with other names are not taken for logs.
        name = f"2026-11-01T12-00-00+00-00_task-{number % TASKS}_{number:022}.{suffix}"
        write_eval_log(log, str(folder / name))


def newest_three(folder: Path) -> int:
    """Read every log into a data frame, and keep the newest three of each case."""
    from inspect_ai.analysis import EvalColumn, SampleSummary, samples_df

    columns = [
        EvalColumn("model", path="eval.model"),
        EvalColumn("task", path="eval.task"),
        EvalColumn("created", path="eval.created"),
        *SampleSummary,
    ]
    frame = samples_df(str(folder), columns=columns, quiet=True)
    return len(frame.sort_values("created").groupby(["model", "task"]).tail(3))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trials", type=int, nargs="?", default=20_000)
    trials = parser.parse_args().trials
    print("| format | trials | seconds | seconds for a million |")
    print("|---|---|---|---|")
    for suffix in ("json", "eval"):
        with tempfile.TemporaryDirectory(prefix="qualify-frames-") as name:
            folder = Path(name)
            write_logs(folder, trials, suffix)
            begun = time.perf_counter()
            newest_three(folder)
            taken = time.perf_counter() - begun
        print(f"| `.{suffix}` | {trials:,} | {taken:.2f} | {taken / trials * 1e6:.0f} |")


if __name__ == "__main__":
    main()
