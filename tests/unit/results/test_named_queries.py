"""Each named question, on a small ledger whose answer is known."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from qualify.core.clock import format_time
from qualify.core.digests import digest_bytes
from qualify.core.errors import UsageError
from qualify.core.status import CheckOutcome, TrialOutcome
from qualify.evidence.ledger import Ledger, Reserved, open_ledger
from qualify.evidence.records import BudgetUse, Reservation, Trial
from qualify.results import database
from qualify.results.database import rebuild, snapshot
from qualify.results.queries import answer, named_question
from support import evidence
from support.evidence import CONFIGURATION, DAY, NOW, ROW, SettableClock, reserve, trial

OTHER = digest_bytes(b"another configuration")
FAILED = {"outcome": TrialOutcome.FAILED, "checks": {"exact-bytes": CheckOutcome.FAILED}}
DECLARED = {
    "row": ROW, "configuration": CONFIGURATION, "runtime": "r", "engine": "llama-cpp",
    "model": "m", "platform": "p", "provider": "local", "agent": "a", "precision": "q4",
    "context_tokens": 4096, "tensor_parallel": 1, "tool_mode": "prompt", "graph_mode": "eager",
    "placement": "host", "evidence_class": "real-model",
}  # fmt: skip

type Asked = Callable[..., list[dict[str, Any]]]


class Bench:
    """A ledger that is filled trial by trial, and questions to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = SettableClock()
        self.ledger: Ledger = open_ledger(folder, self.clock.clock())
        self.declared: dict[str, list[dict[str, Any]]] | None = None

    def run(self, *, finish: bool = True, held: dict[str, Any] | None = None, **end: Any) -> str:
        """A trial; its id, cut as the answers do."""
        reserved: Reserved = reserve(self.ledger, **(held or {}))
        self.clock.advance(seconds=20)
        if finish:
            self.ledger.finish(trial(reserved.trial, self.clock.moment, **end))
        return reserved.trial[7:19]

    def asks(self, name: str, **given: Any) -> list[dict[str, Any]]:
        question = named_question(name, {k: str(v) for k, v in given.items()}, self.clock.moment)
        with snapshot(self.folder, self.ledger, self.declared) as (connection, _):
            rows: list[dict[str, Any]] = answer(connection, question).as_json()["rows"]
        return rows

    def only(self, name: str, **given: Any) -> dict[str, Any]:
        (row,) = self.asks(name, **given)
        return row


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def column(rows: list[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows]


def test_the_latest_three_are_the_newest_of_each_case_and_no_experiment(bench: Bench) -> None:
    old, *kept = [bench.run(), bench.run(**FAILED), bench.run(), bench.run(finish=False)]
    bench.run(held={"experimental": True})
    rows = bench.asks("latest-three")
    assert column(rows, "trial") == kept[::-1]
    assert column(rows, "grade") == ["incomplete", "passed", "failed"]
    assert column(bench.asks("latest-three", trials=9), "trial") == [*kept[::-1], old]
    bench.run(held={"scenario": "other"})
    assert len(bench.asks("latest-three")) == 4


@pytest.mark.parametrize(("ahead_s", "grade"), [(300, "passed"), (301, "unknown")])
def test_a_trial_more_than_five_minutes_ahead_of_now_is_unknown(
    bench: Bench, ahead_s: int, grade: str
) -> None:
    bench.run()
    now = format_time(bench.clock.moment - timedelta(seconds=ahead_s))
    assert bench.only("latest-three", now=now)["grade"] == grade
    assert bench.only("pass-rates", now=now)[grade] == 1
    found = bench.only("denominators", now=now)
    assert (found[grade], found["denominator"]) == (1, 1)


def test_pass_rates_keep_what_did_not_pass_in_the_total(bench: Bench) -> None:
    for end in ({}, FAILED, {"outcome": TrialOutcome.UNKNOWN}, {"finish": False}):
        bench.run(**end)
    bench.run(held={"experimental": True})
    row = bench.only("pass-rates")
    counts = ("passed", "total", "failed", "unknown", "incomplete")
    assert [row[name] for name in counts] == [1, 4, 1, 1, 1]


def test_denominators_say_what_is_counted_and_what_is_left_out(bench: Bench) -> None:
    for end in ({}, {}, FAILED, {"finish": False}):
        bench.run(**end)
    bench.run(held={"experimental": True})
    rows = bench.asks("denominators", row=ROW)
    assert [sum(column(rows, name)) for name in ("reserved", "experimental")] == [5, 1]
    counts = ("denominator", "passed", "failed", "unknown", "incomplete", "conflicting")
    assert [sum(column(rows, name)) for name in counts] == [4, 2, 1, 0, 1, 0]
    assert bench.asks("denominators", row="nothing") == []


class Doubtful:
    """A rule that trusts no trial that says it passed."""

    version = 1

    def judge(self, _held: Reservation, end: Trial) -> dict[str, Any]:
        faults = [{"code": "journal-gap", "checks": [], "budgets": []}]
        return {"grade": "unknown", "faults": faults, "checks": []}


def test_the_rules_grade_counts_and_not_what_a_record_says_of_itself(bench: Bench) -> None:
    bench.run()
    bench.declared = {"declared_rows": [DECLARED]}
    rebuild(bench.folder, bench.ledger, bench.declared, Doubtful())
    assert bench.only("latest-three")["grade"] == "unknown"
    assert bench.only("pass-rates")["passed"] == 0
    assert bench.only("denominators")["unknown"] == 1
    assert bench.only("variants")["passed"] == 0
    assert "journal-gap" in column(bench.asks("evidence-gaps"), "gap")


def test_flaky_cases_pass_and_fail_under_one_configuration(bench: Bench) -> None:
    for end in ({}, FAILED, {}, {}):
        bench.run(**end)
    bench.run(held={"scenario": "steady"})
    bench.run(held={"configuration": OTHER, "scenario": "broken"}, **FAILED)
    row = bench.only("flaky")
    assert (row["scenario"], row["passed"], row["trials"], row["changes"]) == ("append", 3, 4, 2)
    assert bench.asks("flaky", trials=2) == []


def test_a_regression_passed_before_the_trial_and_passes_less_since(bench: Bench) -> None:
    bench.run()
    last_good = bench.run()
    bench.run(held={"scenario": "steady"})
    bench.run(held={"scenario": "steady"})
    first_bad = bench.run(held={"configuration": OTHER}, **FAILED)
    row = bench.only("regressions-since", digest=last_good)
    assert row["scenario"] == "append"
    before, since = (row["passed_before"], row["trials_before"]), (
        row["passed_since"], row["trials_since"],
    )  # fmt: skip
    assert (before, since) == ((2, 2), (0, 1))
    assert (row["first_not_passed"], row["its_configuration"]) == (first_bad, OTHER[7:19])
    assert bench.asks("regressions-since", digest=first_bad) == []


def test_a_regression_since_a_configuration_compares_with_its_trials_alone(bench: Bench) -> None:
    bench.run(held={"configuration": OTHER}, **FAILED)
    bench.run()
    bench.run(held={"row": "elsewhere", "configuration": digest_bytes(b"third")})
    bench.run(held={"row": "elsewhere", "configuration": digest_bytes(b"third")}, **FAILED)
    bench.run(held={"configuration": OTHER}, **FAILED)
    row = bench.only("regressions-since", digest=CONFIGURATION)
    assert (row["row"], row["passed_before"], row["trials_before"]) == (ROW, 1, 1)
    assert (row["passed_since"], row["trials_since"]) == (0, 1)


@pytest.mark.parametrize("digest", ["abcdef012345", "sha256:" + "0" * 64])
def test_a_digest_that_nothing_has_is_told(bench: Bench, digest: str) -> None:
    bench.run()
    with pytest.raises(UsageError, match="no trial and no configuration begins like that"):
        bench.asks("regressions-since", digest=digest)


def test_budget_overruns_name_the_budget_and_what_was_used(bench: Bench) -> None:
    bench.run()
    exceeded = (
        BudgetUse(budget="actions", limit=8, used=9),
        BudgetUse(budget="prompt_tokens", limit=10, used=None),
    )
    identifier = bench.run(exceeded=exceeded)
    rows = bench.asks("budget-overruns")
    assert [(r["budget"], r["limit"], r["used"]) for r in rows] == [
        ("actions", 8, 9), ("prompt_tokens", 10, None),
    ]  # fmt: skip
    assert set(column(rows, "trial")) == {identifier}
    assert bench.asks("budget-overruns", row="other") == []


def test_time_to_first_token_has_its_spread_and_counts_what_cannot_tell(bench: Bench) -> None:
    for token in (100, 200, 300, 400, None):
        bench.run(timings={"first_token_ms_median": token})
    row = bench.only("time-to-first-token", row=ROW)
    assert (row["trials"], row["unknown"]) == (5, 1)
    assert [row[name] for name in ("least", "median", "p90", "most")] == [100, 200, 400, 400]


def test_expiring_cases_have_passed_and_become_too_old_within_the_days(bench: Bench) -> None:
    for _ in range(3):
        bench.run()
    bench.run(held={"scenario": "short"})
    for _ in range(3):
        bench.run(held={"scenario": "broken"}, **FAILED)
    assert bench.asks("expiring") == []
    bench.clock.moment = NOW + 25 * DAY
    row = bench.only("expiring")
    assert (row["scenario"], row["days_left"]) == ("append", 5)
    assert row["expires"] == format_time(NOW + 30 * DAY)
    assert bench.asks("expiring", days=4) == []
    assert bench.asks("expiring", freshness=60) == []
    assert bench.asks("expiring", now=format_time(NOW + 31 * DAY)) == []
    bench.run()
    assert bench.asks("expiring", days=5) != []


def test_evidence_gaps_name_what_is_lacking_for_a_declared_row(bench: Bench) -> None:
    bench.declared = {"declared_rows": [DECLARED, {**DECLARED, "row": "untried"}]}
    bench.run(sandbox="none")
    bench.run(finish=False)
    bench.run(held={"configuration": OTHER})
    found = {(r["row"], r["gap"], r["trials"]) for r in bench.asks("evidence-gaps")}
    assert found == {
        ("untried", "no-trials", 0), (ROW, "too-few-trials", 1), (ROW, "incomplete-trial", 1),
        (ROW, "not-judged", 1), (ROW, "unconfined", 1),
    }  # fmt: skip
    assert "too-few-trials" not in column(bench.asks("evidence-gaps", trials=1), "gap")


def test_what_is_declared_now_is_asked_for_also_where_a_large_file_is_read_in_place(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run()
    rebuild(bench.folder, bench.ledger, {"declared_rows": [{**DECLARED, "row": "of-then"}]})
    monkeypatch.setattr(database, "_COPIED_BYTES", 0)
    bench.declared = {"declared_rows": [{**DECLARED, "row": "of-now"}]}
    assert column(bench.asks("evidence-gaps"), "row") == ["of-now"]
    bench.declared = None
    assert column(bench.asks("evidence-gaps"), "row") == ["of-then"]


def test_failed_checks_are_counted_with_the_trial_that_failed_last(bench: Bench) -> None:
    bench.run(**FAILED)
    last = bench.run(**FAILED)
    bench.run()
    rows = {row["check_id"]: row for row in bench.asks("failed-checks", row=ROW)}
    assert [(k, rows[k]["outcome"], rows[k]["trials"]) for k in sorted(rows)] == [
        ("exact-bytes", "failed", 2), ("replay", "missing", 2),
    ]  # fmt: skip
    assert {row["last_trial"] for row in rows.values()} == {last}


def test_incomplete_trials_have_no_end(bench: Bench) -> None:
    bench.run()
    older, newer = bench.run(finish=False), bench.run(finish=False)
    assert column(bench.asks("incomplete"), "trial") == [newer, older]


def test_trials_are_newest_first_and_cut_where_asked(bench: Bench) -> None:
    made = [bench.run() for _ in range(3)]
    assert column(bench.asks("trials"), "trial") == made[::-1]
    question = named_question("trials", {"limit": "2"}, NOW)
    with snapshot(bench.folder, bench.ledger, None) as (connection, _):
        found = answer(connection, question)
    assert (len(found.rows), found.cut) == (2, True)
    assert len(bench.asks("trials", limit=3)) == 3
    assert len(bench.asks("trials", limit=0)) == 3


def test_variants_tell_which_ones_pass(bench: Bench) -> None:
    one, two = digest_bytes(b"one"), digest_bytes(b"two")
    bench.run(variant=one)
    bench.run(variant=two, **FAILED)
    bench.run(variant=two)
    bench.run(variant=two, held={"experimental": True})
    rows = {row["variant"]: row for row in bench.asks("variants")}
    assert (rows[one[7:19]]["passed"], rows[one[7:19]]["trials"]) == (1, 1)
    assert (rows[two[7:19]]["passed"], rows[two[7:19]]["trials"]) == (1, 2)
    assert rows[two[7:19]]["ordinals"] == [1, 2]


def test_tokens_are_summed_and_unknown_use_is_counted(bench: Bench) -> None:
    bench.run()
    bench.run(usage={"completion_tokens": None})
    row = bench.only("tokens")
    assert (row["trials"], row["model_calls"], row["completion_tokens"]) == (2, 8, 90)
    assert (row["prompt_tokens"], row["trials_with_unknown_use"]) == (2400, 1)


def test_overhead_is_what_neither_model_nor_tools_took(bench: Bench) -> None:
    bench.run()
    bench.run(timings={"model_ms": None})
    row = bench.only("overhead")
    assert (row["trials"], row["wall_ms"], row["judging_ms"]) == (1, 20_000, 400)
    assert row["ours_percent"] == round(100 * (20_400 - 19_000) / 20_400, 1)


def test_speed_is_the_median_of_each_row_and_machine(bench: Bench) -> None:
    for rate in (10_000, 20_000, 60_000):
        bench.run(timings={"completion_tokens_per_s_milli": rate})
    row = bench.only("speed")
    assert (row["completion_tokens_per_s"], row["first_token_ms"], row["trials"]) == (20.0, 300, 3)


def test_versions_tell_what_ran_a_row(bench: Bench) -> None:
    bench.run()
    bench.run(agent={"sdk_version": "2.0"})
    rows = bench.asks("versions")
    assert [(r["agent_sdk_version"], r["trials"]) for r in rows] == [("2.0", 1), ("1.58.2", 1)]


def test_refusals_have_one_line_for_each_reason(bench: Bench) -> None:
    bench.ledger.append(evidence.refusal(reasons=("b-reason", "a-reason")))
    assert column(bench.asks("refusals"), "reason") == ["a-reason", "b-reason"]


def test_start_failures_are_newest_first(bench: Bench) -> None:
    bench.ledger.append(evidence.start_failure(reason="first"))
    bench.ledger.append(evidence.start_failure(NOW - DAY, reason="second"))
    assert column(bench.asks("start-failures"), "reason") == ["second", "first"]


def test_a_clock_that_stepped_back_is_found(bench: Bench) -> None:
    bench.run()
    assert bench.asks("clock") == []
    bench.clock.moment -= DAY
    bench.run()
    assert bench.only("clock")["kind"] == "reservation"


def test_entries_are_counted_by_kind(bench: Bench) -> None:
    bench.run()
    bench.run(finish=False)
    kinds = {row["kind"]: row["entries"] for row in bench.asks("entries")}
    assert kinds == {"genesis": 1, "reservation": 2, "trial": 1}


def test_the_ledger_here_is_site_zero(bench: Bench) -> None:
    bench.run()
    bench.run(finish=False)
    row = bench.only("sites")
    assert (row["site"], row["id"]) == (0, bench.ledger.site())
    assert (row["entries"], row["finished"], row["unfinished"]) == (4, 1, 1)


def test_imported_outcomes_stand_beside_what_passed_here(bench: Bench) -> None:
    bench.declared = {
        "declared_rows": [DECLARED],
        "imported": [
            {"row": ROW, "outcome": "qualified", "date": "2026-10-01", "driver": None,
             "reason": None, "evidence": "somewhere"},
        ],
    }  # fmt: skip
    bench.run()
    bench.run(**FAILED)
    bench.run(held={"configuration": OTHER})
    row = bench.only("imported")
    assert (row["declared"], row["local_trials"], row["local_passed"]) == ("qualified", 2, 1)


def test_conflicts_are_none_where_ledgers_agree(bench: Bench) -> None:
    bench.run()
    assert bench.asks("conflicts") == []


# ── parameters ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("regressions-since", {}, "needs the parameter digest"),
        ("regressions-since", {"digest": "abc"}, "at least 6"),
        ("trials", {"limt": "3"}, "did you mean 'limit'"),
        ("trials", {"limit": "-1"}, "no whole number from 0"),
        ("trials", {"limit": "9" * 30}, "no whole number from 0"),
        ("trials", {"limit": "٣"}, "no whole number from 0"),
        ("trials", {"row": "a b'; DROP"}, "is no id"),
        ("latest-three", {"trials": "0"}, "no whole number from 1"),
        ("latest-three", {"trials": "100001"}, "no whole number from 1"),
        ("expiring", {"now": "2026-02-31T00:00:00Z"}, "is not a time"),
        ("entries", {"row": "x"}, "it has none"),
    ],
)
def test_a_parameter_that_cannot_be_used_is_told_with_what_to_give(
    name: str, given: dict[str, str], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        named_question(name, given, NOW)
    assert words in str(caught.value)
    assert str(caught.value).startswith(name) or "--param" in str(caught.value)


def test_digits_of_a_digest_may_be_written_in_any_way() -> None:
    for text in ("ABCDEF", "sha256:abcdef"):
        question = named_question("regressions-since", {"digest": text}, NOW)
        assert question.values["digest"] == "sha256:abcdef"


def test_now_is_the_time_that_is_handed_in() -> None:
    moment = datetime(2026, 5, 6, 7, 8, 9, tzinfo=UTC)
    assert named_question("expiring", {}, moment).values["now"] == moment.replace(tzinfo=None)
