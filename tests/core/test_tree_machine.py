"""The radix tree against a naive model of a block pool: sets of prefixes instead of nodes, scans instead of heaps.

A chain is a text, one letter a block; the hash of a block is the text up to it. The pool keeps the engine's protocol:
blocks of a running request are in use, hits are reclaimed, and whoever stops settles and frees its tail first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prism.core.demand import DemandLedger
from prism.core.segments import SegmentKind
from prism.core.tree import PRIVATE, Anchor, AnchorPoint, DemandAwareRadixTree, EvictionKey, Node, Retention

BLOCKS = 14
WINDOW = 8
CHAINS = st.builds(lambda size, tail: "ababa"[:size] + tail, st.integers(0, 5), st.text("ab", max_size=1))
"""Most of them share a beginning, and part at any block."""


def prefixes(chain: str) -> list[str]:
    return [chain[:size] for size in range(1, len(chain) + 1)]


def hashes(chain: str) -> list[bytes]:
    return [prefix.encode() for prefix in prefixes(chain)]


def points(chain: str, cuts: list[int]) -> list[AnchorPoint]:
    """A segment up to each cut, some of them shorter than a block. Only its last letter is its own."""
    ends = sorted(min(cut, len(chain)) for cut in cuts)
    starts = [0, *ends]
    kinds = [SegmentKind.SYSTEM, SegmentKind.DOCUMENT, SegmentKind.HISTORY]
    return [
        AnchorPoint(chain[max(start, end - 1) : end].encode(), b"", kinds[place % 3], end, place % 3 == 1)
        for place, (start, end) in enumerate(zip(starts, ends, strict=False))
    ]


class ByName(Retention):
    """Keys that differ from node to node and never change, so the order of eviction is known."""

    def __init__(self, factor: int) -> None:
        self._factor = factor

    def key(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        name = int.from_bytes(node.run[0], "big")
        return (PRIVATE + name % 3, name * self._factor % 10_007, name)

    def bound(self, node: Node, tree: DemandAwareRadixTree) -> EvictionKey:
        return self.key(node, tree)


@dataclass
class Request:
    chain: str
    slot: int
    marked: set[str] = field(default_factory=set)
    blocks: list[int] = field(default_factory=list)
    computed: int = 0


class RadixTreeMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = DemandLedger(WINDOW)
        self.tree = DemandAwareRadixTree(self.ledger, ByName(7919))
        self.known: set[str] = set()
        self.free: dict[int, str] = {}
        self.blank = list(range(BLOCKS))
        self.users = dict.fromkeys(range(BLOCKS), 0)
        self.waiting: dict[str, Request] = {}
        self.running: dict[str, Request] = {}
        self.recent: dict[int, set[str]] = {}
        self.names = 0

    # ---- the model -------------------------------------------------------------------------------------------

    def matched(self, chain: str) -> int:
        return next((n for n, prefix in enumerate(prefixes(chain)) if prefix not in self.known), len(chain))

    def copies(self, prefix: str) -> list[int]:
        """Blocks that hold this prefix, free ones first."""
        free = [block for block, held in self.free.items() if held == prefix]
        size = len(prefix)
        used = [r.blocks[size - 1] for r in self.running.values() if r.computed >= size and r.chain[:size] == prefix]
        return free + used

    def cached(self, chain: str) -> int:
        return next((n for n, prefix in enumerate(prefixes(chain)) if not self.copies(prefix)), len(chain))

    def is_tail(self, prefix: str) -> bool:
        longer = any(known != prefix and known.startswith(prefix) for known in self.known)
        return not longer and prefix not in self.free.values()

    def forget(self, prefix: str) -> None:
        self.known.discard(prefix)
        for request in self.waiting.values():
            request.marked.discard(prefix)
        for wanted in self.recent.values():
            wanted.discard(prefix)

    def gave_up(self, block: int) -> None:
        prefix = self.free.pop(block)
        assert not any(other != prefix and other.startswith(prefix) for other in self.free.values()), "tails first"
        if self.is_tail(prefix):
            self.forget(prefix)

    def settled(self, chain: str, cached: int) -> None:
        matched = self.matched(chain)
        self.known.update(prefixes(chain)[:cached])
        for prefix in reversed(prefixes(chain)[cached:matched]):
            if not self.is_tail(prefix):
                return
            self.forget(prefix)

    # ---- what happens ----------------------------------------------------------------------------------------

    def allocate(self, count: int) -> list[int]:
        out = [self.blank.pop() for _ in range(min(count, len(self.blank)))]
        missing = count - len(out)
        order = self.tree.in_order()
        taken = [block for block, _ in self.tree.take(missing)]
        assert taken == order[:missing]
        for block in taken:
            self.gave_up(block)
        return out + taken

    def hold(self, request: Request, blocks: list[int]) -> None:
        request.blocks += blocks
        for block in blocks:
            self.users[block] += 1

    @rule(chain=CHAINS)
    def arrive(self, chain: str) -> None:
        used = {r.slot for r in [*self.waiting.values(), *self.running.values()]}
        slot = next(number for number in range(99) if number not in used)
        name = f"r{self.names}"
        self.names += 1
        self.tree.expect(name, hashes(chain), slot)
        self.waiting[name] = Request(chain, slot, set(prefixes(chain)[: self.matched(chain)]))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), cuts=st.lists(st.integers(0, 4), max_size=4), plain=st.booleans(), done=st.integers(0, 5))
    def admit(self, data: st.DataObject, cuts: list[int], plain: bool, done: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.waiting)))
        request = self.waiting[name]
        hits = [self.copies(prefix)[0] for prefix in prefixes(request.chain)[: self.cached(request.chain)]]
        missing = len(request.chain) - len(hits)
        if missing > len(self.blank) + len(self.free.keys() - set(hits)):
            return
        for block in hits:
            if self.free.pop(block, None) is not None:
                self.tree.reclaim(block)
        self.hold(request, hits + self.allocate(missing))
        del self.waiting[name]
        self.running[name] = request
        self.tree.unexpect(name)
        self.use(request, cuts, plain)
        request.computed = min(len(hits) + done, len(request.blocks))

    def use(self, request: Request, cuts: list[int], plain: bool) -> None:
        ends = points(request.chain, cuts)
        self.tree.use("", hashes(request.chain), ends, plain, ends[-1].blocks if ends else 0)
        if ends and ends[-1].blocks:
            anchor = self.tree.head("", [point.identity for point in ends])
            assert anchor is not None
            assert anchor.blocks == ends[-1].blocks
        self.known.update(prefixes(request.chain))
        self.recent[self.tree.uses % len(self.tree._ring)] = set(prefixes(request.chain))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), letters=st.text("ab", max_size=2))
    def generate(self, data: st.DataObject, letters: str) -> None:
        request = self.running[data.draw(st.sampled_from(sorted(self.running)))]
        if len(letters) > len(self.blank) + len(self.free):
            return
        request.computed = len(request.blocks)
        request.chain += letters
        self.hold(request, self.allocate(len(letters)))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), waits_again=st.booleans())
    def stop(self, data: st.DataObject, waits_again: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        cached = self.cached(self.running[name].chain)
        request = self.running.pop(name)
        self.tree.settle(hashes(request.chain), cached)
        self.settled(request.chain, cached)
        depths = [depth for depth in reversed(range(len(request.blocks))) if self.released(request, depth)]
        known = hashes(request.chain)
        self.tree.free_all([(request.blocks[depth], known[depth], depth) for depth in depths])
        self.free |= {request.blocks[depth]: request.chain[: depth + 1] for depth in depths}
        if waits_again:
            self.waiting[name] = Request(request.chain, request.slot)

    def released(self, request: Request, depth: int) -> bool:
        """Whether a block that a request gives back is free now and holds KV."""
        block = request.blocks[depth]
        self.users[block] -= 1
        holds = depth < request.computed
        if not self.users[block] and not holds:
            self.blank.append(block)
        return not self.users[block] and holds

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up_waiting(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.waiting)))
        self.tree.unexpect(name)
        del self.waiting[name]

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def lose_a_tail(self, data: st.DataObject) -> None:
        held = self.free.values()
        tails = [b for b, p in self.free.items() if not any(o != p and o.startswith(p) for o in held)]
        block = data.draw(st.sampled_from(sorted(tails)))
        self.tree.drop(block)
        self.gave_up(block)
        self.blank.append(block)

    @rule(count=st.integers(0, 4))
    def give_up_blocks(self, count: int) -> None:
        self.blank += self.allocate(min(count, len(self.blank) + len(self.free)))

    @rule(window=st.sampled_from([4, WINDOW]))
    def resize(self, window: int) -> None:
        if window != len(self.tree._ring):
            self.recent.clear()
        self.ledger.resize(window)
        self.tree.resize(window)

    @rule(factor=st.sampled_from([7919, 104_729, 1]))
    def retain_by(self, factor: int) -> None:
        self.tree.retain_by(ByName(factor))

    @precondition(lambda self: not self.running)
    @rule()
    def reset(self) -> None:
        order = self.tree.in_order()
        assert self.tree.reset() == order
        self.blank += order
        self.free.clear()
        self.known.clear()
        self.recent.clear()
        for request in self.waiting.values():
            request.marked.clear()

    # ---- what must hold --------------------------------------------------------------------------------------

    def nodes(self) -> list[Node]:
        out = [self.tree._root]
        for node in out:
            out += node.children.values()
        return out[1:]

    @invariant()
    def no_block_is_lost(self) -> None:
        assert self.tree.free_blocks == len(self.free)
        assert sorted(self.tree.in_order()) == sorted(self.free)
        assert len(self.blank) + len(self.free) + sum(users > 0 for users in self.users.values()) == BLOCKS

    @invariant()
    def matches_what_the_model_matches(self) -> None:
        assert {block_hash.decode() for block_hash in self.tree._index} == self.known
        for request in [*self.waiting.values(), *self.running.values()]:
            assert self.tree.match(hashes(request.chain)) == self.matched(request.chain)

    @invariant()
    def links_and_index_agree(self) -> None:
        assert len(self.tree) == sum(len(node.run) for node in self.nodes())
        for node in self.nodes():
            assert node.parent is not None
            assert node.start == node.parent.end
            assert node.parent.children[node.run[0]] is node
            assert all(self.tree.node_of(block_hash) is node for block_hash in node.run)

    @invariant()
    def free_blocks_stand_at_their_nodes(self) -> None:
        held = {block: (node, depth) for node in self.nodes() for depth, block in node.free}
        assert held == self.tree._free_at
        for block, (node, depth) in held.items():
            assert node.run[depth - node.start].decode() == self.free[block]

    @invariant()
    def candidates_are_the_nodes_with_free_blocks_and_none_below(self) -> None:
        for node in self.nodes():
            assert node.free == sorted(node.free)
            assert node.free_children == sum(child.holds_free for child in node.children.values())
        wanted = {node for node in self.nodes() if node.free and not node.free_children}
        assert set(self.tree._candidates) == wanted
        assert sorted(t for _, t, n in self.tree._heap if n.ticket == t) == sorted(n.ticket for n in wanted)

    @invariant()
    def demand_marks_stand_on_the_paths_they_were_made_for(self) -> None:
        expected = self.tree._expected.values()
        ring = [(place, leaf) for place, leaf in enumerate(self.tree._ring) if leaf is not None]
        for node in self.nodes():
            assert node.queued == sum(1 << slot for end, slot in expected if node in end.path())
            assert node.recent == sum(1 << place for place, leaf in ring if node in leaf.path())

    @invariant()
    def nobody_is_marked_who_does_not_want_it(self) -> None:
        for node in self.nodes():
            prefix = node.run[-1].decode()
            waiting = sum(1 << r.slot for r in self.waiting.values() if r.chain.startswith(prefix))
            used = sum(1 << place for place, wanted in self.recent.items() if prefix in wanted)
            assert node.queued & ~waiting == 0
            assert node.recent & ~used == 0

    @invariant()
    def anchors_end_where_their_nodes_end_and_go_with_them(self) -> None:
        alive = {id(node) for node in self.nodes()}
        anchors: list[Anchor] = list(self.tree._heads.values())
        assert all(head.children for head in anchors)
        for anchor in anchors:
            anchors += anchor.children.values()
            assert anchor.stands()
            assert anchor.node is None or (id(anchor.node) in alive and anchor in anchor.node.anchors)
            assert anchor.children or anchor.node is not None


RadixTreeMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)
TestRadixTree = RadixTreeMachine.TestCase
