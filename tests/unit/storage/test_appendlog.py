"""The append log: whole lines or nothing, one chain, and no damage that looks like a torn tail."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qualify.core.errors import EnvironmentFault, ExitCode
from qualify.storage import appendlog
from qualify.storage.appendlog import (
    GENESIS,
    AppendLog,
    ChainBroken,
    encode_line,
    line_digest,
    read_head,
    read_log,
)
from qualify.storage.locks import LockHeld, file_lock


@pytest.fixture
def log(tmp_path: Path) -> AppendLog:
    return AppendLog(tmp_path / "a.log")


def payload(number: int) -> bytes:
    return b'{"n":%d,"text":"a b\\n c"}' % number


def filled(log: AppendLog, count: int) -> AppendLog:
    for number in range(count):
        log.append(payload(number))
    return log


def test_a_missing_log_is_empty(log: AppendLog) -> None:
    assert list(read_log(log.path)) == []
    assert read_head(log.path) == appendlog.Head(0, GENESIS, 0)


def test_lines_come_back_in_order_and_chained(log: AppendLog) -> None:
    filled(log, 3)
    lines = list(read_log(log.path))
    assert [line.payload for line in lines] == [payload(n) for n in range(3)]
    assert [line.prev for line in lines] == [GENESIS, lines[0].digest, lines[1].digest]
    assert read_head(log.path) == appendlog.Head(3, lines[2].digest, 0)


def test_the_format_can_be_verified_with_sha256_alone(log: AppendLog) -> None:
    filled(log, 2)
    prev = "0" * 64
    for raw in log.path.read_text().splitlines():
        seq, before, digest, content = raw.split(" ", 3)
        assert before == prev
        assert hashlib.sha256(f"{seq} {before} {content}".encode()).hexdigest() == digest
        json.loads(content)
        prev = digest


def test_a_builder_is_given_its_place_under_the_lock(log: AppendLog) -> None:
    filled(log, 1)
    seen = []

    def build(seq: int, prev: str) -> bytes:
        with (
            pytest.raises(LockHeld),
            file_lock(log.path.with_name("a.log.lock"), timeout_s=0),
        ):
            pass
        seen.append((seq, prev))
        return payload(seq)

    line = log.append_with(build)
    assert seen == [(1, line.prev)]


def test_a_builder_that_fails_leaves_nothing(log: AppendLog) -> None:
    filled(log, 1)
    before = log.path.read_bytes()

    def build(_seq: int, _prev: str) -> bytes:
        raise KeyError("no")

    with pytest.raises(KeyError):
        log.append_with(build)
    assert log.path.read_bytes() == before
    log.append(payload(1))


@pytest.mark.parametrize("wrong", [b"", b"[]", b'{"a":\n1}', b"text"])
def test_only_one_line_objects_are_taken(log: AppendLog, wrong: bytes) -> None:
    with pytest.raises(ValueError, match="canonical JSON object"):
        log.append(wrong)


def test_a_tail_torn_at_any_byte_is_ignored_then_sealed_and_never_guessed(tmp_path: Path) -> None:
    whole = filled(AppendLog(tmp_path / "whole.log"), 3)
    raw = whole.path.read_bytes()
    *_, last = raw.splitlines(keepends=True)
    for cut in range(1, len(last)):
        log = AppendLog(tmp_path / f"{cut}.log")
        torn = last[:-cut]
        log.path.write_bytes(raw[:-cut])
        assert [line.seq for line in read_log(log.path)] == [0, 1]
        assert read_head(log.path).torn_bytes == len(torn)
        assert log.append(payload(9)).seq == 2
        assert [line.payload for line in read_log(log.path)][2] == payload(9)
        sealed = log.path.with_name(f"{cut}.log.torn-2")
        assert sealed.exists() is bool(torn)
        if torn:
            assert sealed.read_bytes() == torn


def test_a_log_torn_in_its_first_line_starts_again(log: AppendLog) -> None:
    log.path.write_bytes(b"0 000")
    assert read_head(log.path) == appendlog.Head(0, GENESIS, 5)
    assert log.append(payload(0)).seq == 0
    assert log.path.with_name("a.log.torn-0").read_bytes() == b"0 000"


def test_two_torn_tails_at_one_place_are_both_kept(log: AppendLog) -> None:
    filled(log, 1)
    log.path.with_name("a.log.torn-1").write_bytes(b"earlier")
    with log.path.open("ab") as stream:
        stream.write(b"1 half")
    log.append(payload(1))
    assert log.path.with_name("a.log.torn-1").read_bytes() == b"earlier"
    assert log.path.with_name("a.log.torn-1.1").read_bytes() == b"1 half"


def test_a_tail_longer_than_the_window_that_is_read_first(
    log: AppendLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appendlog, "_TAIL", 64)
    filled(log, 3)
    log.append(b'{"n":"%s"}' % (b"x" * 5000))
    with log.path.open("ab") as stream:
        stream.write(b"4 " + b"y" * 3000)
    assert log.append(payload(4)).seq == 4
    assert read_head(log.path).count == 5


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_changed_byte_is_noticed(data: st.DataObject) -> None:
    lines, prev = [], GENESIS
    for number in range(4):
        raw, prev = encode_line(number, prev, payload(number))
        lines.append(raw)
    whole = b"".join(lines)
    place = data.draw(st.integers(0, len(whole) - 2))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != whole[place]))
    changed = whole[:place] + bytes([other]) + whole[place + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "changed.log"
        path.write_bytes(changed)
        with pytest.raises(ChainBroken) as caught:
            list(read_log(path))
    assert caught.value.where.startswith(f"{path}:")
    assert caught.value.exit_code == ExitCode.NOT_A_PASS


def test_a_damaged_last_line_is_not_appended_to(log: AppendLog) -> None:
    filled(log, 2)
    raw = log.path.read_bytes()
    damaged = raw[:-10] + b"X" + raw[-9:]
    log.path.write_bytes(damaged)
    with pytest.raises(ChainBroken):
        log.append(payload(2))
    assert log.path.read_bytes() == damaged


def test_leading_zeros_are_another_spelling_and_refused(log: AppendLog) -> None:
    digest = hashlib.sha256(b"00 %s {}" % GENESIS.encode()).hexdigest()
    log.path.write_bytes(b"00 %s %s {}\n" % (GENESIS.encode(), digest.encode()))
    with pytest.raises(ChainBroken, match="sequence 00"):
        list(read_log(log.path))
    assert line_digest(0, GENESIS, b"{}") != digest


def test_a_reader_that_met_a_sealed_tail_asks_the_file_again(
    log: AppendLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(log, 1)
    with log.path.open("ab") as stream:
        stream.write(b"1 torn")
    real = appendlog._parse
    mixed = []

    def meets_a_mixture(raw: bytes, path: Path, seq: int, prev: str):
        # What a buffered reader sees when the tail is sealed and written over under it.
        if seq == 1 and not mixed:
            mixed.append(raw)
            raise ChainBroken("mixture", where=str(path))
        return real(raw, path, seq, prev)

    log.append(payload(1))
    monkeypatch.setattr(appendlog, "_parse", meets_a_mixture)
    assert [line.payload for line in read_log(log.path)] == [payload(0), payload(1)]
    assert mixed


def test_a_lock_that_never_comes_is_an_error_with_the_holder(log: AppendLog) -> None:
    with (
        file_lock(log.path.with_name("a.log.lock")),
        pytest.raises(LockHeld, match=f"process {os.getpid()}"),
    ):
        log.append(payload(0), lock_timeout_s=0.05)
    log.append(payload(0))


def test_a_folder_that_is_missing_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="cannot be appended to"):
        AppendLog(tmp_path / "no" / "a.log").append(b"{}")


WRITER = """
import sys
import tempfile
from pathlib import Path
from qualify.storage.appendlog import AppendLog
log = AppendLog(Path(sys.argv[1]))
for number in range(int(sys.argv[3])):
    log.append(b'{"n":%d,"who":%d}' % (number, int(sys.argv[2])))
"""


def test_many_processes_write_one_chain_without_a_gap(log: AppendLog) -> None:
    writers, each = 8, 25
    children = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(log.path), str(who), str(each)])
        for who in range(writers)
    ]
    # A reader at the same time sees a chain at every moment.
    while any(child.poll() is None for child in children):
        read_head(log.path)
    assert [child.wait() for child in children] == [0] * writers
    lines = list(read_log(log.path))
    assert [line.seq for line in lines] == list(range(writers * each))
    by_writer: dict[int, list[int]] = {}
    for line in lines:
        entry = json.loads(line.payload)
        by_writer.setdefault(entry["who"], []).append(entry["n"])
    assert by_writer == {who: list(range(each)) for who in range(writers)}
