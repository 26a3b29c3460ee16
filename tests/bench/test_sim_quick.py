"""A broken promise is seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prism.bench.sim_quick import PROMISES, REGIMES, SEEDS, Run, Runs, report

GOOD = {"stock": (1.0, 20.0), "fcfs": (1.0, 20.0), "sglang": (1.2, 20.0), "contextpilot": (0.6, 33.0)}
OURS = {"prism": (0.4, 40.0), "prism-lru": (0.5, 38.0), "prism-belady": (0.4, 40.5)}


def runs_of(figures: dict[tuple[str, str], tuple[float, float]]) -> Runs:
    def run(p95: float, hit: float, seed: int) -> Run:
        return Run(tuple(p95 * (0.5 + place / 100) * (1 + seed / 100) for place in range(100)), hit + seed / 10)

    return {key: [run(*values, seed) for seed in SEEDS] for key, values in figures.items()}


@pytest.fixture
def good() -> Runs:
    figures = {(regime.name, arm): {**GOOD, **OURS}[arm] for regime in REGIMES for arm in regime.arms}
    return runs_of(figures)


def test_all_hold_where_all_is_well(good: Runs) -> None:
    assert [line for holds, line in report(good) if not holds] == []
    assert len(list(report(good))) == len(PROMISES)


@pytest.mark.parametrize(
    ("regime", "arm", "worse", "said"),
    [
        ("unordered", "prism", (0.62, 40.0), "ContextPilot"),
        ("unordered", "prism", (0.4, 34.0), "hit rate over ContextPilot's"),
        ("unordered", "fcfs", (1.001, 20.0), "decides as stock"),
        ("tight", "prism", (0.4, 37.0), "over LRU's"),
        ("fixed", "prism", (1.1, 40.0), "order fixed: P95"),
        ("nothing-shared", "prism", (1.05, 40.0), "nothing shared"),
    ],
)
def test_what_got_worse_is_named(good: Runs, regime: str, arm: str, worse: tuple[float, float], said: str) -> None:
    broken = {**good, **runs_of({(regime, arm): worse})}
    assert any(said in line for holds, line in report(broken) if not holds)


def test_one_unlucky_seed_is_not_enough_to_pass(good: Runs) -> None:
    one = good["nothing-shared", "prism"][0]
    slow = replace(one, ttft_s=tuple(value * 3 for value in one.ttft_s))
    broken = {**good, ("nothing-shared", "prism"): [slow, slow, *good["nothing-shared", "prism"][2:]]}
    assert not all(holds for holds, _ in report(broken))
