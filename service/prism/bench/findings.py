"""What the cells of a panel say: percentiles over all seeds, the strongest baseline, ratios with intervals, knees.

A percentile is that of all requests of all seeds together; a ratio with its interval is taken seed by seed, since the
requests of one run stand in one queue. What is compared is compared over the seeds that both have. A request without a
first token counts as infinite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise, takewhile

from prism.bench.cells import CellStore, Outcome
from prism.bench.estimates import Interval, mean, mean_of, paired_ratio, percentiles
from prism.bench.studies import P99_BOUND_S, Panel

FEWEST_SEEDS = 3
"""An interval over fewer runs would say nothing."""

INFINITE = float("inf")


@dataclass(frozen=True, slots=True)
class Point:
    """One arm at one load.

    Attributes:
        outcomes: of the seeds that were run, ascending.
    """

    arm: str
    load_per_s: float
    outcomes: tuple[Outcome, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(one.definition["seed"] for one in self.outcomes)

    @property
    def requests(self) -> int:
        return sum(len(one.ttft_ms) for one in self.outcomes)

    @property
    def unfinished(self) -> int:
        return sum(one.summary.unfinished for one in self.outcomes)

    @property
    def hit_percent(self) -> float:
        return sum(one.summary.hit_percent for one in self.outcomes) / len(self.outcomes)

    def ttft_s(self) -> dict[str, float]:
        """Percentiles by name, as far as there are samples for them."""
        return percentiles([ttft for one in self.outcomes for ttft in one.ttft_s()])

    def rare_p99_s(self) -> float | None:
        """P99 of the requests that contain nothing popular."""
        return percentiles([ttft for one in self.outcomes for ttft in one.rare_ttft_s()]).get("P99")

    @property
    def p99_s(self) -> float:
        """Infinite too where the samples do not carry it: nothing may look good for want of data."""
        return self.ttft_s().get("P99", INFINITE)

    def of(self, seeds: Sequence[int]) -> Point:
        """The same over some of its seeds."""
        return replace(self, outcomes=tuple(one for one in self.outcomes if one.definition["seed"] in seeds))


def over_shared_seeds(*points: Point) -> tuple[Point, ...]:
    """The points over the seeds that all of them have: what they say is then of the same workloads."""
    shared = set.intersection(*({*point.seeds} for point in points))
    return tuple(point.of(sorted(shared)) for point in points)


def p99_against(ours: Point, theirs: Point) -> float | None:
    """P99 over P99, 0.7 being 30 % below; None where the samples do not carry it."""
    mine, other = (point.ttft_s().get("P99") for point in over_shared_seeds(ours, theirs))
    if mine is None or other is None:
        return None
    if mine == INFINITE:
        return INFINITE
    return mine / other if other < INFINITE else 0.0


def p99_interval(ours: Point, theirs: Point) -> Interval | None:
    """The same seed by seed, with its paired interval; None under three seeds or with an infinite one."""
    mine, other = ([_p99(one) for one in point.outcomes] for point in over_shared_seeds(ours, theirs))
    if len(mine) < FEWEST_SEEDS or INFINITE in (*mine, *other):
        return None
    return paired_ratio(mine, other, mean, block=1)


def mean_p99_interval(pairs: Sequence[tuple[Point, Point]]) -> Interval | None:
    """The mean of several ratios of P99, seed by seed, with its interval.

    Args:
        pairs: ours and theirs, one pair a load; those whose runs do not each carry a P99 are left out.

    Returns:
        None under three seeds that all of them have.
    """
    points = over_shared_seeds(*(point for pair in pairs for point in pair)) if pairs else ()
    p99s = [[_p99(one) for one in point.outcomes] for point in points]
    known = zip(p99s[::2], p99s[1::2], strict=True)
    carried = [(mine, other) for mine, other in known if INFINITE not in (*mine, *other)]
    if not carried or len(carried[0][0]) < FEWEST_SEEDS:
        return None
    ratios = [[m / o for m, o in zip(mine, other, strict=True)] for mine, other in carried]
    return mean_of([sum(of_seed) / len(of_seed) for of_seed in zip(*ratios, strict=True)])


def _tail(point: Point) -> tuple[float, float]:
    """What the strongest has least of: P99, and P95 where the samples carry no more."""
    ttft = point.ttft_s()
    return ttft.get("P99", INFINITE), ttft.get("P95", INFINITE)


def _stronger(best: Point, other: Point) -> Point:
    mine, others = over_shared_seeds(best, other)
    return other if mine.seeds and _tail(others) < _tail(mine) else best


def _p99(one: Outcome) -> float:
    return percentiles(one.ttft_s()).get("P99", INFINITE)


@dataclass(frozen=True, slots=True)
class Findings:
    """The cells of a panel that were run."""

    panel: Panel
    points: dict[tuple[str, float], Point] = field(default_factory=dict)

    @classmethod
    def of(cls, panel: Panel, seeds: Sequence[int], store: CellStore) -> Findings:
        points: dict[tuple[str, float], Point] = {}
        for load in panel.loads_per_s:
            for arm in panel.arms:
                found = [store.get(panel.cell(arm, load, seed)) for seed in seeds]
                outcomes = tuple(one for one in found if one is not None)
                if outcomes:
                    points[arm, load] = Point(arm, load, outcomes)
        return cls(panel, points)

    @property
    def loads(self) -> list[float]:
        """Those at which anything was run."""
        return [load for load in self.panel.loads_per_s if any(at == load for _, at in self.points)]

    def get(self, arm: str, load: float) -> Point | None:
        return self.points.get((arm, load))

    def strongest(self, load: float) -> Point | None:
        """The baseline with the least P99 at this load; of two, over the seeds that both have."""
        there = [self.points[arm, load] for arm in self.panel.baselines if (arm, load) in self.points]
        # The one with the most seeds begins, so that one lucky run of another is held against its twin.
        there.sort(key=lambda point: (-len(point.seeds), _tail(point)))
        return reduce(_stronger, there) if there else None

    @property
    def compares(self) -> bool:
        """Whether two arms were run at one load: one alone says nothing."""
        return any(sum(at == load for _, at in self.points) > 1 for load in self.loads)

    @property
    def baselines_run(self) -> str:
        """How many of the baselines were run at every load of those that were run, of how many; and on most seeds."""
        seeds = {
            arm: min(len(self.points[arm, load].seeds) for load in self.loads)
            for arm in self.panel.baselines
            if all((arm, load) in self.points for load in self.loads)
        }
        most = max(seeds.values(), default=0)
        often = sum(count == most for count in seeds.values())
        more = f", {often} of them on {most} seeds" if most > min(seeds.values(), default=0) else ""
        return f"{len(seeds)} of {len(self.panel.baselines)}{more}"

    def sustained_per_s(self, arm: str) -> float | None:
        """The highest load at which P99 stays below the model's bound, between the last below and the first above.

        None where the grid does not say: nothing above the bound, or nothing below it.
        """
        bound = P99_BOUND_S[self.panel.model]
        for (low, below), (high, above) in pairwise(self._p99_s(arm)):
            if below <= bound < above:
                share = 0.5 if above == INFINITE else (bound - below) / (above - below)
                return low + (high - low) * share
        return None

    def at_least_per_s(self, arm: str) -> float | None:
        """The highest load of those run at which P99 stayed below the model's bound, and below which it always did."""
        good = list(takewhile(lambda pair: pair[1] <= P99_BOUND_S[self.panel.model], self._p99_s(arm)))
        return good[-1][0] if good else None

    def strongest_sustained(self) -> tuple[str, float] | None:
        """The baseline that sustains the most, and how much; None where one that never failed might sustain more."""
        known = [(arm, self.sustained_per_s(arm)) for arm in self.panel.baselines]
        there = [(arm, load) for arm, load in known if load is not None]
        strongest = max(there, key=lambda pair: pair[1], default=None)
        unknown = [self.at_least_per_s(arm) or 0.0 for arm, load in known if load is None]
        return None if strongest is None or max(unknown, default=0.0) > strongest[1] else strongest

    def _p99_s(self, arm: str) -> list[tuple[float, float]]:
        """Load and P99 of an arm, ascending by load; without those at which the samples do not carry it."""
        there = [(load, self.points[arm, load].ttft_s()) for load in self.loads if (arm, load) in self.points]
        return [(load, ttft["P99"]) for load, ttft in there if "P99" in ttft]
