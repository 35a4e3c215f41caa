"""Results folders of other sites, and what somebody may do to one before handing it over."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qualify.evidence.ledger import Ledger
from qualify.storage.appendlog import Line, encode_line
from qualify.storage.segments import ChainReader
from support.evidence import SettableClock, run


def site(folder: Path, trials: int = 2, *, segment_bytes: int = 16 << 20, **end: Any) -> Ledger:
    """A results folder of another site with that many trials; its ledger."""
    clock = SettableClock()
    ledger = Ledger(folder / "ledger", clock.clock(), segment_bytes=segment_bytes)
    for _ in range(trials):
        run(ledger, clock, **end)
    return ledger


def add_trials(ledger: Ledger, trials: int, **end: Any) -> None:
    """Trials after those that are there."""
    clock = SettableClock()
    again = Ledger(ledger.folder, clock.clock())
    for _ in range(trials):
        run(again, clock, **end)


def lines(ledger: Ledger) -> list[Line]:
    """Every line, read afresh."""
    return list(ChainReader(ledger.path))


def rewrite(ledger: Ledger, payloads: Sequence[bytes]) -> None:
    """Write these records as a chain whose every digest is right; later ones that name the line of
    a reservation are led to its new digest.
    """
    before = {line.payload: line.digest for line in lines(ledger)}
    renamed: dict[bytes, bytes] = {}
    prev, data = "0" * 64, []
    for seq, payload in enumerate(payloads):
        text = payload
        for old, new in renamed.items():
            text = text.replace(old, new)
        raw, prev = encode_line(seq, prev, text)
        if payload in before:
            renamed[before[payload].encode()] = prev.encode()
        data.append(raw)
    for path in ledger.folder.glob("segment-*.log"):
        path.unlink()
    ledger.path.write_bytes(b"".join(data))


type Damage = Callable[[Ledger], None]


def byte_flipped(ledger: Ledger) -> None:
    data = bytearray(ledger.path.read_bytes())
    data[len(data) // 2] ^= 1
    ledger.path.write_bytes(bytes(data))


def line_removed(ledger: Ledger) -> None:
    parts = ledger.path.read_bytes().splitlines(keepends=True)
    ledger.path.write_bytes(b"".join(parts[:2] + parts[3:]))


def first_line_removed(ledger: Ledger) -> None:
    parts = ledger.path.read_bytes().splitlines(keepends=True)
    ledger.path.write_bytes(b"".join(parts[1:]))


def emptied(ledger: Ledger) -> None:
    ledger.path.write_bytes(b"")


def a_field_too_many(ledger: Ledger) -> None:
    *first, last = [line.payload for line in lines(ledger)]
    rewrite(ledger, [*first, last.replace(b"{", b'{"a_prompt":"say yes",', 1)])


def not_canonical(ledger: Ledger) -> None:
    *first, last = [line.payload for line in lines(ledger)]
    rewrite(ledger, [*first, last.replace(b'"kind":', b'"kind": ')])


def finished_twice(ledger: Ledger) -> None:
    payloads = [line.payload for line in lines(ledger)]
    rewrite(ledger, [*payloads, payloads[-1]])


def never_reserved(ledger: Ledger) -> None:
    genesis, _, *rest = [line.payload for line in lines(ledger)]
    rewrite(ledger, [genesis, *rest])


def ordinal_skipped(ledger: Ledger) -> None:
    genesis, *rest = [line.payload for line in lines(ledger)]
    rewrite(ledger, [genesis, *(each.replace(b'"ordinal":1', b'"ordinal":5') for each in rest)])


def second_genesis(ledger: Ledger) -> None:
    payloads = [line.payload for line in lines(ledger)]
    rewrite(ledger, [*payloads, payloads[0]])


def newer_schema(ledger: Ledger) -> None:
    *first, last = [line.payload for line in lines(ledger)]
    rewrite(ledger, [*first, re.sub(rb'"schema_version":\d', b'"schema_version":9', last)])


def endless_line(ledger: Ledger) -> None:
    """One line of two gigabytes."""
    with ledger.path.open("r+b") as stream:
        stream.truncate(2 << 30)


DAMAGES: dict[Damage, str] = {
    byte_flipped: "digest does not match|is not a log line|sequence|continue",
    line_removed: "sequence",
    first_line_removed: "expected 0",
    emptied: "genesis",
    a_field_too_many: "a_prompt",
    not_canonical: "canonical",
    finished_twice: "second time",
    never_reserved: "never reserved",
    ordinal_skipped: "ordinal 5, expected 1",
    second_genesis: "holds no other",
    newer_schema: "schema 9",
    endless_line: "more than 1048576 bytes",
}
"""What is done to a ledger → what must be said of it."""
