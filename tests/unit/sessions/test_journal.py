"""The journal: durable, chained, content-free; its export verifies and shows every change."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from qualify.core.canonical import canonical_json
from qualify.core.errors import EnvironmentFault
from qualify.sessions import journal as events_of
from qualify.sessions.audit import export_audit, verify_audit
from qualify.sessions.journal import (
    Bound,
    ClientSeen,
    Decided,
    Intent,
    Journal,
    JournalEvent,
    Opened,
    Outcome,
    Paused,
    Presented,
    ProposedAction,
    Refused,
    Reread,
    Sealed,
    Seen,
    Sent,
    UnknownOutcome,
    load_key,
    read_journal,
)
from qualify.storage.appendlog import AppendLog, ChainBroken

DIGEST = "sha256:" + "a" * 64

CLIENT = ClientSeen(
    requested_model=DIGEST, sdk_version="1.58.2", max_input_tokens=16384, max_output_tokens=None,
    confirmation_policy="AlwaysConfirm", analyzer=None, platform="Linux-x86_64-3.13.0",
    options=DIGEST, security=DIGEST,
)  # fmt: skip
EVENTS: list[JournalEvent] = [
    Opened(session="0" * 32, reopened=False, sdk_version="1.58.2", fingerprint=DIGEST),
    Bound(client=CLIENT),
    Reread(at="continuation", changed=("max-input-tokens",)),
    Sent(message=DIGEST),
    Seen(event="e-1", event_kind="MessageEvent"),
    Presented(group=0, actions=(ProposedAction(action="a-1", tool="terminal", call=DIGEST),)),
    Decided(group=0, decision="approved"),
    Intent(action="a-1", tool="terminal", free=False),
    Outcome(action="a-1", result="done", exit_code=0, output=DIGEST),
    Outcome(action="a-2", result="error", exit_code=None, output=None),
    UnknownOutcome(action="a-3"),
    Refused(action="a-3", reason="unknown-outcome"),
    Paused(status="finished"),
    Sealed(sdk_events=7, store=DIGEST),
]


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    written = Journal(tmp_path)
    for event in EVENTS:
        written.record(event)
    return written


def test_every_kind_of_event_comes_back_as_it_was_written(journal: Journal, tmp_path: Path) -> None:
    assert read_journal(tmp_path) == EVENTS == journal.events
    kinds = {type(event) for event in EVENTS}
    assert kinds == set(events_of.Event.__subclasses__()) - {ProposedAction, ClientSeen}


def test_a_journal_goes_on_where_another_process_left_it(journal: Journal, tmp_path: Path) -> None:
    again = Journal(tmp_path)
    assert again.events == EVENTS
    again.record(Sent(message=DIGEST))
    assert read_journal(tmp_path) == [*EVENTS, Sent(message=DIGEST)]
    assert again.head != journal.head


def test_the_key_is_private_and_stays(journal: Journal, tmp_path: Path) -> None:
    assert stat.S_IMODE((tmp_path / "journal.key").stat().st_mode) == 0o600
    assert load_key(tmp_path) == load_key(tmp_path)
    assert Journal(tmp_path).digest("short") == journal.digest(b"short")


def test_a_keyed_digest_is_another_in_every_journal(tmp_path: Path) -> None:
    digests = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        digests.add(Journal(tmp_path / name).digest("yes"))
    assert len(digests) == 2


@given(text=st.text(min_size=1))
def test_no_field_takes_free_text(text: str) -> None:
    """Whatever a model writes fits into a field only where it looks like an identifier."""
    for event in EVENTS:
        for name, value in event.model_dump().items():
            if name in ("kind", "schema_version") or not isinstance(value, str):
                continue
            try:
                type(event).model_validate({**event.model_dump(), name: f"rm {text}"})
            except ValidationError:
                continue
            raise AssertionError((type(event).__name__, name))


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (Decided, {"group": -1}),
        (Decided, {"decision": "maybe"}),
        (Outcome, {"exit_code": "0"}),
        (Outcome, {"output": "done"}),
        (Opened, {"schema_version": 3}),
        (Sent, {"text": "hello"}),
    ],
)
def test_an_event_of_another_shape_is_refused(
    kind: type[BaseModel], change: dict[str, object]
) -> None:
    good = next(event for event in EVENTS if type(event) is kind).model_dump()
    kind.model_validate(good)
    with pytest.raises(ValidationError):
        kind.model_validate({**good, **change})


def test_an_event_of_a_later_version_names_the_line(journal: Journal, tmp_path: Path) -> None:
    AppendLog(tmp_path / "journal.log").append(canonical_json({"kind": "teleported"}))
    with pytest.raises(EnvironmentFault, match=f"journal line {len(EVENTS) + 1}"):
        read_journal(tmp_path)


def test_a_torn_last_line_is_not_read_and_the_next_event_follows_the_last_whole_one(
    journal: Journal, tmp_path: Path
) -> None:
    path = tmp_path / "journal.log"
    path.write_bytes(path.read_bytes() + b"12 abc")
    assert read_journal(tmp_path) == EVENTS
    Journal(tmp_path).record(Sent(message=DIGEST))
    assert read_journal(tmp_path) == [*EVENTS, Sent(message=DIGEST)]


# ── the audit export ─────────────────────────────────────────────────────────────────────────────


def test_the_export_covers_every_event_and_verifies(journal: Journal, tmp_path: Path) -> None:
    export = export_audit(tmp_path)
    assert verify_audit(export.path) == (len(EVENTS), journal.head)
    assert (export.events, export.head) == (len(EVENTS), journal.head)
    assert stat.S_IMODE(export.path.stat().st_mode) == 0o600
    assert [json.loads(line.split(b" ", 3)[3]) for line in export.content.splitlines()] == [
        event.model_dump(mode="json") for event in EVENTS
    ]


def test_the_export_of_an_empty_journal_is_empty(tmp_path: Path) -> None:
    export = export_audit(tmp_path)
    assert (export.events, export.head, export.content) == (0, "", b"")
    assert verify_audit(export.path) == (0, "")


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(lambda lines: [lines[0].replace(b"1.58.2", b"1.58.3"), *lines[1:]], id="edit"),
        pytest.param(lambda lines: [*lines[:4], *lines[5:]], id="drop"),
        pytest.param(lambda lines: lines[1:], id="drop-first"),
        pytest.param(lambda lines: [lines[1], lines[0], *lines[2:]], id="reorder"),
        pytest.param(lambda lines: [*lines[:5], lines[4], *lines[5:]], id="repeat"),
        pytest.param(lambda lines: [b"", *lines], id="blank-line"),
    ],
)
def test_a_changed_export_does_not_verify(
    journal: Journal, tmp_path: Path, attack: Callable[[list[bytes]], list[bytes]]
) -> None:
    export = export_audit(tmp_path)
    export.path.write_bytes(b"".join(line + b"\n" for line in attack(export.content.splitlines())))
    with pytest.raises(ChainBroken):
        verify_audit(export.path)


@pytest.mark.parametrize("keep", [0, 1, len(EVENTS) - 1])
def test_a_shortened_export_has_another_count_and_head(
    journal: Journal, tmp_path: Path, keep: int
) -> None:
    export = export_audit(tmp_path)
    export.path.write_bytes(b"".join(export.content.splitlines(keepends=True)[:keep]))
    count, head = verify_audit(export.path)
    assert count == keep
    assert head != export.head


def test_an_export_of_a_broken_journal_is_refused(journal: Journal, tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    path.write_bytes(path.read_bytes().replace(b'"approved"', b'"rejected"'))
    with pytest.raises(ChainBroken):
        export_audit(tmp_path)


def test_neither_journal_nor_replay_nor_audit_imports_the_agent_sdk() -> None:
    code = (
        "import sys; from qualify.sessions import journal, projection, replay, audit;"
        "print([n for n in sys.modules if n.split('.')[0] in ('openhands', 'litellm', 'aiohttp')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"
