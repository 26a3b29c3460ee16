"""Equal shares between tenants in the hot lane, and the order inside each of them as without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.core.admission import (
    COLD,
    ByArrival,
    ByBucket,
    ByHeadStart,
    HotOrder,
    Waiting,
    WaitingRoom,
)
from prism.core.demand import DemandLedger, Weights
from prism.core.fairness import ByFairShare
from prism.core.lanes import ColdLane

TENANTS = st.sampled_from("abc")
COSTS = st.integers(1, 2000)
MOVES = st.lists(
    st.tuples(TENANTS, COSTS) | st.just("admit") | st.just("give up"),
    min_size=1,
    max_size=120,
)
Move = tuple[str, int] | str

NO_COLD_LANE = ColdLane(0.0)


ORDERS: dict[str, Callable[[], HotOrder]] = {
    "Prism": lambda: ByHeadStart(lambda one: one.cached_at_arrival, lambda: 0.01, refreshed=2),
    "Paper": lambda: ByBucket(DemandLedger(16), Weights(), refreshed=2),
    "by arrival": ByArrival,
}
EVERY_ORDER = pytest.mark.parametrize("new_order", ORDERS.values(), ids=ORDERS)


@dataclass
class Queue:
    """A waiting room whose requests' costs are known, and what was admitted from it."""

    room: WaitingRoom
    numbers: int = 0

    @classmethod
    def fair(cls, new_order: Callable[[], HotOrder] = ByArrival, lane: ColdLane = NO_COLD_LANE) -> Queue:
        return cls(WaitingRoom(lambda: ByFairShare(new_order), lane))

    def arrive(self, tenant: str, cost: int = 100, signature: tuple[bytes, ...] = ()) -> str:
        name = f"{tenant}{self.numbers}"
        self.room.add(Waiting(name, self.numbers, 0, 0.0, cost, signature, tenant=tenant))
        self.numbers += 1
        return name

    def admit(self) -> Waiting:
        self.room.begin_pass()
        head = self.room.head(0.0)
        assert head is not None
        self.room.remove(head.waiting.request)
        self.room.admitted(head.waiting, head.lane, 0.0, head.waiting.prompt_tokens)
        return head.waiting

    def admit_all(self) -> list[str]:
        return [self.admit().request for _ in range(len(self.room))]

    def waiting_of(self, tenant: str) -> int:
        return sum(one.tenant == tenant for one in self.room)


@EVERY_ORDER
@given(moves=MOVES)
def test_two_tenants_that_both_wait_differ_by_at_most_one_request_of_each(
    new_order: Callable[[], HotOrder], moves: list[Move]
) -> None:
    queue = Queue.fair(new_order)
    dearest = dict.fromkeys("abc", 0)
    spans: dict[tuple[str, str], list[Waiting]] = {pair: [] for pair in combinations("abc", 2)}
    for move in moves:
        if isinstance(move, tuple):
            queue.arrive(*move)
            dearest[move[0]] = max(dearest[move[0]], move[1])
        elif len(queue.room):
            served = queue.admit() if move == "admit" else None
            if served is None:
                queue.room.remove(next(iter(queue.room)).request)
            for pair, span in spans.items():
                if served is not None:
                    span.append(served)
                assert_shared_alike(pair, span, sum(dearest[tenant] for tenant in pair))
        for (one, other), span in spans.items():
            if not (queue.waiting_of(one) and queue.waiting_of(other)):
                span.clear()


def assert_shared_alike(pair: tuple[str, str], span: list[Waiting], most: int) -> None:
    """Over every part of the span that ends now."""
    had = dict.fromkeys(pair, 0)
    for served in reversed(span):
        if served.tenant in had:
            had[served.tenant] += served.prompt_tokens
        one, other = had.values()
        assert abs(one - other) <= most


@pytest.mark.parametrize("name", ["Prism", "Paper", "by arrival"])
@given(moves=st.lists(st.tuples(COSTS, st.sampled_from([(), (b"x",), (b"y",)])) | st.just("admit"), max_size=80))
def test_one_tenant_alone_is_served_as_without_shares(
    name: str, moves: list[tuple[int, tuple[bytes, ...]] | str]
) -> None:
    fair, plain = Queue.fair(ORDERS[name]), Queue(WaitingRoom(ORDERS[name], NO_COLD_LANE))
    for move in moves:
        if isinstance(move, tuple):
            cost, signature = move
            for queue in (fair, plain):
                queue.arrive("", cost, signature)
        elif len(plain.room):
            assert fair.admit().request == plain.admit().request
    assert fair.admit_all() == plain.admit_all()


