"""Replay of a session in a fresh process, without a model client and without the agent SDK.

`python -m qualify.sessions.replay FOLDER` verifies the journal's chain, folds it into a projection,
compares it with the SDK's event files as plain JSON, and prints one JSON document. The runner
compares that with what it saw itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qualify.core.digests import keyed_digest
from qualify.sessions.journal import JOURNAL, load_key, read_journal
from qualify.sessions.projection import Projection, project
from qualify.storage.appendlog import read_head


@dataclass(frozen=True)
class Replay:
    """What a fresh process finds in a session's folder."""

    head: str
    events: int
    projection: str
    decisions: list[str | None]
    requests: list[int]
    """For each group: which user message it answers, counted from 1."""
    sizes: list[int]
    """For each group: how many actions it holds."""
    executed: list[int]
    """For each group: how many of its actions were about to happen."""
    violations: list[str]
    disagreements: list[str]
    """Where the SDK's own store says something else than the journal."""
    unknown_effects: int
    client: dict[str, Any] | None
    """What was bound before model work (`journal.ClientSeen`)."""
    client_readings: int
    client_changed: list[str]
    client_read_at_end: bool
    sdk_loaded: bool
    """Whether this process had the agent SDK imported: must be false."""


def replay(folder: Path) -> Replay:
    """Replay the session in `folder`. Raises `ChainBroken` or `EnvironmentFault`."""
    state = project(read_journal(folder))
    head = read_head(folder / JOURNAL)
    executed = [
        sum(state.effects[action].intents > 0 for action in group.actions) for group in state.groups
    ]
    return Replay(
        head="sha256:" + head.digest,
        events=head.count,
        projection=state.digest(),
        decisions=[group.decision for group in state.groups],
        requests=[group.request for group in state.groups],
        sizes=[len(group.actions) for group in state.groups],
        executed=executed,
        violations=sorted(state.violations),
        disagreements=sorted(_disagreements(folder, state)),
        unknown_effects=state.unknown_effects,
        client=state.client.model_dump(mode="json") if state.client else None,
        client_readings=state.readings,
        client_changed=state.client_changed,
        client_read_at_end=state.read_last == "end",
        sdk_loaded=any(name.partition(".")[0] in ("openhands", "litellm") for name in sys.modules),
    )


def _disagreements(folder: Path, state: Projection) -> list[str]:
    found = []
    try:
        events = [json.loads(path.read_bytes()) for path in event_files(folder)]
        ids = {event["id"] for event in events}
    except (ValueError, KeyError, TypeError):
        return ["sdk-event-unreadable"]
    known = {event for event, _ in state.seen}
    if ids - known:
        found.append("sdk-event-not-in-journal")
    if known - ids:
        found.append("journal-event-not-in-sdk-store")
    rejected = {e.get("action_id") for e in events if e.get("kind") == "UserRejectObservation"}
    observed = {e.get("action_id") for e in events if e.get("kind") == "ObservationEvent"}
    for group in state.groups:
        for action in group.actions:
            effect = state.effects[action]
            if (action in rejected) != (group.decision == "rejected"):
                found.append("rejection-differs")
            if action in observed and effect.intents == 0:
                found.append("observation-without-intent")
    if state.sealed_events is not None:
        key = load_key(folder)
        count, digest = store_digest(folder, lambda data: keyed_digest(key, data))
        if (count, digest) != (state.sealed_events, state.sealed_store):
            found.append("sdk-store-changed-after-sealing")
    return found


def event_files(folder: Path) -> list[Path]:
    """The SDK's event files, in order."""
    return sorted((folder / "conversation").glob("*/events/event-*.json"))


def store_digest(folder: Path, digest: Callable[[bytes], str]) -> tuple[int, str]:
    """Number of the SDK's event files, and the keyed digest of their names and contents."""
    files = event_files(folder)
    content = b"".join(path.name.encode() + b"\0" + path.read_bytes() + b"\0" for path in files)
    return len(files), digest(content)


def main(arguments: list[str]) -> int:
    """Print the replay of the folder that is named."""
    result: dict[str, Any] = asdict(replay(Path(arguments[0])))
    sys.stdout.write(json.dumps(result, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
