"""Arrivals come at the rate that is asked for, and keep the traffic's own bursts."""

from __future__ import annotations

import random

import pytest

from prism.bench.arrivals import arrival_times, poisson_times, spread_ticks, stretched


def test_poisson_arrivals_come_at_their_rate() -> None:
    times = poisson_times(random.Random(1), 10, 1_000)
    assert len(times) == pytest.approx(10_000, rel=0.05)
    assert times == sorted(times)


def test_stretched_traffic_has_the_rate_asked_for() -> None:
    recorded = [float(at) for at in range(1_000)]
    times = stretched(recorded, 5.0, 20.0, random.Random(1))
    assert times == pytest.approx([0.2 * number for number in range(100)])


def test_stretched_traffic_keeps_its_bursts() -> None:
    # Ten at once, every ten seconds.
    recorded = [10.0 * (number // 10) for number in range(1_000)]
    times = stretched(recorded, 4.0, 100.0, random.Random(1))
    assert len(set(times)) == pytest.approx(len(times) / 10, abs=1)


def test_times_of_one_tick_are_spread_up_to_the_next() -> None:
    assert spread_ticks([0.0, 0.0, 0.0, 3.0]) == [0.0, 1.0, 2.0, 3.0]


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        arrival_times("poisson", 0.0, 10.0, 1)


def test_unknown_traffic_is_refused_with_what_there_is() -> None:
    with pytest.raises(ValueError, match="azure2023_conv"):
        arrival_times("yesterday", 1.0, 10.0, 1)
