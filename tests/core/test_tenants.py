"""What is decided about one tenant's requests is what would be decided without the others (promise 4)."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from prism.config.schema import PrismSpec
from prism.core.decisions import Decisions
from prism.core.namespace import namespace
from prism.core.segments import (
    PromptPlan,
    Segment,
    SegmentKind,
    group_identity,
    permute_plan,
    segment_identity,
)
from prism.core.tree import PROTECTED

TOKENS = 16
DOCUMENTS = st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True)
OURS = namespace("ours")
OTHERS = st.sampled_from(
    [namespace(None), namespace("theirs"), namespace("ours", "adapter", 1), namespace("prism:salt:ours")]
)
GROUPED = st.none() | st.sampled_from(["x", "y"])

thorough = settings(max_examples=60)


@dataclass(frozen=True)
class Asked:
    """A request for some documents, all movable, of one block each; the first may be grouped by the caller's `id`."""

    documents: tuple[int, ...]
    group: str | None

    def plan(self, name: str) -> PromptPlan:
        segments = []
        for at, document in enumerate(self.documents):
            identity = segment_identity([document] * TOKENS, name)
            group = group_identity(self.group, name) if self.group and at == 0 else identity
            segments.append(Segment(SegmentKind.DOCUMENT, at * TOKENS, (at + 1) * TOKENS, identity, group))
        runs = tuple((one.start, one.end) for one in segments)
        return PromptPlan(name, tuple(segments), runs, tuple(range(len(runs))))

    def hashes(self, name: str, order: tuple[int, ...]) -> list[bytes]:
        return [f"{name}|{[self.documents[i] for i in order[: at + 1]]}".encode() for at in range(len(order))]


ASKED = st.builds(Asked, DOCUMENTS.map(tuple), GROUPED)


class Engine:
    """`Decisions` with a cache in which everything finds room."""

    def __init__(self, order: str) -> None:
        spec = PrismSpec.model_validate({"scheduler": {"order": order, "window": {"arrivals": 8192}}})
        self.decisions = Decisions(TOKENS, spec, lambda: 0.001)
        self._requests = 0
        self._blocks = 0

    def arrive(self, asked: Asked, name: str) -> str:
        request = f"r{self._requests}"
        self._requests += 1
        as_written = asked.hashes(name, tuple(range(len(asked.documents))))
        self.decisions.arrive(request, asked.plan(name), len(as_written) * TOKENS, as_written, 0, 0.0)
        return request

    def serve(self, asked: Asked, name: str) -> tuple[int, ...]:
        """From arrival to end; the order its documents were put in."""
        request = self.arrive(asked, name)
        decisions, prompt = self.decisions, self.decisions.prompt(request)
        assert prompt is not None
        order = tuple(decisions.arrangement(request) or range(len(asked.documents)))
        prompt.hashes = asked.hashes(name, order)
        if len(order) > 1:
            decisions.rearranged(request, permute_plan(prompt.plan, order), order)
        decisions.take(request)
        decisions.admitted(request, decisions.tree.match(prompt.hashes) * TOKENS, 0.0)
        decisions.settle(request, len(order))
        for depth, one in reversed(list(enumerate(prompt.hashes))):
            decisions.tree.free(self._blocks, one, depth)
            self._blocks += 1
        decisions.leave(request)
        return order


@thorough
@given(
    order=st.sampled_from(["Prism", "Paper"]),
    before=st.lists(st.tuples(ASKED, OTHERS), max_size=8),
    ours=st.lists(ASKED, max_size=8),
    waiting=st.lists(st.tuples(ASKED, OTHERS), max_size=4),
    asked=ASKED,
)
def test_documents_are_ordered_as_if_nobody_else_were_there(
    order: str, before: list[tuple[Asked, str]], ours: list[Asked], waiting: list[tuple[Asked, str]], asked: Asked
) -> None:
    alone, together = Engine(order), Engine(order)
    for one, name in before:
        together.serve(one, name)
    for one in ours:
        assert together.serve(one, OURS) == alone.serve(one, OURS)
    for one, name in waiting:
        together.arrive(one, name)
    assert together.serve(asked, OURS) == alone.serve(asked, OURS)


@thorough
@given(others=st.lists(st.tuples(ASKED, OTHERS), min_size=1, max_size=8), asked=ASKED)
def test_nothing_of_anothers_is_found_wanted_or_warm(others: list[tuple[Asked, str]], asked: Asked) -> None:
    engine = Engine("Prism")
    for one, name in others:
        engine.serve(one, name)
        engine.arrive(one, name)
    request = engine.arrive(asked, OURS)
    prompt = engine.decisions.prompt(request)
    assert prompt is not None
    assert prompt.waiting.cached_at_arrival == 0
    for group in prompt.waiting.groups:
        assert engine.decisions.ledger.demand(group) == (1, 0, 1)
    assert engine.decisions.tree.head(OURS, []) is None


@thorough
@given(
    asked=ASKED,
    name=OTHERS,
    waiting=st.lists(ASKED, min_size=1, max_size=4),
)
def test_who_waits_protects_no_block_of_another(asked: Asked, name: str, waiting: list[Asked]) -> None:
    engine = Engine("Prism")
    engine.serve(asked, name)
    for one in waiting:
        engine.arrive(one, OURS)
    tree = engine.decisions.tree
    assert not any(node.queued for node in set(tree._index.values()))
    classes = {eviction_class for _, eviction_class in tree.take(tree.free_blocks)}
    assert PROTECTED not in classes


@thorough
@given(asked=ASKED, name=OTHERS)
def test_the_same_words_are_another_segment_for_another_tenant(asked: Asked, name: str) -> None:
    ours, theirs = asked.plan(OURS), asked.plan(name)
    digests = [{d for one in plan.segments for d in (one.identity, one.group)} for plan in (ours, theirs)]
    assert digests[0].isdisjoint(digests[1])
