"""What a process knows of a ledger that it has verified, and what it may believe of an earlier one.

The next entry depends on little: how many trials each case has had, and which trials are open. That
much is kept, not the entries. At the end of each sealed segment it is written down in the private
store, with a stamp of every sealed segment: who starts later verifies only what was added since, as
long as every stamp is the same. A stamp holds the time of the last change of a file's data or name,
which nobody but the kernel can set; who can write to the private store is ourselves.

The note is a saving of time. Missing, damaged or not fitting, it is not used.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from qualify.core.errors import QualifyError
from qualify.storage.appendlog import Line
from qualify.storage.folders import private_folder, write_atomic, xdg_state_home
from qualify.storage.segments import BEGIN, Position, sealed_path

_SCHEMA = "qualify-ledger-memory/1"


@dataclass
class Memory:
    """What the entries of a ledger mean for the next one."""

    active: Path
    site: str | None = None
    ordinals: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """(configuration, suite digest, scenario) → the ordinal that comes next."""
    open: set[str] = field(default_factory=set)
    """Trials (64 hex digits) without an end."""
    boundaries: list[Position] = field(default_factory=lambda: [BEGIN])
    """Where each segment begins."""
    _stamps: list[list[int]] = field(default_factory=list)
    _due: bytes | None = None
    """A note to be written."""

    def take(self, line: Line) -> None:
        """Learn from a line. Raises `ValueError`, `KeyError`, `TypeError` for what is no entry."""
        payload = line.payload
        if b'"kind":"reservation"' in payload:
            entry = orjson.loads(payload)
            if not entry["experimental"]:
                key = (entry["configuration"], entry["suite_digest"], entry["scenario"])
                self.ordinals[key] = self.ordinals.get(key, 0) + 1
            self.open.add(line.digest)
        elif b'"kind":"trial"' in payload:
            self.open.discard(_finished(payload))

    def sealed(self, position: Position, info: os.stat_result) -> None:
        """A segment ended, the next begins at `position`: what is known now may be written down."""
        self.boundaries.append(position)
        self._stamps.append(_stamp(info))
        self._due = orjson.dumps(
            {
                "schema": _SCHEMA,
                "ledger": str(self.active.resolve()),
                "ordinals": [[*key, count] for key, count in self.ordinals.items()],
                "open": sorted(self.open),
                "boundaries": [[each.seq, each.prev] for each in self.boundaries[1:]],
                "stamps": self._stamps,
            }
        )

    def segment_of(self, count: int) -> Position:
        """Where the segment begins that holds the place after `count` lines."""
        return self.boundaries[bisect_right([each.seq for each in self.boundaries], count) - 1]

    def save(self) -> None:
        """Write down what is due. A store that cannot be written costs time, not evidence."""
        due, self._due = self._due, None
        if due is not None:
            with contextlib.suppress(OSError, QualifyError):
                write_atomic(self._file(create=True), due, mode=0o600)

    def load(self) -> Position:
        """Take over what was written down, if it fits; where reading has to begin."""
        try:
            known = orjson.loads(self._file(create=False).read_bytes())
            ends = [(int(seq), str(prev)) for seq, prev in known["boundaries"]]
            stamps = [[int(part) for part in stamp] for stamp in known["stamps"]]
            if (known["schema"], known["ledger"]) != (_SCHEMA, str(self.active.resolve())):
                return BEGIN
            boundaries = [BEGIN, *(Position(seq, prev, seq, 0) for seq, prev in ends)]
            for begin, stamp in zip(boundaries[:-1], stamps, strict=True):
                if _stamp(sealed_path(self.active, begin.seq).stat()) != stamp:
                    return BEGIN
            ordinals = {(c, s, n): int(count) for c, s, n, count in known["ordinals"]}
            trials = {str(each) for each in known["open"]}
        except (OSError, QualifyError, ValueError, KeyError, TypeError):
            return BEGIN
        self.ordinals, self.open = ordinals, trials
        self.boundaries, self._stamps = boundaries, stamps
        return boundaries[-1]

    def _file(self, *, create: bool) -> Path:
        name = hashlib.sha256(os.fsencode(self.active.resolve())).hexdigest()[:24]
        folder = xdg_state_home() / "ledgers"
        return (private_folder(folder) if create else folder) / f"{name}.json"


_TRIAL = re.compile(rb'"trial":"sha256:([0-9a-f]{64})"')


def _finished(payload: bytes) -> str:
    """The trial (64 hex digits) that a record ends: its name stands near the end, among the keys
    of the record itself. Looked for there, it need not be parsed.
    """
    found = _TRIAL.match(payload, payload.rfind(b'"trial":"sha256:'))
    name: str = found[1].decode() if found else orjson.loads(payload)["trial"]
    return name.removeprefix("sha256:")


def _stamp(info: os.stat_result) -> list[int]:
    return [info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns]
