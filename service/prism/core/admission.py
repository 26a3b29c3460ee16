"""QAS, the query-aware scheduler: which waiting request is admitted next.

`WaitingRoom` holds the waiting requests. It serves the most urgent priority; there, in this order: requests that were
preempted (see `oldest_resumes_first`); the cold lane when it is due (see `lanes`); the hot lane, whose order is a
policy:

    ByArrival            first come, first served
    ByLongestPrefix      most cached tokens first, first come first served from a number of waiting requests on
    ByBucket             the paper's: requests with the same leading segments together, largest and most useful first
    ByHeadStart          arrival minus a multiple of the prefill time that its cached tokens save; while a great prompt
                         does not fit, those that do go before it
    ByFairShare          one of these inside each tenant, and equal shares between them (see `fairness`)

The head is chosen at `head` and stays until it is taken, removed, or a new pass begins. Work per choice does not grow
with the number of waiting requests: policies keep their order as requests come and go, and look again only at a
bounded window of it.

Pure: times are given, cached tokens are asked for through a callable without side effects.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import NamedTuple, Protocol

from sortedcontainers import SortedDict, SortedKeyList

from prism.core.demand import DemandLedger, Utility, Weights
from prism.core.lanes import ColdLane, LaneLedger

HOT, COLD, NO_LANE = "hot", "cold", "none"


@dataclass(eq=False, slots=True)
class Waiting:
    """A waiting request, as the policies see it.

    Attributes:
        request: its id.
        number: its place in the order of arrival.
        priority: smaller is more urgent.
        arrived_at: seconds, on the clock that the room is given.
        prompt_tokens: length of its prompt.
        signature: its leading high-priority segments, in order; empty without any.
        groups: the demand groups of its reusable segments.
        cached_at_arrival: prompt tokens it would have found cached when it arrived.
        tenant: whose it is, where tenants share alike.
        key: what its order sorts it by, where that is a number.
        cached: prompt tokens it would have found cached when its key was last taken.
        active: it has been admitted before.
        made_way: others went before it because it is great and did not fit.
        excused: it was taken because nothing could make room for the head, which is no overtaking.
    """

    request: str
    number: int
    priority: int
    arrived_at: float
    prompt_tokens: int
    signature: tuple[bytes, ...] = ()
    groups: tuple[bytes, ...] = ()
    cached_at_arrival: int = 0
    tenant: str = ""
    key: float = field(default=0.0, init=False)
    cached: int = field(default=0, init=False)
    active: bool = field(default=False, init=False)
    made_way: bool = field(default=False, init=False)
    excused: bool = field(default=False, init=False)


CachedTokens = Callable[[Waiting], int]
"""Prompt tokens a request would find cached now, in the best order it may take. No side effects."""


class KvRoom(NamedTuple):
    """The KV cache, in tokens: what is free now, and what would be if nothing ran."""

    free: float
    attainable: float


def without_bounds() -> KvRoom:
    """A KV cache in which everybody fits."""
    return KvRoom(inf, inf)


class HotOrder(Protocol):
    """Chooses among the waiting requests of one priority."""

    has_lanes: bool
    """Whether the cold lane stands beside this order; False where arrival is the order."""

    def add(self, waiting: Waiting) -> None: ...

    def remove(self, waiting: Waiting) -> None: ...

    def admitted(self, waiting: Waiting, computed_tokens: int) -> None:
        """A request that this order chose, and that was removed, runs.

        Args:
            computed_tokens: prompt tokens that were not cached.
        """
        return

    def look_ahead(self, count: int) -> None:
        """Before a pass, while there is time: have ready what it takes to choose `count` requests."""
        return

    def begin_pass(self) -> None:
        """Scores are taken anew when next asked, and frozen then until the next pass."""
        ...

    def first(self) -> Waiting:
        """The one to admit. There is at least one."""
        ...

    def __iter__(self) -> Iterator[Waiting]:
        """All of them, roughly in the order in which they would be served."""
        ...


class ByArrival(HotOrder):
    """First come, first served: stock vLLM's order."""

    has_lanes = False

    def __init__(self) -> None:
        self._by_number: SortedDict[int, Waiting] = SortedDict()

    def add(self, waiting: Waiting) -> None:
        self._by_number[waiting.number] = waiting

    def remove(self, waiting: Waiting) -> None:
        del self._by_number[waiting.number]

    def begin_pass(self) -> None:
        pass

    def first(self) -> Waiting:
        first: Waiting = self._by_number.peekitem(0)[1]
        return first

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._by_number.values())


