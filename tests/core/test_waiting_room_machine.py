"""The waiting room against a simple model: who may be admitted, how often the oldest is overtaken, and for how long.

The model knows no order but arrival. It checks what every order owes to those it puts back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from prism.core.admission import (
    COLD,
    HOT,
    NO_LANE,
    ByArrival,
    ByBucket,
    ByHeadStart,
    ByLongestPrefix,
    Head,
    HotOrder,
    KvRoom,
    Waiting,
    WaitingRoom,
)
from prism.core.demand import DemandLedger, Weights
from prism.core.fairness import ByFairShare
from prism.core.lanes import ColdLane

ORDERS = st.sampled_from(["Prism", "Paper", "fair Prism", "fair Paper", "LPM", "FCFS"])
QUOTAS = st.sampled_from([0.0, 0.05, 0.07, 0.1, 0.3, 1 / 3, 0.34, 0.5, 0.6, 0.9, 1.0]) | st.floats(0.05, 1.0)
LANES = st.builds(ColdLane, QUOTAS, st.sampled_from([0.5, 2.0, 30.0]))


@dataclass
class Passed:
    """What the model remembers of a waiting request."""

    since: float | None = None
    in_a_row: int = 0
    under_these_settings: int = 0


class WaitingRoomMachine(RuleBasedStateMachine):
    @initialize(order=ORDERS, lane=LANES, oldest_resumes_first=st.booleans())
    def open(self, order: str, lane: ColdLane, oldest_resumes_first: bool) -> None:
        self.ledger = DemandLedger(16)
        self.cached: dict[int, int] = {}
        self.order, self.lane = order, lane
        self.room = WaitingRoom(self.new_order, lane)
        self.room.oldest_resumes_first = oldest_resumes_first
        self.waiting: dict[int, Waiting] = {}
        self.passed: dict[int, Passed] = {}
        self.resumed: list[Waiting] = []
        self.running: list[Waiting] = []
        self.now = 0.0
        self.free = 4000.0
        self.numbers = 0
        self.head: Head | None = None

    def new_order(self) -> HotOrder:
        if self.order.startswith("fair "):
            return ByFairShare(self.order_of_one, remembered=2)
        return self.order_of_one()

    def order_of_one(self) -> HotOrder:
        match self.order.removeprefix("fair "):
            case "Prism":
                return ByHeadStart(self.cached_tokens, lambda: 0.01, lambda: KvRoom(self.free, 4000), refreshed=2)
            case "Paper":
                return ByBucket(self.ledger, Weights(), refreshed=2)
            case "LPM":
                return ByLongestPrefix(self.cached_tokens, fall_back_at=5)
        return ByArrival()

    def cached_tokens(self, waiting: Waiting) -> int:
        return min(waiting.prompt_tokens, self.cached[waiting.number])

    # ---- what happens ----------------------------------------------------------------------------------------

    @rule(
        priority=st.sampled_from([0, 0, 0, 1]),
        tokens=st.integers(1, 4000),
        cached=st.integers(0, 4000),
        signature=st.sampled_from([(), (b"a",), (b"a", b"b")]),
        tenant=st.sampled_from("abcd"),
    )
    def arrive(self, priority: int, tokens: int, cached: int, signature: tuple[bytes, ...], tenant: str) -> None:
        number = self.numbers
        self.numbers += 1
        found = min(cached, tokens)
        waiting = Waiting(f"r{number}", number, priority, self.now, tokens, signature, signature, found, tenant)
        self.cached[number] = cached
        self.ledger.arrive(waiting.request, signature)
        self.room.add(waiting)
        self.waiting[number] = waiting
        self.passed[number] = Passed()

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.6, 3.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(free=st.integers(0, 4000))
    def blocks_come_and_go(self, free: int) -> None:
        self.free = free

    @rule(cached=st.integers(0, 4000))
    def begin_pass(self, cached: int) -> None:
        for number in list(self.cached)[::2]:
            self.cached[number] = cached
        self.room.begin_pass()
        self.head = None

    @rule()
    def peek(self) -> None:
        head = self.room.head(self.now)
        if self.head is not None:
            assert head is self.head, "the head is stable"
        elif head is not None:
            self.check_choice(head)
        else:
            assert not self.waiting
            assert not self.resumed
        self.head = head

    @rule(times=st.integers(1, 12))
    def admit(self, times: int) -> None:
        for _ in range(times):
            self.peek()
            if self.head is None:
                return
            waiting, lane, _ = self.head
            self.head = None
            assert self.room.remove(waiting.request) is waiting
            self.admitted(waiting, lane)
            self.running.append(waiting)

    def admitted(self, waiting: Waiting, lane: str) -> None:
        if waiting in self.resumed:
            self.resumed.remove(waiting)
            return
        in_a_row = self.passed.pop(waiting.number).in_a_row
        del self.waiting[waiting.number]
        computed = waiting.prompt_tokens - self.cached_tokens(waiting)
        assert self.room.admitted(waiting, lane, self.now, computed) == in_a_row
        self.ledger.admit(waiting.request)
        self.overtake(waiting)

    def overtake(self, waiting: Waiting) -> None:
        older = [n for n, w in sorted(self.waiting.items()) if w.priority == waiting.priority and n < waiting.number]
        for number in older:
            passed = self.passed[number]
            passed.since = self.now if passed.since is None else passed.since
        if older:
            oldest = self.passed[older[0]]
            oldest.in_a_row += 1
            oldest.under_these_settings += 1
            assert not self.has_lanes or oldest.under_these_settings <= self.bound

    @precondition(lambda self: self.waiting or self.resumed)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        waiting = data.draw(st.sampled_from([*self.waiting.values(), *self.resumed]))
        assert self.room.remove(waiting.request) is waiting
        self.waiting.pop(waiting.number, None)
        self.passed.pop(waiting.number, None)
        if waiting in self.resumed:
            self.resumed.remove(waiting)
        if self.head is not None and self.head.waiting is waiting:
            self.head = None
        self.ledger.leave(waiting.request)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        waiting = data.draw(st.sampled_from(self.running))
        self.running.remove(waiting)
        self.room.resume(waiting)
        self.resumed.append(waiting)

    @rule(order=ORDERS, lane=LANES)
    def adopt(self, order: str, lane: ColdLane) -> None:
        self.order, self.lane = order, lane
        self.room.adopt(self.new_order, lane)
        self.head = None
        for passed in self.passed.values():
            passed.under_these_settings = 0

    # ---- what must hold --------------------------------------------------------------------------------------

    @property
    def has_lanes(self) -> bool:
        return self.order not in ("LPM", "FCFS")

    @property
    def bound(self) -> float:
        return math.ceil(1 / self.lane.quota) - 1 if self.lane.quota > 0 else math.inf

    def is_overdue(self, waiting: Waiting) -> bool:
        since = self.passed[waiting.number].since
        bounded = self.has_lanes and self.lane.quota > 0
        return bounded and since is not None and self.now - since >= self.lane.max_wait_seconds

    def check_choice(self, head: Head) -> None:
        priority = head.waiting.priority
        assert priority == min(w.priority for w in [*self.waiting.values(), *self.resumed]), "the most urgent"
        resumed = [waiting for waiting in self.resumed if waiting.priority == priority]
        if resumed:
            first = min(resumed, key=lambda w: w.number) if self.room.oldest_resumes_first else resumed[-1]
            assert head == (first, NO_LANE, False), "preempted requests first"
            return
        level = [waiting for _, waiting in sorted(self.waiting.items()) if waiting.priority == priority]
        overdue = [waiting for waiting in level if self.is_overdue(waiting)]
        if overdue:
            assert head == (overdue[0], COLD, False), "overdue requests go first, the oldest of them first"
        assert head.lane in ((HOT, COLD) if self.has_lanes else (NO_LANE,))
        assert head.lane != COLD or head.waiting is level[0], "the cold lane is for the oldest"
        assert self.order != "FCFS" or head.waiting is level[0]

    @invariant()
    def everybody_is_there_once(self) -> None:
        there = sorted(waiting.request for waiting in self.room)
        assert there == sorted(waiting.request for waiting in [*self.waiting.values(), *self.resumed])
        assert len(self.room) == len(there)
        assert all(request in self.room for request in there)

    @invariant()
    def what_it_reports_is_what_the_model_counts(self) -> None:
        assert self.room.overdue(self.now) == sum(map(self.is_overdue, self.waiting.values()))
        assert self.room.oldest() is (self.waiting[min(self.waiting)] if self.waiting else None)
        assert self.room.passed_in_a_row() == max((self.passed[n].in_a_row for n in self.oldest_of_each()), default=0)
        for number, waiting in self.waiting.items():
            assert self.room.was_passed(waiting) == (self.passed[number].since is not None)

    def oldest_of_each(self) -> list[int]:
        priorities = {waiting.priority for waiting in self.waiting.values()}
        return [min(n for n, w in self.waiting.items() if w.priority == priority) for priority in priorities]


WaitingRoomMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)
TestWaitingRoom = WaitingRoomMachine.TestCase
