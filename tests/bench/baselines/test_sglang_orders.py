"""SGLang's orders on cases worked out by hand, token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prism.bench.baselines import sglang
from prism.core.admission import HotOrder
from prism.core.decisions import Decisions, Policies

if TYPE_CHECKING:
    from tests.bench.baselines.conftest import Queue

LPM = Policies(sglang.LongestPrefixMatch)
DFS = Policies(sglang.DepthFirstByWeight)
LONG = "".join(chr(200 + number) for number in range(40))


def test_the_longest_match_goes_first_and_equal_ones_by_arrival(queue: type[Queue]) -> None:
    waiting = queue(LPM)
    waiting.cache("abcdef", "xy")
    for name, letters in (("two", "xyz"), ("four", "abcdz"), ("none", "q"), ("also-two", "xyw")):
        waiting.arrive(name, letters)
    assert waiting.order() == ["four", "two", "also-two", "none"]


def falls_back_beyond_two(decisions: Decisions) -> HotOrder:
    return sglang.LongestPrefixMatch(decisions, fall_back_beyond=2)


def test_a_queue_at_the_bound_is_still_sorted(queue: type[Queue]) -> None:
    waiting = queue(Policies(falls_back_beyond_two))
    waiting.cache("abc")
    waiting.arrive("none", "q")
    waiting.arrive("three", "abcd")
    assert waiting.order() == ["three", "none"]


def test_a_queue_beyond_the_bound_stays_as_it_was_sorted_last(queue: type[Queue]) -> None:
    waiting = queue(Policies(falls_back_beyond_two))
    waiting.cache("abc")
    waiting.arrive("none", "q")
    waiting.arrive("three", "abcd")
    waiting.decisions.begin_pass(0.0)
    waiting.decisions.head(0.0)
    waiting.arrive("late", "abce")
    assert waiting.order() == ["three", "none", "late"]


def test_who_shares_a_prefix_that_nobody_has_computed_waits_for_the_first_of_them(queue: type[Queue]) -> None:
    waiting = queue(LPM)
    waiting.arrive("first", LONG + "a")
    waiting.arrive("second", LONG + "b")
    waiting.arrive("other", "z")
    assert waiting.order() == ["first", "other", "second"]


def test_a_short_common_prefix_puts_nobody_back(queue: type[Queue]) -> None:
    waiting = queue(LPM)
    waiting.arrive("first", LONG[:31] + "a")
    waiting.arrive("second", LONG[:31] + "b")
    waiting.arrive("other", "z")
    assert waiting.order() == ["first", "second", "other"]


def test_depth_first_takes_the_heaviest_subtree_and_a_node_s_own_last(queue: type[Queue]) -> None:
    #  root ─┬─ ab ─┬─ c (deep-1, deep-2)      weight of ab: 2 + 1 + 1 = 4
    #        │      └─ d (side)
    #        └─ x (light)                      weight of x: 1
    waiting = queue(DFS)
    waiting.cache("abc", "abd", "x")
    for name, letters in (
        ("light", "x1"),
        ("at-ab", "ab2"),
        ("side", "abd3"),
        ("deep-1", "abc4"),
        ("nowhere", "q"),
        ("deep-2", "abc5"),
    ):
        waiting.arrive(name, letters)
    assert waiting.order() == ["deep-1", "deep-2", "side", "at-ab", "light", "nowhere"]


def test_depth_first_splits_a_node_where_a_match_ends(queue: type[Queue]) -> None:
    waiting = queue(DFS)
    waiting.cache("abcdef")
    waiting.arrive("shallow", "ab1")
    waiting.arrive("deep", "abcdef2")
    assert waiting.order() == ["deep", "shallow"]
