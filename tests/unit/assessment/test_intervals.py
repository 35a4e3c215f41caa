"""Exact intervals, compared with an independent computation of the same definition."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qualify.assessment.intervals import pass_rate_interval


def upper_tail(passed: int, total: int, rate: float) -> float:
    """P(at least `passed` of `total`) at a true rate, summed term by term."""
    return math.fsum(
        math.comb(total, k) * rate**k * (1 - rate) ** (total - k) for k in range(passed, total + 1)
    )


@pytest.mark.parametrize(
    ("passed", "total", "interval"),
    [(3, 3, (292, 1000)), (0, 3, (0, 708)), (6, 7, (421, 997)), (9, 12, (428, 946))],
)
def test_known_intervals(passed: int, total: int, interval: tuple[int, int]) -> None:
    assert pass_rate_interval(passed, total) == interval


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_bounds_are_where_the_tails_hold_two_and_a_half_percent(
    counts: tuple[int, int],
) -> None:
    passed, total = counts
    found = pass_rate_interval(passed, total)
    assert found is not None
    low, high = found[0] / 1000, found[1] / 1000
    assert 0 <= low <= passed / total <= high <= 1
    if passed:
        assert upper_tail(passed, total, low) <= 0.025 + 1e-9
        assert upper_tail(passed, total, min(1, low + 0.0011)) >= 0.025 - 1e-9
    if passed < total:
        assert 1 - upper_tail(passed + 1, total, high) <= 0.025 + 1e-9


def test_no_trials_give_no_interval() -> None:
    assert pass_rate_interval(0, 0) is None


@pytest.mark.parametrize(("passed", "total"), [(-1, 3), (4, 3), (1, 0)])
def test_impossible_counts_are_refused(passed: int, total: int) -> None:
    with pytest.raises(ValueError, match="is no count"):
        pass_rate_interval(passed, total)
