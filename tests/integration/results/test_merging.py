"""Ledgers of other sites come in whole or not at all, and change no verdict here."""

from __future__ import annotations

import os
import shutil
import tracemalloc
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from qualify.core.digests import digest_bytes
from qualify.core.errors import EnvironmentFault, QualifyError, Refusal, UsageError
from qualify.core.status import TrialOutcome
from qualify.evidence.ledger import InvalidRecord, Ledger, open_ledger
from qualify.results import merging
from qualify.results.cases import read_cases
from qualify.results.database import database_path, follow, rebuild, snapshot, state
from qualify.results.merging import Merged, merge_site
from qualify.results.queries import answer, ask, named_question
from qualify.results.sites import kept_ledger, kept_sites
from support.evidence import DAY, NOW, SettableClock, reserve, run, trial
from support.sites import DAMAGES, Damage, add_trials, lines, site

TRIALS = "SELECT site, count(*) FROM trials GROUP BY site ORDER BY site"
FAILED = {"outcome": TrialOutcome.FAILED}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The results folder of this site, with one trial."""
    results = tmp_path / "here"
    run(open_ledger(results, SettableClock().clock()), SettableClock())
    return results


@pytest.fixture
def there(tmp_path: Path) -> Ledger:
    """The ledger of another site, with two trials."""
    return site(tmp_path / "there")


def merge(here: Path, ledger: Ledger) -> Merged:
    return merge_site(here, ledger.folder.parent, NOW + DAY)


def told(here: Path, sql: str) -> list[tuple[Any, ...]]:
    with snapshot(here, open_ledger(here), None) as (connection, _):
        return list(ask(connection, sql).rows)


def everything(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (".lock", "ledger.log.lock")
    }


def test_a_ledger_comes_in_whole_and_its_trials_are_in_the_tables(
    here: Path, there: Ledger
) -> None:
    done = merge(here, there)
    assert (done.outcome, done.entries, done.added) == ("added", 5, 5)
    kept = kept_ledger(here, done.site)
    assert kept is not None
    assert kept.folder == here / "sites" / done.site / "ledger"
    assert kept.path.read_bytes() == there.path.read_bytes()
    assert told(here, TRIALS) == [(0, 1), (1, 2)]
    assert told(here, "SELECT site, id FROM sites") == [
        (0, open_ledger(here).site()), (1, there.site()),
    ]  # fmt: skip


def test_sealed_segments_come_in_as_one_chain(here: Path, tmp_path: Path) -> None:
    there = site(tmp_path / "there", trials=8, segment_bytes=6000)
    assert len(list(there.folder.glob("segment-*.log"))) > 2
    done = merge(here, there)
    kept = kept_ledger(here, done.site)
    assert kept is not None
    assert lines(kept) == lines(there)
    assert kept.verify().digest == there.verify().digest


def test_a_copy_is_cut_into_segments_as_a_ledger_is(
    here: Path, there: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_trials(there, 6)
    monkeypatch.setattr(merging, "SEGMENT_BYTES", 6000)
    done = merge(here, there)
    kept = kept_ledger(here, done.site)
    assert kept is not None
    sealed = sorted(kept.folder.glob("segment-*.log"))
    assert len(sealed) > 2
    assert all(path.stat().st_mode & 0o777 == 0o444 for path in sealed)
    assert lines(kept) == lines(there)


def test_a_longer_copy_takes_the_place_of_the_one_it_continues(here: Path, there: Ledger) -> None:
    first = merge(here, there)
    again = merge(here, there)
    assert (again.outcome, again.added) == ("already-there", 0)
    add_trials(there, 3)
    longer = merge(here, there)
    assert (longer.outcome, longer.entries, longer.added) == ("extended", 11, 6)
    assert told(here, TRIALS) == [(0, 1), (1, 5)]
    assert sorted(path.name for path in (here / "sites" / first.site).iterdir()) == ["ledger"]


def test_a_shorter_copy_of_what_is_kept_brings_nothing(
    here: Path, there: Ledger, tmp_path: Path
) -> None:
    shutil.copytree(there.folder.parent, tmp_path / "earlier")
    add_trials(there, 2)
    merge(here, there)
    before = everything(here)
    done = merge_site(here, tmp_path / "earlier", NOW + DAY)
    assert (done.outcome, done.entries, done.added) == ("already-there", 9, 0)
    assert everything(here) == before


@pytest.mark.parametrize("more", [1, 2, 3])
def test_another_history_of_a_site_is_refused_and_nothing_of_it_kept(
    here: Path, there: Ledger, tmp_path: Path, more: int
) -> None:
    shutil.copytree(there.folder.parent, tmp_path / "fork")
    add_trials(there, 2)
    merge(here, there)
    before = everything(here)
    fork = Ledger(tmp_path / "fork" / "ledger")
    add_trials(fork, more, **FAILED)
    with pytest.raises(Refusal, match="another history of site") as caught:
        merge(here, fork)
    assert caught.value.exit_code == 10
    assert str(there.site())[:12] in str(caught.value)
    assert everything(here) == before


def test_a_copy_of_the_ledger_here_brings_nothing(here: Path, tmp_path: Path) -> None:
    shutil.copytree(here, tmp_path / "copy")
    add_trials(open_ledger(here), 1)
    before = everything(here)
    done = merge_site(here, tmp_path / "copy", NOW + DAY)
    assert (done.outcome, done.added) == ("own", 0)
    assert everything(here) == before
    assert kept_sites(here) == []


@pytest.mark.parametrize("more_here", [0, 2])
def test_a_ledger_that_says_more_of_this_site_is_refused(
    here: Path, tmp_path: Path, more_here: int
) -> None:
    shutil.copytree(here, tmp_path / "copy")
    add_trials(open_ledger(here), more_here)
    add_trials(open_ledger(tmp_path / "copy"), 1, **FAILED)
    before = everything(here)
    with pytest.raises(Refusal, match="of this very site"):
        merge_site(here, tmp_path / "copy", NOW + DAY)
    assert everything(here) == before


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("kept", [False, True], ids=["new", "kept"])
def test_a_damaged_ledger_is_refused_and_what_is_kept_stays(
    here: Path, there: Ledger, damage: Damage, kept: bool
) -> None:
    if kept:
        merge(here, there)
        add_trials(there, 1)
    before = everything(here)
    damage(there)
    with pytest.raises(QualifyError, match=DAMAGES[damage]) as caught:
        merge(here, there)
    assert str(there.folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code in (2, 10)
    assert everything(here) == before


def test_a_line_of_two_gigabytes_takes_no_memory(here: Path, there: Ledger) -> None:
    with there.path.open("r+b") as stream:
        stream.truncate(2 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(Refusal, match="more than 1048576 bytes"):
            merge(here, there)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_trials_without_an_end_cannot_fill_the_memory(
    here: Path, there: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "_OPEN_BYTES", 2000)
    reserve(there)
    assert merge(here, there).outcome == "added"
    for _ in range(5):
        reserve(there)
    with pytest.raises(InvalidRecord, match="have no end"):
        merge(here, there)


def test_only_plain_files_are_read(here: Path, there: Ledger) -> None:
    real = there.folder / "real"
    there.path.rename(real)
    there.path.symlink_to(real)
    with pytest.raises(Refusal, match="not a plain file"):
        merge(here, there)
    there.path.unlink()
    os.mkfifo(there.path)
    with pytest.raises(Refusal, match="not a plain file"):
        merge(here, there)
    there.path.unlink()
    with pytest.raises(UsageError, match="holds no ledger"):
        merge(here, there)


def test_what_lies_beside_a_ledger_stays_outside(here: Path, there: Ledger) -> None:
    (there.folder / "live").mkdir()
    (there.folder / "live" / "x.lock").touch()
    (there.folder / "notes.txt").write_text("private")
    checkpoints = there.folder / "checkpoints"
    checkpoints.mkdir()
    (checkpoints / "000000000005.json").write_text("{}")
    (checkpoints / "000000000005.dsse.json").write_text("{}")
    (checkpoints / "other.txt").write_text("private")
    done = merge(here, there)
    assert sorted(everything(here / "sites" / done.site / "ledger")) == [
        "checkpoints/000000000005.dsse.json", "checkpoints/000000000005.json", "ledger.log",
    ]  # fmt: skip


@pytest.mark.parametrize("make", ["link", "fifo", "large"])
def test_checkpoints_are_plain_files_of_a_bounded_size(
    here: Path, there: Ledger, make: str
) -> None:
    path = there.folder / "checkpoints" / "000000000005.json"
    path.parent.mkdir()
    if make == "link":
        path.symlink_to("/etc/passwd")
    elif make == "fifo":
        os.mkfifo(path)
    else:
        with path.open("wb") as stream:
            stream.truncate(2 << 30)
    with pytest.raises((Refusal, EnvironmentFault)):
        merge(here, there)
    assert kept_sites(here) == []


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ('{"label":"lab b"}', "lab b"), ('{"label":7}', None), ("[]", None), ("{", None),
        ('{"label":"' + "x" * 81 + '"}', None), (" " * 5000 + '{"label":"a"}', None),
        ("\xff", None),
    ],
)  # fmt: skip
def test_a_label_is_text_of_strangers(
    here: Path, there: Ledger, text: str, label: str | None
) -> None:
    (there.folder / "site.json").write_bytes(text.encode("latin-1"))
    assert merge(here, there).label == label


def test_entries_ahead_of_now_are_counted_and_their_trials_are_unknown(
    here: Path, there: Ledger
) -> None:
    done = merge_site(here, there.folder.parent, NOW - timedelta(minutes=5))
    assert done.ahead == 3
    with snapshot(here, open_ledger(here), None) as (connection, _):
        found = answer(connection, named_question("pass-rates", {}, NOW - timedelta(minutes=6)))
    rates = {r["site"]: (r["passed"], r["unknown"]) for r in found.as_json()["rows"]}
    assert rates[1] == (0, 2)


# ── interruption ─────────────────────────────────────────────────────────────────────────────────


def killed_at(step: int, here: Path, ledger: Ledger) -> bool:
    """Merge in a child that is killed before its `step`-th change of a name; whether it was."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        count = 0

        def counted[T](work: Callable[..., T]) -> Callable[..., T]:
            def call(*words: Any, **options: Any) -> T:
                nonlocal count
                count += 1
                if count == step:
                    os._exit(9)
                return work(*words, **options)

            return call

        try:
            for name in ("rename", "mkdir", "chmod", "open"):
                setattr(Path, name, counted(getattr(Path, name)))
            for name in ("fsync_folder", "write_atomic", "_write_checkpoints"):
                setattr(merging, name, counted(getattr(merging, name)))
            shutil.rmtree = counted(shutil.rmtree)  # type: ignore[assignment]
            merge(here, ledger)
        except BaseException:  # noqa: BLE001 - the child must not go on as a second pytest
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9


