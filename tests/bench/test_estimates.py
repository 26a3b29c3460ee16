"""Percentiles and paired intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from prism.bench.estimates import mean, median, paired_ratio, percentile_of, percentiles


def test_percentiles_need_samples_beyond_them() -> None:
    assert list(percentiles(range(9))) == []
    assert list(percentiles(range(40))) == ["P50"]
    assert list(percentiles(range(100))) == ["P50", "P90", "P95"]
    assert list(percentiles(range(500))) == ["P50", "P90", "P95", "P99"]
    assert list(percentiles(range(4_999))) == ["P50", "P90", "P95", "P99"]
    assert list(percentiles(range(5_000))) == ["P50", "P90", "P95", "P99", "P99.9"]


def test_requests_without_a_first_token_stay_in_the_percentiles() -> None:
    found = percentiles([*range(85), *[math.inf] * 15])
    assert found == {"P50": 49.0, "P90": math.inf, "P95": math.inf}


def test_interval_holds_the_ratio_of_medians() -> None:
    theirs = [1.0 + index % 7 for index in range(80)]
    found = paired_ratio([value / 2 for value in theirs], theirs)
    assert found.low <= found.value == 0.5 <= found.high
    assert found.excludes_one


@pytest.mark.parametrize("statistic", [mean, median, percentile_of(90)])
def test_interval_of_noise_holds_one(statistic: object) -> None:
    random = np.random.default_rng(7)
    found = paired_ratio(random.exponential(size=400), random.exponential(size=400), statistic)  # type: ignore[arg-type]
    assert found.low < 1 < found.high


def test_pairs_that_move_together_give_a_narrow_interval() -> None:
    random = np.random.default_rng(7)
    theirs = random.lognormal(sigma=2, size=400)
    together = paired_ratio(theirs * random.uniform(0.75, 0.85, 400), theirs)
    apart = paired_ratio(random.permutation(theirs) * 0.8, theirs)
    assert together.high - together.low < (apart.high - apart.low) / 5


def test_neighbours_that_are_alike_widen_the_interval() -> None:
    random = np.random.default_rng(7)
    bursts = np.repeat(random.exponential(size=50), 8)
    theirs = np.repeat(random.exponential(size=50), 8)
    blocked, single = paired_ratio(bursts, theirs, mean), paired_ratio(bursts, theirs, mean, block=1)
    assert blocked.high - blocked.low > 1.5 * (single.high - single.low)


def test_too_few_pairs_have_no_interval() -> None:
    with pytest.raises(ValueError, match="15 pairs are too few"):
        paired_ratio([1.0] * 15, [1.0] * 15)
