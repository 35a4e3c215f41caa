"""Measures verdicts and questions over millions of trials.

`python tests/benchmarks/scale.py [TRIALS]` makes a project of 1,000 rows and a ledger of its own in
a temporary folder (2.7 KB a trial; nothing of the project's results is touched), loads it, and
prints one Markdown table. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qualify.results.queries import NamedQuery

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))


def records(project: Path, trials: int) -> Iterator[bytes]:
    """Canonical records of a ledger with `trials` trials over the project's generated rows.

    A `reservation` in the text stands for the digest of the line before.
    """
    from qualify.core.canonical import canonical_json
    from qualify.core.clock import format_time
    from qualify.core.digests import digest_bytes
    from qualify.core.status import CheckOutcome, TrialOutcome
    from qualify.evidence.records import Genesis
    from qualify.manifests.catalog import load_catalog
    from qualify.manifests.configuration import resolve, suite_identity
    from support.evidence import reservation, trial

    catalog = load_catalog(project)
    suite = suite_identity(catalog, "acceptance")
    (scenario,) = suite.scenarios
    rows = [name for name in catalog.rows if name.startswith("generated-")]
    digests = {name: resolve(catalog, name).digest for name in rows}
    draw = Random(20261201)
    start = datetime.now(UTC).replace(microsecond=0) - timedelta(days=45)
    step = timedelta(days=45) / (trials + 1)
    yield canonical_json(Genesis(time=format_time(start), site="a" * 32).model_dump(mode="json"))
    nothing = digest_bytes(b"")
    checks = dict.fromkeys(scenario.checks, CheckOutcome.PASSED)
    held = (
        canonical_json(
            reservation(
                4096,
                start,
                row="rowrow",
                configuration=digest_bytes(b"configuration"),
                suite=suite.id,
                suite_digest=suite.digest,
                scenario=scenario.id,
                seed=nothing,
                required_checks=scenario.checks,
            ).model_dump(mode="json")
        )
        .replace(b"rowrow", b"%(row)b")
        .replace(digest_bytes(b"configuration").encode(), b"%(configuration)b")
    )
    held = held.replace(nothing.encode(), b"%(seed)b").replace(b":4096,", b":%(ordinal)d,")
    held = held.replace(format_time(start).encode(), b"%(time)b")
    ends = []
    for outcome in (TrialOutcome.PASSED, TrialOutcome.FAILED, TrialOutcome.UNKNOWN):
        found = dict(checks)
        if outcome is not TrialOutcome.PASSED:
            found[scenario.checks[-1]] = CheckOutcome(outcome.value)
        text = canonical_json(
            trial(
                nothing,
                start,
                outcome=outcome,
                checks=found,
                variant="sha256:" + "e" * 64,
                timings={"wall_ms": 4095, "first_token_ms_median": 4093},
            ).model_dump(mode="json")
        )
        text = text.replace(nothing.encode(), b"sha256:%(trial)b").replace(
            b"e" * 64, b"%(variant)b"
        )
        text = text.replace(b":4095}", b":%(wall)d}").replace(b":4093,", b":%(token)d,")
        ends.append(text.replace(format_time(start).encode(), b"%(time)b"))
    ordinals = dict.fromkeys(rows, 0)
    for number in range(trials):
        row = (
            rows[draw.randrange(len(rows))] if number >= 3 * len(rows) else rows[number % len(rows)]
        )
        moment = format_time(start + step * number).encode()
        seed = hashlib.sha256(b"%d" % number).hexdigest().encode()
        yield held % {
            b"row": row.encode(),
            b"configuration": digests[row].encode(),
            b"time": moment,
            b"ordinal": ordinals[row],
            b"seed": b"sha256:" + seed,
        }
        ordinals[row] += 1
        roll = draw.random()
        if roll > 0.001:
            yield ends[0 if roll > 0.1 else 1 if roll > 0.02 else 2] % {
                b"trial": b"RESERVATION", b"time": moment, b"variant": seed,
                b"wall": draw.randrange(5000, 60000), b"token": draw.randrange(100, 900),
            }  # fmt: skip


def write_ledger(project: Path, results: Path, trials: int) -> int:
    """Write the ledger in sealed segments, and return its size in bytes."""
    from qualify.storage.segments import SEGMENT_BYTES, sealed_path

    folder = results / "ledger"
    folder.mkdir(parents=True)
    active = folder / "ledger.log"
    prev, first, total = b"0" * 64, 0, 0
    stream = active.open("wb", buffering=1 << 20)
    for seq, record in enumerate(records(project, trials)):
        payload = record.replace(b"RESERVATION", prev)
        digest = hashlib.sha256(b"%d %b %b" % (seq, prev, payload)).hexdigest().encode()
        raw = b"%d %b %b %b\n" % (seq, prev, digest, payload)
        if stream.tell() + len(raw) > SEGMENT_BYTES:
            stream.close()
            active.rename(sealed_path(active, first))
            first, stream = seq, active.open("wb", buffering=1 << 20)
        stream.write(raw)
        total += len(raw)
        prev = digest
    stream.close()
    return total


def synthetic_ledger(results: Path, trials: int) -> int:
    """A ledger of that many trials below `results`; its size in bytes."""
    from benchmarks.measure import generated_project

    return write_ledger(generated_project(results.parent), results, trials)


def timed(*words: str, cwd: Path, **environment: str) -> tuple[float, int]:
    """Seconds of a command, and the most memory that it held (MiB)."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        words, cwd=cwd, env={**os.environ, **environment}, stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) in (0, 10), words
    return time.perf_counter() - begun, used.ru_maxrss >> 10