def test_a_killed_merge_leaves_the_old_copy_or_the_new_one_and_the_next_one_finishes(
    tmp_path: Path, here: Path, there: Ledger
) -> None:
    name = there.site()
    assert name is not None
    step, seen = 0, set()
    while True:
        step += 1
        folder = tmp_path / f"results-{step}"
        shutil.copytree(here, folder)
        other = Ledger(tmp_path / f"there-{step}" / "ledger")
        shutil.copytree(there.folder.parent, other.folder.parent)
        merge(folder, other)
        add_trials(other, 1)
        killed = killed_at(step, folder, other)
        kept = kept_ledger(folder, name)
        assert kept is not None
        assert kept.verify().count in (5, 7)
        seen.add(kept.verify().count)
        assert told(folder, TRIALS) in ([(0, 1), (1, 2)], [(0, 1), (1, 3)])
        assert merge(folder, other).entries == 7
        assert [path.name for path in (folder / "sites" / name).iterdir()] == ["ledger"]
        assert told(folder, TRIALS) == [(0, 1), (1, 3)]
        if not killed:
            break
    assert step > 10
    assert seen == {5, 7}


def test_a_first_merge_that_was_killed_leaves_no_site(
    tmp_path: Path, here: Path, there: Ledger
) -> None:
    step = 0
    while True:
        step += 1
        folder = tmp_path / f"results-{step}"
        shutil.copytree(here, folder)
        killed = killed_at(step, folder, there)
        assert told(folder, TRIALS) in ([(0, 1)], [(0, 1), (1, 2)])
        assert merge(folder, there).entries == 5
        assert told(folder, TRIALS) == [(0, 1), (1, 2)]
        if not killed:
            break
    assert step > 5