class ByLongestPrefix(ByArrival):
    """Most cached tokens first; by arrival from `fall_back_at` waiting requests on, as SGLang does."""

    def __init__(self, cached_tokens: CachedTokens, fall_back_at: int = 128) -> None:
        super().__init__()
        self._cached_tokens = cached_tokens
        self._fall_back_at = fall_back_at
        self._scores: dict[int, int] = {}

    def begin_pass(self) -> None:
        self._scores.clear()

    def first(self) -> Waiting:
        if len(self._by_number) >= self._fall_back_at:
            return super().first()
        waiting: list[Waiting] = list(self._by_number.values())
        return min(waiting, key=lambda w: (-self._score(w), w.number))

    def _score(self, waiting: Waiting) -> int:
        score = self._scores.get(waiting.number)
        if score is None:
            score = self._scores[waiting.number] = self._cached_tokens(waiting)
        return score


class _Bucket:
    __slots__ = ("members", "score", "signature")

    def __init__(self, signature: tuple[bytes, ...]) -> None:
        self.signature = signature
        self.members: SortedDict[int, Waiting] = SortedDict()
        self.score: tuple[int, Utility, int] = (0, (), 0)


class ByBucket(HotOrder):
    """The paper's hot lane: buckets of requests whose leading high-priority segments are the same.

    A bucket's score is its size, then its mean utility, both descending; inside it, and between equals, by arrival.
    Sizes are kept as requests come and go; utilities, which change with every arrival, are taken anew for the best
    `refreshed` buckets of a pass only.
    """

    has_lanes = True

    def __init__(self, ledger: DemandLedger, weights: Weights, refreshed: int = 16) -> None:
        self._ledger = ledger
        self._weights = weights
        self._refreshed = refreshed
        self._buckets: dict[tuple[bytes, ...], _Bucket] = {}
        self._by_score: SortedKeyList[_Bucket] = SortedKeyList(key=lambda bucket: bucket.score)
        self._stale = True

    def add(self, waiting: Waiting) -> None:
        bucket = self._buckets.get(waiting.signature)
        if bucket is None:
            bucket = self._buckets[waiting.signature] = _Bucket(waiting.signature)
        else:
            self._by_score.remove(bucket)
        bucket.members[waiting.number] = waiting
        self._place(bucket)

    def remove(self, waiting: Waiting) -> None:
        bucket = self._buckets[waiting.signature]
        self._by_score.remove(bucket)
        del bucket.members[waiting.number]
        if bucket.members:
            self._place(bucket)
        else:
            del self._buckets[waiting.signature]

    def begin_pass(self) -> None:
        self._stale = True

    def first(self) -> Waiting:
        if self._stale:
            self._stale = False
            for bucket in list(self._by_score[: self._refreshed]):
                self._by_score.remove(bucket)
                self._place(bucket)
        first: Waiting = self._by_score[0].members.peekitem(0)[1]
        return first

    def __iter__(self) -> Iterator[Waiting]:
        for bucket in self._by_score:
            yield from bucket.members.values()

    def _place(self, bucket: _Bucket) -> None:
        oldest: int = bucket.members.peekitem(0)[0]
        # Requests without a high-priority segment have nothing in common: each counts for one.
        size = len(bucket.members) if bucket.signature else 1
        mean = tuple(-worth for worth in self._mean_utility(bucket.signature))
        bucket.score = (-size, mean, oldest)
        self._by_score.add(bucket)

    def _mean_utility(self, signature: tuple[bytes, ...]) -> Utility:
        if not signature:
            return self._weights.utility(0, 0, 0)
        worths = [self._weights.of(self._ledger.demand(group)) for group in signature]
        return tuple(sum(column) / len(worths) for column in zip(*worths, strict=True))


_GREAT = 1 / 4
"""Of the KV cache: a prompt that needs more is great."""
_PASSING = 16
"""How many of those behind a great prompt are looked at for one that fits."""


def _needs(waiting: Waiting) -> int:
    return waiting.prompt_tokens - waiting.cached


