"""SGLang's queue orders and eviction strategies, after its sources.

`srt/managers/schedule_policy.py` (commit 00550cd1) and `srt/mem_cache/evict_policy.py` (008b79d2), Apache-2.0, read and
written anew. What is the same:

- the queue is one list, sorted in place: requests that compare equal keep the order of the pass before;
- longest prefix match is given up while *more than* 128 wait: the queue stays as it stands, newcomers at its end;
- a request with at most 32 cached tokens that shares 32 or more with one before it in the queue is put last, so that
  one computes what both can use;
- matching a waiting request against the cache is a use of what it matches: its prefix is as good as new to LRU;
- depth-first order visits the heaviest child first, and a node's own requests after all of its children.

Matches are as fine as the engine's KV blocks: with blocks of one token the tree is SGLang's own, token by token, with
larger ones it is SGLang with that `--page-size`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from prism.core.admission import HotOrder, Waiting
from prism.core.decisions import Decisions
from prism.core.tree import UNPROTECTED, DemandAwareRadixTree, EvictionKey, Node, Retention

_FALL_BACK_BEYOND = 128
_IN_BATCH_TOKENS = 32


class _SortedQueue(HotOrder):
    """A list that is sorted in place once a pass, when somebody asks for its head."""

    has_lanes = False

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._queue: list[Waiting] = []
        self._stale = True

    def add(self, waiting: Waiting) -> None:
        self._queue.append(waiting)

    def remove(self, waiting: Waiting) -> None:
        self._queue.remove(waiting)

    def begin_pass(self) -> None:
        self._stale = True

    def first(self) -> Waiting:
        if self._stale:
            self._stale = False
            self._sort()
        return self._queue[0]

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._queue)

    def _sort(self) -> None:
        raise NotImplementedError

    def _hashes(self, waiting: Waiting) -> Sequence[bytes]:
        prompt = self._decisions.prompt(waiting.request)
        assert prompt is not None
        return prompt.hashes


class LongestPrefixMatch(_SortedQueue):
    """`--schedule-policy lpm`, SGLang's cache-aware default.

    Args:
        decisions: of the engine it is played in.
        fall_back_beyond: more waiting requests than this are not sorted.
    """

    def __init__(self, decisions: Decisions, fall_back_beyond: int = _FALL_BACK_BEYOND) -> None:
        super().__init__(decisions)
        self._fall_back_beyond = fall_back_beyond

    def _sort(self) -> None:
        if len(self._queue) > self._fall_back_beyond:
            return
        matched = {waiting.number: self._decisions.cached_tokens(waiting) for waiting in self._queue}
        later = self._shared_in_batch(matched)
        self._queue.sort(key=lambda w: float("inf") if w.number in later else -matched[w.number])

    def _shared_in_batch(self, matched: dict[int, int]) -> set[int]:
        """Requests without much cached whose prefix another one, before them in the queue, will compute."""
        ahead: set[bytes] = set()
        later: set[int] = set()
        size = self._decisions.block_tokens
        for waiting in self._queue:
            if matched[waiting.number] > _IN_BATCH_TOKENS:
                continue
            hashes = self._hashes(waiting)
            if _common(hashes, ahead) * size >= _IN_BATCH_TOKENS:
                later.add(waiting.number)
            else:
                ahead.update(hashes)
        return later


def _common(hashes: Sequence[bytes], ahead: set[bytes]) -> int:
    """Leading blocks of a chain that are in a set of whole chains."""
    count = 0
    for block_hash in hashes:
        if block_hash not in ahead:
            break
        count += 1
    return count


class DepthFirstByWeight(_SortedQueue):
    """`--schedule-policy dfs-weight`: down the tree, the subtree that most waiting requests end in first."""

    def _sort(self) -> None:
        tree = self._decisions.tree
        ending: dict[Node | None, list[tuple[int, Waiting]]] = defaultdict(list)
        for waiting in self._queue:
            hashes = self._hashes(waiting)
            matched = tree.match(hashes)
            ending[tree.node_of(hashes[matched - 1]) if matched else None].append((matched, waiting))
        weight, children = _weigh({node: len(requests) for node, requests in ending.items()})
        self._queue = [waiting for node in _depth_first(weight, children) for waiting in _deepest_first(ending[node])]


Children = dict[Node | None, list[Node]]


def _weigh(ending: dict[Node | None, int]) -> tuple[dict[Node | None, int], Children]:
    """How many requests end at or below each node, None being the root, and the children that have any."""
    weight: dict[Node | None, int] = defaultdict(int)
    children: Children = defaultdict(list)
    for node, count in ending.items():
        weight[None] += count
        below: Node | None = None
        for above in node.path() if node is not None else ():
            if below is not None and below not in children[above]:
                children[above].append(below)
            weight[above] += count
            below = above
        if below is not None and below not in children[None]:
            children[None].append(below)
    return weight, children


def _depth_first(weight: dict[Node | None, int], children: Children) -> Iterator[Node | None]:
    """Nodes in the order in which their own requests are served. With its own stack: chains of turns are deep."""
    stack: list[tuple[Node | None, bool]] = [(None, False)]
    while stack:
        node, visited = stack.pop()
        if visited:
            yield node
            continue
        stack.append((node, True))
        heaviest_first = sorted(children.get(node, ()), key=lambda child: -weight[child])
        stack.extend((child, False) for child in reversed(heaviest_first))


def _deepest_first(requests: list[tuple[int, Waiting]]) -> list[Waiting]:
    """SGLang splits a node where a match ends inside it: what ends earlier stands above what ends later."""
    return [waiting for _, waiting in sorted(requests, key=lambda pair: -pair[0])]


class _ByTime(Retention):
    """A key that time alone does not change."""

    def bound(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        return self.key(node, tree)


class LeastRecentlyUsed(_ByTime):
    """`lru`. What a waiting request matches was used just now: each pass of the queue touches it."""

    def key(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        return (UNPROTECTED, bool(node.queued), node.touched)


class LeastFrequentlyUsed(_ByTime):
    """`lfu`: (uses, last use)."""

    def key(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        return (UNPROTECTED, node.uses, bool(node.queued), node.touched)


class SegmentedLru(_ByTime):
    """`slru`: what was used `protected_from` times or more goes after what was not; LRU in both."""

    def __init__(self, protected_from: int = 2) -> None:
        self._protected_from = protected_from

    def key(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        return (UNPROTECTED, node.uses >= self._protected_from, bool(node.queued), node.touched)


class FirstInFirstOut(_ByTime):
    """`fifo`: by the time at which it came."""

    def key(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        return (UNPROTECTED, node.born)
