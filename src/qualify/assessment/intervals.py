"""Exact binomial confidence intervals, so that a small count never looks like a reliability.

Three passes of three leave a pass rate of 29 % possible; the interval beside `3 of 3` says so.
"""

from __future__ import annotations

import math
from functools import lru_cache

CONFIDENCE_PERCENT = 95


@lru_cache(maxsize=4096)
def pass_rate_interval(passed: int, total: int) -> tuple[int, int] | None:
    """Two-sided 95 % Clopper-Pearson interval of a pass rate, in per mille, rounded outwards.

    Clopper and Pearson, Biometrika 26 (1934): the bounds are quantiles of beta distributions.
    `None` without trials. Raises `ValueError` unless `0 <= passed <= total`.
    """
    if not 0 <= passed <= total:
        raise ValueError(f"{passed} of {total} is no count of passes")
    if total == 0:
        return None
    # scipy.special loads in a tenth of the time of scipy.stats, and this is all that is needed.
    from scipy.special import betaincinv

    tail = (1 - CONFIDENCE_PERCENT / 100) / 2
    low = 0.0 if passed == 0 else float(betaincinv(passed, total - passed + 1, tail))
    high = 1.0 if passed == total else float(betaincinv(passed + 1, total - passed, 1 - tail))
    return math.floor(low * 1000), math.ceil(high * 1000)
