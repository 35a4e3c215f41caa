"""A ledger of several segments is one chain, and is read again only where somebody was at it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from qualify.core.errors import Refusal
from qualify.evidence import ledger as module
from qualify.evidence.ledger import ChainBroken, Ledger
from qualify.storage import segments
from qualify.storage.segments import BEGIN, ChainReader, sealed_segments
from support import evidence
from support.evidence import SettableClock, reserve, run, trial

SMALL = 8000
"""Bytes of a segment: about three trials."""


@pytest.fixture(autouse=True)
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def opened(folder: Path) -> Ledger:
    return Ledger(folder, SettableClock().clock(), segment_bytes=SMALL)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Twelve trials over several segments, two of them open."""
    made = opened(tmp_path / "ledger")
    clock = SettableClock()
    for _ in range(5):
        run(made, clock)
    reserve(made)
    for _ in range(5):
        run(made, clock)
    reserve(made)
    return made


def sealed(ledger: Ledger) -> list[Path]:
    return [path for _, path in sealed_segments(ledger.path)]


def test_segments_are_one_chain(ledger: Ledger) -> None:
    assert len(sealed(ledger)) >= 3
    entries = list(ledger.entries())
    assert [stored.seq for stored in entries] == list(range(23))
    assert ledger.verify() == ledger.head() == opened(ledger.folder).head()
    assert ledger.head().count == 23
    assert all(path.stat().st_mode & 0o777 == 0o444 for path in sealed(ledger))
    assert all(path.stat().st_size <= SMALL for path in sealed(ledger))


def test_the_digest_after_each_count_is_that_of_its_last_line(ledger: Ledger) -> None:
    digests = ["0" * 64, *(s.digest.removeprefix("sha256:") for s in ledger.entries())]
    for count, digest in enumerate(digests):
        assert ledger.digest_at(count) == digest
        place = ledger.place(count, digest)
        assert place is not None
        assert [line.seq for line in ledger.lines(place)] == list(range(count, 23))
        if count:
            assert ledger.place(count, "f" * 64) is None
    assert ledger.digest_at(24) is None
    assert ledger.place(24, digests[-1]) is None


def test_ordinals_and_open_trials_live_on_over_segments_and_processes(ledger: Ledger) -> None:
    again = opened(ledger.folder)
    made = reserve(again)
    assert made.ordinal == 12
    first_open = next(
        s.digest for s in ledger.entries() if s.entry.kind == "reservation" and s.entry.ordinal == 5
    )
    assert again.finish(trial(first_open)).seq == 24
    with pytest.raises(Refusal, match="already finished"):
        opened(ledger.folder).finish(trial(first_open))


