"""What the workloads promise: one seed, one workload; plans that fit their prompts."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from prism.bench.arrivals import poisson_times
from prism.bench.scenarios import SCENARIOS, Place
from prism.bench.workloads import Corpus, RagShape, mixed, plain, rag, without_segments
from prism.bench.zipf import ZipfLaw
from prism.core.segments import SegmentKind, segment_identity

SMALL = Corpus.drawn(0, documents=30, shortest=10, longest=20, system_tokens=8)
TIMES = poisson_times(random.Random(1), 5, 20)


def test_equal_seeds_give_equal_workloads() -> None:
    assert rag(SMALL, RagShape(), TIMES, 1) == rag(SMALL, RagShape(), TIMES, 1)
    assert rag(SMALL, RagShape(), TIMES, 1) != rag(SMALL, RagShape(), TIMES, 2)


def test_a_rag_plan_names_system_documents_and_question() -> None:
    request = rag(SMALL, RagShape(), TIMES, 1).arrivals[0].request
    plan = request.plan
    assert plan is not None
    kinds = [segment.kind for segment in plan.segments]
    assert kinds == [SegmentKind.SYSTEM, *[SegmentKind.DOCUMENT] * 5, SegmentKind.PRIVATE]
    assert plan.segments[-1].end == len(request.tokens)
    assert plan.movable_segments == (1, 2, 3, 4, 5)


def test_identities_are_those_of_the_tokens() -> None:
    request = rag(SMALL, RagShape(), TIMES, 1, ("prism:salt:a",)).arrivals[0].request
    assert request.plan is not None
    for segment in request.plan.segments:
        tokens = request.tokens[segment.start : segment.end]
        assert segment.identity == segment_identity(tokens, "prism:salt:a")


def test_a_fixed_order_has_nothing_movable() -> None:
    request = rag(SMALL, RagShape(movable=False), TIMES, 1).arrivals[0].request
    assert request.plan is not None
    assert not request.plan.can_reorder


def test_popular_first_puts_documents_in_the_same_relative_order() -> None:
    shape = RagShape(per_request=(30, 30), order="popular")
    first, second = (one.request.plan for one in rag(SMALL, shape, TIMES, 1).arrivals[:2])
    assert first is not None
    assert second is not None
    assert [s.identity for s in first.segments[:-1]] == [s.identity for s in second.segments[:-1]]


def test_zipf_draws_follow_their_weights() -> None:
    law, rng = ZipfLaw(100, 1.0), random.Random(1)
    drawn = Counter(law.draw(rng) for _ in range(20_000))
    assert drawn[0] / drawn[9] == pytest.approx(10, rel=0.25)


def test_distinct_draws_are_distinct() -> None:
    assert len(set(ZipfLaw(6, 2.0).draw_distinct(random.Random(1), 6))) == 6


def test_poisson_arrivals_come_at_their_rate() -> None:
    times = poisson_times(random.Random(1), 10, 1_000)
    assert len(times) == pytest.approx(10_000, rel=0.05)
    assert times == sorted(times)


def test_unmarked_prompts_keep_their_tokens() -> None:
    marked = rag(SMALL, RagShape(), TIMES, 1)
    for one, bare in zip(marked.arrivals, without_segments(marked).arrivals, strict=True):
        assert bare.request.tokens == one.request.tokens
        assert bare.request.plan is not None
        assert not bare.request.plan.segments


def test_requests_of_one_name_are_not_mixed() -> None:
    one = rag(SMALL, RagShape(), TIMES, 1)
    with pytest.raises(ValueError, match="mix workloads of other seeds"):
        mixed(one, without_segments(one))


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_every_scenario_makes_requests_of_different_names(name: str) -> None:
    workload = SCENARIOS[name].workload(Place(20_000), 2.0, 6.0, 1)
    names = [one.request.name for one in workload.arrivals]
    names += [follow.request.name for follow in workload.follow_ups.values()]
    assert names
    assert len(set(names)) == len(names)


def test_mixed_arrivals_are_ascending() -> None:
    both = mixed(rag(SMALL, RagShape(), TIMES, 1), plain(TIMES, 1, prompt_tokens=(5, 9)))
    times = [one.at_s for one in both.arrivals]
    assert times == sorted(times)
    assert len({one.request.name for one in both.arrivals}) == len(both)
