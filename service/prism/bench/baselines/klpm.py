"""k-LPM: the oldest waiting request, then the k - 1 longest matches, over and over.

Dexter and others, "LLM Query Scheduling with Prefix Reuse and Latency Constraints", NeurIPS 2025 (arXiv 2502.04677).
k = 1 is first come first served, a k without end longest prefix match. Matches are taken anew for every choice, since
the request admitted before may have computed, or be about to compute, what the next one shares with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedDict

from prism.core.admission import CachedTokens, HotOrder, Waiting


class KLongestPrefixMatch(HotOrder):
    """Args:
    cached_tokens: what a request would find cached now.
    k: length of a round.
    """

    has_lanes = False

    def __init__(self, cached_tokens: CachedTokens, k: int) -> None:
        self._cached_tokens = cached_tokens
        self._k = k
        self._turn = 0
        self._chosen: Waiting | None = None
        self._by_number: SortedDict[int, Waiting] = SortedDict()

    def add(self, waiting: Waiting) -> None:
        self._by_number[waiting.number] = waiting

    def remove(self, waiting: Waiting) -> None:
        del self._by_number[waiting.number]
        if waiting is self._chosen:
            self._chosen = None
            self._turn = (self._turn + 1) % self._k

    def begin_pass(self) -> None:
        self._chosen = None

    def first(self) -> Waiting:
        if self._chosen is None:
            self._chosen = self._oldest() if self._turn == 0 else self._longest()
        return self._chosen

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._by_number.values())

    def _oldest(self) -> Waiting:
        oldest: Waiting = self._by_number.peekitem(0)[1]
        return oldest

    def _longest(self) -> Waiting:
        waiting: list[Waiting] = list(self._by_number.values())
        return min(waiting, key=lambda one: (-self._cached_tokens(one), one.number))
