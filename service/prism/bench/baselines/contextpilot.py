"""ContextPilot: an index of contexts before the engine, which puts each request's documents into an order seen before.

Jiang and others, "ContextPilot: Fast Long-Context Inference via Context Reuse" (arXiv 2511.03475); written anew after
its library `contextpilot` 0.5.0 (Apache-2.0), `server/live_index.py` and `context_ordering/inter_scheduler.py`, whose
decisions it repeats one for one (a test compares them).

    root ─┬─ [a b]  ─┬─ [a b c d]      an inner node is a prefix that its contexts share; a leaf is a request's context
          │          └─ [a b x y]
          └─ [e f g]

*Alignment*, once, when a request arrives: go down from the root to the child at the least distance

    1 − |common| / max(|a|, |b|)  +  0.001 × mean distance of the common documents' places

as long as its first document is one of the request's; take the order of the node that is found, then the documents it
lacks, as they stood; insert the result. A request whose blocks the engine has all given up is taken out, as the
library's hook in vLLM does it. *Schedule*: waiting requests by the region they are in (the child of the root), most
populous first, deepest first within it.

It knows documents, not tokens, and sees neither answers nor demand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from prism.core.admission import HotOrder, Waiting
from prism.core.segments import fixed_plan, permute_plan, permute_runs
from prism.engine.enginecore.harness import ModelFreeEngine
from prism.engine.enginecore.synthetic import SyntheticRequest

_ALPHA = 0.001

Context = tuple[bytes, ...]


@dataclass(eq=False, slots=True)
class _Node:
    documents: Context
    parent: _Node | None
    region: int
    path: tuple[int, ...] = ()
    children: list[_Node] = field(default_factory=list)
    by_document: dict[bytes, dict[_Node, None]] = field(default_factory=lambda: defaultdict(dict))
    """Its children by the documents they hold."""

    def append(self, child: _Node) -> None:
        self.children.append(child)
        self.enlist(child)

    def enlist(self, child: _Node) -> None:
        for document in child.documents:
            self.by_document[document][child] = None

    def strike(self, child: _Node) -> None:
        for document in child.documents:
            del self.by_document[document][child]


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a request stands in the index.

    Attributes:
        order: its documents as aligned, as places in the list they came in.
        region: the child of the root it is below.
        path: places among siblings from the root down, as they were when it was inserted.
    """

    order: tuple[int, ...]
    region: int
    path: tuple[int, ...]


class ContextIndex:
    """The live index. Documents of one request are all different."""

    def __init__(self) -> None:
        self._root = _Node((), None, -1)
        self._leaves: dict[str, _Node] = {}
        self._regions = 0

    def __contains__(self, request: str) -> bool:
        return request in self._leaves

    def align(self, request: str, context: Sequence[bytes]) -> Placed:
        """Finds an order for a request's documents and remembers it.

        Raises:
            ValueError: a document stands twice.
        """
        documents = tuple(context)
        if len(set(documents)) != len(documents):
            raise ValueError(f"request {request} has a document twice")
        node, leads = self._search(documents)
        aligned = _aligned(documents, node.documents) if node is not self._root else documents
        leaf = self._insert(aligned, node, leads)
        self._leaves[request] = leaf
        places = {document: place for place, document in enumerate(documents)}
        return Placed(tuple(places[document] for document in aligned), leaf.region, leaf.path)

    def remove(self, request: str) -> None:
        """The engine holds nothing of it any more. Unknown requests are ignored."""
        node: _Node | None = self._leaves.pop(request, None)
        while node is not None and node.parent is not None and not node.children:
            node.parent.children.remove(node)
            node.parent.strike(node)
            node = node.parent

    def _search(self, documents: Context) -> tuple[_Node, bool]:
        """The node to align with, the root for none, and whether its first document is one of these."""
        node, wanted = self._root, set(documents)
        while node.children:
            best = self._nearest(node, documents)
            if best is None:
                return node, node is not self._root
            if best.documents[0] not in wanted:
                return best, False
            node = best
        return node, node is not self._root

    def _nearest(self, node: _Node, documents: Context) -> _Node | None:
        touched = {child: None for document in documents for child in node.by_document.get(document, ())}
        if not touched:
            return None
        if len(touched) > 1:
            place = {child: at for at, child in enumerate(node.children) if child in touched}
            return min(touched, key=lambda child: (distance(documents, child.documents), place[child]))
        return next(iter(touched))

    def _insert(self, aligned: Context, node: _Node, leads: bool) -> _Node:
        if node is self._root:
            return self._below(self._root, aligned)
        if not leads:
            return self._below(_parent(node), aligned)
        if node.children:
            return self._below(node, aligned)
        shared = _shared_prefix(node.documents, aligned)
        if not shared or (len(shared) == len(node.documents) == len(aligned)):
            return self._below(_parent(node), aligned)
        return self._split(node, shared, aligned)

    def _below(self, parent: _Node, documents: Context) -> _Node:
        if parent is self._root:
            self._regions += 1
        region = self._regions if parent is self._root else parent.region
        leaf = _Node(documents, parent, region, (*parent.path, len(parent.children)))
        parent.append(leaf)
        return leaf

    def _split(self, leaf: _Node, shared: Context, documents: Context) -> _Node:
        parent = _parent(leaf)
        at = parent.children.index(leaf)
        inner = _Node(shared, parent, leaf.region, (*parent.path, at))
        parent.strike(leaf)
        parent.children[at] = inner
        parent.enlist(inner)
        leaf.parent, leaf.path = inner, (*inner.path, 0)
        inner.append(leaf)
        return self._below(inner, documents)