class ByHeadStart(HotOrder):
    """Least of arrival − β × (seconds of prefill that its cached tokens save) first.

    A prefix that is cached now may be gone by the time its request would come up by arrival; then its tokens are
    computed again, and everybody waits for that. So those who have much to lose get a head start, worth β times what
    they would lose. It bounds every wait by itself: nobody is passed by a request that arrived later than by β times
    what that one saves, but for great prompts. Where nothing is cached it is the order of arrival.

    Keys are kept as of arrival. What was cached then may have been given up meanwhile, so whoever stands first is
    looked at again before it is served, once a pass, and a few others in turn; ahead of the pass, where there is time.

    A great prompt, one that needs more than a quarter of the KV cache, may stand first for seconds until so much is
    free. Meanwhile those of the next sixteen that fit go before it, and each of them counts as passing it: the cold
    lane bounds how many. A lesser prompt waits less than others would gain; one that nothing running could make room
    for is not for an order to pass (see `WaitingRoom.step_over_head`).

    Args:
        seconds_per_token: what a prefilled token costs now.
        kv_room: the KV cache as it is now.
        head_start: β, without a unit.
        refreshed: how many keys are taken anew at most before one is served; half as many others once a pass, in turn.
    """

    has_lanes = True

    def __init__(
        self,
        cached_tokens: CachedTokens,
        seconds_per_token: Callable[[], float],
        kv_room: Callable[[], KvRoom] = without_bounds,
        head_start: float = 8.0,
        refreshed: int = 8,
    ) -> None:
        self._cached_tokens = cached_tokens
        self._seconds_per_token = seconds_per_token
        self._kv_room = kv_room
        self._head_start = head_start
        self._refreshed = refreshed
        self._by_key: SortedKeyList[Waiting] = SortedKeyList(key=lambda waiting: (waiting.key, waiting.number))
        self._in_turn: OrderedDict[Waiting, None] = OrderedDict()
        self._fresh: set[Waiting] = set()
        self._stale = True
        self._looked_ahead = False

    def add(self, waiting: Waiting) -> None:
        self._in_turn[waiting] = None
        self._place(waiting, waiting.cached_at_arrival)

    def remove(self, waiting: Waiting) -> None:
        del self._in_turn[waiting]
        self._by_key.remove(waiting)
        self._fresh.discard(waiting)

    def look_ahead(self, count: int) -> None:
        self._looked_ahead = True
        self._fresh.clear()
        self._look_at_others()
        for _ in range(self._refreshed + count):
            stale = next((waiting for waiting in islice(self._by_key, count) if waiting not in self._fresh), None)
            if stale is None:
                return
            self._refresh(stale)

    def begin_pass(self) -> None:
        self._stale = not self._looked_ahead
        self._looked_ahead = False

    def first(self) -> Waiting:
        if self._stale:
            self._stale = False
            self._fresh.clear()
            self._look_at_others()
        first: Waiting = self._by_key[0]
        for _ in range(self._refreshed):
            if first in self._fresh:
                break
            self._refresh(first)
            first = self._by_key[0]
        return self._passing(first)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._by_key)

    def _passing(self, first: Waiting) -> Waiting:
        """Who goes before this one because it is great and does not fit; itself, where it is not or nobody does."""
        free, attainable = self._kv_room()
        if not max(free, attainable * _GREAT) < _needs(first) <= attainable:
            return first
        behind = islice(self._by_key, 1, 1 + _PASSING)
        passing: Waiting | None = next((waiting for waiting in behind if _needs(waiting) <= free), None)
        if passing is None:
            return first
        first.made_way = True
        return passing

    def _look_at_others(self) -> None:
        for waiting in list(islice(self._in_turn, self._refreshed // 2)):
            self._in_turn.move_to_end(waiting)
            self._refresh(waiting)

    def _refresh(self, waiting: Waiting) -> None:
        self._fresh.add(waiting)
        self._by_key.remove(waiting)
        self._place(waiting, self._cached_tokens(waiting))

    def _place(self, waiting: Waiting, cached: int) -> None:
        waiting.cached = cached
        waiting.key = waiting.arrived_at - self._head_start * cached * self._seconds_per_token()
        self._by_key.add(waiting)


class Head(NamedTuple):
    """The request to admit next, the lane it goes through, and whether it stands in for one that can't fit."""

    waiting: Waiting
    lane: str
    excused: bool = False


class _Level:
    """The waiting requests of one priority."""

    def __init__(self, order: HotOrder, lane: ColdLane) -> None:
        self.order = order
        self.lanes = LaneLedger(lane)
        self.by_number: SortedDict[int, Waiting] = SortedDict()
        self.passes = 0
        """The last pass that its order has begun."""

    @property
    def oldest(self) -> Waiting:
        oldest: Waiting = self.by_number.peekitem(0)[1]
        return oldest

    def add(self, waiting: Waiting) -> None:
        self.by_number[waiting.number] = waiting
        self.order.add(waiting)

    def remove(self, waiting: Waiting) -> None:
        del self.by_number[waiting.number]
        self.order.remove(waiting)

    def head(self, now: float) -> Head:
        if not self.order.has_lanes:
            return Head(self.order.first(), NO_LANE)
        oldest = self.oldest
        if self.lanes.is_overdue(oldest.number, now):
            return Head(oldest, COLD)
        first = self.order.first()
        if self.lanes.is_due() and first is not oldest:
            return Head(oldest, COLD)
        return Head(first, HOT)

    def replace_order(self, order: HotOrder) -> None:
        for waiting in self.by_number.values():
            order.add(waiting)
        self.order = order


class WaitingRoom:
    """All waiting requests of one engine.

    Args:
        new_order: makes the hot lane's order for one priority.
        lane: settings of the cold lane.
    """

    def __init__(self, new_order: Callable[[], HotOrder], lane: ColdLane) -> None:
        self._new_order = new_order
        self._lane = lane
        self._levels: SortedDict[int, _Level] = SortedDict()
        self._emptied: set[int] = set()
        """Priorities at which perhaps nobody waits any more."""
        self._passes = 0
        self._waiting: dict[str, Waiting] = {}
        self._resumed: dict[int, list[Waiting]] = {}
        """Preempted requests by priority; the last of a list goes first."""
        self.oldest_resumes_first = False
        """Among preempted requests of one priority: the oldest first, and not the one preempted last."""
        self._head: Head | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request: str) -> bool:
        return request in self._waiting

    def add(self, waiting: Waiting) -> None:
        """A request begins to wait.

        Raises:
            ValueError: it waits already.
        """
        self._enter(waiting)
        self._level(waiting.priority).add(waiting)

    def resume(self, waiting: Waiting) -> None:
        """A preempted request waits again, before all others of its priority.

        Raises:
            ValueError: it waits already.
        """
        self._enter(waiting)
        resumed = self._resumed.setdefault(waiting.priority, [])
        if self.oldest_resumes_first:
            insort(resumed, waiting, key=lambda one: -one.number)
        else:
            resumed.append(waiting)

    def remove(self, request: str) -> Waiting | None:
        """It waits no longer, for whatever reason. None if it did not wait."""
        waiting = self._waiting.pop(request, None)
        if waiting is None:
            return None
        if self._head is not None and self._head.waiting is waiting:
            waiting.excused = self._head.excused
            self._head = None
        resumed = self._resumed.get(waiting.priority, [])
        if waiting in resumed:
            resumed.remove(waiting)
            if not resumed:
                del self._resumed[waiting.priority]
        else:
            level = self._levels[waiting.priority]
            level.remove(waiting)
            if not level.by_number:
                self._emptied.add(waiting.priority)
        return waiting

    def begin_pass(self) -> None:
        """Scores and head are taken anew."""
        self._head = None
        self._passes += 1
        for priority in self._emptied:
            level = self._levels.get(priority)
            if level is not None and not level.by_number:
                del self._levels[priority]
        self._emptied.clear()
        if self._levels:
            self._begin(self._levels.values()[0])

    def look_ahead(self, count: int, now: float) -> list[Waiting]:
        """Before a pass, while there is time: have ready what it takes to choose `count` requests.

        Returns:
            Whom it will likely choose: the first of the order, and those whom the cold lane would take.
        """
        level = next((level for level in self._levels.values() if level.by_number), None)
        if level is None:
            return []
        level.order.look_ahead(count)
        likely = list(islice(level.order, count))
        if not level.order.has_lanes:
            return likely
        cold = count if level.lanes.is_overdue(level.oldest.number, now) else 2
        return likely + [waiting for waiting in level.by_number.values()[:cold] if waiting not in likely]

    def head(self, now: float) -> Head | None:
        """The request to admit next; the same until it is removed or a pass begins."""
        if self._head is None and self._waiting:
            self._head = self._choose(now)
        return self._head

    def lane_of(self, request: str) -> str:
        """The lane through which this request would be admitted now: that of the head, if it is the head."""
        head = self._head
        return head.lane if head is not None and head.waiting.request == request else NO_LANE

    def step_over_head(self, fits: Callable[[Waiting], bool], limit: int = 64) -> bool:
        """Nothing that runs could make room for the head: let the first of the next `limit` that fits go before it.

        Returns:
            Whether there is one. It stays the head until it is removed or a pass begins.
        """
        for waiting in islice(self, limit):
            if fits(waiting):
                lane = HOT if self._level(waiting.priority).order.has_lanes else NO_LANE
                self._head = Head(waiting, lane, excused=True)
                return True
        return False

    def admitted(self, waiting: Waiting, lane: str, now: float, computed_tokens: int = 0) -> int:
        """A request that was the head and was removed has been admitted.

        Args:
            computed_tokens: prompt tokens that were not cached.

        Returns:
            How many admissions in a row had passed it while it was the oldest of its priority.
        """
        level = self._level(waiting.priority)
        oldest = min(waiting.number, level.oldest.number) if level.by_number else waiting.number
        passed = level.lanes.passed_in_a_row(waiting.number)
        if not waiting.excused:
            level.lanes.admitted(waiting.number, oldest, lane == COLD, now)
        level.lanes.forget_before(oldest)
        if lane == HOT:
            level.order.admitted(waiting, computed_tokens)
        return passed

    def was_passed(self, waiting: Waiting) -> bool:
        """Whether a younger request of its priority was admitted while it waited."""
        return self._level(waiting.priority).lanes.first_passed_at(waiting.number) is not None

    def oldest(self) -> Waiting | None:
        """The one that has waited longest, over all priorities."""
        candidates = [level.oldest for level in self._levels.values() if level.by_number]
        return min(candidates, key=lambda w: w.number, default=None)

    def passed_in_a_row(self) -> int:
        """Most admissions in a row that have passed the oldest request of a priority, now."""
        levels = (level for level in self._levels.values() if level.by_number)
        return max((level.lanes.passed_in_a_row(level.oldest.number) for level in levels), default=0)

    def passes_left(self, now: float) -> tuple[int, float]:
        """The number of the oldest of the most urgent priority, and how many admissions in a row may still pass it."""
        level = next((level for level in self._levels.values() if level.by_number), None)
        if level is None or not level.order.has_lanes:
            return 0, inf
        oldest = level.oldest.number
        return oldest, 0 if level.lanes.is_overdue(oldest, now) else level.lanes.passes_left()

    def overdue(self, now: float) -> int:
        """How many requests are overdue, counted up to 64 for each priority."""
        count = 0
        for level in self._levels.values():
            for number in level.by_number.islice(stop=64):
                if not level.order.has_lanes or not level.lanes.is_overdue(number, now):
                    break
                count += 1
        return count

    def adopt(self, new_order: Callable[[], HotOrder], lane: ColdLane) -> None:
        """Obey other settings from now on; nobody loses the place that arrival gave them."""
        self._new_order = new_order
        self._lane = lane
        self._head = None
        for level in self._levels.values():
            level.lanes.set_lane(lane)
            level.replace_order(new_order())

    def __iter__(self) -> Iterator[Waiting]:
        """All of them, roughly in the order in which they would be served."""
        for priority in sorted({*self._levels, *self._resumed}):
            yield from reversed(self._resumed.get(priority, []))
            if priority in self._levels:
                yield from self._levels[priority].order

    def _enter(self, waiting: Waiting) -> None:
        if waiting.request in self._waiting:
            raise ValueError(f"request {waiting.request} waits already")
        self._waiting[waiting.request] = waiting

    def _level(self, priority: int) -> _Level:
        level: _Level | None = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = _Level(self._new_order(), self._lane)
            self._emptied.add(priority)
        return level

    def _begin(self, level: _Level) -> None:
        # Told to an order when it is asked: a pass must not grow with the number of priorities.
        if level.passes != self._passes:
            level.passes = self._passes
            level.order.begin_pass()

    def _choose(self, now: float) -> Head:
        priority = next((p for p, level in self._levels.items() if level.by_number), None)
        if self._resumed:
            first_resumed = min(self._resumed)
            priority = first_resumed if priority is None else min(priority, first_resumed)
        assert priority is not None
        resumed = self._resumed.get(priority)
        if resumed:
            return Head(resumed[-1], NO_LANE)
        level = self._level(priority)
        self._begin(level)
        return level.head(now)
