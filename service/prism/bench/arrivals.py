"""When requests come: by a Poisson process, or as in recorded traffic, brought to the rate that is asked for.

Traces: Azure's 2023 inference traces (conversation and code) and Mooncake's (conversation and synthetic). As many
consecutive arrivals as are needed are cut out at a place that the seed draws, and their times are stretched. That keeps
bursts and lulls as they were, relative to the mean rate. Mooncake's conversation trace is stamped in ticks of three
seconds: within a tick, times are spread evenly.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence

from prism.bench.real_data import traffic

POISSON = "poisson"
TRACES = ("azure2023_conv", "azure2023_code", "mooncake_conversation", "mooncake_synthetic")


def arrival_times(source: str, per_second: float, seconds: float, seed: int) -> list[float]:
    """Ascending arrival times from 0 to `seconds`.

    Args:
        source: `poisson`, or the name of a trace.

    Raises:
        ValueError: there is no such trace, or the rate is not positive.
        DataMissing: the traces are not here.
    """
    if per_second <= 0:
        raise ValueError(f"a rate of {per_second:g} requests/s: give one above 0")
    rng = random.Random(f"arrivals {source} {seed}")
    if source == POISSON:
        return poisson_times(rng, per_second, seconds)
    if source not in TRACES:
        raise ValueError(f"no arrivals {source!r}: choose from {', '.join((POISSON, *TRACES))}")
    return stretched(spread_ticks(traffic(source)), per_second, seconds, rng)


def poisson_times(rng: random.Random, per_second: float, seconds: float) -> list[float]:
    """Ascending arrival times from 0 to `seconds`."""
    times: list[float] = []
    at = rng.expovariate(per_second)
    while at < seconds:
        times.append(at)
        at += rng.expovariate(per_second)
    return times


def stretched(times: Sequence[float], per_second: float, seconds: float, rng: random.Random) -> list[float]:
    """As many consecutive recorded times as the rate asks for, from a random one on, their clock changed to fit."""
    count = min(round(per_second * seconds), len(times) - 1)
    first = rng.randrange(len(times) - count)
    part = times[first : first + count + 1]
    factor = count / per_second / (part[-1] - part[0])
    return [(at - part[0]) * factor for at in part[:-1]]


def spread_ticks(times: Sequence[float]) -> list[float]:
    """Equal times spread evenly up to the next one."""
    ticks: dict[float, int] = defaultdict(int)
    for at in times:
        ticks[at] += 1
    stamps = sorted(ticks)
    out: list[float] = []
    for at, after in zip(stamps, [*stamps[1:], stamps[-1]], strict=True):
        out += [at + (after - at) * place / ticks[at] for place in range(ticks[at])]
    return out
