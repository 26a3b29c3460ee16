"""Growth over a window, and quantiles from buckets."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram

from prism.telemetry.metrics import SECONDS_BUCKETS
from prism.telemetry.window import MetricsWindow, quantile


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def asked(registry: CollectorRegistry) -> Counter:
    return Counter("asked_total", "", ["who"], registry=registry)


@pytest.fixture
def took(registry: CollectorRegistry) -> Histogram:
    return Histogram("took_seconds", "", ["who"], registry=registry, buckets=SECONDS_BUCKETS)


@pytest.fixture
def window(registry: CollectorRegistry) -> MetricsWindow:
    return MetricsWindow(registry, seconds=60, every_seconds=10)


def test_a_quantile_is_interpolated_inside_its_bucket() -> None:
    assert quantile(0.5, {1.0: 0, 2.0: 10, math.inf: 10}) == 1.5
    assert quantile(0.99, {1.0: 50, 2.0: 100, math.inf: 100}) == pytest.approx(1.98)


def test_a_quantile_beyond_the_last_bound_is_that_bound() -> None:
    assert quantile(0.99, {1.0: 1, 2.0: 2, math.inf: 100}) == 2.0


def test_nothing_observed_has_no_quantile() -> None:
    assert quantile(0.5, {1.0: 0, math.inf: 0}) is None
    assert quantile(0.5, {}) is None


@pytest.mark.parametrize("median", [0.03, 0.3, 1.5])
def test_p99_from_the_buckets_is_near_the_exact_one(median: float) -> None:
    chance = random.Random(7)
    times = [chance.lognormvariate(math.log(median), 0.8) for _ in range(5000)]
    buckets = {bound: float(sum(time <= bound for time in times)) for bound in (*SECONDS_BUCKETS, math.inf)}
    assert quantile(0.99, buckets) == pytest.approx(float(np.quantile(times, 0.99)), rel=0.1)


def test_growth_counts_from_the_oldest_reading(window: MetricsWindow, asked: Counter) -> None:
    asked.labels("a").inc(5)
    window.sample(100.0)
    asked.labels("a").inc(3)
    asked.labels("b").inc(2)
    growth = window.growth(120.0)
    assert (growth.of("asked_total", who="a"), growth.of("asked_total"), growth.rate("asked_total")) == (3, 5, 0.25)


def test_readings_older_than_the_window_are_forgotten(window: MetricsWindow, asked: Counter) -> None:
    for second in range(200):
        window.sample(float(second))
        asked.labels("a").inc()
    growth = window.growth(200.0)
    assert (growth.seconds, growth.of("asked_total")) == (70.0, 70)


def test_without_a_reading_there_is_no_growth(window: MetricsWindow, asked: Counter) -> None:
    asked.labels("a").inc()
    growth = window.growth(5.0)
    assert (growth.seconds, growth.of("asked_total"), growth.rate("asked_total")) == (0.0, 0, 0.0)


def test_quantiles_are_of_the_window_alone_and_over_all_series(window: MetricsWindow, took: Histogram) -> None:
    took.labels("a").observe(50.0)
    window.sample(0.0)
    for who in ("a", "b") * 60:
        took.labels(who).observe(0.3)
    quantiles = window.growth(10.0).quantiles("took_seconds")
    assert quantiles.count == 120
    assert quantiles.p50 == pytest.approx(0.3, rel=0.1)
    assert quantiles.p99 == pytest.approx(0.3, rel=0.1)


def test_few_observations_have_no_p99(window: MetricsWindow, took: Histogram) -> None:
    window.sample(0.0)
    for _ in range(99):
        took.labels("a").observe(0.3)
    assert window.growth(10.0).quantiles("took_seconds").p99 is None
