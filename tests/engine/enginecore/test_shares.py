"""Equal shares between tenants on vLLM's own scheduler."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.engine.enginecore.rig import SMALL, Rig, RigFactory, Stream, play, spec_of, tight, tokens_of

from prism.core.namespace import namespace

ORDERS = pytest.mark.parametrize("order", ["Prism", "Paper"])
SLOW = replace(SMALL, max_running=1)
FAIR = {"enabled": True}


def flood(one: Rig, requests: int = 12) -> None:
    """One tenant asks a lot, then another asks twice."""
    for number in range(requests):
        one.add(f"flood-{number}", tokens_of(number, 60), salt=namespace("flood"))
    for number in range(2):
        one.add(f"quiet-{number}", tokens_of(f"q{number}", 60), salt=namespace("quiet"))


@ORDERS
def test_a_quiet_tenant_is_served_in_turns_with_a_flood(rig: RigFactory, order: str) -> None:
    one = rig(limits=SLOW, spec=spec_of(order, fairness=FAIR, coldLane={"quota": 0}))
    flood(one)
    one.run()
    assert [name[:5] for name in one.admitted[:4]] in (["flood", "quiet", "flood", "quiet"], ["flood", "quiet"] * 2)


@ORDERS
def test_without_shares_it_waits_behind_the_flood(rig: RigFactory, order: str) -> None:
    one = rig(limits=SLOW, spec=spec_of(order, coldLane={"quota": 0}))
    flood(one)
    one.run()
    assert {name[:5] for name in one.admitted[:12]} == {"flood"}


def test_shares_begin_and_end_between_two_passes(rig: RigFactory) -> None:
    one = rig(limits=SLOW, spec=spec_of(coldLane={"quota": 0}))
    flood(one)
    while len(one.admitted) < 3:
        one.move()
    one.prism.adopt_settings(spec_of(fairness=FAIR, coldLane={"quota": 0}))
    while len(one.admitted) < 5:
        one.move()
    one.prism.adopt_settings(spec_of(coldLane={"quota": 0}))
    one.run()
    assert one.admitted.index("quiet-0") in (3, 4)
    assert one.admitted[-1] == "quiet-1"


@ORDERS
def test_the_oldest_is_overtaken_no_more_often_than_without(rig: RigFactory, order: str) -> None:
    one = rig(limits=SLOW, spec=spec_of(order, fairness=FAIR, coldLane={"quota": 0.25, "maxWaitSeconds": 1e6}))
    for number in range(6):
        one.add(f"old-{number}", tokens_of(number, 200), salt=namespace("old"))
    for number in range(60):
        one.add(f"other-{number}", tokens_of(("other", number), 20), salt=namespace(f"tenant-{number % 5}"))
    longest = 0
    while one.engine.can_schedule or one.engine.in_flight:
        one.move()
        longest = max(longest, one.prism.decisions.room.passed_in_a_row())
    assert 0 < longest <= 3


@ORDERS
@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_left_behind(rig: RigFactory, order: str, seed: int) -> None:
    salts = (None, namespace("a"), namespace("b"), namespace(None, "adapter", 1))
    one = rig(limits=tight(28), spec=spec_of(order, fairness=FAIR))
    play(one, Stream(seed, salts=salts, plans=True, reset_share=0.03))
    assert not any(one.leftovers().values())
