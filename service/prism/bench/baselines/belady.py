"""Belady's clairvoyant eviction for the same order: a bound on what retention can still win.

The future is that of a run that was played before: its prompts with their documents in the order they were given, in
the order in which they were admitted. They are played again in that order, over a cache that gives up the block whose
next use lies farthest ahead (Belady, "A study of replacement algorithms", 1966), tails before heads. So it answers:
with these admissions in this order, how much more could have been found cached? It does not say what another order
would have made of a better cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sortedcontainers import SortedDict

from prism.core.admission import HotOrder, Waiting
from prism.core.decisions import Decisions, Policies
from prism.core.order import AsWritten
from prism.core.tree import UNPROTECTED, DemandAwareRadixTree, EvictionKey, Node, Retention


class Future:
    """Who is still to come.

    Args:
        chains: block hashes of each prompt by the name of its request, in the order of admission.
    """

    def __init__(self, chains: Mapping[str, Sequence[bytes]]) -> None:
        self._rank = {name: rank for rank, name in enumerate(chains)}
        self._began = bytearray(len(chains))
        self._uses: dict[bytes, list[int]] = {}
        for rank, hashes in reversed(list(enumerate(chains.values()))):
            for block_hash in hashes:
                self._uses.setdefault(block_hash, []).append(rank)

    def rank(self, request: str) -> int:
        """Its place; behind all others for one that is not known."""
        return self._rank.get(request, len(self._began))

    def begin(self, request: str) -> None:
        """It is no longer to come."""
        rank = self._rank.get(request)
        if rank is not None:
            self._began[rank] = 1

    def next_use(self, block_hash: bytes) -> float:
        """The place of the next request that has this block; infinite if there is none."""
        uses = self._uses.get(block_hash)
        while uses and self._began[uses[-1]]:
            uses.pop()
        return uses[-1] if uses else float("inf")


class AsBefore(HotOrder):
    """Of those that wait, the one that was admitted first in the run before."""

    has_lanes = False

    def __init__(self, future: Future) -> None:
        self._future = future
        self._by_rank: SortedDict[tuple[int, int], Waiting] = SortedDict()

    def add(self, waiting: Waiting) -> None:
        self._by_rank[self._place(waiting)] = waiting

    def remove(self, waiting: Waiting) -> None:
        del self._by_rank[self._place(waiting)]
        self._future.begin(waiting.request)

    def begin_pass(self) -> None:
        pass

    def first(self) -> Waiting:
        first: Waiting = self._by_rank.peekitem(0)[1]
        return first

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._by_rank.values())

    def _place(self, waiting: Waiting) -> tuple[int, int]:
        return self._future.rank(waiting.request), waiting.number


class FarthestNextUse(Retention):
    """The tail whose next use lies farthest ahead first."""

    def __init__(self, future: Future) -> None:
        self._future = future

    def key(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        depth = node.free[-1][0] if node.free else node.end - 1
        return (UNPROTECTED, -self._future.next_use(node.run[depth - node.start]), node.touched)

    def bound(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        return self.key(node, tree)


def clairvoyant(future: Future) -> Policies:
    """The same order again, with Belady's eviction."""

    def order(_: Decisions) -> HotOrder:
        return AsBefore(future)

    return Policies(order, AsWritten(), FarthestNextUse(future))