def test_a_quiet_tenant_does_not_wait_behind_a_flood() -> None:
    queue = Queue.fair()
    for _ in range(1000):
        queue.arrive("flood")
    for _ in range(50):
        queue.admit()
    quiet = queue.arrive("quiet")
    assert quiet in [queue.admit().request for _ in range(2)]


def test_shares_are_of_tokens_and_not_of_requests() -> None:
    queue = Queue.fair()
    for _ in range(40):
        queue.arrive("long", 1000)
        queue.arrive("short", 100)
    served = [queue.admit().tenant for _ in range(22)]
    assert (served.count("long"), served.count("short")) == (2, 20)


def test_time_in_which_a_tenant_asked_for_nothing_is_no_credit() -> None:
    queue = Queue.fair()
    for _ in range(60):
        queue.arrive("busy")
    for _ in range(20):
        queue.admit()
    for _ in range(10):
        queue.arrive("late")
    served = [queue.admit().tenant for _ in range(10)]
    assert served.count("late") == 5


def test_a_tenant_that_leaves_and_comes_back_still_owes() -> None:
    queue = Queue.fair()
    for _ in range(20):
        queue.arrive("other")
    queue.arrive("guest", 1000)
    while queue.waiting_of("guest"):
        queue.admit()
    queue.arrive("guest")
    served = [queue.admit().tenant for _ in range(9)]
    assert served == ["other"] * 9


def test_with_nobody_waiting_all_are_equal_again() -> None:
    queue = Queue.fair()
    queue.arrive("a", 1000)
    queue.admit()
    queue.arrive("a")
    queue.arrive("b")
    assert queue.admit_all() == ["a1", "b2"]


def test_what_is_remembered_of_idle_tenants_is_bounded_and_forgetting_is_no_gain() -> None:
    order = ByFairShare(ByArrival, remembered=4)
    steady = Waiting("steady", 0, 0, 0.0, 1, tenant="steady")
    order.add(steady)
    for number in range(1, 200):
        guest = Waiting(f"g{number}", number, 0, 0.0, 100, tenant=f"guest{number}")
        order.add(guest)
        order.remove(guest)
        order.admitted(guest, 100)
        assert len(order._idle) <= 4
    back = Waiting("back", 200, 0, 0.0, 100, tenant="guest1")
    order.add(back)
    assert order.first() is steady, "guest1 was forgotten, and starts no lower than it had ended"


def test_a_fully_cached_prompt_is_not_free() -> None:
    order = ByFairShare(ByArrival)
    for number, tenant in enumerate(["cached", "cached", "other"]):
        order.add(Waiting(f"r{number}", number, 0, 0.0, 100, tenant=tenant))
    first = order.first()
    order.remove(first)
    order.admitted(first, 0)
    assert order.first().tenant == "other"


def test_only_the_tenant_that_is_next_is_looked_at() -> None:
    asked: list[str] = []

    def look(waiting: Waiting) -> int:
        asked.append(waiting.tenant)
        return 0

    order = ByFairShare(lambda: ByHeadStart(look, lambda: 0.01, refreshed=2))
    for number in range(100):
        order.add(Waiting(f"r{number}", number, 0, 0.0, 100, tenant=f"t{number}"))
    order.begin_pass()
    order.first()
    assert asked == ["t0"]


def test_the_cold_lane_is_not_charged_and_goes_on_as_before() -> None:
    queue = Queue.fair(lane=ColdLane(0.5, 1000.0))
    for _ in range(8):
        queue.arrive("flood")
    for _ in range(4):
        queue.arrive("quiet")
    lanes = []
    for _ in range(8):
        queue.room.begin_pass()
        head = queue.room.head(0.0)
        assert head is not None
        queue.room.remove(head.waiting.request)
        queue.room.admitted(head.waiting, head.lane, 0.0, 100)
        lanes.append((head.waiting.tenant, head.lane == COLD))
    hot = [tenant for tenant, cold in lanes if not cold]
    assert abs(hot.count("flood") - hot.count("quiet")) <= 1
    assert any(cold for _, cold in lanes)


def test_a_head_that_cannot_fit_is_passed_by_the_next_tenant_and_not_by_the_flood_behind_it() -> None:
    queue = Queue.fair()
    for _ in range(100):
        queue.arrive("flood", 500)
    small = queue.arrive("quiet", 1)
    assert queue.room.step_over_head(lambda one: one.prompt_tokens < 10)
    head = queue.room.head(0.0)
    assert head is not None
    assert head.waiting.request == small
