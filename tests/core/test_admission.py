"""The orders of the hot lane, and how the waiting room chooses its head."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from prism.core.admission import (
    COLD,
    HOT,
    NO_LANE,
    ByArrival,
    ByBucket,
    ByHeadStart,
    ByLongestPrefix,
    CachedTokens,
    Head,
    HotOrder,
    KvRoom,
    Waiting,
    WaitingRoom,
)
from prism.core.demand import DemandLedger, Weights
from prism.core.lanes import ColdLane


def request(
    number: int,
    signature: Iterable[bytes] = (),
    *,
    at: float = 0.0,
    priority: int = 0,
    tokens: int = 100,
    cached: int = 0,
) -> Waiting:
    return Waiting(f"r{number}", number, priority, at, tokens, tuple(signature), (), cached)


def filled(order: HotOrder, *waiting: Waiting) -> HotOrder:
    for one in waiting:
        order.add(one)
    return order


def room_of(new_order: Callable[[], HotOrder], *waiting: Waiting, lane: ColdLane | None = None) -> WaitingRoom:
    room = WaitingRoom(new_order, lane or ColdLane())
    for one in waiting:
        room.add(one)
    return room


def served(order: HotOrder) -> list[int]:
    """Everybody, one by one, in the order in which they are admitted."""
    out = []
    while any(True for _ in order):
        out.append(take(order))
    return out


def take(order: HotOrder) -> int:
    first = order.first()
    order.remove(first)
    return first.number


class Look:
    """Looks cached tokens up, and remembers for whom."""

    def __init__(self) -> None:
        self.at: list[int] = []

    def __call__(self, waiting: Waiting) -> int:
        self.at.append(waiting.number)
        return 0


def admit(room: WaitingRoom, now: float) -> tuple[str, str]:
    head = room.head(now)
    assert head is not None
    room.remove(head.waiting.request)
    room.admitted(head.waiting, head.lane, now)
    return head.waiting.request, head.lane


# --- by arrival -------------------------------------------------------------------------------------------------


def test_by_arrival_is_first_come_first_served() -> None:
    order = filled(ByArrival(), request(2), request(0), request(1))
    order.begin_pass()
    assert [waiting.number for waiting in order] == [0, 1, 2]
    assert served(order) == [0, 1, 2]


# --- by longest prefix ------------------------------------------------------------------------------------------


def test_the_longest_cached_prefix_goes_first_and_equals_by_arrival() -> None:
    cached = {0: 16, 1: 64, 2: 16, 3: 64}
    order = ByLongestPrefix(lambda waiting: cached[waiting.number])
    assert served(filled(order, *map(request, cached))) == [1, 3, 0, 2]


def test_a_long_queue_falls_back_to_arrival() -> None:
    order = filled(ByLongestPrefix(lambda waiting: waiting.number, fall_back_at=3), *map(request, range(4)))
    assert served(order) == [0, 1, 3, 2]


def test_cached_prefixes_are_looked_up_once_a_pass() -> None:
    look = Look()
    order = filled(ByLongestPrefix(look), *map(request, range(3)))
    order.first()
    order.first()
    assert look.at == [0, 1, 2]
    order.begin_pass()
    order.first()
    assert look.at == [0, 1, 2] * 2


def test_a_longer_prefix_shows_in_the_next_pass() -> None:
    cached = {0: 0, 1: 0}
    order = filled(ByLongestPrefix(lambda waiting: cached[waiting.number]), request(0), request(1))
    assert order.first().number == 0
    cached[1] = 16
    assert order.first().number == 0, "scores are frozen for a pass"
    order.begin_pass()
    assert order.first().number == 1


# --- by bucket --------------------------------------------------------------------------------------------------


def by_bucket(*waiting: Waiting, weights: Weights | None = None, refreshed: int = 16) -> tuple[DemandLedger, ByBucket]:
    ledger = DemandLedger()
    for one in waiting:
        ledger.arrive(one.request, one.signature)
    order = ByBucket(ledger, weights or Weights(), refreshed)
    filled(order, *waiting)
    return ledger, order


def test_the_largest_bucket_goes_first_as_a_whole() -> None:
    _, order = by_bucket(request(0, [b"a"]), request(1, [b"b"]), request(2, [b"b"]), request(3, [b"c"]))
    assert served(order) == [1, 2, 0, 3]


def test_buckets_of_one_size_go_by_utility_and_then_by_arrival() -> None:
    ledger, order = by_bucket(request(0, [b"a"]), request(1, [b"b"]), request(2, [b"c"]))
    ledger.arrive("runs", [b"c"])
    ledger.admit("runs")
    order.begin_pass()
    assert served(order) == [2, 0, 1]


def test_the_utility_of_a_bucket_is_the_mean_over_its_segments() -> None:
    ledger, order = by_bucket(request(0, [b"a", b"b"]), request(1, [b"c", b"d"]), request(2, [b"a", b"e"]))
    for number, group in enumerate([b"a", b"c", b"d"]):
        ledger.arrive(f"runs{number}", [group])
        ledger.admit(f"runs{number}")
    order.begin_pass()
    assert order.first().number == 1


def test_buckets_compare_class_by_class_where_lexicographic() -> None:
    for lexicographic, first in ((False, 0), (True, 1)):
        ledger, order = by_bucket(request(0, [b"a"]), request(1, [b"b"]), weights=Weights(lexicographic=lexicographic))
        for number in range(11):
            ledger.arrive(f"past{number}", [b"a"])
            ledger.leave(f"past{number}")
        ledger.arrive("runs", [b"b"])
        ledger.admit("runs")
        order.begin_pass()
        assert order.first().number == first


def test_requests_without_segments_are_no_bucket_together() -> None:
    _, order = by_bucket(*(request(number) for number in range(5)), request(5, [b"a"]), request(6, [b"a"]))
    assert order.first().number == 5
    assert [waiting.number for waiting in order] == [5, 6, 0, 1, 2, 3, 4]


def test_utilities_are_frozen_for_a_pass() -> None:
    ledger, order = by_bucket(request(0, [b"a"]), request(1, [b"b"]))
    assert order.first().number == 0
    ledger.arrive("runs", [b"b"])
    ledger.admit("runs")
    order.add(request(2, [b"c"]))
    assert order.first().number == 0
    order.begin_pass()
    assert order.first().number == 1


def test_a_pass_looks_again_at_the_best_buckets_only() -> None:
    ledger, order = by_bucket(*(request(number, [b"%d" % number]) for number in range(4)), refreshed=2)
    ledger.arrive("runs", [b"3"])
    ledger.admit("runs")
    order.begin_pass()
    assert order.first().number == 0


# --- by head start ----------------------------------------------------------------------------------------------


def by_head_start(cached_tokens: CachedTokens, refreshed: int = 2) -> ByHeadStart:
    """A token takes 10 ms, so 100 cached tokens are worth a head start of 8 s."""
    return ByHeadStart(cached_tokens, lambda: 0.01, head_start=8.0, refreshed=refreshed)


def in_room(free: float, attainable: float = 1000) -> ByHeadStart:
    """By head start, in a KV cache of which so much is free, and so much would be if nothing ran."""
    return ByHeadStart(as_on_arrival, lambda: 0.01, lambda: KvRoom(free, attainable))


def as_on_arrival(waiting: Waiting) -> int:
    return waiting.cached_at_arrival


def test_where_nothing_is_cached_it_is_first_come_first_served() -> None:
    waiting = [request(number, at=float(number), tokens=1_000 - number) for number in range(4)]
    assert served(filled(by_head_start(as_on_arrival), *reversed(waiting))) == [0, 1, 2, 3]


@pytest.mark.parametrize(("later_by", "first"), [(7.9, 1), (8.1, 0)])
def test_what_is_cached_passes_what_came_earlier_by_less_than_its_head_start(later_by: float, first: int) -> None:
    order = filled(by_head_start(as_on_arrival), request(0, at=0.0), request(1, at=later_by, cached=100))
    assert order.first().number == first


def test_nobody_is_passed_by_who_came_later_than_the_longest_head_start() -> None:
    stream = [request(number, at=float(number), cached=100) for number in range(1, 200)]
    order = filled(by_head_start(as_on_arrival), request(0, at=0.0, tokens=200), *stream)
    assert [waiting.number for waiting in order].index(0) == 7


@pytest.mark.parametrize(("free", "served_first"), [(300, 0), (299, 2), (100, 2), (99, 3), (49, 0)])
def test_those_who_fit_go_before_a_great_prompt_that_does_not(free: float, served_first: int) -> None:
    great, other, less, least = (request(n, at=float(n), tokens=t) for n, t in enumerate((300, 400, 100, 50)))
    assert filled(in_room(free), great, other, less, least).first().number == served_first


def test_a_lesser_prompt_is_not_passed_though_it_does_not_fit() -> None:
    assert filled(in_room(free=100), request(0, tokens=250), request(1, at=1.0, tokens=50)).first().number == 0


@pytest.mark.parametrize(("attainable", "first"), [(600, 1), (599, 0)])
def test_one_that_nothing_could_make_room_for_is_not_passed(attainable: float, first: int) -> None:
    order = in_room(100, attainable)
    assert filled(order, request(0, tokens=600), request(1, at=1.0, tokens=50)).first().number == first


def test_what_is_cached_of_a_great_prompt_takes_no_room() -> None:
    cached = [request(number, at=float(number), tokens=600, cached=550) for number in range(2)]
    assert filled(in_room(free=50), *cached).first().number == 0
    assert filled(in_room(free=50), request(0, tokens=600), cached[1]).first().number == 1


def test_only_so_many_are_looked_at_for_one_that_fits() -> None:
    great = [request(number, at=float(number), tokens=300) for number in range(17)]
    assert filled(in_room(free=100), *great[:16], request(17, at=17.0, tokens=50)).first().number == 17
    assert filled(in_room(free=100), *great, request(17, at=17.0, tokens=50)).first().number == 0


def test_passing_a_great_prompt_is_bounded_by_the_cold_lane() -> None:
    lesser = [request(number, at=float(number), tokens=50) for number in range(1, 40)]
    room = room_of(lambda: in_room(free=100), request(0, tokens=600), *lesser)
    served = [admit(room, now=0.0) for _ in range(10)]
    assert served[:9] == [(f"r{number}", "hot") for number in range(1, 10)]
    assert served[9] == ("r0", "cold")


def test_a_great_prompt_is_overdue_like_any_other() -> None:
    lesser = [request(number, at=float(number), tokens=50) for number in range(1, 40)]
    room = room_of(lambda: in_room(free=100), request(0, tokens=600), *lesser, lane=ColdLane(0.1, 5.0))
    assert admit(room, now=100.0) == ("r1", "hot")
    assert admit(room, now=104.9) == ("r2", "hot")
    assert admit(room, now=105.0) == ("r0", "cold")


def test_a_pass_looks_again_at_the_first_and_at_a_few_others_in_turn() -> None:
    look = Look()
    order = by_head_start(look, refreshed=2)
    filled(order, *(request(number, at=float(number)) for number in range(4)))
    for _ in range(3):
        order.begin_pass()
        order.first()
        order.first()
    assert look.at == [0, 1, 0, 2, 0]


def test_before_one_is_served_only_so_many_are_looked_at() -> None:
    order = by_head_start(look := Look(), refreshed=4)
    filled(order, *(request(number, at=0.001 * number, cached=100) for number in range(20)))
    order.begin_pass()
    order.first()
    assert len(look.at) == 6, "two in turn and four at the front, all of which have lost what they had"


def test_who_was_looked_at_ahead_of_a_pass_is_not_looked_at_in_it() -> None:
    order = by_head_start(look := Look(), refreshed=4)
    filled(order, *(request(number, at=float(number)) for number in range(20)))
    order.look_ahead(3)
    ahead = list(look.at)
    order.begin_pass()
    assert [take(order) for _ in range(3)] == [0, 1, 2]
    assert set(ahead) >= {0, 1, 2}
    assert look.at == ahead
    order.begin_pass()
    order.first()
    assert len(look.at) > len(ahead), "what was looked at ahead holds for one pass"


def test_those_whom_the_cold_lane_would_take_are_among_the_likely() -> None:
    room = room_of(ByArrival, request(0, priority=1), *(request(number) for number in range(1, 9)))
    assert numbers(room.look_ahead(3, 0.0)) == [1, 2, 3]
    stale = [request(n) for n in range(5)]
    starving = room_of(lambda: by_head_start(cached_of), *stale, *(request(n, cached=9_999) for n in range(5, 9)))
    assert numbers(starving.look_ahead(3, 0.0)) == [5, 6, 7, 0, 1]
    assert admit(starving, 0.0) == ("r5", HOT)
    assert numbers(starving.look_ahead(3, 1e6)) == [6, 7, 8, 0, 1, 2], "passed, and overdue: it is the cold lane's turn"
    assert WaitingRoom(ByArrival, ColdLane()).look_ahead(3, 0.0) == []


def cached_of(waiting: Waiting) -> int:
    return waiting.cached_at_arrival


def numbers(waiting: Iterable[Waiting]) -> list[int]:
    return [one.number for one in waiting]


def test_what_was_evicted_meanwhile_loses_its_place_in_the_next_pass() -> None:
    cached = {0: 0, 1: 100}
    order = by_head_start(lambda waiting: cached[waiting.number])
    filled(order, request(0, at=0.0, cached=100), request(1, at=1.0, cached=90))
    assert [waiting.number for waiting in order] == [0, 1]
    order.begin_pass()
    assert order.first().number == 1


# --- the waiting room -------------------------------------------------------------------------------------------


def test_a_request_can_not_wait_twice() -> None:
    room = room_of(ByArrival, request(0))
    with pytest.raises(ValueError, match="r0 waits already"):
        room.add(request(0))
    with pytest.raises(ValueError, match="r0 waits already"):
        room.resume(request(0))
    assert len(room) == 1


def test_an_empty_room_has_no_head() -> None:
    room = room_of(ByArrival)
    assert room.head(0.0) is None
    assert room.oldest() is None
    assert room.remove("r0") is None
    assert room.passed_in_a_row() == 0


def test_the_head_stays_while_others_arrive() -> None:
    room = room_of(ByArrival, request(1))
    head = room.head(0.0)
    room.add(request(2, priority=-1))
    assert room.head(9.0) is head
    room.begin_pass()
    assert room.head(9.0) == Head(room._waiting["r2"], NO_LANE)


def test_only_the_head_has_a_lane() -> None:
    room = room_of(lambda: by_bucket()[1], request(0), request(1))
    assert room.lane_of("r0") == NO_LANE
    room.head(0.0)
    assert (room.lane_of("r0"), room.lane_of("r1")) == (HOT, NO_LANE)


def test_the_most_urgent_priority_goes_first() -> None:
    room = room_of(ByArrival, request(0, priority=5), request(1, priority=-2), request(2, priority=5))
    assert [admit(room, 0.0)[0] for _ in range(3)] == ["r1", "r0", "r2"]


# B4
def test_a_preempted_request_resumes_before_what_arrived_meanwhile() -> None:
    preempted, fresh = request(0, [b"cold"]), [request(number, [b"hot"]) for number in range(1, 4)]
    room = room_of(lambda: by_bucket()[1], preempted, lane=ColdLane(1.0))
    admit(room, 0.0)
    for one in fresh:
        room.add(one)
    for _ in range(3):
        room.resume(preempted)
        assert room.head(0.0) == Head(preempted, NO_LANE)
        assert room.remove("r0") is preempted
    assert room.oldest() is fresh[0]
    assert not room.was_passed(fresh[0])


def test_the_last_preempted_resumes_first() -> None:
    room = room_of(ByArrival, request(7))
    for number in range(3):
        room.resume(request(number))
    assert [waiting.number for waiting in room] == [2, 1, 0, 7]
    assert room.remove("r1") is not None
    assert [waiting.number for waiting in room] == [2, 0, 7]


def test_the_oldest_preempted_resumes_first_where_it_is_said_so() -> None:
    room = room_of(ByArrival, request(7))
    room.oldest_resumes_first = True
    for number in (2, 0, 1):
        room.resume(request(number))
    assert [admit(room, 0.0)[0] for _ in range(4)] == ["r0", "r1", "r2", "r7"]


def test_a_preempted_request_does_not_pass_a_more_urgent_one() -> None:
    room = room_of(ByArrival, request(1, priority=0))
    room.resume(request(0, priority=3))
    head = room.head(0.0)
    assert head is not None
    assert head.waiting.number == 1


# B3
def test_a_head_that_can_not_fit_lets_the_first_that_fits_go_before_it() -> None:
    room = room_of(ByArrival, *(request(number, tokens=100 - 10 * number) for number in range(4)))
    room.head(0.0)
    assert room.step_over_head(lambda waiting: waiting.prompt_tokens <= 80)
    assert admit(room, 0.0) == ("r2", NO_LANE)
    assert admit(room, 0.0) == ("r0", NO_LANE)


def test_nobody_goes_before_the_head_where_none_of_the_next_fits() -> None:
    room = room_of(ByArrival, *map(request, range(4)))
    head = room.head(0.0)
    assert not room.step_over_head(lambda waiting: waiting.number == 3, limit=3)
    assert room.head(0.0) is head


def test_passing_one_that_nothing_could_make_room_for_is_no_overtaking() -> None:
    room = room_of(lambda: by_bucket()[1], request(0), request(1), lane=ColdLane(0.1, 1.0))
    room.head(0.0)
    assert room.step_over_head(lambda waiting: waiting.number == 1)
    assert admit(room, 0.0) == ("r1", HOT)
    assert room.passed_in_a_row() == 0
    assert room.overdue(99.0) == 0


def test_an_excuse_holds_for_one_turn() -> None:
    second = request(1, [b"hot"])
    room = room_of(lambda: by_bucket()[1], request(0), second, request(2, [b"hot"]))
    room.head(0.0)
    assert room.step_over_head(lambda waiting: waiting is second)
    room.begin_pass()
    assert admit(room, 0.0) == ("r1", HOT)
    assert room.passed_in_a_row() == 1


# B1
@pytest.mark.parametrize("order", ["head start", "bucket"])
def test_a_cold_request_among_an_endless_hot_stream_is_passed_for_max_wait_only(order: str) -> None:
    def new_order() -> HotOrder:
        return by_head_start(as_on_arrival) if order == "head start" else by_bucket()[1]

    cold = request(0, [b"cold"], tokens=2_048)
    hot = [request(n, [b"hot"], at=n * 0.05, tokens=528, cached=512) for n in range(1, 102)]
    room = room_of(new_order, cold, *hot[:2], lane=ColdLane(quota=0.001, max_wait_seconds=2.0))
    went: dict[str, float] = {}
    for arrival in hot[2:]:
        room.begin_pass()
        went[admit(room, arrival.arrived_at)[0]] = arrival.arrived_at
        room.add(arrival)
    first_passed = min(went.values())
    assert first_passed + 2.0 <= went["r0"] < first_passed + 2.0 + 2 * 0.05
    assert list(went)[:2] == ["r1", "r2"], "equal scores stay first come first served"
    assert len(went) == 99, "hot ones are served before and after"


def test_the_overdue_are_counted() -> None:
    room = room_of(lambda: by_bucket()[1], *map(request, range(3)), request(3, [b"hot"]), request(4, [b"hot"]))
    assert admit(room, 0.0) == ("r3", HOT)
    assert (room.overdue(9.9), room.overdue(10.0)) == (0, 3)


def test_overdue_requests_go_by_age_until_none_is_left() -> None:
    room = room_of(lambda: by_bucket()[1], *map(request, range(2)), *(request(n, [b"hot"]) for n in range(2, 6)))
    admit(room, 0.0)
    went = [admit(room, 10.0) for _ in range(3)]
    assert went == [("r0", COLD), ("r1", COLD), ("r3", HOT)]


def test_an_admission_says_how_often_its_request_was_passed() -> None:
    cold, hot = request(0), [request(number, [b"hot"]) for number in range(1, 5)]
    room = room_of(lambda: by_bucket()[1], cold, *hot, lane=ColdLane(0.3))
    assert [admit(room, 0.0) for _ in range(3)] == [("r1", HOT), ("r2", HOT), ("r3", HOT)]
    assert room.passed_in_a_row() == 3
    room.remove("r0")
    assert room.admitted(cold, COLD, 0.0) == 3
    assert room.passed_in_a_row() == 0


def test_who_gave_up_leaves_no_overtakes_to_the_next() -> None:
    hot = [request(number, [b"hot"]) for number in range(1, 4)]
    room = room_of(lambda: by_bucket()[1], request(0), *hot)
    admit(room, 0.0)
    room.remove("r0")
    room.add(request(9))
    assert room.passed_in_a_row() == 0


def test_adopting_other_settings_keeps_everybody_in_place() -> None:
    waiting = [request(0), request(1, [b"a"]), request(2, [b"a"]), request(3, priority=1)]
    room = room_of(lambda: by_bucket()[1], *waiting)
    preempted = request(8)
    room.resume(preempted)
    head = room.head(0.0)
    room.adopt(ByArrival, ColdLane(0.5))
    assert room.head(0.0) == head
    assert admit(room, 0.0) == ("r8", NO_LANE)
    assert [waiting.number for waiting in room] == [0, 1, 2, 3]


def test_other_settings_hold_for_who_waits_already() -> None:
    room = room_of(lambda: by_bucket()[1], request(0), request(1, [b"a"]), request(2, [b"a"]), lane=ColdLane(0.1))
    room.adopt(lambda: by_bucket()[1], ColdLane(1.0))
    assert admit(room, 0.0) == ("r0", COLD)


def test_the_hot_lane_may_choose_the_oldest_itself() -> None:
    room = room_of(lambda: by_bucket()[1], request(0), request(1), lane=ColdLane(1.0))
    assert [admit(room, 0.0) for _ in range(2)] == [("r0", HOT), ("r1", HOT)]


def test_other_settings_hold_for_priorities_that_come_later() -> None:
    room = room_of(ByArrival, lane=ColdLane(0.1))
    room.adopt(lambda: by_bucket()[1], ColdLane(1.0))
    room.add(request(0, priority=7))
    room.add(request(1, [b"a"], priority=7))
    room.add(request(2, [b"a"], priority=7))
    assert admit(room, 0.0) == ("r0", COLD)
