"""The audit export of a session: every journal event, content-minimized, in a chain of its own.

The journal holds no content, so its lines are exported as they are. An auditor recomputes the chain
from the export alone; nothing in it tells what was asked, run or answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qualify.core.digests import digest_bytes
from qualify.sessions.journal import JOURNAL, parse_event
from qualify.storage.appendlog import read_log
from qualify.storage.folders import write_atomic

EXPORT = "audit.log"


@dataclass(frozen=True)
class AuditExport:
    """Where the export is, its digest, its number of events, and the digest of its last line."""

    path: Path
    digest: str
    events: int
    head: str
    content: bytes


def export_audit(folder: Path) -> AuditExport:
    """Write the export beside the journal in `folder`. Raises `ChainBroken`."""
    lines = []
    head = ""
    for line in read_log(folder / JOURNAL):
        parse_event(line)
        lines.append(
            b"%d %s %s %s\n" % (line.seq, line.prev.encode(), line.digest.encode(), line.payload)
        )
        head = "sha256:" + line.digest
    content = b"".join(lines)
    path = folder / EXPORT
    write_atomic(path, content, mode=0o600)
    return AuditExport(path, digest_bytes(content), len(lines), head, content)


def verify_audit(path: Path) -> tuple[int, str]:
    """Recompute the export's chain; return its number of events and head. Raises `ChainBroken`."""
    count, head = 0, ""
    for line in read_log(path):
        parse_event(line)
        count, head = count + 1, "sha256:" + line.digest
    return count, head
