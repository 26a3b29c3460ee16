"""What each retention gives up first, worked out by hand: prompts of one letter each, used so and so often."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from prism.bench.baselines import sglang
from prism.bench.baselines.belady import Future, clairvoyant
from prism.bench.baselines.retention import FrequencyInWindow, GreedyDualSizeFrequency, TimeToLive
from prism.core.admission import ByArrival
from prism.core.decisions import Policies
from prism.core.tree import Retention

if TYPE_CHECKING:
    from tests.bench.baselines.conftest import Queue

USES = "aaabbcaddb"
"""Last used, oldest first: c, a, d, b. How often: c 1, d 2, b 3, a 4. Came, oldest first: a, b, c, d."""


def flat(_: int) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("retention", "goes"),
    [
        (sglang.LeastRecentlyUsed(), "cadb"),
        (sglang.LeastFrequentlyUsed(), "cdba"),
        (sglang.SegmentedLru(protected_from=3), "cdab"),
        (sglang.FirstInFirstOut(), "abcd"),
        (FrequencyInWindow(), "cdba"),
        (GreedyDualSizeFrequency(flat), "cdba"),
        # Now is 10: what came at 1 and 4 (a, b) is older than five.
        (TimeToLive(5), "abcd"),
        (TimeToLive(100), "cadb"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_goes_first(queue: type[Queue], retention: Retention, goes: str) -> None:
    cache = queue(Policies(lambda _: ByArrival(), retention=retention))
    cache.cache(*USES)
    cache.free(*"abcd")
    assert "".join(cache.given_up(4)) == goes


def test_a_tail_goes_before_its_head(queue: type[Queue]) -> None:
    cache = queue(Policies(lambda _: ByArrival(), retention=sglang.FirstInFirstOut()))
    cache.cache("abc", "x")
    cache.free("abc", "x")
    assert cache.given_up(4) == ["abc", "ab", "a", "x"]


def test_what_a_waiting_request_matches_is_used_just_now_for_sglang(queue: type[Queue]) -> None:
    cache = queue(Policies(lambda _: ByArrival(), retention=sglang.LeastRecentlyUsed()))
    cache.cache("a", "b")
    cache.arrive("waits", "a1")
    cache.free("a", "b")
    assert cache.given_up(2) == ["b", "a"]


def test_greedy_dual_size_frequency_ages_what_was_popular_once(queue: type[Queue]) -> None:
    cache = queue(Policies(lambda _: ByArrival(), retention=GreedyDualSizeFrequency(flat)))
    cache.cache(*"aaabb")
    cache.free("b")
    # b is given up with a worth of 2: what is used from now on starts from there, so two uses of c are worth 4.
    assert cache.given_up(1) == ["b"]
    cache.cache(*"cc")
    cache.free("a", "c")
    assert cache.given_up(2) == ["a", "c"]


def test_greedy_dual_size_frequency_keeps_what_costs_more(queue: type[Queue]) -> None:
    cache = queue(Policies(lambda _: ByArrival(), retention=GreedyDualSizeFrequency(lambda depth: 1.0 + depth)))
    cache.cache("abcdef", "x", "abcdef", "x")
    cache.free("abcdef", "x")
    assert cache.given_up(1) == ["x"]


def test_belady_gives_up_what_is_needed_last(queue: type[Queue]) -> None:
    future = Future({"to-b": [b"b"], "to-a": [b"a"], "again-b": [b"b"]})
    cache = queue(clairvoyant(future))
    cache.cache("a", "b", "c")
    cache.free("a", "b", "c")
    # c is never needed; a later than b.
    assert cache.given_up(2) == ["c", "a"]


def test_a_use_that_has_begun_is_no_longer_ahead() -> None:
    future = Future({"first": [b"b"], "second": [b"a"], "third": [b"b"]})
    assert future.next_use(b"b") == 0
    future.begin("first")
    assert future.next_use(b"b") == 2
    assert future.next_use(b"z") == float("inf")


def test_belady_serves_in_the_order_of_the_run_before(queue: type[Queue]) -> None:
    waiting = queue(clairvoyant(Future({"second": [], "first": [], "third": []})))
    for name in ("first", "second", "unknown", "third"):
        waiting.arrive(name, name[0])
    assert waiting.order() == ["second", "first", "third", "unknown"]