def distance(one: Sequence[bytes], other: Sequence[bytes]) -> float:
    """Of two contexts; 1 without a common document."""
    places = {document: place for place, document in enumerate(one)}
    moved = [abs(places[document] - place) for place, document in enumerate(other) if document in places]
    if not moved:
        return 1.0
    return 1.0 - len(moved) / max(len(one), len(other)) + _ALPHA * (sum(moved) / len(moved))


def _aligned(documents: Context, prefix: Context) -> Context:
    wanted = set(documents)
    first = tuple(document for document in prefix if document in wanted)
    return (*first, *(document for document in documents if document not in set(first)))


def _shared_prefix(one: Context, other: Context) -> Context:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return one[:count]


def _parent(node: _Node) -> _Node:
    assert node.parent is not None
    return node.parent


class Proxy:
    """ContextPilot's server: every request passes it on its way to the engine, which tells it what was given up.

    Only documents that the caller declared unordered are aligned; a request without any passes as it is.

    Args:
        hooked: whether the engine tells it; without, the index keeps every request for ever.
    """

    def __init__(self, engine: ModelFreeEngine, *, hooked: bool = True) -> None:
        self._engine = engine
        self._hooked = hooked
        self._index = ContextIndex()
        self.placed: dict[str, Placed] = {}
        self._own_block: dict[str, bytes] = {}
        """By request the first block that it computed itself: the last of its own to be given up."""

    def arrive(self, request: SyntheticRequest) -> SyntheticRequest:
        plan = request.plan
        if plan is None or not plan.can_reorder:
            return request
        self._forget_what_is_gone()
        documents = [plan.segments[index].identity for index in plan.movable_segments]
        if len(set(documents)) != len(documents):
            return request
        placed = self.placed[request.name] = self._index.align(request.name, documents)
        order = list(placed.order)
        tokens = permute_runs(request.tokens, plan.movable, order)
        return replace(request, tokens=tokens, plan=fixed_plan(permute_plan(plan, order)))

    def first_token(self, request: str, cached_tokens: int) -> None:
        """A request was prefilled; so many of its tokens came from the cache."""
        if not self._hooked or request not in self._index:
            return
        hashes = self._engine.block_hashes(request)
        own = cached_tokens // self._engine.limits.block_tokens
        if own < len(hashes):
            self._own_block[request] = hashes[own]

    def _forget_what_is_gone(self) -> None:
        for request in [name for name, block in self._own_block.items() if not self._engine.is_cached(block)]:
            del self._own_block[request]
            self._index.remove(request)


class RegionSchedule(HotOrder):
    """ContextPilot's inter-context schedule over the waiting queue, taken anew with each pass.

    Args:
        placed: where the index has put a request, by its name; one that it does not know counts as of no region.
    """

    has_lanes = False

    def __init__(self, placed: Callable[[str], Placed | None]) -> None:
        self._placed = placed
        self._waiting: dict[int, Waiting] = {}
        self._order: list[Waiting] | None = None

    def add(self, waiting: Waiting) -> None:
        self._waiting[waiting.number] = waiting
        self._order = None

    def remove(self, waiting: Waiting) -> None:
        del self._waiting[waiting.number]
        if self._order is not None:
            self._order.remove(waiting)

    def begin_pass(self) -> None:
        self._order = None

    def first(self) -> Waiting:
        return self._scheduled()[0]

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._scheduled())

    def _scheduled(self) -> list[Waiting]:
        if self._order is None:
            self._order = list(self._by_region(sorted(self._waiting.values(), key=lambda one: one.number)))
        return self._order

    def _by_region(self, waiting: Iterable[Waiting]) -> Iterator[Waiting]:
        regions: dict[int, list[tuple[int, tuple[int, ...], int, Waiting]]] = defaultdict(list)
        for one in waiting:
            placed = self._placed(one.request)
            region, path = (placed.region, placed.path) if placed is not None else (-1, ())
            regions[region].append((-len(path), path, one.number, one))
        ordered = [sorted(members, key=lambda entry: entry[:3]) for members in regions.values()]
        for members in sorted(ordered, key=lambda members: (-len(members), members[0][2])):
            yield from (entry[3] for entry in members)
