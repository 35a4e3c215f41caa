"""Identifiers, digests, times and errors: what is one, and what only looks like one."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qualify.core.clock import Clock, format_time, parse_time
from qualify.core.digests import digest_bytes, digest_file, digest_json, is_digest, keyed_digest
from qualify.core.errors import (
    EnvironmentFault,
    ErrorList,
    ExitCode,
    QualifyError,
    Refusal,
    UsageError,
)
from qualify.core.identifiers import is_identifier, nearest

DIGEST = "sha256:" + "0" * 64
EARLIEST = datetime(1000, 1, 1, tzinfo=UTC).replace(tzinfo=None)
LATEST = datetime(9999, 12, 30, tzinfo=UTC).replace(tzinfo=None)


@pytest.mark.parametrize("text", ["a", "cpu-qwen2.5-coder-1.5b", "0", "a_b", "a" * 80])
def test_identifiers(text: str) -> None:
    assert is_identifier(text)


@pytest.mark.parametrize(
    "text", ["", "A", "-a", ".a", "a b", "a/b", "a..b", "a\n", "ä", "a" * 81, "١"]
)
def test_what_is_no_identifier(text: str) -> None:
    assert not is_identifier(text)


def test_a_hint_names_the_nearest_and_nothing_when_none_is_near() -> None:
    assert nearest("cpu-qwen", ["cpu-qwen2", "gpu"]) == "did you mean 'cpu-qwen2'?"
    assert nearest("zzz", ["cpu-qwen2"]) == ""


def test_a_digest_is_exactly_what_we_write() -> None:
    assert is_digest(DIGEST)
    for wrong in (DIGEST + "\n", DIGEST.upper(), DIGEST[:-1], DIGEST + "0", "md5:" + "0" * 64, ""):
        assert not is_digest(wrong)


def test_a_file_and_its_bytes_have_one_digest(tmp_path: Path) -> None:
    data = bytes(range(256)) * 9000
    (tmp_path / "file").write_bytes(data)
    seen: list[int] = []
    assert digest_file(tmp_path / "file", seen.append) == digest_bytes(data)
    assert digest_bytes(data) == "sha256:" + hashlib.sha256(data).hexdigest()
    assert sum(seen) == len(data)


def test_equal_data_has_one_digest_and_other_data_another() -> None:
    assert digest_json({"a": 1, "b": 2}) == digest_json({"b": 2, "a": 1})
    assert digest_json({"a": 1}) != digest_json({"a": 2})


def test_a_keyed_digest_depends_on_the_key() -> None:
    assert keyed_digest(b"k1", b"ls") != keyed_digest(b"k2", b"ls")
    assert keyed_digest(b"k1", b"ls") == keyed_digest(b"k1", b"ls")
    assert keyed_digest(b"k1", b"ls") != digest_bytes(b"ls")


@given(st.datetimes(EARLIEST, LATEST, timezones=st.just(UTC)))
def test_times_survive_to_the_second(moment: datetime) -> None:
    assert parse_time(format_time(moment)) == moment.replace(microsecond=0)


def test_times_are_written_in_utc() -> None:
    moment = datetime(2026, 11, 30, 1, 0, tzinfo=timezone(timedelta(hours=2)))
    assert format_time(moment) == "2026-11-29T23:00:00Z"
    with pytest.raises(ValueError, match="without a zone"):
        format_time(moment.replace(tzinfo=None))


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-30", "2026-11-30T20:46:58", "2026-11-30T20:46:58+00:00", "2026-13-30T20:46:58Z",
        "2026-02-30T20:46:58Z", "2026-11-30T20:46:61Z", "2026-11-30T20:46:58Z\n",
        "2026-11-30t20:46:58z", "２０２６-11-30T20:46:58Z", "",
    ],
)  # fmt: skip
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        parse_time(text)


def test_the_system_clock_is_utc_and_monotonic() -> None:
    clock = Clock()
    assert clock.now().tzinfo is UTC
    assert clock.now().microsecond == 0
    assert clock.monotonic_ms() <= clock.monotonic_ms()


def test_an_error_says_what_where_and_what_next() -> None:
    error = UsageError("unknown row", where="a.yaml:3:1", fix="see `qualify matrix`")
    assert str(error) == "a.yaml:3:1: unknown row (see `qualify matrix`)"
    assert str(QualifyError("broken")) == "broken"


def test_every_error_has_its_exit_code() -> None:
    codes = {kind: kind("x").exit_code for kind in (UsageError, Refusal, EnvironmentFault)}
    assert codes == {UsageError: 2, Refusal: 10, EnvironmentFault: 1}
    assert ErrorList([UsageError("a"), Refusal("b")]).exit_code == ExitCode.NOT_A_PASS
    assert str(ErrorList([UsageError("a"), UsageError("b")])) == "a\nb"
    with pytest.raises(ValueError, match="at least one"):
        ErrorList([])