BY_HAND = """
SELECT row, suite, scenario, trial, state FROM trials WHERE NOT experimental
QUALIFY row_number() OVER (
    PARTITION BY row, configuration, suite_digest, scenario ORDER BY seq DESC
) <= 3
"""
"""The newest three of each case as an analyst would write it: the yardstick of `latest-three`."""
FIELDS = {
    **dict.fromkeys(
        ("kind", "time", "row", "configuration", "suite", "suite_digest", "scenario", "seed",
         "trial", "outcome", "stop_reason", "variant"),
        "VARCHAR",
    ),
    "ordinal": "BIGINT",
    "usage": "STRUCT(model_calls BIGINT, prompt_tokens BIGINT, completion_tokens BIGINT)",
    "timings": "STRUCT(wall_ms BIGINT, first_token_ms_median BIGINT)",
    "checks": 'STRUCT("check" VARCHAR, outcome VARCHAR)[]',
}  # fmt: skip


def read_by_duckdb(results: Path, place: Path) -> float:
    """Seconds in which DuckDB alone takes a part of the fields out of the same JSON.

    The yardstick of `results rebuild`, which besides verifies the chain, validates and judges every
    record, and takes out every field. Taking the chain off the lines is not counted.
    """
    import duckdb

    plain = place / "plain.json"
    with plain.open("wb") as out:
        for path in sorted((results / "ledger").glob("*.log")):
            with path.open("rb") as lines:
                out.writelines(line[line.index(b"{") :] for line in lines)
    columns = ", ".join(f"{name}: '{kind}'" for name, kind in FIELDS.items())
    begun = time.perf_counter()
    with duckdb.connect(str(place / "plain.duckdb")) as connection:
        connection.execute(
            f"CREATE TABLE entries AS SELECT * FROM read_json('{plain}', "
            f"format = 'newline_delimited', columns = {{{columns}}})"
        )
    spent = time.perf_counter() - begun
    plain.unlink()
    (place / "plain.duckdb").unlink()
    return spent


def needed(query: NamedQuery, project: Path) -> list[str]:
    """What must be said to a question: the configuration of a row, where it asks for a digest."""
    from qualify.manifests.catalog import load_catalog
    from qualify.manifests.configuration import resolve

    words = []
    for parameter in query.parameters:
        if parameter.default is None:
            digest = resolve(load_catalog(project), "generated-0001").digest
            words += ["--param", f"{parameter.name}={digest}"]
    return words


def main() -> None:
    """Measure and print."""
    from benchmarks.measure import generated_project
    from qualify.results.queries import named_queries

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trials", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qualify-scale-", dir=os.environ.get("SCALE")) as name:
        place = Path(name)
        project, results = generated_project(place), place / "results"
        begun = time.perf_counter()
        size = write_ledger(project, results, asked.trials)
        print(f"{asked.trials:,} trials, {size:,} bytes, {time.perf_counter() - begun:.0f} s")
        homes = {"XDG_STATE_HOME": str(place / "state"), "XDG_CACHE_HOME": str(place / "cache")}
        qualify = (sys.executable, "-m", "qualify", "--results", str(results))
        cases = {
            "`results rebuild`": ("results", "rebuild"),
            "`matrix --json`, 1,000 rows": ("matrix", "--json"),
            "`assess` of one row": ("assess", "generated-0001"),
            **{
                f"`query {each}`": ("query", each, *needed(query, project), "--json")
                for each, query in named_queries().items()
            },
            "the newest three by hand: `query --sql`": ("query", "--sql", BY_HAND, "--json"),
        }
        print("| what | seconds: median (min to max) | memory MiB |")
        print("|---|---|---|")
        for what, words in cases.items():
            runs = 1 if "rebuild" in what else asked.runs
            taken = sorted(timed(*qualify, *words, cwd=project, **homes) for _ in range(runs))
            middle = taken[len(taken) // 2]
            most = max(memory for _, memory in taken)
            print(
                f"| {what} | {middle[0]:.2f} ({taken[0][0]:.2f} to {taken[-1][0]:.2f}) | {most} |",
                flush=True,
            )
        print(f"DuckDB reading the same JSON: {read_by_duckdb(results, place):.0f} s")
        print("database:", (results / "qualify.duckdb").stat().st_size, "bytes")
        print(
            "children's memory at most:",
            resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10,
        )


if __name__ == "__main__":
    main()
