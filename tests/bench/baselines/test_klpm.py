"""k-LPM on a case worked out by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from prism.bench.baselines.klpm import KLongestPrefixMatch
from prism.core.decisions import Policies

if TYPE_CHECKING:
    from tests.bench.baselines.conftest import Queue


@pytest.mark.parametrize(
    ("k", "served"),
    [
        (1, ["none-1", "none-2", "one", "four", "two"]),
        # The oldest, then one by its match, and so on.
        (2, ["none-1", "four", "none-2", "two", "one"]),
        (3, ["none-1", "four", "two", "none-2", "one"]),
        (100, ["none-1", "four", "two", "one", "none-2"]),
    ],
)
def test_a_round_is_the_oldest_and_then_the_longest_matches(queue: type[Queue], k: int, served: list[str]) -> None:
    waiting = queue(Policies(lambda decisions: KLongestPrefixMatch(decisions.cached_tokens, k)))
    waiting.decisions.tree.use("", [b"a", b"ab", b"abc", b"abcd"], [], True, 0)
    for name, letters in (("none-1", "q"), ("none-2", "r"), ("one", "a1"), ("four", "abcd1"), ("two", "ab1")):
        waiting.arrive(name, letters)
    assert waiting.order() == served


def test_a_match_counts_what_the_request_before_is_about_to_compute(queue: type[Queue]) -> None:
    waiting = queue(Policies(lambda decisions: KLongestPrefixMatch(decisions.cached_tokens, 100)))
    for name, letters in (("first", "abcd"), ("other", "q"), ("like-first", "abce")):
        waiting.arrive(name, letters)
    assert waiting.order() == ["first", "like-first", "other"]
