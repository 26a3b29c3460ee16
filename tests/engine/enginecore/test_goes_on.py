"""Whatever comes, in whatever order, under whatever settings: work goes on, and nothing of it stays behind."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
from tests.engine.enginecore.rig import Rig, RigFactory, Stream, play, spec_of, tight

from prism.config.schema import PrismSpec
from prism.engine.internals import ASYNC_SCHEDULER, SCHEDULER

ORDERS, RETENTIONS = ("Prism", "Paper", "FCFS", "LPM"), ("DemandAware", "LRU")
ROUGH = Stream(0, salts=(None, "a"), plans=True, abort_share=0.05, reset_share=0.03)
TINY = tight(28)


def assert_nothing_stays(rig: Rig) -> None:
    leftovers = rig.leftovers()
    assert not any(leftovers.values()), leftovers


def by_chance(rig: Rig, specs: list[PrismSpec]) -> Callable[[random.Random], None]:
    def between(chance: random.Random) -> None:
        if chance.random() < 0.1:
            rig.prism.adopt_settings(chance.choice(specs))

    return between


@pytest.mark.parametrize(("order", "retention"), list(product(ORDERS, RETENTIONS)))
def test_every_policy_serves_a_rough_stream_to_its_end(rig: RigFactory, order: str, retention: str) -> None:
    one = rig(ASYNC_SCHEDULER, TINY, spec_of(order, retention))
    play(one, replace(ROUGH, seed=len(order) * 10 + len(retention)))
    assert_nothing_stays(one)


@pytest.mark.parametrize("seed", range(4))
def test_settings_may_change_between_any_two_passes(rig: RigFactory, seed: int) -> None:
    one = rig(ASYNC_SCHEDULER, TINY)
    specs = [spec_of(order, retention, window={"arrivals": 64}) for order, retention in product(ORDERS, RETENTIONS)]
    specs += [PrismSpec(), spec_of(coldLane={"quota": 0}), spec_of("Paper", coldLane={"quota": 1}, lexicographic=True)]
    play(one, replace(ROUGH, seed=seed), by_chance(one, specs))
    assert_nothing_stays(one)


@pytest.mark.parametrize("order", ORDERS)
def test_priorities_preempt_and_leave_nothing(rig: RigFactory, order: str) -> None:
    one = rig(ASYNC_SCHEDULER, replace(TINY, policy="priority"), spec_of(order))
    play(one, replace(ROUGH, seed=7, priorities=3))
    assert_nothing_stays(one)


@pytest.mark.parametrize("order", ORDERS)
def test_the_synchronous_class_serves_a_rough_stream_to_its_end(rig: RigFactory, order: str) -> None:
    one = rig(SCHEDULER, replace(TINY, asynchronous=False), spec_of(order))
    play(one, replace(ROUGH, seed=8))
    assert_nothing_stays(one)
