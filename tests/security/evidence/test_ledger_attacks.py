"""An adversary with write access to the ledger's file, and machines that fail while writing it.

Every attack that leaves a trace inside the file is refused with file and line. What only a memory
outside the file can reveal (whole entries cut off at the end) is shown to be exactly that.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qualify.core.canonical import canonical_json
from qualify.core.digests import digest_bytes
from qualify.core.errors import ExitCode, QualifyError
from qualify.core.status import CheckOutcome, TrialOutcome
from qualify.evidence.ledger import InvalidRecord, Ledger, open_ledger
from qualify.storage.appendlog import GENESIS, ChainBroken, encode_line, read_log
from support import evidence
from support.evidence import SettableClock, reserve, run

FAILED = {"exact-bytes": CheckOutcome.FAILED, "replay": CheckOutcome.PASSED}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Two passed trials and a failed one: what an adversary would like to improve."""
    clock = SettableClock()
    made = open_ledger(tmp_path, clock.clock())
    run(made, clock)
    run(made, clock)
    run(made, clock, outcome=TrialOutcome.FAILED, checks=FAILED)
    assert len(list(made.entries())) == 7
    return made


class Adversary:
    """Edits a ledger's lines; `rechained` also recomputes every sequence, link and digest."""

    def __init__(self, ledger: Ledger) -> None:
        self.path = ledger.path
        self.lines = ledger.path.read_bytes().splitlines(keepends=True)

    def write(self, lines: list[bytes]) -> None:
        self.path.write_bytes(b"".join(lines))

    def payloads(self) -> list[bytes]:
        return [line.payload for line in read_log(self.path)]

    def rechained(self, payloads: list[bytes]) -> None:
        lines, prev = [], GENESIS
        for seq, payload in enumerate(payloads):
            raw, prev = encode_line(seq, prev, payload)
            lines.append(raw)
        self.write(lines)


def edit(a: Adversary) -> None:
    a.write([*a.lines[:6], a.lines[6].replace(b'"outcome":"failed"', b'"outcome":"passed"')])


def edit_with_a_fresh_digest(a: Adversary) -> None:
    line = list(read_log(a.path))[4]
    raw, _ = encode_line(4, line.prev, line.payload.replace(b'"model_calls":4', b'"model_calls":1'))
    a.write([*a.lines[:4], raw, *a.lines[5:]])


def drop(a: Adversary) -> None:
    a.write([*a.lines[:5], *a.lines[6:]])


def drop_the_first(a: Adversary) -> None:
    a.write(a.lines[1:])


def reorder(a: Adversary) -> None:
    a.write([*a.lines[:3], a.lines[4], a.lines[3], *a.lines[5:]])


def repeat(a: Adversary) -> None:
    a.write([*a.lines, a.lines[4]])


def insert_an_empty_line(a: Adversary) -> None:
    a.write([*a.lines[:3], b"\n", *a.lines[3:]])


def append_garbage(a: Adversary) -> None:
    a.write([*a.lines, b"garbage\n"])


def append_zeros(a: Adversary) -> None:
    a.write([*a.lines, b"\0" * 512 + b"\n"])


def cut_a_line_short_in_the_middle(a: Adversary) -> None:
    a.write([*a.lines[:3], a.lines[3][:40] + b"\n", *a.lines[4:]])


def use_windows_line_ends(a: Adversary) -> None:
    a.write([line.replace(b"\n", b"\r\n") for line in a.lines])


CHAIN_ATTACKS = [
    edit, edit_with_a_fresh_digest, drop, drop_the_first, reorder, repeat, insert_an_empty_line,
    append_garbage, append_zeros, cut_a_line_short_in_the_middle, use_windows_line_ends,
]  # fmt: skip


