"""Eviction from the literature, tails before heads as the tree has it, under any order.

LRU is stock vLLM's own and needs no class here. A time to live that every use renews is LRU as well where blocks are
given up only when others are needed: what has expired is what was used least recently. So `TimeToLive` counts from the
time at which a prefix came.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from prism.core.tree import UNPROTECTED, DemandAwareRadixTree, EvictionKey, Node, Retention


class FrequencyInWindow(Retention):
    """LFU that forgets: uses among the last `window` admissions of the tree, the least recently used of equals."""

    def key(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        return (UNPROTECTED, node.recent.bit_count(), node.touched)

    def bound(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        # A use that leaves the window is announced to the tree, node by node.
        return self.key(node, tree)


class GreedyDualSizeFrequency(Retention):
    """GDSF: inflation when last used + uses × (cost of computing it again / size); least first.

    Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy", HP Labs 1998. The
    inflation is the worth of what was given up last, so that what was once popular ages.

    Args:
        cost_per_token: of a token at this depth of its prompt, in any unit.
    """

    def __init__(self, cost_per_token: Callable[[int], float]) -> None:
        self._cost_per_token = cost_per_token
        self._rose_at: list[int] = [-1]
        self._inflation: list[float] = [0.0]

    def key(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        inflation = self._inflation[bisect_left(self._rose_at, node.touched) - 1]
        middle = (node.start + node.end) // 2
        return (UNPROTECTED, inflation + node.uses * self._cost_per_token(middle), node.touched)

    def bound(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        return self.key(node, tree)

    def gave_up(self, key: EvictionKey, tree: DemandAwareRadixTree) -> None:
        worth = float(key[1])
        if worth <= self._inflation[-1]:
            return
        if self._rose_at[-1] == tree.uses:
            self._inflation[-1] = worth
        else:
            self._rose_at.append(tree.uses)
            self._inflation.append(worth)


class TimeToLive(Retention):
    """What came more than `lifetime` admissions ago first, the first that came; then by last use.

    Args:
        lifetime: in admissions, as the tree counts time.
    """

    def __init__(self, lifetime: int) -> None:
        self._lifetime = lifetime

    def key(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        if tree.uses - node.born > self._lifetime:
            return (UNPROTECTED, 0, node.born)
        return (UNPROTECTED, 1, node.touched)

    def bound(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        # What expires meanwhile is noticed when the tree weighs its candidates in turn.
        return self.key(node, tree)
