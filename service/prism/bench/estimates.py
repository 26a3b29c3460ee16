"""What few measurements allow to say: percentiles as far as there are samples for them, and paired intervals."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import DegenerateDataWarning, bootstrap

BEYOND = 5
"""Samples that must lie beyond a percentile before it is shown."""

LEVELS = {"P50": 50.0, "P90": 90.0, "P95": 95.0, "P99": 99.0, "P99.9": 99.9}
"""Percentiles that are shown, by name."""

BLOCK = 8
"""Consecutive requests that are drawn together: those in one queue are not independent."""

DRAWS = 4_000
_DRAWS_AT_ONCE = 100

Values = Sequence[float] | NDArray[np.float64]
Statistic = Callable[[NDArray[np.float64], int], NDArray[np.float64]]
"""Of the values along an axis."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the bounds of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"

    @property
    def excludes_one(self) -> bool:
        """For a ratio: the data tell the two sides apart."""
        return self.high < 1 or self.low > 1


def mean(values: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    result: NDArray[np.float64] = np.mean(values, axis=axis)
    return result


def median(values: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    result: NDArray[np.float64] = np.median(values, axis=axis)
    return result


def percentile_of(level: float) -> Statistic:
    """The statistic of this percentile, 0 to 100, by nearest rank."""

    def statistic(values: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
        result: NDArray[np.float64] = np.percentile(values, level, axis=axis, method="inverted_cdf")
        return result

    return statistic


def carries(count: int, level: float) -> bool:
    """Whether this many samples carry this percentile: at least `BEYOND` of them are expected beyond it."""
    return round(count * (100 - level), 6) >= BEYOND * 100


def allowed_levels(count: int) -> dict[str, float]:
    """Those of `LEVELS` that this many samples carry."""
    return {name: level for name, level in LEVELS.items() if carries(count, level)}


def statistics_for(pairs: int) -> dict[str, Statistic]:
    """What may be compared over this many pairs: the mean, and the percentiles that they carry."""
    return {"mean": mean} | {name: percentile_of(level) for name, level in allowed_levels(pairs).items()}


def percentile(values: Sequence[float], level: float) -> float | None:
    """By nearest rank; infinite values take part. None where the samples do not carry it."""
    return float(percentile_of(level)(np.asarray(values), 0)) if carries(len(values), level) else None


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Those of `LEVELS` that the samples carry."""
    found = {name: percentile(values, level) for name, level in LEVELS.items()}
    return {name: value for name, value in found.items() if value is not None}


def paired_ratio(
    ours: Values, theirs: Values, statistic: Statistic = median, *, block: int = BLOCK, seed: int = 0
) -> Interval:
    """A statistic of ours over that of theirs, with its paired bootstrap interval (BCa).

    Pairs are drawn together, in blocks of consecutive ones. Where the correction of BCa is not defined (nearly all
    draws give one value), the bounds are the plain percentiles of the draws.

    Args:
        ours, theirs: of the same requests in the same order; finite.
        statistic: what is compared.
        block: length of a block; pairs after the last whole block count in the value and not in its interval.
        seed: of the draws.

    Raises:
        ValueError: fewer than two blocks of pairs.
    """
    pairs = np.array([ours, theirs], dtype=float)
    blocks = pairs.shape[1] // block
    if blocks < 2:
        raise ValueError(f"{pairs.shape[1]} pairs are too few for an interval: {2 * block} or more are needed")
    blocked = pairs[:, : blocks * block].reshape(2, blocks, block)

    def ratio(drawn: NDArray[np.intp], axis: int = -1) -> NDArray[np.float64]:
        chosen = blocked[:, np.moveaxis(drawn, axis, -1)]
        both = statistic(chosen.reshape(*chosen.shape[:-2], -1), -1)
        quotient: NDArray[np.float64] = both[0] / both[1]
        return quotient

    low, high = _bounds(np.arange(blocks), ratio, seed)
    whole = statistic(pairs, 1)
    return Interval(float(whole[0] / whole[1]), low, high)


def mean_of(values: Values, *, seed: int = 0) -> Interval:
    """The mean of independent values, with its bootstrap interval (BCa).

    Raises:
        ValueError: fewer than two values.
    """
    sample = np.asarray(values, dtype=float)
    if len(sample) < 2:
        raise ValueError(f"{len(sample)} values are too few for an interval: 2 or more are needed")
    low, high = _bounds(sample, mean, seed)
    return Interval(float(sample.mean()), low, high)


def _bounds(blocks: NDArray[Any], ratio: Callable[..., NDArray[np.float64]], seed: int) -> tuple[float, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateDataWarning)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = bootstrap(
                (blocks,), ratio, n_resamples=DRAWS, batch=_DRAWS_AT_ONCE, vectorized=True, method="BCa", rng=seed
            )
    low, high = found.confidence_interval
    if np.isfinite(low) and np.isfinite(high):
        return float(low), float(high)
    plain = np.percentile(found.bootstrap_distribution, [2.5, 97.5])
    return float(plain[0]), float(plain[1])


def seconds_text(value: float | None) -> str:
    """As tables show it; a dash for what there are no samples for."""
    if value is None:
        return "–"
    return "∞" if np.isinf(value) else f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 10 else f"{value:.1f}"