@pytest.mark.parametrize("attack", CHAIN_ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_on_the_chain_is_refused_and_written_to_no_more(
    ledger: Ledger, attack: Callable[[Adversary], None]
) -> None:
    attack(Adversary(ledger))
    before = ledger.path.read_bytes()
    uses: list[Callable[[Ledger], object]] = [
        lambda found: list(found.entries()),
        lambda found: found.head(),
        lambda found: found.verify(),
        reserve,
        lambda found: found.append(evidence.refusal()),
    ]
    for use in uses:
        with pytest.raises(ChainBroken) as caught:
            # Another process; one that goes on looks only at what it has not seen.
            use(Ledger(ledger.folder))
        assert caught.value.exit_code == ExitCode.NOT_A_PASS
        assert str(ledger.path) in caught.value.where
    assert ledger.path.read_bytes() == before


def rewritten(kind: str, change: Callable[[dict], None]) -> Callable[[Adversary], None]:
    def attack(a: Adversary) -> None:
        payloads = a.payloads()
        for place in reversed(range(len(payloads))):
            record = json.loads(payloads[place])
            if record["kind"] == kind:
                change(record)
                payloads[place] = canonical_json(record)
                break
        a.rechained(payloads)

    attack.__name__ = f"rewritten_{kind}"
    return attack


def a_failed_trial_removed_with_its_reservation(a: Adversary) -> None:
    a.rechained([*a.payloads()[:3], *a.payloads()[5:]])


def another_genesis(a: Adversary) -> None:
    a.rechained([*a.payloads(), a.payloads()[0]])


def no_genesis(a: Adversary) -> None:
    a.rechained(a.payloads()[1:])


def spaces_in_the_json(a: Adversary) -> None:
    a.rechained([payload.replace(b'":', b'": ') for payload in a.payloads()])


def a_key_given_twice(a: Adversary) -> None:
    last = a.payloads()[-1].replace(
        b'"outcome":"failed",', b'"outcome":"failed","outcome":"passed",'
    )
    a.rechained([*a.payloads()[:-1], last])


def a_field_with_text(a: Adversary) -> None:
    record = json.loads(a.payloads()[-1])
    a.rechained([*a.payloads()[:-1], canonical_json({**record, "note": "all fine"})])


RECORD_ATTACKS = [
    rewritten("trial", lambda r: r.update(trial=digest_bytes(b"never reserved"))),
    rewritten("reservation", lambda r: r.update(ordinal=0)),
    a_failed_trial_removed_with_its_reservation, another_genesis, no_genesis, spaces_in_the_json,
    a_key_given_twice, a_field_with_text,
]  # fmt: skip


@pytest.mark.parametrize("attack", RECORD_ATTACKS, ids=lambda attack: attack.__name__)
def test_even_with_every_digest_recomputed_the_records_must_make_sense(
    ledger: Ledger, attack: Callable[[Adversary], None]
) -> None:
    attack(Adversary(ledger))
    with pytest.raises(InvalidRecord) as caught:
        list(ledger.entries())
    assert caught.value.exit_code == ExitCode.NOT_A_PASS
    assert caught.value.where.startswith(f"{ledger.path}:")


def test_rewriting_nothing_is_accepted(ledger: Ledger) -> None:
    adversary = Adversary(ledger)
    adversary.rechained(adversary.payloads())
    assert len(list(ledger.entries())) == 7


def test_a_line_torn_by_truncation_is_sealed_beside_the_ledger_and_its_trial_incomplete(
    ledger: Ledger,
) -> None:
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole[:-200])
    with pytest.raises(ChainBroken):
        ledger.head()  # who has seen the whole line is not deceived
    ledger = Ledger(ledger.folder)
    assert len(list(ledger.entries())) == 6
    assert ledger.head().torn_bytes > 0
    reserve(ledger)
    assert len(list(ledger.entries())) == 7
    (sealed,) = ledger.folder.glob("ledger.log.torn-*")
    assert whole[:-200].endswith(sealed.read_bytes())


def test_whole_entries_cut_off_at_the_end_show_only_against_a_remembered_head(
    ledger: Ledger,
) -> None:
    remembered = ledger.head()
    ledger.path.write_bytes(b"".join(ledger.path.read_bytes().splitlines(keepends=True)[:-2]))
    with pytest.raises(ChainBroken):
        ledger.head()  # who has seen the last entry is not deceived
    head = Ledger(ledger.folder).head()
    assert head.count == remembered.count - 2
    assert remembered.digest not in {s.digest.removeprefix("sha256:") for s in ledger.entries()}


# ── many processes, full disks, sudden death ─────────────────────────────────────────────────────