def read_segments(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sequence numbers of the lines that are verified from now on."""
    seen: list[int] = []
    real = Ledger._observe

    def observed(self: Ledger, line: object) -> None:
        seen.append(line.seq)  # type: ignore[attr-defined]
        real(self, line)  # type: ignore[arg-type]

    monkeypatch.setattr(module.Ledger, "_observe", observed)
    return seen


def test_a_later_process_verifies_only_what_nobody_vouches_for(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = read_segments(monkeypatch)
    reserve(opened(ledger.folder))
    last = sealed_segments(ledger.path)[-1][0]
    assert min(seen) >= last
    assert seen[-1] == 23


def test_what_was_read_whole_need_not_be_verified_again(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert len(list(islice(opened(ledger.folder).lines(), 20))) == 20  # left before its end
    seen = read_segments(monkeypatch)
    assert len(list(opened(ledger.folder).lines())) == 23
    assert opened(ledger.folder).head() == ledger.head()
    assert min(seen) >= sealed_segments(ledger.path)[-1][0]
    assert reserve(opened(ledger.folder)).ordinal == 12


def touched(path: Path) -> None:
    os.utime(path)


def moved(path: Path) -> None:
    path.rename(path.with_name("aside"))
    path.with_name("aside").rename(path)


def copied(path: Path) -> None:
    shutil.copy2(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


@pytest.mark.parametrize("change", [touched, moved, copied])
def test_a_segment_that_somebody_was_at_is_verified_again(
    change: Callable[[Path], None], ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(sealed(ledger)[1])
    seen = read_segments(monkeypatch)
    assert opened(ledger.folder).head().count == 23
    assert seen == list(range(23))


def flipped(path: Path) -> None:
    """One byte is another, the times are as they were."""
    info = path.stat()
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    path.chmod(0o444)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def removed(path: Path) -> None:
    path.unlink()


def shortened(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def torn(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-5])


@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("change", [flipped, removed, shortened, torn])
def test_damage_in_a_sealed_segment_is_found_by_every_later_process(
    change: Callable[[Path], None], which: int, ledger: Ledger
) -> None:
    change(sealed(ledger)[which])
    uses: list[Callable[[Ledger], object]] = [
        lambda found: found.head(),
        lambda found: found.verify(),
        lambda found: list(found.entries()),
        reserve,
    ]
    for use in uses:
        with pytest.raises(ChainBroken):
            use(opened(ledger.folder))


def test_segments_that_change_places_are_found(ledger: Ledger) -> None:
    one, two = sealed(ledger)[:2]
    one.rename(one.with_name("x"))
    two.rename(one)
    one.with_name("x").rename(two)
    with pytest.raises(ChainBroken):
        opened(ledger.folder).verify()


def test_without_the_last_file_the_sealed_ones_are_still_a_ledger(ledger: Ledger) -> None:
    """As after a crash between sealing and writing; entries at the end are missing, as ever."""
    ledger.path.unlink()
    again = opened(ledger.folder)
    count = again.head().count
    assert 0 < count < 23
    again.append(evidence.refusal())
    assert opened(ledger.folder).verify().count == count + 1


@pytest.mark.parametrize(
    "note", [b"", b"{", b"[]", b'{"schema":"qualify-ledger-memory/1"}', b"\xff\xfe"]
)
def test_a_note_that_is_damaged_or_cannot_be_written_costs_only_time(
    note: bytes, ledger: Ledger, tmp_path: Path
) -> None:
    (file,) = (tmp_path / "state/qualify/ledgers").iterdir()
    file.write_bytes(note)
    assert opened(ledger.folder).head().count == 23
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "state").write_text("in the way")
    again = opened(ledger.folder)
    for _ in range(12):
        again.append(evidence.refusal())
    assert opened(ledger.folder).verify().count == 35


def test_two_processes_verify_what_one_does(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = ledger.verify()
    monkeypatch.setattr(segments, "_PARALLEL_FROM", 0)
    assert ledger.verify() == alone
    flipped(sealed(ledger)[1])
    with pytest.raises(ChainBroken):
        ledger.verify()


def test_many_entries_at_once_are_all_there_or_none(ledger: Ledger) -> None:
    payloads = [module.encode(evidence.refusal()) for _ in range(100)]
    assert ledger.append_many(payloads, validated=True) == 123
    assert opened(ledger.folder).append_many(payloads) == 223
    before = ledger.head()
    with pytest.raises(Refusal):
        ledger.append_many([*payloads, b'{"kind":"refusal"}'])
    with pytest.raises(TypeError):
        ledger.append_many([module.encode(trial("sha256:" + "0" * 64))])
    assert ledger.head() == before
    assert len(list(ledger.entries())) == 223


def test_reading_goes_on_while_segments_are_sealed(ledger: Ledger) -> None:
    reader = iter(ChainReader(ledger.path, BEGIN))
    found = [next(reader).seq for _ in range(23)]
    other = opened(ledger.folder)
    for _ in range(40):
        other.append(evidence.refusal())
    found += [line.seq for line in reader]
    assert found == list(range(63))


def test_a_line_without_end_needs_no_memory(tmp_path: Path) -> None:
    folder = tmp_path / "hostile"
    folder.mkdir()
    with (folder / "ledger.log").open("wb") as stream:
        stream.truncate(2 << 30)
    with pytest.raises(ChainBroken, match="more than"):
        opened(folder).head()
    with pytest.raises(ChainBroken, match="more than"):
        list(opened(folder).entries())
    with pytest.raises(ChainBroken):
        opened(folder).append(evidence.refusal())


def test_reading_writes_nothing_into_the_ledger(ledger: Ledger) -> None:
    def listing() -> list[tuple[str, int, int]]:
        return sorted(
            (path.name, path.stat().st_mtime_ns, path.stat().st_size)
            for path in (ledger.folder, *ledger.folder.iterdir())
        )

    before = listing()
    assert opened(ledger.folder).head().count == len(list(opened(ledger.folder).entries()))
    opened(ledger.folder).verify()
    assert listing() == before


def test_a_segment_that_nothing_leads_to_is_damage(ledger: Ledger) -> None:
    ledger.path.with_name("segment-000000000099.log").write_text("x")
    with pytest.raises(ChainBroken, match="are missing"):
        opened(ledger.folder).append(evidence.refusal())
