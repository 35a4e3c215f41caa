"""Measures the ledger against what the machine can do with the same bytes.

`python tests/benchmarks/ledger.py` prints one Markdown table. Nothing here passes or fails.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))
ROUNDS = 7
APPENDS = 200
BATCH = 2000
LINES = 400_000


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def row(name: str, ours: list[float], yardstick: str, theirs: list[float], unit: str) -> None:
    """One line of the table: medians, and the median of the ratios in the same round."""
    ratio = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    mine, other = statistics.median(ours), statistics.median(theirs)
    print(
        f"| {name} | {mine:.2f} {unit} | {yardstick} | {other:.2f} {unit} | {ratio:.2f} |",
        flush=True,
    )


def appending(place: Path) -> None:
    """Single appends, and batches with and without validation, against a bare write and fsync."""
    from qualify.evidence.ledger import Ledger, encode
    from support import evidence

    ledger = Ledger(place / "ledger")
    entry = evidence.refusal(reasons=tuple(f"reason-{n:040}" for n in range(24)))
    payload = encode(entry)
    ledger.append(entry)
    raw = ledger.path.read_bytes().splitlines(keepends=True)[-1]
    handle = os.open(place / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def bare() -> None:
        for _ in range(APPENDS):
            os.write(handle, raw)
            os.fsync(handle)

    def single() -> None:
        for _ in range(APPENDS):
            ledger.append(entry)

    singles, bares, batches, checked = [], [], [], []
    for _ in range(ROUNDS):
        bares.append(timed(bare) / APPENDS * 1e6)
        singles.append(timed(single) / APPENDS * 1e6)
        batches.append(
            timed(lambda: ledger.append_many([payload] * BATCH, validated=True)) / BATCH * 1e6
        )
        checked.append(timed(lambda: ledger.append_many([payload] * BATCH)) / BATCH * 1e6)
    row(f"durable append of {len(raw)} bytes", singles, "write and fsync", bares, "µs")
    over = statistics.median(a - b for a, b in zip(singles, bares, strict=True))
    print(f"| … more than the bare write | {over:.0f} µs | | | |")
    row(f"entry of a batch of {BATCH:,}, validated before", singles, "that", batches, "µs")
    row(f"entry of a batch of {BATCH:,}, with validation", singles, "that", checked, "µs")


def verification(place: Path) -> None:
    """Chain verification against OpenSSL over the same bytes; full validation beside it."""
    from benchmarks.scale import synthetic_ledger
    from qualify.evidence.ledger import Ledger

    size = synthetic_ledger(place / "results", LINES // 2)
    ledger = Ledger(place / "results/ledger")
    files = sorted(str(path) for path in ledger.folder.glob("*.log"))

    def openssl() -> None:
        words = ["openssl", "dgst", "-sha256", *files]
        subprocess.run(words, check=True, capture_output=True)

    ours, theirs = [], []
    openssl()
    for _ in range(3):
        theirs.append(timed(openssl))
        ours.append(timed(ledger.verify))
    row(f"chain verification of {size / 1e9:.2f} GB", ours, "`openssl dgst -sha256`", theirs, "s")
    full = [timed(lambda: sum(1 for _ in ledger.entries()))]
    row("the same with every record validated", full, "`openssl dgst -sha256`", theirs[-1:], "s")


def canonicalisation() -> None:
    """A record's canonical form against the reference library."""
    import rfc8785

    from qualify.core.canonical import canonical_json
    from qualify.core.digests import digest_bytes
    from support import evidence

    record = evidence.trial(digest_bytes(b"x")).model_dump(mode="json")
    assert canonical_json(record) == rfc8785.dumps(record)

    def repeat(encode: Callable[[object], bytes], times: int) -> None:
        for _ in range(times):
            encode(record)

    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(timed(lambda: repeat(canonical_json, 5000)) / 5000 * 1e6)
        theirs.append(timed(lambda: repeat(rfc8785.dumps, 500)) / 500 * 1e6)
    row("the library rfc8785", theirs, "`canonical_json`, same bytes", ours, "µs")


def main() -> None:
    """Measure and print."""
    print("| what | time | against | time | ratio |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="qualify-ledger-", dir=os.environ.get("SCALE")) as name:
        os.environ["XDG_STATE_HOME"] = f"{name}/state"
        appending(Path(name))
        canonicalisation()
        verification(Path(name))


if __name__ == "__main__":
    main()
