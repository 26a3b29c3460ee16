"""DART, the demand-aware radix tree: what the KV cache holds, who wants it, and what goes first.

    root ─ [s s s s] ─┬─ [a a a] ─┬─ [b b] ─ [q]        a node is a run of full KV blocks;
           system     │  doc A    │  doc B   private    runs split where prompts part and where segments end
                      │           └─ [c c c] ─ [q q]
                      └─ [b b] ─ [p p p …]              the same document elsewhere is another node

Nodes are keyed by vLLM's block hashes, which are chained over the whole prefix and carry salt and adapter, so equal
hashes are equal prefixes of one tenant. An *anchor* is the end of a segment: it names the node that holds its last
full block and, by the identities of the segments that follow, the anchors below. Through anchors an order of
documents is followed without tokenising or hashing anything; through hashes a prompt without segments is, so the
branch points that plain prompts make by themselves act as segments.

Each node knows, as bit sets, which waiting requests and which of the last admissions have it as a prefix. Which
free block is given up next is decided by a `Retention`, node by node, always tails before heads; nothing here ever
refuses a block, so demand is never a pin.

Pure: no clock (time is counted in admissions), no I/O, block ids and hashes in, block ids out.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Protocol

from prism.core.demand import EVERYBODY, DemandLedger
from prism.core.reuse import LRU, RESET, GivenUpPrefixes
from prism.core.segments import SegmentKind

EvictionKey = tuple[float, ...]
"""Least first. The first number is the class (an `EvictionClass` value)."""

Hash = bytes

UNHASHED, PRIVATE, UNPROTECTED, PROTECTED = range(4)
"""Eviction classes, first to go first: blocks that can never be hit; private suffixes that nobody continues; what
nobody waits for; what somebody waits for."""

CLASS_NAMES = ("unhashed", "private", "unprotected", "protected")


@dataclass(frozen=True, slots=True)
class AnchorPoint:
    """The end of a reusable segment in one prompt.

    Attributes:
        identity: of the segment.
        group: what its demand is counted under.
        kind: of the segment.
        blocks: full blocks of the prompt up to its end.
        movable: whether the prompt may be rendered with this segment elsewhere.
    """

    identity: bytes
    group: bytes
    kind: SegmentKind
    blocks: int
    movable: bool


class Habits:
    """What requests under one head (system prompt) do, as measured over their admissions.

    Attributes:
        continued: the share, between 0 and 1, that began with an earlier one's whole prompt, as an exponential average:
            a session's next turn does, a question about documents never comes back.
    """

    __slots__ = ("_in_order", "_together", "continued")
    _PRIOR = 0.3
    _SHARE = 1 / 32
    _KEPT = 1 - 1 / 256

    def __init__(self) -> None:
        self.continued = self._PRIOR
        self._in_order = self._together = 1.0

    def saw_continued(self, continued: bool) -> None:
        self.continued += (float(continued) - self.continued) * self._SHARE

    def saw_order(self, in_order: float, together: float) -> None:
        """Of `together` requests with the documents of a path, `in_order` had them first and in its order."""
        self._in_order = self._in_order * self._KEPT + in_order
        self._together = self._together * self._KEPT + together

    @property
    def in_order(self) -> float:
        """The share of requests with the documents of a path that have them first, in its order: over paths met lately.

        Where documents stand in any order it is small; where everybody sorts them alike it is near 1.
        """
        return min(1.0, self._in_order / self._together)


class Node:
    """A run of full blocks with one way in. Made and changed by the tree only."""

    __slots__ = (
        "anchor",
        "anchors",
        "born",
        "children",
        "free",
        "free_children",
        "habits",
        "kind",
        "linked",
        "parent",
        "place",
        "prompt_end",
        "queued",
        "recent",
        "run",
        "start",
        "ticket",
        "touched",
        "uses",
    )

    def __init__(self, run: list[Hash], start: int, parent: Node | None) -> None:
        self.run = run
        self.start = start
        self.parent = parent
        self.children: dict[Hash, Node] = {}
        self.free: list[tuple[int, int]] = []
        """(index of the block in its chain, block id) of its free blocks, ascending."""
        self.free_children = 0
        """How many children have free blocks at or below them."""
        self.queued = 0
        self.recent = 0
        self.touched = 0
        self.born = 0
        """When it came, in admissions; `touched` is when it was last used, `uses` how often."""
        self.uses = 0
        self.kind: SegmentKind | None = None
        self.anchor: Anchor | None = None
        """The anchor at or after its end, if it lies in a reusable segment."""
        self.anchors: list[Anchor] = []
        """Anchors that end with its last block."""
        self.habits: Habits | None = None
        self.prompt_end = False
        """A prompt ended here; `place` is where the last such use stands among the recent ones."""
        self.place = -1
        self.ticket = 0
        self.linked = True

    @property
    def end(self) -> int:
        """Blocks from the root to its last block."""
        return self.start + len(self.run)

    @property
    def holds_free(self) -> bool:
        return bool(self.free) or self.free_children > 0

    def path(self) -> Iterator[Node]:
        """Itself and the nodes above it, without the root."""
        node: Node | None = self
        while node is not None and node.parent is not None:
            yield node
            node = node.parent


class Anchor:
    """The end of a reusable segment after a given sequence of segments."""

    __slots__ = ("children", "counted_at", "counts", "end", "group", "identity", "kind", "movable", "node", "parent")

    def __init__(self, parent: Anchor | None, point: AnchorPoint | None, node: Node | None) -> None:
        self.parent = parent
        self.identity = point.identity if point else b""
        self.group = point.group if point else b""
        self.kind = point.kind if point else None
        self.movable: bool = bool(point and point.movable) or bool(parent and parent.movable)
        self.node = node
        self.end: Hash = node.run[-1] if node is not None else b""
        """Of the last block up to here: it names all that stands before it."""
        self.children: dict[bytes, Anchor] = {}
        self.counted_at = -1
        self.counts = (0, 0)
        """Who wants all the segments up to here, and the epoch of the ledger at which they were counted."""

    @property
    def blocks(self) -> int:
        """Full blocks that the cache holds, or is about to hold, up to here."""
        return self.node.end if self.node is not None else 0

    def stands(self) -> bool:
        """Whether it can still be reached from the head of its namespace."""
        anchor = self
        while anchor.parent is not None:
            if anchor.parent.children.get(anchor.identity) is not anchor:
                return False
            anchor = anchor.parent
        return True

    def groups(self) -> Iterator[bytes]:
        """The demand groups of the segments up to here, last first."""
        anchor: Anchor | None = self
        while anchor is not None and anchor.parent is not None:
            yield anchor.group
            anchor = anchor.parent


class Retention(Protocol):
    """What a cached block is worth keeping. One object decides for one tree."""

    def key(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        """Nodes with the least key are given up first. Must not change anything."""
        ...

    def bound(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        """What the key will not fall below for a while if nothing but time passes; at most the key.

        Candidates are kept in this order, so the closer it is, the fewer of them are weighed at each choice.
        """
        ...

    def weigh(self, node: Node, tree: DemandAwareRadixTree) -> tuple[EvictionKey, EvictionKey]:
        """Its key and its bound; what they have in common may be worked out once."""
        return self.key(node, tree), self.bound(node, tree)

    def gave_up(self, key: EvictionKey, tree: DemandAwareRadixTree) -> None:
        """Blocks of a node with this key, the least one, were given up."""
        return


class DemandAwareRadixTree:
    """Indexes the cached prefixes of one engine and orders its free blocks.

    Args:
        ledger: the demand that both decisions see.
        retention: decides what goes first; may be replaced at any time with `retain_by`.
    """

    _WEIGHED = 8
    _TOLD = 32
    _HAND = 32

    def __init__(self, ledger: DemandLedger, retention: Retention) -> None:
        self.ledger = ledger
        self.retention = retention
        self.epoch = 0
        """Grows when a prefix appears or disappears; a lookup made at an equal epoch still holds."""
        self.uses = 0
        self.given_up = GivenUpPrefixes()
        self._clear()
        self._expected: dict[str, tuple[Node, int]] = {}
        self._lacks: dict[str, Hash | None] = {}
        self._missing: dict[Hash, dict[str, Sequence[Hash]]] = {}
        """Waiting requests by the first block of theirs that is not there yet."""

    def _clear(self) -> None:
        self._root = Node([], 0, None)
        self._index: dict[Hash, Node] = {}
        self._heads: dict[str, Anchor] = {}
        self._free_at: dict[int, tuple[Node, int]] = {}
        self._heap: list[tuple[EvictionKey, int, Node]] = []
        self._candidates: OrderedDict[Node, None] = OrderedDict()
        self._tickets = 0
        self._choice: tuple[Node, EvictionKey] | None = None
        self._chosen_at = (0, 0, 0)
        self._owed = 0
        self._ring: list[Node | None] = [None] * self.ledger.window
        self._ends: list[list[Hash]] = [[] for _ in self._ring]
        self._led_with: dict[Hash, int] = {}
        self._habits: OrderedDict[bytes, Habits] = OrderedDict()

    # ---- looking up: no side effects -------------------------------------------------------------------------

    def match(self, hashes: Sequence[Hash]) -> int:
        """How many leading blocks of this chain the cache holds or is about to hold."""
        index = self._index
        return bisect_left(hashes, True, key=lambda block_hash: block_hash not in index)

    def head(self, namespace: str, identities: Sequence[bytes]) -> Anchor | None:
        """The anchor after these segments, or None if no such prefix is there."""
        anchor = self._heads.get(namespace)
        for identity in identities:
            if anchor is None:
                return None
            anchor = anchor.children.get(identity)
        return anchor

    def wanted_together(self, anchor: Anchor) -> tuple[int, int]:
        """(waiting requests, recent arrivals) that contain all the segments up to an anchor."""
        if anchor.counted_at != self.ledger.epoch:
            sets = self.ledger.joint(anchor.groups())
            anchor.counts = sets.queued.bit_count(), sets.recent.bit_count()
            anchor.counted_at = self.ledger.epoch
        return anchor.counts

    def led_with(self, anchor: Anchor) -> int:
        """Of the last admissions, those that had the documents up to an anchor first and in this order.

        They are counted whether the cache holds them or not: what was given up and came again is not taken for new.
        """
        return self._led_with.get(anchor.end, 0)

    def node_of(self, block_hash: Hash) -> Node | None:
        return self._index.get(block_hash)

    @property
    def free_blocks(self) -> int:
        return len(self._free_at)

    def __len__(self) -> int:
        """Indexed blocks."""
        return len(self._index)

    # ---- who wants what --------------------------------------------------------------------------------------

    def expect(self, request: str, hashes: Sequence[Hash], slot: int) -> None:
        """A waiting request will have this chain as its prefix; what is there of it is protected from now on.

        Args:
            slot: its place in the bit sets, free of other waiting requests.
        """
        self.unexpect(request)
        matched = self.match(hashes)
        if matched < len(hashes):
            self._missing.setdefault(hashes[matched], {})[request] = hashes
        node = self._split_at(matched, hashes)
        bit = 1 << slot
        for above in node.path():
            above.queued |= bit
            self._reconsider(above)
        self._expected[request] = (node, slot)
        self._lacks[request] = hashes[matched] if matched < len(hashes) else None

    def unexpect(self, request: str) -> None:
        """It waits no longer. Unknown requests are ignored."""
        node, slot = self._expected.pop(request, (None, 0))
        if node is None:
            return
        self._no_longer_lacks(request)
        keep = ~(1 << slot)
        for above in node.path():
            above.queued &= keep
            self._reconsider(above)

    def _no_longer_lacks(self, request: str) -> None:
        lacked = self._lacks.pop(request, None)
        if lacked is None:
            return
        waiting = self._missing.get(lacked, {})
        waiting.pop(request, None)
        if not waiting:
            self._missing.pop(lacked, None)

    def _appeared(self, first: Hash) -> None:
        """A prefix is there that waiting requests lacked: it is theirs, too, from now on.

        Only so many at once, so that an admission stays short; the others are told when the next one appears.
        """
        waiting = self._missing.get(first)
        for request in list(islice(waiting or (), self._TOLD)):
            _, slot = self._expected[request]
            self.expect(request, (waiting or {})[request], slot)

    def use(
        self,
        namespace: str,
        hashes: Sequence[Hash],
        points: Sequence[AnchorPoint],
        plain: bool,
        tail_blocks: int,
        again: bool = False,
    ) -> Node:
        """A request with this prompt is admitted: its prefixes are, or will be, in the cache.

        Args:
            namespace: of the prompt.
            hashes: its full blocks.
            points: ends of its reusable segments, ascending by `blocks`.
            plain: it has no segments; its tail then keeps ordinary standing instead of that of a private suffix.
            tail_blocks: full blocks up to the end of the last reusable segment; what is behind is its own.
            again: it was admitted before, and what it finds cached is its own: no sign that prompts are continued.

        Returns:
            The node of its last full block (the root if it has none).
        """
        self.uses += 1
        matched = self.match(hashes)
        habits = self._habits_of(namespace, points)
        leaf = self._insert(hashes, matched)
        if not again:
            habits.saw_continued(self._continues(leaf, matched))
        self._move_on(leaf, matched)
        for point in points:
            self._split_at(point.blocks, hashes)
        self._count_order([] if again else self._watch_order(habits, hashes, points))
        self._mark(leaf, self._anchor(namespace, hashes, points), plain, habits)
        grows = bool(points) and points[-1].kind in (SegmentKind.HISTORY, SegmentKind.TOOL_OUTPUT)
        leaf.prompt_end = leaf.prompt_end or grows or leaf.end > tail_blocks
        self.epoch += 1
        return leaf

    def settle(self, hashes: Sequence[Hash], cached: int) -> None:
        """A request gives its blocks back: the first `cached` blocks of its chain hold KV, the rest never did.

        What it produced itself becomes known here, and what it had announced and not computed is forgotten.
        """
        matched = self.match(hashes)
        if matched < cached:
            above = self._index.get(hashes[matched - 1]) if matched else None
            leaf = self._insert(hashes[:cached], matched)
            if above is not None and leaf is not above:
                leaf.kind, leaf.habits = above.kind, above.habits
                if leaf.kind not in (None, SegmentKind.PRIVATE):
                    leaf.kind = SegmentKind.PRIVATE
            leaf.touched = self.uses
        elif matched > cached:
            self._forget(hashes, cached, matched)

    # ---- free blocks -----------------------------------------------------------------------------------------

    def free(self, block: int, block_hash: Hash, depth: int) -> None:
        """A block with KV under this hash, the `depth`-th (from 0) of its chain, is used by nobody from now on."""
        self.free_all([(block, block_hash, depth)])

    def free_all(self, blocks: Sequence[tuple[int, Hash, int]]) -> None:
        """The same for several; those of one node are best side by side."""
        index, at, count = self._index, 0, len(blocks)
        while at < count:
            _, block_hash, depth = blocks[at]
            node = index.get(block_hash)
            if node is None or not node.start <= depth < node.end:
                node = self._orphan(block_hash, depth)
            had = node.holds_free
            while True:
                block, _, depth = blocks[at]
                node.free.append((depth, block))
                self._free_at[block] = (node, depth)
                at += 1
                if at == count or index.get(blocks[at][1]) is not node or not node.start <= blocks[at][2] < node.end:
                    break
            node.free.sort()
            if not had:
                self._raise_free(node)
            self._offer(node)

    def reclaim(self, block: int) -> None:
        """A free block is used again.

        Raises:
            KeyError: it was not free.
        """
        node, depth = self._free_at.pop(block)
        node.free.pop(bisect_left(node.free, (depth, block)))
        self._lowered(node)

    def drop(self, block: int) -> None:
        """A free block was given up by somebody else's choice.

        Raises:
            KeyError: it was not free.
        """
        node, depth = self._free_at[block]
        self.given_up.note(node.run[depth - node.start], LRU)
        self.reclaim(block)
        self._drop_tail(node, [(depth, block)])
        self.epoch += 1

    def take(self, count: int) -> list[tuple[int, int]]:
        """Give up free blocks, those worth least first and tails before heads.

        Args:
            count: how many; at most `free_blocks`.

        Returns:
            (block id, eviction class) for each.
        """
        self._turn_hand(count)
        out: list[tuple[int, int]] = []
        while len(out) < count:
            node, key = self._least()
            self.retention.gave_up(key, self)
            taken = node.free[-(count - len(out)) :]
            del node.free[-len(taken) :]
            taken.reverse()
            eviction_class = int(key[0])
            for _, block in taken:
                del self._free_at[block]
            out += [(block, eviction_class) for _, block in taken]
            self.given_up.note(node.run[taken[-1][0] - node.start], CLASS_NAMES[eviction_class])
            self._drop_tail(node, taken)
            self._lowered(node)
        if out:
            self.epoch += 1
        return out

    def in_order(self) -> list[int]:
        """All free blocks as `take` would give them up if nothing changed meanwhile. Changes nothing."""
        below: dict[Node, int] = {}
        heap: list[tuple[EvictionKey, int, Node]] = []
        nodes = {node: None for node, _ in self._free_at.values()}
        for number, node in enumerate(nodes):
            below[node] = node.free_children
            if node.free_children == 0:
                heap.append((self.retention.key(node, self), number, node))
        heapq.heapify(heap)
        out: list[int] = []
        while heap:
            _, number, node = heapq.heappop(heap)
            out.extend(block for _, block in reversed(node.free))
            parent = node.parent
            while parent is not None and parent.parent is not None:
                below[parent] = below.get(parent, parent.free_children) - 1
                if below[parent]:
                    break
                if parent.free:
                    heapq.heappush(heap, (self.retention.key(parent, self), number, parent))
                    break
                parent = parent.parent
        return out

    def retain_by(self, retention: Retention) -> None:
        """Decide by another policy from now on."""
        self.retention = retention
        self._weigh_all()

    def resize(self, window: int) -> None:
        """Follow the ledger to another window; which admissions were recent is forgotten, what is cached is not."""
        if len(self._ring) == window:
            return
        for node in set(self._index.values()):
            node.recent, node.place = 0, -1
        self._ring = [None] * window
        self._ends, self._led_with = [[] for _ in self._ring], {}
        self._weigh_all()

    def reset(self) -> list[int]:
        """The cache was emptied. Returns the ids of the free blocks, in the order they would have gone."""
        blocks = self.in_order()
        for first in self._root.children:
            self.given_up.note(first, RESET)
        self._clear()
        self._expected = {request: (self._root, slot) for request, (_, slot) in self._expected.items()}
        self._missing, self._lacks = {}, {}
        self.epoch += 1
        return blocks

    # ---- structure -------------------------------------------------------------------------------------------

    def _insert(self, hashes: Sequence[Hash], matched: int) -> Node:
        node = self._split_at(matched, hashes)
        if matched == len(hashes):
            return node
        leaf = Node(list(hashes[matched:]), matched, node)
        leaf.touched = leaf.born = self.uses
        node.children[hashes[matched]] = leaf
        for block_hash in leaf.run:
            self._index[block_hash] = leaf
        self.epoch += 1
        if leaf.run[0] in self._missing:
            self._appeared(leaf.run[0])
        return leaf

    def _split_at(self, blocks: int, hashes: Sequence[Hash]) -> Node:
        """The node that ends after the first `blocks` blocks of a chain that is indexed that far."""
        if blocks == 0:
            return self._root
        node = self._index[hashes[blocks - 1]]
        return node if node.end == blocks else self._split(node, blocks)

    def _split(self, node: Node, at: int) -> Node:
        # The lower part stays the same object: whoever remembers the node as the end of a prefix stays right.
        upper = Node(node.run[: at - node.start], node.start, node.parent)
        upper.queued, upper.recent, upper.touched = node.queued, node.recent, node.touched
        upper.born, upper.uses = node.born, node.uses
        upper.kind, upper.anchor, upper.habits = node.kind, node.anchor, node.habits
        had = node.holds_free
        cut = bisect_left(node.free, (at, -1))
        upper.free, node.free = node.free[:cut], node.free[cut:]
        for depth, block in upper.free:
            self._free_at[block] = (upper, depth)
        node.run = node.run[at - node.start :]
        node.start = at
        assert node.parent is not None
        node.parent.children[upper.run[0]] = upper
        upper.children[node.run[0]] = node
        node.parent = upper
        for block_hash in upper.run:
            self._index[block_hash] = upper
        upper.free_children = int(node.holds_free)
        if had:
            self._offer(node)
            self._offer(upper)
        return upper

    def _forget(self, hashes: Sequence[Hash], keep: int, matched: int) -> None:
        """Blocks `keep` to `matched` of a chain hold nothing; forget those that no free block backs."""
        node = self._index[hashes[matched - 1]]
        # A node that goes on behind `matched` is another prompt's, too.
        while keep < node.end <= matched and not node.children:
            parent = node.parent
            assert parent is not None
            backed = node.free[-1][0] + 1 if node.free else node.start
            cut = max(keep, backed) - node.start
            self._cut(node, cut)
            if node.run:
                break
            self._unlink(node)
            node = parent
        self.epoch += 1

    def _drop_tail(self, node: Node, gone: Sequence[tuple[int, int]]) -> None:
        """Blocks of a node were given up, last first: its run ends before them now.

        A block whose hash another copy still holds stays, and so does one that blocks below it follow on.
        """
        if node.children:
            return
        end = node.end
        for depth, _ in gone:
            if depth == end - 1:
                end = depth
        if node.free and node.free[-1][0] >= end:
            end = node.free[-1][0] + 1
        self._cut(node, end - node.start)
        if not node.run:
            self._unlink(node)

    def _cut(self, node: Node, keep: int) -> None:
        """The run of a node ends after `keep` blocks."""
        index, gone = self._index, node.run[keep:]
        del node.run[keep:]
        for block_hash in gone:
            if index.get(block_hash) is node:
                del index[block_hash]
        siblings = node.parent.children if node.parent is not None else {}
        if not node.run and gone and siblings.get(gone[0]) is node:
            del siblings[gone[0]]

    def _unlink(self, node: Node) -> None:
        node.linked = False
        for anchor in node.anchors:
            self._remove_anchor(anchor)
        node.anchors = []

    def _orphan(self, block_hash: Hash, depth: int) -> Node:
        # A block whose chain nobody announced, a second copy for example: it stands alone, by its age.
        node = Node([block_hash], depth, self._root)
        node.touched = self.uses
        node.linked = False
        return node

    # ---- anchors ---------------------------------------------------------------------------------------------

    def _anchor(
        self, namespace: str, hashes: Sequence[Hash], points: Sequence[AnchorPoint]
    ) -> list[tuple[int, Anchor]]:
        """The anchors of a prompt, made where they are missing: (blocks, anchor), ascending."""
        if not points or not points[-1].blocks:
            # Anchors go with the blocks they end at: without any, nothing would ever take them away.
            return []
        anchor = self._heads.get(namespace)
        if anchor is None:
            anchor = self._heads[namespace] = Anchor(None, None, None)
        out: list[tuple[int, Anchor]] = []
        for point in points:
            anchor = self._anchor_below(anchor, point, self._index[hashes[point.blocks - 1]] if point.blocks else None)
            out.append((point.blocks, anchor))
        return out

    def _anchor_below(self, parent: Anchor, point: AnchorPoint, node: Node | None) -> Anchor:
        found = parent.children.get(point.identity)
        if found is not None and found.node is node:
            found.movable = found.movable or point.movable
            return found
        # One that ends elsewhere, after other tokens between the segments, gives its place up.
        made = parent.children[point.identity] = Anchor(parent, point, node)
        if node is not None:
            node.anchors = [*(anchor for anchor in node.anchors if anchor.stands()), made]
        return made

    def _remove_anchor(self, anchor: Anchor) -> None:
        parent = anchor.parent
        if parent is None or parent.children.get(anchor.identity) is not anchor:
            return
        del parent.children[anchor.identity]
        if not parent.children and parent.node is None:
            if parent.parent is not None:
                self._remove_anchor(parent)
            else:
                self._heads = {name: head for name, head in self._heads.items() if head is not parent}

    def _mark(self, leaf: Node, anchors: list[tuple[int, Anchor]], plain: bool, habits: Habits) -> None:
        place = self.uses % len(self._ring)
        self._expire(place)
        self._ring[place] = leaf
        leaf.place = place
        tail: SegmentKind | None = None if plain else SegmentKind.PRIVATE
        bit = 1 << place
        for node in leaf.path():
            node.recent |= bit
            node.touched = self.uses
            node.uses += 1
            node.habits = habits
            node.anchor = self._covering(anchors, node)
            node.kind = node.anchor.kind if node.anchor is not None else tail
            self._reconsider(node)

    @staticmethod
    def _covering(anchors: list[tuple[int, Anchor]], node: Node) -> Anchor | None:
        """The first anchor at or after the end of a node."""
        at = bisect_left(anchors, node.end, key=lambda pair: pair[0])
        return anchors[at][1] if at < len(anchors) else None

    def _expire(self, place: int) -> None:
        old = self._ring[place]
        if old is None:
            return
        keep = ~(1 << place)
        for node in old.path():
            node.recent &= keep
            self._reconsider(node)

    def _habits_of(self, namespace: str, points: Sequence[AnchorPoint]) -> Habits:
        # Prompts that begin with a document of their own have only their tenant in common.
        common = points and not points[0].movable and points[0].kind is not SegmentKind.DOCUMENT
        head = points[0].identity if common else namespace.encode()
        found = self._habits.get(head)
        if found is None:
            found = self._habits[head] = Habits()
            if len(self._habits) > 4096:
                self._habits.popitem(last=False)
        else:
            self._habits.move_to_end(head)
        return found

    @staticmethod
    def _continues(leaf: Node, matched: int) -> bool:
        return any(node.prompt_end and node.end <= matched for node in leaf.path())

    def _watch_order(self, habits: Habits, hashes: Sequence[Hash], points: Sequence[AnchorPoint]) -> list[Hash]:
        """Learn how usual it is that documents which may not move stand in one order.

        Returns:
            What names them in their order: the hash of the last block up to each.
        """
        wanted, ends = EVERYBODY, []
        groups: list[bytes] = []
        for point in takewhile(lambda point: not point.movable, points):
            groups.append(point.group)
            if point.kind is SegmentKind.DOCUMENT and point.blocks:
                # Asked for as far as there are documents: a long history behind them costs nothing.
                wanted = wanted.joint(self.ledger.joint(groups))
                groups.clear()
                ends.append(hashes[point.blocks - 1])
                # The request that is being admitted has arrived: it says nothing of the others.
                habits.saw_order(self._led_with.get(ends[-1], 0), max(0, wanted.recent.bit_count() - 1))
        return list(dict.fromkeys(ends))

    def _count_order(self, ends: list[Hash]) -> None:
        place = self.uses % len(self._ends)
        for end in self._ends[place]:
            left = self._led_with.pop(end) - 1
            if left:
                self._led_with[end] = left
        self._ends[place] = ends
        for end in ends:
            self._led_with[end] = self._led_with.get(end, 0) + 1

    def _move_on(self, leaf: Node, matched: int) -> None:
        """A prompt that goes on where an earlier one ended is the same session: it is counted once, by its last turn.

        Otherwise a session that has ended would look as popular as many requests, long after its last turn.
        """
        for node in leaf.path():
            if node is not leaf and node.prompt_end and node.end <= matched:
                if node.place >= 0 and self._ring[node.place] is node:
                    self._expire(node.place)
                    self._ring[node.place] = None
                return

    # ---- candidates: nodes whose tail could go now -----------------------------------------------------------

    def _offer(self, node: Node) -> None:
        """Keep the heap's view of a node right: a candidate has free blocks and none below it."""
        if node.free and node.free_children == 0:
            if not node.ticket:
                self._push(node)
        elif node.ticket:
            node.ticket = 0
            del self._candidates[node]

    def _push(self, node: Node, bound: EvictionKey | None = None) -> None:
        self._tickets += 1
        node.ticket = self._tickets
        self._candidates[node] = None
        heapq.heappush(self._heap, (bound or self.retention.bound(node, self), node.ticket, node))
        if len(self._heap) > 4 * len(self._candidates) + 256:
            # What was overtaken goes; nothing is weighed anew, so that this stays cheap.
            self._heap = [entry for entry in self._heap if entry[2].ticket == entry[1]]
            heapq.heapify(self._heap)

    def _reconsider(self, node: Node) -> None:
        """Its demand changed; a candidate is weighed again."""
        if node.ticket:
            self._push(node)

    def _least(self) -> tuple[Node, EvictionKey]:
        """The candidate worth least: of those whose bound is below the least key found so far, the one with that key.

        Where many bounds lie below it, the least of some, so that a pass stays short. A choice among all stands until
        something happens: running requests take their blocks one by one.
        """
        if self._choice is not None and self._chosen_at == self._moment() and self._choice[0].ticket:
            return self._choice
        weighed: list[tuple[Node, EvictionKey]] = []
        least: tuple[EvictionKey, Node] | None = None
        while self._heap and len(weighed) < self._WEIGHED:
            lower, ticket, node = self._heap[0]
            if node.ticket == ticket:
                if least is not None and least[0] <= lower:
                    break
                key, bound = self.retention.weigh(node, self)
                weighed.append((node, bound))
                if least is None or key < least[0]:
                    least = key, node
            heapq.heappop(self._heap)
        assert least is not None
        for node, bound in weighed:
            self._push(node, bound)
        choice = least[1], least[0]
        self._choice = choice if len(weighed) < self._WEIGHED else None
        self._chosen_at = self._moment()
        return choice

    def _moment(self) -> tuple[int, int, int]:
        """Equal while no key and no candidate can have changed, but for candidates that went."""
        return self.ledger.epoch, self.uses, self._tickets

    def _turn_hand(self, count: int) -> None:
        """Weigh a few candidates again in turn, so that worth that faded with time is noticed."""
        self._owed += count
        for _ in range(min(self._owed // self._HAND, len(self._candidates))):
            node = next(iter(self._candidates))
            self._candidates.move_to_end(node)
            self._push(node)
        self._owed %= self._HAND

    def _weigh_all(self) -> None:
        self._heap = []
        for node in self._candidates:
            self._tickets += 1
            node.ticket = self._tickets
            self._heap.append((self.retention.bound(node, self), node.ticket, node))
        heapq.heapify(self._heap)

    def _raise_free(self, node: Node) -> None:
        """A node began to hold free blocks: tell those above."""
        parent = node.parent
        while parent is not None and parent.parent is not None:
            had = parent.holds_free
            parent.free_children += 1
            self._offer(parent)
            if had:
                return
            parent = parent.parent

    def _lowered(self, node: Node) -> None:
        """A node lost free blocks: if it holds none now, tell those above."""
        self._offer(node)
        while not node.holds_free:
            parent = node.parent
            if parent is None or parent.parent is None:
                return
            parent.free_children -= 1
            self._offer(parent)
            node = parent
