"""What a predictor's metrics say between two looks: hit rate, P99 of the time to first token, share of failures.

All of it is differences of counters. A counter that fell began anew with its process, so that what lies between the two
looks is not known, and the pod counts for nothing in that window.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from prism.telemetry.metrics import CACHED, OUTCOME, PROMPT_TOKENS, REQUESTS, SECONDS_BUCKETS, TTFT

BOUNDS: Final = (*(float(bound) for bound in SECONDS_BUCKETS), math.inf)
"""Upper bounds of the TTFT histogram's buckets, in seconds."""

_WANTED = (f"{TTFT}_bucket", PROMPT_TOKENS, REQUESTS)
_PLACE = {bound: place for place, bound in enumerate(BOUNDS)}


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts, of a pod's whole life or of a span of it.

    Attributes:
        ttft: requests by time to first token, cumulative, one count for each of `BOUNDS`.
        finished, failed: requests that ended well, and that did not for a reason of the server's.
        cached_tokens, prompt_tokens: prompt tokens whose KV was found, and all.
    """

    ttft: tuple[float, ...] = (0.0,) * len(BOUNDS)
    finished: float = 0.0
    failed: float = 0.0
    cached_tokens: float = 0.0
    prompt_tokens: float = 0.0

    def __add__(self, other: Figures) -> Figures:
        return self._combined(other, 1.0)

    def since(self, earlier: Figures) -> Figures | None:
        """What came to pass since `earlier`; None if the counters began anew between the two."""
        between = self._combined(earlier, -1.0)
        return None if min(between._all()) < 0 else between

    @property
    def requests(self) -> float:
        """Those that say something of the server: neither refused nor given up by their clients."""
        return self.finished + self.failed

    @property
    def samples(self) -> float:
        """Requests whose time to first token is known."""
        return self.ttft[-1]

    @property
    def hit_rate(self) -> float | None:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens > 0 else None

    @property
    def error_rate(self) -> float | None:
        return self.failed / self.requests if self.requests > 0 else None

    def quantile(self, share: float) -> float | None:
        """Seconds below which `share` of the requests lie, linear within a bucket as in PromQL's histogram_quantile;
        the last finite bound beyond it. None without requests."""
        if self.samples <= 0:
            return None
        rank = share * self.samples
        place = next(place for place, count in enumerate(self.ttft) if count >= rank)
        if math.isinf(BOUNDS[place]):
            return BOUNDS[-2]
        below, count_below = (0.0, 0.0) if place == 0 else (BOUNDS[place - 1], self.ttft[place - 1])
        within = self.ttft[place] - count_below
        return below + (BOUNDS[place] - below) * ((rank - count_below) / within if within > 0 else 1.0)

    def _combined(self, other: Figures, sign: float) -> Figures:
        return Figures(
            tuple(mine + sign * theirs for mine, theirs in zip(self.ttft, other.ttft, strict=True)),
            self.finished + sign * other.finished,
            self.failed + sign * other.failed,
            self.cached_tokens + sign * other.cached_tokens,
            self.prompt_tokens + sign * other.prompt_tokens,
        )

    def _all(self) -> tuple[float, ...]:
        return (*self.ttft, self.finished, self.failed, self.cached_tokens, self.prompt_tokens)


def total(figures: Iterable[Figures]) -> Figures:
    """The sum over pods."""
    return sum(figures, Figures())


def read_figures(exposition: str) -> Figures:
    """The counts in a predictor's metrics, over all its models and lanes.

    Raises:
        ValueError: not Prometheus' text format, or a bucket that this version does not know.
    """
    ttft = [0.0] * len(BOUNDS)
    outcomes: dict[str, float] = {}
    tokens = {"true": 0.0, "false": 0.0}
    # Most of what a predictor shows is of no interest here, and parsing it would be most of the work.
    wanted = "\n".join(line for line in exposition.splitlines() if line.startswith(_WANTED))
    for family in text_string_to_metric_families(wanted + "\n"):
        for sample in family.samples:
            if sample.name == f"{TTFT}_bucket":
                ttft[_place(sample.labels["le"])] += sample.value
            elif sample.name == REQUESTS:
                outcome = sample.labels[OUTCOME]
                outcomes[outcome] = outcomes.get(outcome, 0.0) + sample.value
            elif sample.name == PROMPT_TOKENS:
                tokens[sample.labels[CACHED]] += sample.value
    return Figures(
        tuple(ttft), outcomes.get("finished", 0.0), outcomes.get("failed", 0.0), tokens["true"], sum(tokens.values())
    )


def _place(bound: str) -> int:
    seconds = float(bound)
    if seconds not in _PLACE:
        raise ValueError(f"a predictor has a TTFT bucket of {bound} s that this operator does not know: upgrade both")
    return _PLACE[seconds]


def two_digits(value: float | None) -> float | None:
    """Rounded to two significant digits, so that a figure that hardly moves is the same figure."""
    if value is None or value == 0 or not math.isfinite(value):
        return value
    return round(value, 1 - math.floor(math.log10(abs(value))))
