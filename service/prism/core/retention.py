"""Which cached block goes first. Policies a setting can name, and those the proof compares with.

`DemandAware` is PRISM's. Stock vLLM's LRU orders single blocks and not nodes; it is kept by the block order itself.
"""

from __future__ import annotations

from prism.core.demand import Weights
from prism.core.segments import SegmentKind
from prism.core.tree import (
    PRIVATE,
    PROTECTED,
    UNPROTECTED,
    Anchor,
    DemandAwareRadixTree,
    EvictionKey,
    Habits,
    Node,
    Retention,
)


class DemandAware(Retention):
    """Cold private suffixes, then what nobody waits for from the least utility up, then what somebody waits for.

    *Predicted* uses are counted over the last `window` arrivals, in one unit for all kinds of nodes:

    - under documents that may move, the arrivals that contain all the documents of the path, since whoever contains
      them can be led along it;
    - under documents that stand as written, the share of those arrivals that is expected to have them in this order;
    - elsewhere, the admissions that had the node as a prefix, or, if more, the chance that the request it ends in is
      continued, spread over its age: rate × window / (age + 1). A session's last turn and a prompt without segments
      so keep the standing that LRU would give them, next to documents that are asked for again and again.

    Where private suffixes are hardly ever continued (`cold_below`), they go before everything else.
    """

    cold_below = 0.05
    _PRIOR = 4.0

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def key(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        queued, predicted = self.demand(node, tree)
        return self._key(node, queued, predicted)

    def _key(self, node: Node, queued: int, predicted: float) -> EvictionKey:
        if queued:
            return (PROTECTED, *self.weights.utility(0, predicted, queued), node.touched)
        if node.kind is SegmentKind.PRIVATE and self._is_cold(node):
            return (PRIVATE, node.touched)
        return (UNPROTECTED, *self.weights.utility(0, predicted, 0), node.touched)

    def bound(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        """The key at twice the age: what only ages is kept in order until then."""
        queued, predicted = self.demand(node, tree, aged=2.0)
        return self._key(node, queued, predicted)

    def weigh(self, node: Node, tree: DemandAwareRadixTree) -> tuple[EvictionKey, EvictionKey]:
        key = self.key(node, tree)
        # The demand for movable documents does not age by itself.
        aged = node.anchor is None or not node.anchor.movable
        return key, self.bound(node, tree) if aged else key

    def demand(self, node: Node, tree: DemandAwareRadixTree, aged: float = 1.0) -> tuple[int, float]:
        """(waiting requests, expected uses in the next `window` arrivals) of a node as a prefix."""
        anchor = node.anchor
        if anchor is not None and anchor.movable:
            return tree.wanted_together(anchor)
        uses: float = node.recent.bit_count()
        if anchor is not None and anchor.kind is SegmentKind.DOCUMENT and node.habits is not None:
            uses = self._in_order(anchor, node.habits, tree)
        return node.queued.bit_count(), max(uses, self._continued(node, tree) / aged)

    def _in_order(self, anchor: Anchor, habits: Habits, tree: DemandAwareRadixTree) -> float:
        """Expected uses of documents that stand as the caller wrote them.

        Of n recent arrivals that contain all documents of the path, some have them first and in this order. Whoever was
        seen with them so, u times, is few; what is usual under this head is known better. So that is the prior, with
        the weight of `_PRIOR` arrivals: n × (u + _PRIOR × usual) / (n + _PRIOR).
        """
        used = tree.led_with(anchor)
        together = max(tree.wanted_together(anchor)[1], used)
        return together * (used + self._PRIOR * habits.in_order) / (together + self._PRIOR)

    def _continued(self, node: Node, tree: DemandAwareRadixTree) -> float:
        if node.habits is None:
            return 0.0
        # Until the window is full, counts are out of fewer admissions: so is this.
        window = min(tree.ledger.window, tree.uses)
        return node.habits.continued * window / (tree.uses - node.touched + 1)

    def _is_cold(self, node: Node) -> bool:
        return node.habits is None or node.habits.continued < self.cold_below
