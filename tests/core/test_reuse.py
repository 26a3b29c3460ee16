"""Why a segment hit or missed: every verdict, from the decisions of one engine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from prism.config.schema import PrismSpec
from prism.core.decisions import Decisions
from prism.core.reuse import MAX_JUDGED, GivenUpPrefixes, Loss, OtherTenants, Reuse, SegmentReuse
from prism.core.segments import PromptPlan, Segment, SegmentKind, segment_identity

BLOCK = 4
KINDS = {"s": SegmentKind.SYSTEM, "q": SegmentKind.PRIVATE}


class Engine:
    """A prefix cache of whole blocks around `Decisions`; prompts are texts, one letter a token."""

    def __init__(self) -> None:
        self.decisions = Decisions(BLOCK, PrismSpec(), lambda: 0.001)
        self.cached: dict[bytes, int] = {}
        self.now = 0.0
        self._requests = 0

    def serve(self, *parts: str, tenant: str = "", plain: bool = False) -> tuple[SegmentReuse, ...]:
        """A request from arrival to end; the verdicts on its segments. A part's first letter says its kind."""
        name, text = f"r{self._requests}", "".join(parts)
        self._requests += 1
        hashes = [f"{tenant}|{text[:end]}".encode() for end in range(BLOCK, len(text) + 1, BLOCK)]
        self.decisions.arrive(name, plan_of(parts, tenant, plain), len(text), hashes, 0, self.now)
        self.decisions.begin_pass(self.now)
        self.decisions.head(self.now)
        self.decisions.take(name)
        hit = min(self._matched(hashes), (len(text) - 1) // BLOCK)
        admitted = self.decisions.admitted(name, hit * BLOCK, self.now)
        assert admitted is not None
        self._finish(name, hashes)
        return self.decisions.told(admitted).reuse

    def _matched(self, hashes: Sequence[bytes]) -> int:
        return next((at for at, one in enumerate(hashes) if one not in self.cached), len(hashes))

    def _finish(self, name: str, hashes: list[bytes]) -> None:
        tree = self.decisions.tree
        for one in hashes:
            if one in self.cached:
                tree.reclaim(self.cached[one])
            self.cached.setdefault(one, len(self.cached) + 1000 * self._requests)
        self.decisions.settle(name, len(hashes))
        tree.free_all([(self.cached[one], one, depth) for depth, one in reversed(list(enumerate(hashes)))])
        self.decisions.leave(name)

    def evict(self, count: int) -> None:
        self.decisions.begin_pass(self.now)
        gone = {block for block, _ in self.decisions.tree.take(count)}
        self.cached = {one: block for one, block in self.cached.items() if block not in gone}

    def evict_least_recent(self, prefix: str) -> None:
        """As under LRU: the block that ends this prefix, whatever the tree thinks of it."""
        self.decisions.tree.drop(self.cached.pop(f"|{prefix}".encode()))

    def reset(self) -> None:
        self.decisions.tree.reset()
        self.cached.clear()


def plan_of(parts: Sequence[str], tenant: str, plain: bool) -> PromptPlan:
    segments, at = [], 0
    for part in () if plain else parts:
        kind = KINDS.get(part[0], SegmentKind.DOCUMENT)
        identity = segment_identity([ord(letter) for letter in part], tenant)
        segments.append(Segment(kind, at, at + len(part), identity, identity))
        at += len(part)
    return PromptPlan(tenant, tuple(segments))


@pytest.fixture
def engine() -> Engine:
    return Engine()


def verdicts(reuse: Sequence[SegmentReuse]) -> str:
    return " ".join(one.reuse for one in reuse)


def test_the_first_request_finds_nothing_that_was_ever_seen(engine: Engine) -> None:
    assert verdicts(engine.serve("ssss", "aaaa", "qqqq")) == "never_seen never_seen never_seen"


def test_a_shared_prefix_hits_and_a_new_question_was_never_seen(engine: Engine) -> None:
    engine.serve("ssss", "aaaa", "qqqq")
    assert verdicts(engine.serve("ssss", "aaaa", "q234")) == "hit hit never_seen"


def test_what_comes_behind_a_miss_is_not_at_a_prefix(engine: Engine) -> None:
    engine.serve("ssss", "aaaa", "bbbb", "qqqq")
    assert verdicts(engine.serve("ssss", "cccc", "bbbb", "q234")) == "hit never_seen not_at_prefix never_seen"


def test_a_segment_seen_behind_others_is_not_at_a_prefix(engine: Engine) -> None:
    engine.serve("ssss", "aaaa", "bbbb", "qqqq")
    assert verdicts(engine.serve("ssss", "bbbb", "q234")) == "hit not_at_prefix never_seen"


def test_a_segment_that_goes_on_otherwise_says_from_which_block(engine: Engine) -> None:
    engine.serve("ssss", "aaaabbbb", "qqqq")
    system, document, _ = engine.serve("ssss", "aaaacccc", "qqqq")
    assert (system.reuse, document.reuse, document.cached_tokens) == (Reuse.HIT, Reuse.DIFFERS, 4)


def test_an_evicted_segment_says_how_and_when(engine: Engine) -> None:
    engine.serve("ssss", "aaaa", "qqqq")
    engine.now = 7.0
    engine.evict(2)
    system, document, question = engine.serve("ssss", "aaaa", "qqqq")
    assert (system.reuse, document.reuse, question.reuse) == (Reuse.HIT, Reuse.EVICTED, Reuse.EVICTED)
    assert document.loss == Loss("unprotected", 7.0)


def test_lru_and_a_reset_are_told_apart_from_the_classes(engine: Engine) -> None:
    engine.serve("ssss", "aaaa")
    engine.evict_least_recent("ssssaaaa")
    by_lru = engine.serve("ssss", "aaaa", "qqqq")[1].loss
    engine.reset()
    by_reset = engine.serve("ssss", "aaaa", "qqqq")[0].loss
    assert (by_lru and by_lru.how, by_reset and by_reset.how) == ("lru", "reset")


def test_an_eviction_that_is_forgotten_is_still_known_to_be_one(engine: Engine) -> None:
    engine.decisions.tree.given_up = GivenUpPrefixes(capacity=1)
    engine.serve("ssss", "aaaa", "qqqq")
    engine.evict(3)
    engine.decisions.tree.given_up.note(b"another", "private")
    assert [(one.reuse, one.loss) for one in engine.serve("ssss", "aaaa")] == [(Reuse.EVICTED, None)] * 2


def test_the_last_block_of_a_cached_prompt_is_computed_again(engine: Engine) -> None:
    engine.serve("ssss", "qqqqqqqq")
    assert verdicts(engine.serve("ssss", "qqqqqqqq")) == "hit last_block"


def test_a_short_question_lies_in_a_block_that_is_not_filled(engine: Engine) -> None:
    engine.serve("ssss", "aaaa", "qq")
    assert verdicts(engine.serve("ssss", "aaaa", "qq")) == "hit hit short_block"


def test_a_segment_that_ends_inside_a_block_hits_by_its_whole_blocks(engine: Engine) -> None:
    engine.serve("ssss", "aaaaaa", "qqqqqq")
    system, document, _ = engine.serve("ssss", "aaaaaa", "q23456")
    assert (system.reuse, document.reuse, document.cached_tokens) == (Reuse.HIT, Reuse.HIT, 4)


def test_a_prompt_without_segments_is_judged_as_one(engine: Engine) -> None:
    first = engine.serve("aaaabbbbcccc", plain=True)
    other = engine.serve("aaaabbbbdddd", plain=True)
    assert [(one.kind, one.reuse) for one in (*first, *other)] == [("plain", "never_seen"), ("plain", "differs")]
    engine.evict(4)
    assert verdicts(engine.serve("aaaabbbbcccc", plain=True)) == "evicted"


def test_what_another_tenant_sent_was_never_seen(engine: Engine) -> None:
    engine.serve("ssss", "aaaa", "qqqq", tenant="one")
    assert verdicts(engine.serve("ssss", "aaaa", "qqqq", tenant="two")) == "never_seen never_seen never_seen"


def test_an_engine_that_caches_nothing_judges_nothing(engine: Engine) -> None:
    assert engine.serve("qq") == ()


def test_of_many_segments_the_last_are_judged(engine: Engine) -> None:
    engine.serve(*["aaaa"] * 100)
    judged = engine.serve(*["aaaa"] * 100, "qqqq")
    assert len(judged) == MAX_JUDGED
    assert (judged[-1].kind, judged[-1].end, judged[-2].reuse) == ("private", 404, Reuse.HIT)


def test_the_memory_of_given_up_prefixes_is_bounded_and_forgets_the_oldest() -> None:
    memory = GivenUpPrefixes(capacity=4)
    for number in range(9):
        memory.begin_pass(float(number))
        memory.note(bytes([number]), "private")
    assert len(memory) <= 4
    assert (memory.find(b"\5"), memory.find(b"\7")) == (None, Loss("private", 7.0))


def test_what_was_noted_again_is_remembered_from_then_on() -> None:
    memory = GivenUpPrefixes(capacity=4)
    for number in (0, 1, 0, 2, 0, 3):
        memory.note(bytes([number]), "private")
    assert memory.find(b"\0") is not None


def sent(others: OtherTenants, text: str, tenant: str) -> int:
    """How many segments of this prompt other tenants had sent."""
    return len(others.sent_before(plan_of([text], tenant, plain=False), [ord(letter) for letter in text]))


def test_a_segment_is_another_tenants_if_any_other_sent_it_before() -> None:
    others = OtherTenants()
    asked = [("aaaa", "one"), ("aaaa", "one"), ("aaaa", "two"), ("aaaa", "one"), ("bbbb", "two"), ("aaaa", "")]
    assert [sent(others, text, tenant) for text, tenant in asked] == [0, 0, 1, 1, 0, 1]


def test_what_tenants_sent_is_remembered_within_bounds() -> None:
    others = OtherTenants(capacity=4)
    for text in ("aaaa", "bbbb", "cccc", "dddd", "eeee", "ffff", "gggg"):
        sent(others, text, "one")
    assert [sent(others, text, "two") for text in ("gggg", "aaaa")] == [1, 0]