RESERVE_MANY = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from support.evidence import reserve, trial
from qualify.evidence.ledger import open_ledger
ledger = open_ledger(Path(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    made = reserve(ledger)
    with ledger.live_lock(made.trial):
        ledger.finish(trial(made.trial))
    print(made.ordinal, made.seed, flush=True)
"""
TESTS = Path(__file__).parents[2]


def child(code: str, *arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_eight_processes_get_eight_times_as_many_ordinals_and_one_chain(tmp_path: Path) -> None:
    processes, each = 8, 6
    children = [child(RESERVE_MANY, str(tmp_path), str(each), str(TESTS)) for _ in range(processes)]
    given = [line.split() for c in children for line in c.communicate()[0].splitlines()]
    assert [c.returncode for c in children] == [0] * processes
    assert sorted(int(ordinal) for ordinal, _ in given) == list(range(processes * each))
    assert len({seed for _, seed in given}) == processes * each
    ledger = open_ledger(tmp_path)
    assert len(list(ledger.entries())) == 1 + 2 * processes * each
    assert list((ledger.folder / "live").iterdir()) == []


FILL_DISK = """
import sys, os
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from support.evidence import reserve
from qualify.core.errors import EnvironmentFault
from qualify.evidence.ledger import open_ledger
folder = Path(sys.argv[1])
ledger = open_ledger(folder)
reserve(ledger)
acknowledged = 2
balloon = folder / "balloon"
with balloon.open("wb") as stream:
    try:
        while True:
            stream.write(b"x" * 4096)
            stream.flush()
    except OSError:
        pass
try:
    while True:
        reserve(ledger)
        acknowledged += 1
except EnvironmentFault as error:
    assert "No space left" in str(error) and str(ledger.path) in str(error), error
    print("refused", flush=True)
assert len(list(ledger.entries())) == acknowledged, "an acknowledged entry was lost"
assert ledger.head().torn_bytes == 0, "half a line stayed"
balloon.unlink()
reserve(ledger)
assert len(list(ledger.entries())) == acknowledged + 1
print("continued", acknowledged)
"""
IN_A_SMALL_DISK = 'mount -t tmpfs -o size=64k,mode=700 tmpfs "$1" && exec "$2" -c "$3" "$1" "$4"'
IN_A_READ_ONLY_FOLDER = (
    'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && exec "$2" -c "$3" "$1" "$4"'
)


def in_a_mount(script: str, code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `code` where `script` has mounted something, in a mount namespace of its own."""
    ways = (["unshare", "--mount"], ["unshare", "--mount", "--map-root-user"])
    unshare = next((way for way in ways if works(way)), None)
    if unshare is None:
        why = "this machine gives no mount namespace"
        if os.geteuid() == 0:
            pytest.fail(f"{why}; as root, not tested is not passed")
        pytest.skip(why)
    return subprocess.run(
        [*unshare, "sh", "-c", script, "sh", str(folder), sys.executable, code, str(TESTS)],
        capture_output=True,
        text=True,
        check=False,
    )


def works(unshare: list[str]) -> bool:
    """Whether this machine lets us have a mount namespace in that way."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode == 0


def test_a_full_disk_refuses_the_entry_keeps_the_others_and_later_goes_on(tmp_path: Path) -> None:
    done = in_a_mount(IN_A_SMALL_DISK, FILL_DISK, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused\ncontinued")


FILL_DISK_IN_MANY_WAYS = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
folder = Path(sys.argv[1])
os.environ["XDG_STATE_HOME"] = str(folder / "state")
from support import evidence
from qualify.core.errors import EnvironmentFault
from qualify.evidence.ledger import Ledger, encode
entry = encode(evidence.refusal())
acknowledged = 1
refused = 0
for round in range(40):
    # Room for 0 to 7 more pages: the refusal comes while a segment is sealed, in the first or a
    # later page of a batch, in the private note, or in the file that follows a sealed one.
    balloon = folder / "balloon"
    with balloon.open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(b"x" * 4096)
        except OSError:
            size = max(0, stream.tell() - round % 8 * 4096)
            os.ftruncate(stream.fileno(), size)
    ledger = Ledger(folder / "ledger", segment_bytes=9000)
    batch = [entry] * (1 + round * 7 % 40)
    try:
        for _ in range(50):
            ledger.append_many(batch)
            acknowledged += len(batch)
    except EnvironmentFault as error:
        assert "No space left" in str(error), error
        refused += 1
    after = Ledger(folder / "ledger", segment_bytes=9000)
    assert sum(1 for _ in after.entries()) == acknowledged or acknowledged == 1, round
    assert after.verify().torn_bytes == 0, round
    balloon.unlink()
    after.append_many([entry], validated=True)
    acknowledged += 1
    assert Ledger(folder / "ledger").verify().count == acknowledged, round
    if acknowledged > 300:
        # Start again: the disk is small.
        for path in (folder / "ledger").iterdir():
            if path.is_file():
                path.unlink()
        acknowledged = 1
print("refused", refused)
"""
IN_A_DISK_OF_A_FEW_SEGMENTS = (
    'mount -t tmpfs -o size=512k,mode=700 tmpfs "$1" && exec "$2" -c "$3" "$1" "$4"'
)


def test_no_space_at_any_write_of_a_batch_loses_nothing_and_leaves_no_half(tmp_path: Path) -> None:
    done = in_a_mount(IN_A_DISK_OF_A_FEW_SEGMENTS, FILL_DISK_IN_MANY_WAYS, tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) >= 30


USE_READ_ONLY = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from support.evidence import reserve
from qualify.core.errors import EnvironmentFault
from qualify.evidence.ledger import open_ledger
ledger = open_ledger(Path(sys.argv[1]))
print(len(list(ledger.entries())))
try:
    reserve(ledger)
except EnvironmentFault as error:
    print(error)
"""


def test_a_read_only_folder_can_be_read_and_gives_one_clear_error_on_writing(
    ledger: Ledger, tmp_path: Path
) -> None:
    done = in_a_mount(IN_A_READ_ONLY_FOLDER, USE_READ_ONLY, tmp_path)
    assert done.returncode == 0, done.stderr
    count, error = done.stdout.splitlines()
    assert count == "7"
    assert "Read-only file system" in error
    assert str(ledger.path) in error


def test_a_new_results_folder_below_a_read_only_one_is_one_clear_error(tmp_path: Path) -> None:
    done = in_a_mount(IN_A_READ_ONLY_FOLDER, USE_READ_ONLY, tmp_path)
    assert done.returncode == 0, done.stderr
    count, error = done.stdout.splitlines()
    assert count == "0"
    assert "cannot be made the ledger's folder: Read-only file system" in error


@pytest.mark.slow
def test_a_writer_killed_at_any_moment_loses_nothing_it_had_acknowledged(tmp_path: Path) -> None:
    dice = random.Random(20261130)
    ledger = open_ledger(tmp_path)
    acknowledged: set[int] = set()
    for _ in range(12):
        writer = child(RESERVE_MANY, str(tmp_path), "1000", str(TESTS))
        assert writer.stdout is not None
        seen = [writer.stdout.readline()]
        for _ in range(dice.randrange(6)):
            seen.append(writer.stdout.readline())
        writer.kill()
        rest = writer.communicate()[0]
        done = "".join([*seen, rest]).splitlines(keepends=True)
        acknowledged |= {int(line.split()[0]) for line in done if line.endswith("\n")}
        finished = {s.entry.trial for s in ledger.entries() if s.entry.kind == "trial"}
        ordinals = {
            s.entry.ordinal: s.digest in finished
            for s in ledger.entries()
            if s.entry.kind == "reservation"
        }
        assert acknowledged <= {ordinal for ordinal, end in ordinals.items() if end}
        assert sorted(ordinals) == list(range(len(ordinals)))
        assert not any(ledger.is_running(trial) for trial in finished)


def test_the_next_append_seals_what_a_killed_writer_left(ledger: Ledger) -> None:
    with ledger.path.open("ab") as stream:
        stream.write(b'7 0123 {"kind":"trial","half')
    count = len(list(ledger.entries()))
    made = reserve(ledger)
    assert made.ordinal == 3
    assert len(list(ledger.entries())) == count + 1
    (sealed,) = ledger.folder.glob("ledger.log.torn-*")
    assert sealed.read_bytes() == b'7 0123 {"kind":"trial","half'


def test_every_error_of_the_ledger_is_one_that_a_person_can_act_on(ledger: Ledger) -> None:
    edit(Adversary(ledger))
    with pytest.raises(QualifyError) as caught:
        list(ledger.entries())
    assert f"{ledger.path}:7: " in str(caught.value)
