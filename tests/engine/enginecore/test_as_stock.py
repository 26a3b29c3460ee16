"""With FCFS and LRU, PRISM's classes decide as stock vLLM: same admissions, same blocks, same preemptions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.engine.enginecore.rig import AS_STOCK, RigFactory, Stream, play, tight

from prism.engine.enginecore.harness import STOCK_SCHEDULER
from prism.engine.enginecore.synthetic import EngineLimits
from prism.engine.internals import ASYNC_SCHEDULER, SCHEDULER

SYNCHRONOUS = "vllm.v1.core.sched.scheduler.Scheduler"

ROOMY, TINY, SLOTS = tight(400), tight(28), tight(120, max_running=2, step_tokens=64)
MIXED = Stream(0, salts=(None, "a", "b"))


def assert_same(rig: RigFactory, stock: str, ours: str, limits: EngineLimits, stream: Stream) -> None:
    theirs, mine = rig(stock, limits), rig(ours, limits, AS_STOCK)
    play(theirs, stream)
    play(mine, stream)
    assert mine.log == theirs.log


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("limits", [ROOMY, TINY, SLOTS], ids=["roomy", "tiny", "slots"])
def test_fcfs_and_lru_decide_as_stock(rig: RigFactory, limits: EngineLimits, seed: int) -> None:
    assert_same(rig, STOCK_SCHEDULER, ASYNC_SCHEDULER, limits, replace(MIXED, seed=seed))


def test_a_tiny_pool_makes_stock_preempt(rig: RigFactory) -> None:
    """Else the comparison above would show nothing about preemption."""
    theirs = rig(STOCK_SCHEDULER, TINY)
    play(theirs, MIXED)
    assert sum(len(one.resumed) for one in theirs.log) > 5


@pytest.mark.parametrize("seed", range(3))
def test_resets_of_the_prefix_cache_leave_decisions_as_stock(rig: RigFactory, seed: int) -> None:
    assert_same(rig, STOCK_SCHEDULER, ASYNC_SCHEDULER, TINY, replace(MIXED, seed=seed, reset_share=0.05))


@pytest.mark.parametrize("seed", range(3))
def test_priorities_decide_as_stock(rig: RigFactory, seed: int) -> None:
    limits = replace(TINY, policy="priority")
    assert_same(rig, STOCK_SCHEDULER, ASYNC_SCHEDULER, limits, replace(MIXED, seed=seed, priorities=3))


@pytest.mark.parametrize("seed", range(3))
def test_the_synchronous_class_decides_as_its_base(rig: RigFactory, seed: int) -> None:
    limits = replace(TINY, asynchronous=False)
    assert_same(rig, SYNCHRONOUS, SCHEDULER, limits, replace(MIXED, seed=seed))


def test_plans_of_segments_change_nothing_under_fcfs_and_lru(rig: RigFactory) -> None:
    assert_same(rig, STOCK_SCHEDULER, ASYNC_SCHEDULER, TINY, replace(MIXED, plans=True))


def test_the_defaults_decide_as_stock_where_nothing_is_shared_and_all_fits(rig: RigFactory) -> None:
    one_each = tuple(f"tenant {number}" for number in range(10_000))
    stream = Stream(5, salts=one_each, abort_share=0.0)
    theirs, mine = rig(STOCK_SCHEDULER, tight(2000)), rig(ASYNC_SCHEDULER, tight(2000))
    play(theirs, stream)
    play(mine, stream)
    assert [one.admitted for one in mine.log] == [one.admitted for one in theirs.log]
