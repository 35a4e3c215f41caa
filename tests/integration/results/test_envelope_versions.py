"""What an earlier Qualify wrote is read for ever: one fixture for each version of each envelope.

`tests/fixtures/envelopes/ENVELOPE-VERSION` is what that version wrote (a scripted trial and its
ledger, signed by a key that is gone); every one has to pass the loader that owns it. Databases have
a test of their own beside this one; manifests, locks and bundles have had one version so far.
"""

from __future__ import annotations

import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from qualify.assessment.grading import Grade, judge
from qualify.core.errors import EnvironmentFault, UsageError
from qualify.evidence.ledger import Ledger, NewerLedger
from qualify.evidence.records import SCHEMA, Reservation, Trial
from qualify.evidence.signing.registry import Registry, read_registry
from qualify.evidence.verification import verify_ledger
from qualify.manifests.catalog import load_catalog
from qualify.manifests.configuration import suite_identity
from qualify.results.database import snapshot
from qualify.results.queries import ask
from qualify.sessions.audit import export_audit, verify_audit
from qualify.sessions.journal import VERSION, Journal
from qualify.sessions.replay import replay
from qualify.storage.appendlog import encode_line, read_log

ROOT = Path(__file__).parents[3]
FIXTURES = ROOT / "tests" / "fixtures" / "envelopes"
LATER = datetime(2026, 12, 2, tzinfo=UTC)


def ledger_of(version: int, folder: Path) -> Ledger:
    (folder / "ledger").mkdir()
    shutil.copy(FIXTURES / f"ledger-{version}.chain", folder / "ledger" / "ledger.log")
    return Ledger(folder / "ledger")


def journal_of(version: int, folder: Path) -> Path:
    (folder / "session").mkdir()
    shutil.copy(FIXTURES / f"journal-{version}.chain", folder / "session" / "journal.log")
    return folder / "session"


def test_every_version_has_its_fixture() -> None:
    expected = {f"ledger-{n}.chain" for n in range(1, SCHEMA + 1)}
    expected |= {f"journal-{n}.chain" for n in range(1, VERSION + 1)}
    expected |= {"checkpoint-1.json", "checkpoint-1.json.sig", "checkpoint-1.dsse.json"}
    assert {path.name for path in FIXTURES.iterdir()} == {*expected, "signers-1.json"}


@pytest.mark.parametrize("version", range(1, SCHEMA + 1))
def test_a_ledger_is_read_judged_and_projected_like_the_day_it_was_written(
    version: int, tmp_path: Path
) -> None:
    ledger = ledger_of(version, tmp_path)
    before = ledger.path.read_bytes()
    genesis, held, end = [stored.entry for stored in ledger.entries()]
    assert isinstance(held, Reservation)
    assert isinstance(end, Trial)
    assert (genesis.kind, end.schema_version) == ("genesis", version)
    assert (end.client is None) == (version == 1)
    scenarios = suite_identity(load_catalog(ROOT), "acceptance").scenarios
    (scenario,) = (each for each in scenarios if each.id == held.scenario)
    made = judge(held, end, scenario)
    assert (made.grade, made.faults) == (Grade.PASSED, ())
    with snapshot(tmp_path, ledger, None) as (connection, _):
        sql = "SELECT state, usage_model_calls, client_read_at_end, budgets_bind FROM trials"
        said = (None, None) if version == 1 else (True, "between-steps")
        assert ask(connection, sql).rows == (("passed", 4, *said),)
    assert ledger.path.read_bytes() == before


def test_a_record_of_version_1_cannot_have_what_came_later(tmp_path: Path) -> None:
    *_, last = read_log(FIXTURES / "ledger-2.chain")
    older = last.payload.replace(b'"schema_version":2', b'"schema_version":1')
    with pytest.raises(ValueError, match="schema 1 has no budgets_bind"):
        Trial.model_validate_json(older)


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_a_journal_is_replayed_and_exported(version: int, tmp_path: Path) -> None:
    folder = journal_of(version, tmp_path)
    before = (folder / "journal.log").read_bytes()
    (folder / "journal.key").write_bytes(b"k" * 32)
    found = replay(folder)
    assert (found.decisions, found.executed, found.sizes) == (
        ["approved", "rejected"],
        [1, 0],
        [1, 1],
    )
    assert (found.violations, found.unknown_effects) == ([], 0)
    assert (found.client is None) == (version == 1)
    assert verify_audit(export_audit(folder).path) == (found.events, found.head)
    assert (folder / "journal.log").read_bytes() == before


def test_a_newer_ledger_is_refused_and_not_touched(tmp_path: Path) -> None:
    ledger = ledger_of(SCHEMA, tmp_path)
    *first, last = read_log(ledger.path)
    payload = last.payload.replace(b'"schema_version":%d' % SCHEMA, b'"schema_version":99')
    raw, _ = encode_line(last.seq, last.prev, payload)
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    ledger.path.write_bytes(b"".join([*lines[: len(first)], raw]))
    before = ledger.path.read_bytes()
    with pytest.raises(NewerLedger, match="schema 99"):
        list(ledger.entries())
    assert ledger.path.read_bytes() == before


def test_a_newer_journal_is_refused_and_not_touched(tmp_path: Path) -> None:
    folder = journal_of(VERSION, tmp_path)
    first, *_ = read_log(folder / "journal.log")
    payload = re.sub(rb'"schema_version":\d+', b'"schema_version":99', first.payload)
    raw, _ = encode_line(0, first.prev, payload)
    (folder / "journal.log").write_bytes(raw)
    for read in (replay, Journal, export_audit):
        with pytest.raises(EnvironmentFault, match="version of the journal"):
            read(folder)
    assert (folder / "journal.log").read_bytes() == raw


@pytest.mark.parametrize("form", ["json.sig", "dsse.json"])
def test_a_checkpoint_is_verified_with_the_registry_of_its_day(form: str, tmp_path: Path) -> None:
    ledger = ledger_of(1, tmp_path)
    folder = ledger.folder / "checkpoints"
    folder.mkdir()
    for suffix in ("json", form):
        shutil.copy(FIXTURES / f"checkpoint-1.{suffix}", folder / f"000000000003.{suffix}")
    signers = tuple(read_registry(FIXTURES / "signers-1.json"))
    found = verify_ledger(ledger, Registry("caller", "fixture", signers), LATER)
    assert found.accepted, found.findings
    assert (found.covered, found.signers) == (3, ["fixture"])


def test_a_newer_registry_is_refused(tmp_path: Path) -> None:
    newer = (FIXTURES / "signers-1.json").read_text().replace("signers/1", "signers/2")
    (tmp_path / "signers.json").write_text(newer)
    with pytest.raises(UsageError, match="schema"):
        read_registry(tmp_path / "signers.json")
