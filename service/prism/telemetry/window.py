"""What counters and histograms have grown by in the last minute, for whoever looks without a Prometheus server."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.registry import Collector

_Key = tuple[str, tuple[tuple[str, str], ...]]
_Reading = dict[_Key, float]

LEAST_FOR_P99 = 100
"""Observations under which no P99 is told: it would be the largest one."""


def quantile(q: float, buckets: Mapping[float, float]) -> float | None:
    """A quantile of a histogram, as Prometheus's `histogram_quantile` works it out: straight lines inside buckets.

    Args:
        q: between 0 and 1.
        buckets: cumulative counts by upper bound, infinity among them; sums over pods are as good.

    Returns:
        None without observations; the largest finite bound where the quantile lies beyond it.
    """
    total = buckets.get(math.inf, 0.0)
    if total <= 0:
        return None
    rank, below, lower = q * total, 0.0, 0.0
    for bound, count in sorted(buckets.items()):
        if count >= rank and count > below:
            return lower if math.isinf(bound) else lower + (bound - lower) * (rank - below) / (count - below)
        below, lower = count, bound
    return None


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Median and P99 of a window; `p99` is None under `LEAST_FOR_P99` observations."""

    count: int
    p50: float | None
    p99: float | None


class Growth:
    """What each series has grown by between two readings, `seconds` apart."""

    def __init__(self, seconds: float, before: _Reading, after: _Reading) -> None:
        self.seconds = seconds
        self._before = before
        self._after = after

    def of(self, name: str, **labels: str) -> float:
        """Sum over the series of this name that have these labels."""
        return sum(grown for _, grown in self._matching(name, labels))

    def rate(self, name: str, **labels: str) -> float:
        """The same a second; 0 while there is no window yet."""
        return self.of(name, **labels) / self.seconds if self.seconds > 0 else 0.0

    def quantiles(self, histogram: str, **labels: str) -> Quantiles:
        buckets: dict[float, float] = {}
        for found, grown in self._matching(f"{histogram}_bucket", labels):
            bound = float(found["le"])
            buckets[bound] = buckets.get(bound, 0.0) + grown
        count = round(buckets.get(math.inf, 0.0))
        return Quantiles(count, quantile(0.5, buckets), quantile(0.99, buckets) if count >= LEAST_FOR_P99 else None)

    def _matching(self, name: str, labels: Mapping[str, str]) -> Iterator[tuple[dict[str, str], float]]:
        for key, value in self._after.items():
            if key[0] != name:
                continue
            found = dict(key[1])
            if labels.items() <= found.items():
                yield found, value - self._before.get(key, 0.0)


class MetricsWindow:
    """Keeps readings of some metrics, a few of the last `seconds`.

    Args:
        metrics: read whole at each reading, some milliseconds; hence not more often than every `every_seconds`.
    """

    def __init__(self, metrics: Collector, seconds: float = 60.0, every_seconds: float = 10.0) -> None:
        self._metrics = metrics
        self._every_seconds = every_seconds
        self._readings: deque[tuple[float, _Reading]] = deque(maxlen=max(2, round(seconds / every_seconds) + 1))

    def sample(self, now: float) -> None:
        """Keep a reading, if the last one is old enough; called every second or so."""
        if not self._readings or now - self._readings[-1][0] >= self._every_seconds:
            self._readings.append((now, _read(self._metrics)))

    def growth(self, now: float) -> Growth:
        """Growth from the oldest reading kept until now; none if nothing was ever read."""
        after = _read(self._metrics)
        began, before = self._readings[0] if self._readings else (now, after)
        return Growth(now - began, before, after)


def _read(metrics: Collector) -> _Reading:
    return {
        (sample.name, tuple(sample.labels.items())): sample.value
        for family in metrics.collect()
        if family.type in ("counter", "histogram")
        for sample in family.samples
    }