# ── the database ─────────────────────────────────────────────────────────────────────────────────


def content(results: Path) -> list[object]:
    with duckdb.connect(str(database_path(results)), read_only=True) as connection:
        tables = connection.execute("SELECT table_name FROM duckdb_tables() ORDER BY 1")
        names = [name for (name,) in tables.fetchall()]
        return [(n, connection.execute(f"FROM {n} ORDER BY ALL").fetchall()) for n in names]


def test_the_database_follows_what_is_merged_as_if_made_anew(
    here: Path, there: Ledger, tmp_path: Path
) -> None:
    ledger = open_ledger(here)
    follow(here, ledger, {})
    merge(here, there)
    assert state(here, ledger).state == "behind"
    assert not follow(here, ledger, {}).rebuilt
    assert state(here, ledger).state == "current"
    add_trials(there, 1, **FAILED)
    merge(here, there)
    merge(here, site(tmp_path / "third", 1))
    add_trials(ledger, 1)
    follow(here, ledger, {})
    followed = content(here)
    rebuild(here, ledger, {})
    assert content(here) == followed
    shutil.rmtree(here / "sites")
    follow(here, ledger, {})
    followed = content(here)
    rebuild(here, ledger, {})
    assert content(here) == followed
    assert told(here, TRIALS) == [(0, 2)]


