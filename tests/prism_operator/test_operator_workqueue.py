"""The work queue: each key at most once, never two workers on one, failures later and later."""

from __future__ import annotations

import threading

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prism_operator.workqueue import FIRST_BACK_OFF_SECONDS, LONGEST_BACK_OFF_SECONDS, WorkQueue


class Clock:
    """A clock that stands still until told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_key_that_waits_is_not_added_twice() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    queue.add("a")
    assert (queue.get(0), queue.get(0)) == ("a", None)


def test_a_change_during_a_look_is_one_look_more() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    queue.get(0)
    queue.add("a")
    queue.add("a")
    assert queue.get(0) is None
    queue.done("a")
    assert queue.get(0) == "a"
    queue.done("a")
    assert queue.get(0) is None


def test_of_several_delays_the_earliest_counts() -> None:
    clock = Clock()
    queue: WorkQueue[str] = WorkQueue(clock)
    queue.add_after("a", 60)
    queue.add_after("a", 5)
    queue.add_after("a", 30)
    clock.now += 5
    assert queue.get(0) == "a"
    queue.done("a")
    clock.now += 100
    assert queue.get(0) is None


def test_failures_come_back_later_and_later_up_to_a_bound() -> None:
    queue: WorkQueue[str] = WorkQueue(Clock())
    pauses = [queue.failed("a") for _ in range(12)]
    assert pauses[:3] == [FIRST_BACK_OFF_SECONDS, FIRST_BACK_OFF_SECONDS * 2, FIRST_BACK_OFF_SECONDS * 4]
    assert pauses[-1] == LONGEST_BACK_OFF_SECONDS


def test_a_success_forgets_the_failures() -> None:
    queue: WorkQueue[str] = WorkQueue(Clock())
    queue.failed("a")
    queue.failed("a")
    queue.done("a")
    assert queue.failed("a") == FIRST_BACK_OFF_SECONDS


def test_closing_wakes_a_waiting_worker() -> None:
    queue: WorkQueue[str] = WorkQueue()
    got: list[str | None] = ["unset"]
    worker = threading.Thread(target=lambda: got.__setitem__(0, queue.get()))
    worker.start()
    queue.close()
    worker.join(timeout=5)
    assert got == [None]


class QueueMachine(RuleBasedStateMachine):
    """Against the plain idea of it: what was asked for since a key's last look began is looked at again."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.queue: WorkQueue[int] = WorkQueue(self.clock)
        self.asked: set[int] = set()
        self.taken: set[int] = set()
        self.later: dict[int, float] = {}

    @rule(key=st.integers(0, 3))
    def add(self, key: int) -> None:
        self.queue.add(key)
        self.asked.add(key)

    @rule(key=st.integers(0, 3), seconds=st.integers(0, 5))
    def add_after(self, key: int, seconds: int) -> None:
        self.queue.add_after(key, seconds)
        self.later[key] = min(self.later.get(key, float("inf")), self.clock.now + seconds)

    @rule(seconds=st.integers(1, 3))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule()
    def take(self) -> None:
        due = {key for key, when in self.later.items() if when <= self.clock.now}
        key = self.queue.get(0)
        self.asked |= due
        self.later = {key: when for key, when in self.later.items() if key not in due}
        free = self.asked - self.taken
        assert (key in free) if free else key is None
        if key is not None:
            self.asked.discard(key)
            self.taken.add(key)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.taken)))
        self.queue.done(key)
        self.taken.discard(key)

    @invariant()
    def waits_no_more_than_was_asked(self) -> None:
        assert len(self.queue) <= len(self.asked)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=60, stateful_step_count=30)
