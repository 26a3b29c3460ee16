"""Both decisions together: a request's way through them, and what is said about it."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism.config.schema import PrismSpec
from prism.core.decisions import Admission, Decisions
from prism.core.demand import Demand
from prism.core.segments import PromptPlan, Segment, SegmentKind, permute_plan, permute_runs, segment_identity

BLOCK = 4
SYSTEM, DOCUMENT, PRIVATE = SegmentKind.SYSTEM, SegmentKind.DOCUMENT, SegmentKind.PRIVATE
Parts = Sequence[tuple[SegmentKind, str]]
modest = settings(max_examples=60)


def spec(**scheduler: object) -> PrismSpec:
    return PrismSpec.model_validate({"scheduler": scheduler}, by_alias=True, by_name=False)


def tokens_of(parts: Parts) -> list[int]:
    """One token a letter."""
    return [ord(letter) for _, text in parts for letter in text]


def hashes_of(tokens: Sequence[int], namespace: str) -> list[bytes]:
    """Chained over whole blocks, as an engine does."""
    last, out = namespace.encode(), []
    for end in range(BLOCK, len(tokens) + 1, BLOCK):
        last = hashlib.blake2b(last + repr(tokens[end - BLOCK : end]).encode(), digest_size=8).digest()
        out.append(last)
    return out


def plan_of(parts: Parts, namespace: str = "", movable: bool = False) -> PromptPlan:
    segments, at = [], 0
    for kind, text in parts:
        identity = segment_identity([ord(letter) for letter in text], namespace)
        segments.append(Segment(kind, at, at + len(text), identity, identity))
        at += len(text)
    free = [index for index, part in enumerate(parts) if movable and part[0] is DOCUMENT]
    runs = tuple((segments[index].start, segments[index].end) for index in free)
    return PromptPlan(namespace, tuple(segments), runs, tuple(free))


@dataclass
class Prompt:
    tokens: list[int]
    hashes: list[bytes]
    plan: PromptPlan
    blocks: list[int] = field(default_factory=list)


class Engine:
    """As much of an engine as the decisions need: tokens, hashes, and blocks that never run out."""

    def __init__(self, settings: PrismSpec | None = None) -> None:
        self.decisions = Decisions(BLOCK, settings or PrismSpec(), lambda: 0.001)
        self.prompts: dict[str, Prompt] = {}
        self.held: dict[bytes, int] = {}
        self.users: Counter[int] = Counter()
        self.numbers = count()
        self.now = 0.0

    def arrive(
        self,
        name: str,
        parts: Parts,
        *,
        namespace: str = "",
        movable: bool = False,
        plain: bool = False,
        priority: int = 0,
    ) -> None:
        tokens = tokens_of(parts)
        plan = PromptPlan(namespace) if plain else plan_of(parts, namespace, movable)
        prompt = self.prompts[name] = Prompt(tokens, hashes_of(tokens, namespace), plan)
        self.decisions.arrive(name, plan, len(tokens), prompt.hashes, priority, self.now)

    def admit(self) -> tuple[str, Admission | None]:
        """One pass that admits the head."""
        self.decisions.begin_pass(self.now)
        head = self.decisions.head(self.now)
        assert head is not None
        name = head.waiting.request
        self.rewrite(name)
        assert self.decisions.take(name) is head.waiting
        admitted = self.decisions.admitted(name, self.allocate(name), self.now)
        return name, self.decisions.told(admitted) if admitted is not None else None

    def rewrite(self, name: str) -> None:
        order, prompt = self.decisions.arrangement(name), self.prompts[name]
        if order is not None:
            prompt.tokens = permute_runs(prompt.tokens, prompt.plan.movable, order)
            prompt.hashes[:] = hashes_of(prompt.tokens, prompt.plan.namespace)
            self.decisions.rearranged(name, permute_plan(prompt.plan, order), order)

    def allocate(self, name: str) -> int:
        """Returns the tokens found cached."""
        prompt, cached = self.prompts[name], 0
        for block_hash in prompt.hashes:
            block = self.held.get(block_hash)
            if block is None:
                block = self.held[block_hash] = next(self.numbers)
            else:
                cached += BLOCK
                if not self.users[block]:
                    self.decisions.tree.reclaim(block)
            self.users[block] += 1
        return cached

    def stop(self, name: str) -> None:
        """It gives its blocks back."""
        hashes = self.prompts[name].hashes
        self.decisions.settle(name, len(hashes))
        for depth in reversed(range(len(hashes))):
            block = self.held[hashes[depth]]
            self.users[block] -= 1
            if not self.users[block]:
                self.decisions.tree.free(block, hashes[depth], depth)

    def finish(self, name: str) -> None:
        self.stop(name)
        self.decisions.leave(name)
        del self.prompts[name]

    def serve(self, parts: Parts, **options: object) -> Admission | None:
        name = f"served{next(self.numbers)}"
        self.arrive(name, parts, **options)  # type: ignore[arg-type]
        admitted, admission = self.admit()
        assert admitted == name
        self.finish(name)
        return admission

    def order_used(self, name: str) -> str:
        """The first letters of its documents, as they stand."""
        plan, tokens = self.decisions.prompt(name), self.prompts[name].tokens
        assert plan is not None
        return "".join(chr(tokens[s.start]) for s in plan.plan.segments if s.kind is DOCUMENT)


def rag(documents: str, question: str = "?") -> Parts:
    """A system prompt, documents of two blocks each, and a question."""
    return [(SYSTEM, "s" * 8), *((DOCUMENT, letter * 8) for letter in documents), (PRIVATE, question * 4)]


def group(letter: str, namespace: str = "") -> bytes:
    return segment_identity([ord(letter)] * 8, namespace)


@pytest.fixture
def engine() -> Engine:
    return Engine()


# --- a request's way --------------------------------------------------------------------------------------------


def test_demand_follows_a_request_from_its_arrival_to_its_end(engine: Engine) -> None:
    ledger = engine.decisions.ledger
    engine.arrive("r", rag("a"))
    assert ledger.demand(group("a")) == Demand(queued=1, active=0, predicted=1)
    engine.admit()
    assert ledger.demand(group("a")) == Demand(queued=0, active=1, predicted=1)
    engine.finish("r")
    assert ledger.demand(group("a")) == Demand(queued=0, active=0, predicted=1)


def test_nothing_is_left_of_a_request_that_ended(engine: Engine) -> None:
    engine.serve(rag("ab"))
    assert (len(engine.decisions.ledger), len(engine.decisions.room)) == (0, 0)
    assert not engine.decisions.tree._expected
    assert not engine.decisions.knows("served0")


@pytest.mark.parametrize("stage", ["waiting", "taken", "admitted", "preempted"])
def test_a_request_may_leave_at_any_moment(engine: Engine, stage: str) -> None:
    engine.arrive("r", rag("a"))
    if stage == "taken":
        engine.decisions.head(0.0)
        engine.decisions.take("r")
    if stage in ("admitted", "preempted"):
        engine.admit()
        engine.stop("r")
    if stage == "preempted":
        engine.decisions.resume("r")
    engine.decisions.leave("r")
    assert (len(engine.decisions.ledger), len(engine.decisions.room)) == (0, 0)
    assert not engine.decisions.tree._expected


def test_unknown_requests_are_ignored(engine: Engine) -> None:
    decisions = engine.decisions
    assert decisions.take("x") is None
    assert decisions.admitted("x", 0, 0.0) is None
    assert not decisions.resume("x")
    decisions.settle("x", 1)
    decisions.leave("x")
    assert decisions.prompt("x") is None


def test_a_request_can_not_arrive_twice(engine: Engine) -> None:
    engine.arrive("r", rag("a"))
    with pytest.raises(ValueError, match="r arrived twice"):
        engine.arrive("r", rag("b"))
    assert engine.decisions.ledger.demand(group("b")) == Demand(0, 0, 0)
    assert len(engine.decisions.room) == 1


def test_a_request_that_waits_elsewhere_counts_and_does_not_wait_here(engine: Engine) -> None:
    plan = plan_of(rag("a"))
    engine.decisions.arrive("r", plan, 20, [], 0, 0.0, queued=False)
    assert len(engine.decisions.room) == 0
    assert engine.decisions.ledger.demand(group("a")).queued == 1
    assert engine.decisions.admitted("r", 0, 0.0) is not None


def test_what_never_ran_leaves_no_prefix(engine: Engine) -> None:
    engine.arrive("r", rag("a"))
    engine.decisions.settle("r", 5)
    assert len(engine.decisions.tree) == 0


def test_only_what_was_computed_is_taken_for_cached(engine: Engine) -> None:
    engine.arrive("r", rag("ab"))
    engine.admit()
    hashes = engine.prompts["r"].hashes
    assert engine.decisions.tree.match(hashes) == 7
    engine.decisions.settle("r", 3)
    assert engine.decisions.tree.match(hashes) == 3


def test_what_was_generated_is_known_at_the_end(engine: Engine) -> None:
    engine.arrive("r", rag("a"))
    engine.admit()
    engine.prompts["r"].hashes += [b"generated"]
    engine.decisions.settle("r", 6)
    assert engine.decisions.tree.match(engine.prompts["r"].hashes) == 6


def test_a_preempted_request_resumes_first_and_is_admitted_once(engine: Engine) -> None:
    engine.arrive("old", rag("a"))
    engine.admit()
    engine.arrive("new", rag("b"))
    engine.stop("old")
    assert engine.decisions.resume("old")
    assert engine.admit() == ("old", None)
    assert engine.decisions.ledger.demand(group("a")).active == 1


def test_a_request_that_was_stepped_over_keeps_its_lane_to_itself(engine: Engine) -> None:
    engine.arrive("r", rag("a"))
    engine.decisions.head(0.0)
    engine.decisions.take("r")
    engine.decisions.resume("r")
    _, admission = engine.admit()
    assert admission is not None
    assert admission.lane == "none"


def test_resuming_is_no_sign_of_sessions(engine: Engine) -> None:
    engine.arrive("r", rag("a"))
    engine.admit()
    rates = [habits.continued for habits in engine.decisions.tree._habits.values()]
    engine.stop("r")
    engine.decisions.resume("r")
    engine.admit()
    assert [habits.continued for habits in engine.decisions.tree._habits.values()] == rates


def test_an_engine_without_prefix_caching_is_served_all_the_same(engine: Engine) -> None:
    engine.decisions.arrive("r", plan_of(rag("ab"), movable=True), 28, [], 0, 0.0)
    engine.decisions.take("r")
    assert engine.decisions.admitted("r", 0, 0.0) is not None
    assert len(engine.decisions.tree) == 0


# --- the order of documents -------------------------------------------------------------------------------------


def test_documents_follow_what_is_cached(engine: Engine) -> None:
    engine.serve(rag("abc"))
    engine.arrive("r", rag("cxba"), movable=True)
    _, admission = engine.admit()
    assert engine.order_used("r") == "abcx"
    assert admission is not None
    assert admission.cached_by_kind["document"] == 24


@modest
@given(served=st.lists(st.text("abcd", max_size=4), max_size=6), asked=st.text("abcd", max_size=4))
def test_a_reordered_prompt_finds_what_was_foretold(served: list[str], asked: str) -> None:
    engine = Engine()
    for documents in served:
        engine.serve(rag(documents), movable=True)
    engine.arrive("r", rag(asked, "!"), movable=True)
    foretold = engine.decisions._cached_of(engine.decisions._prompts["r"].waiting)
    _, admission = engine.admit()
    assert sorted(engine.order_used("r")) == sorted(asked)
    assert admission is not None
    assert sum(admission.cached_by_kind.values()) == foretold


def test_only_documents_that_may_move_are_reordered(engine: Engine) -> None:
    engine.serve(rag("ab"))
    engine.arrive("r", rag("ba"), movable=False)
    assert engine.decisions.arrangement("r") is None


def test_a_good_order_is_left_alone(engine: Engine) -> None:
    engine.serve(rag("ab"))
    engine.arrive("r", rag("ab", "!"), movable=True)
    assert engine.decisions.arrangement("r") is None


def test_a_prompt_is_rewritten_once(engine: Engine) -> None:
    engine.serve(rag("ab"))
    engine.arrive("r", rag("ba", "!"), movable=True)
    engine.rewrite("r")
    prompt = engine.decisions.prompt("r")
    assert prompt is not None
    assert prompt.order == (1, 0)
    assert engine.decisions.arrangement("r") is None


def test_rewritten_documents_still_count_as_movable(engine: Engine) -> None:
    engine.serve(rag("ab"))
    engine.serve(rag("ba", "!"), movable=True)
    identities = [s.identity for s in plan_of(rag("ab")).segments[:3]]
    anchor = engine.decisions.tree.head("", identities)
    assert anchor is not None
    assert anchor.movable


def test_behind_a_private_segment_the_tree_leads_nobody_on(engine: Engine) -> None:
    engine.serve([(SYSTEM, "s" * 8), (DOCUMENT, "b" * 8), (DOCUMENT, "a" * 8)], movable=True)
    own = [(SYSTEM, "s" * 8), (PRIVATE, "p" * 8), (DOCUMENT, "a" * 8), (DOCUMENT, "b" * 8)]
    engine.arrive("r", own, movable=True)
    _, admission = engine.admit()
    assert admission is not None
    assert admission.cached_by_kind["system"] == 8
    prompt = engine.decisions.prompt("r")
    assert prompt is not None
    assert prompt.waiting.cached_at_arrival == 8


def test_a_waiting_request_does_not_protect_where_its_documents_stand_now(engine: Engine) -> None:
    engine.serve(rag("ab"))
    engine.arrive("r", rag("ab"), movable=True)
    hashes = engine.prompts["r"].hashes
    queued = [engine.decisions.tree.node_of(hashes[at]) for at in (1, 3)]
    assert [node.queued.bit_count() for node in queued if node is not None] == [1, 0]


# --- what is said about an admission ----------------------------------------------------------------------------


def test_an_admission_counts_tokens_by_kind(engine: Engine) -> None:
    engine.serve(rag("ab"))
    admission = engine.serve(rag("axy"))
    assert admission is not None
    assert admission.tokens_by_kind == {"system": 8, "document": 24, "private": 4}
    assert admission.cached_by_kind == {"system": 8, "document": 8, "private": 0}
    assert (admission.segments_hit, admission.segments) == (2, 4)


def test_tokens_of_no_segment_count_as_plain(engine: Engine) -> None:
    admission = engine.serve(rag("ab"), plain=True)
    assert admission is not None
    assert (admission.tokens_by_kind, admission.cached_by_kind) == ({"plain": 28}, {"plain": 0})
    again = engine.serve(rag("ab"), plain=True)
    assert again is not None
    assert again.cached_by_kind == {"plain": 28}


@modest
@given(parts=st.lists(st.tuples(st.sampled_from(SegmentKind), st.text("ab", min_size=1, max_size=9)), max_size=6))
def test_the_kinds_add_up_to_the_prompt(parts: list[tuple[SegmentKind, str]]) -> None:
    engine = Engine()
    engine.serve(parts)
    admission = engine.serve(parts)
    total = sum(len(text) for _, text in parts)
    assert admission is not None
    assert sum(admission.tokens_by_kind.values()) == total
    assert sum(admission.cached_by_kind.values()) == total // BLOCK * BLOCK
    assert all(0 <= cached <= admission.tokens_by_kind[kind] for kind, cached in admission.cached_by_kind.items())


def bucket_of(documents: str, namespace: str = "") -> str:
    engine = Engine(spec(order="Paper"))
    engine.arrive("r", rag(documents), namespace=namespace)
    _, admission = engine.admit()
    assert admission is not None
    return admission.bucket


def test_each_signature_has_its_own_bucket() -> None:
    buckets = [bucket_of(documents) for documents in ("ab", "ba", "aa", "ac", "a", "")]
    assert len(set(buckets)) == 6
    assert buckets[-1] == ""


def test_a_bucket_is_the_same_for_the_same_leading_documents() -> None:
    assert bucket_of("abc") == bucket_of("abd")
    assert bucket_of("abc") != bucket_of("abc", "tenant")


def test_an_admission_says_who_was_passed() -> None:
    engine = Engine(spec(order="Paper", coldLane={"quota": 0.5}))
    engine.arrive("cold", rag("z"))
    for name in ("h1", "h2", "h3"):
        engine.arrive(name, rag("ab"))
    admitted = [engine.admit() for _ in range(3)]
    said = [(name, a.lane, a.passed, a.was_passed) for name, a in admitted if a is not None]
    assert said == [("h1", "hot", 0, False), ("cold", "cold", 1, True), ("h2", "hot", 0, False)]


@pytest.mark.parametrize(("order", "lane"), [("Prism", "hot"), ("Paper", "hot"), ("LPM", "none"), ("FCFS", "none")])
def test_lanes_stand_beside_the_planned_orders_only(order: str, lane: str) -> None:
    engine = Engine(spec(order=order))
    admission = engine.serve(rag("a"))
    assert admission is not None
    assert admission.lane == lane
    assert engine.decisions.has_lanes is (lane == "hot")


# --- tenants ----------------------------------------------------------------------------------------------------


def test_tenants_never_share_a_count_a_prefix_or_an_order(engine: Engine) -> None:
    for _ in range(3):
        engine.serve(rag("ba"), namespace="theirs", movable=True)
    engine.arrive("waits", rag("b"), namespace="theirs")
    engine.arrive("ours", rag("ab"), namespace="ours", movable=True)
    assert engine.decisions.ledger.demand(group("b", "ours")) == Demand(1, 0, 1)
    assert engine.decisions.prompt("ours").waiting.cached_at_arrival == 0  # type: ignore[union-attr]
    alone = Engine()
    alone.arrive("ours", rag("ab"), namespace="ours", movable=True)
    assert engine.decisions.arrangement("ours") == alone.decisions.arrangement("ours")


# --- other settings ---------------------------------------------------------------------------------------------

SPECS = st.builds(
    spec,
    order=st.sampled_from(["Prism", "Paper", "FCFS", "LPM"]),
    coldLane=st.fixed_dictionaries({"quota": st.sampled_from([0.0, 0.1, 1.0])}),
    reorder=st.sampled_from(["Never", "Declared"]),
    window=st.fixed_dictionaries({"arrivals": st.sampled_from([64, 100])}),
    lexicographic=st.booleans(),
)


@modest
@given(
    steps=st.lists(SPECS | st.sampled_from(["arrive", "admit", "preempt", "finish"]), max_size=30),
    asked=st.lists(st.text("abc", max_size=3), min_size=30, max_size=30),
)
def test_whatever_is_set_everybody_is_admitted_and_nothing_is_left(
    steps: list[PrismSpec | str], asked: list[str]
) -> None:
    engine = Engine()
    running: list[str] = []
    admitted: list[str] = []

    def admit() -> None:
        if len(engine.decisions.room):
            name, admission = engine.admit()
            running.append(name)
            admitted.extend([name] if admission is not None else [])

    for number, step in enumerate(steps):
        match step:
            case "arrive":
                engine.arrive(str(number), rag(asked[number]), movable=number % 2 == 0, priority=number % 3)
            case "admit":
                admit()
            case "preempt" if running:
                engine.stop(running[-1])
                engine.decisions.resume(running.pop())
            case "finish" if running:
                engine.finish(running.pop(0))
            case PrismSpec():
                engine.decisions.adopt(step)
        engine.now += 1.0
    while len(engine.decisions.room):
        admit()
    for name in running:
        engine.finish(name)
    assert sorted(admitted) == sorted(str(number) for number, step in enumerate(steps) if step == "arrive")
    assert (len(engine.decisions.ledger), engine.decisions.tree._expected) == (0, {})
    assert engine.decisions.tree.free_blocks == len(engine.held)


def test_another_window_holds_for_the_tree_as_for_the_ledger(engine: Engine) -> None:
    engine.decisions.adopt(spec(window={"arrivals": 64}))
    for number in range(65):
        engine.serve([(PRIVATE, chr(200 + number) * BLOCK)])
    first = engine.decisions.tree.node_of(hashes_of([200] * BLOCK, "")[0])
    assert first is not None
    assert (first.recent, engine.decisions.ledger.window) == (0, 64)


def test_arrival_places_survive_other_settings(engine: Engine) -> None:
    for name in ("r0", "r1", "r2"):
        engine.arrive(name, rag("a"))
    engine.decisions.adopt(spec(order="Paper"))
    engine.decisions.adopt(spec(order="FCFS"))
    assert [engine.admit()[0] for _ in range(3)] == ["r0", "r1", "r2"]