def test_what_others_ran_is_no_part_of_a_verdict_here(here: Path, there: Ledger) -> None:
    def seen() -> object:
        ledger = open_ledger(here)
        with snapshot(here, ledger, None) as (connection, _):
            return read_cases(connection, 3, NOW - DAY, NOW + DAY)

    before = seen()
    add_trials(there, 2, **FAILED)
    merge(here, there)
    assert seen() == before


def test_a_folder_with_the_ledger_of_another_site_is_not_believed(
    here: Path, there: Ledger
) -> None:
    shutil.copytree(there.folder, here / "sites" / ("0" * 32) / "ledger")
    with pytest.raises(InvalidRecord, match="whose name it has"):
        follow(here, open_ledger(here), {})


def test_signatures_that_come_later_are_taken_in_and_none_that_is_kept_is_lost(
    here: Path, there: Ledger
) -> None:
    checkpoints = there.folder / "checkpoints"
    checkpoints.mkdir()
    (checkpoints / "000000000003.json").write_text("{}")
    merge(here, there)
    (checkpoints / "000000000003.json").unlink()
    (checkpoints / "000000000005.json").write_text("{}")
    (checkpoints / "000000000005.dsse.json").write_text("{}")
    assert merge(here, there).outcome == "already-there"
    (folder,) = (here / "sites").glob("*/ledger/checkpoints")
    both = ["000000000003.json", "000000000005.dsse.json", "000000000005.json"]
    assert sorted(path.name for path in folder.iterdir()) == both
    add_trials(there, 1)
    assert merge(here, there).outcome == "extended"
    assert sorted(path.name for path in folder.iterdir()) == both
    (checkpoints / "000000000003.json").write_text('{"another":1}')
    add_trials(there, 1)
    with pytest.raises(Refusal, match=r"another checkpoint 000000000003\.json"):
        merge(here, there)


def copy_of_this_site(here: Path, folder: Path) -> Ledger:
    """A clone of this site's folder that goes on by itself, put among the merged ones by hand."""
    shutil.copytree(here / "ledger", folder / "ledger")
    return Ledger(folder / "ledger")


@pytest.mark.parametrize("followed", [True, False], ids=["follow", "rebuild"])
def test_one_trial_with_two_ends_is_a_conflict_and_the_one_here_stands(
    here: Path, tmp_path: Path, followed: bool
) -> None:
    ledger = open_ledger(here, SettableClock().clock())
    agreed, disputed = reserve(ledger), reserve(ledger)
    clone = copy_of_this_site(here, tmp_path / "clone")
    for each in (ledger, clone):
        each.finish(trial(agreed.trial))
    clone.finish(trial(disputed.trial, outcome=TrialOutcome.FAILED))
    place = here / "sites" / str(ledger.site()) / "ledger"
    shutil.copytree(clone.folder, place)
    if followed:
        follow(here, ledger, {})
    ledger.finish(trial(disputed.trial))
    (follow if followed else rebuild)(here, ledger, {})
    assert told(here, TRIALS) == [(0, 3)]
    assert told(here, "SELECT trial, outcome, other_outcome FROM conflicts") == [
        (disputed.trial, "failed", "passed"),
    ]  # fmt: skip
    assert told(here, "SELECT state FROM trials WHERE site = 0") == [("passed",)] * 3
    with snapshot(here, ledger, None) as (connection, _):
        found = answer(connection, named_question("conflicts", {}, NOW)).as_json()["rows"]
    assert [row["trial"] for row in found] == [disputed.trial[7:19]]


def test_trials_of_two_sites_are_counted_apart(here: Path, tmp_path: Path) -> None:
    for name, trials in (("b", 1), ("c", 2)):
        merge(here, site(tmp_path / name, trials))
    assert sorted(count for _, count in told(here, TRIALS)) == [1, 1, 2]
    assert (
        len({digest_bytes(str(row).encode()) for row in told(here, "SELECT trial FROM trials")})
        == 4
    )
