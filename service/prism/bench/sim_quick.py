"""`make sim-quick`: the promises in the simulator, in small; fails when one is broken.

The device is the A800 with Qwen3-4B; answers are short, so that a run takes seconds. What is judged is a direction and
a margin: the paired interval over seeds of a ratio must lie on the right side of a bound.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
from rich.console import Console

from prism.bench.arms import ARMS
from prism.bench.cells import Setting, charge_of, play
from prism.bench.cost_model import MODELS, CostModel
from prism.bench.estimates import Interval, mean, paired_ratio
from prism.bench.scenarios import Place, Plain, Rag
from prism.bench.summary import hit_percent
from prism.engine.enginecore.harness import quiet_vllm

SEEDS = (1, 2, 3, 4)
_SECONDS = 45.0
_WARM_UP_S = 10.0
_ANSWERS = (12, 24)
_COST = CostModel(MODELS["qwen3-4b"])

Build = Rag | Plain


@dataclass(frozen=True, slots=True)
class Run:
    """What one arm gave on one seed."""

    ttft_s: tuple[float, ...]
    hit_percent: float

    @property
    def p95_s(self) -> float:
        return float(np.percentile(self.ttft_s, 95, method="inverted_cdf"))


@dataclass(frozen=True, slots=True)
class Regime:
    """A workload and a load at which it says something."""

    name: str
    workload: Build
    per_second: float
    kv_share: float
    arms: tuple[str, ...]


REGIMES = (
    Regime("unordered", Rag(documents=400), 13.0, 0.5, ("stock", "fcfs", "sglang", "contextpilot", "prism")),
    Regime("tight", Rag(documents=400), 11.0, 0.15, ("prism-lru", "prism", "prism-belady")),
    Regime("fixed", Rag(documents=400, movable=False), 9.5, 0.25, ("stock", "prism")),
    Regime("nothing-shared", Plain(), 9.0, 0.5, ("stock", "prism")),
)

Runs = dict[tuple[str, str], list[Run]]
"""By regime and arm, seed by seed."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What must hold, and how it is seen: an interval and a bound, or simply whether."""

    text: str
    shown: Callable[[Runs], str]
    holds: Callable[[Runs], bool]


def _p95(regime: str, ours: str, theirs: str) -> Callable[[Runs], Interval]:
    def interval(runs: Runs) -> Interval:
        pairs = zip(runs[regime, ours], runs[regime, theirs], strict=True)
        mine, other = zip(*((a.p95_s, b.p95_s) for a, b in pairs), strict=True)
        return paired_ratio(mine, other, mean, block=1)

    return interval


def _hit(regime: str, ours: str, theirs: str) -> Callable[[Runs], Interval]:
    def interval(runs: Runs) -> Interval:
        pairs = zip(runs[regime, ours], runs[regime, theirs], strict=True)
        mine, other = zip(*((a.hit_percent, b.hit_percent) for a, b in pairs), strict=True)
        return paired_ratio(mine, other, mean, block=1)

    return interval


def _below(text: str, interval: Callable[[Runs], Interval], bound: float) -> Promise:
    return Promise(f"{text} ≤ {bound:g}", lambda runs: str(interval(runs)), lambda runs: interval(runs).high <= bound)


def _above(text: str, interval: Callable[[Runs], Interval], bound: float) -> Promise:
    return Promise(f"{text} ≥ {bound:g}", lambda runs: str(interval(runs)), lambda runs: interval(runs).low >= bound)


def _equal(runs: Runs) -> bool:
    return runs["unordered", "fcfs"] == runs["unordered", "stock"]


PROMISES = (
    Promise("FCFS with LRU decides as stock vLLM", lambda runs: "equal" if _equal(runs) else "differs", _equal),
    _below("documents unordered: P95 over stock's", _p95("unordered", "prism", "stock"), 0.7),
    _below("documents unordered: P95 over that of SGLang's order", _p95("unordered", "prism", "sglang"), 0.7),
    _below("documents unordered: P95 over ContextPilot's", _p95("unordered", "prism", "contextpilot"), 0.95),
    _above("documents unordered: hit rate over stock's", _hit("unordered", "prism", "stock"), 1.5),
    _above("documents unordered: hit rate over ContextPilot's", _hit("unordered", "prism", "contextpilot"), 1.05),
    _above("small cache: hit rate over LRU's, same order", _hit("tight", "prism", "prism-lru"), 1.0),
    _above("small cache: hit rate over Belady's, same order", _hit("tight", "prism", "prism-belady"), 0.95),
    _below("order fixed: P95 over stock's", _p95("fixed", "prism", "stock"), 1.02),
    _above("order fixed: hit rate over stock's", _hit("fixed", "prism", "stock"), 1.0),
    _below("nothing shared: P95 over stock's", _p95("nothing-shared", "prism", "stock"), 1.02),
)


def run_one(regime: Regime, arm: str, seed: int) -> Run:
    """One run of one arm."""
    place = Place(int(_COST.kv_tokens * regime.kv_share), _ANSWERS)
    workload = regime.workload(place, regime.per_second, _SECONDS, seed)
    chosen = ARMS[arm]
    result = play(chosen, Setting(workload, _COST, regime.kv_share), charge_of(chosen))
    records = [record for record in result.records if record.arrived_s >= _WARM_UP_S]
    return Run(tuple(round(record.ttft_s, 6) for record in records), hit_percent(records))


def run_all(processes: int) -> Runs:
    """All regimes, arms and seeds."""
    todo = [(regime, arm, seed) for regime in REGIMES for arm in regime.arms for seed in SEEDS]
    context = get_context("forkserver")
    context.set_forkserver_preload(["prism.bench.cells"])
    with ProcessPoolExecutor(processes, mp_context=context, initializer=quiet_vllm) as pool:
        found = list(pool.map(run_one, *zip(*todo, strict=True)))
    runs: Runs = {}
    for (regime, arm, _), run in zip(todo, found, strict=True):
        runs.setdefault((regime.name, arm), []).append(run)
    return runs


def report(runs: Runs) -> Iterator[tuple[bool, str]]:
    """Each promise: whether it holds, and what was found."""
    for promise in PROMISES:
        holds = promise.holds(runs)
        yield holds, f"{'holds ' if holds else 'BROKEN'}  {promise.text:62} {promise.shown(runs)}"


def main(arguments: Sequence[str]) -> int:
    """Exit status 1 if a promise is broken. The argument is the number of processes, two without."""
    lines = list(report(run_all(int(arguments[0]) if arguments else 2)))
    console = Console(width=120, highlight=False)
    for _, line in lines:
        console.print(line)
    return 0 if all(holds for holds, _ in lines) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
