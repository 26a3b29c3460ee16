"""Segments keep their tokens when runs change places, and their identity tells tenants apart."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism.core.segments import (
    PromptPlan,
    Segment,
    SegmentKind,
    group_identity,
    permute_plan,
    permute_runs,
    segment_identity,
)

TOKENS = st.lists(st.integers(0, 150_000), max_size=6)
modest = settings(max_examples=50)


@dataclass(frozen=True)
class Permutation:
    tokens: list[int]
    plan: PromptPlan
    order: list[int]

    def content(self, plan: PromptPlan, tokens: list[int]) -> list[list[int]]:
        return sorted(tokens[segment.start : segment.end] for segment in plan.segments)


@st.composite
def permutations(draw: st.DrawFn) -> Permutation:
    """A prompt of fixed parts before and after some documents, each with a label that travels with it."""
    tokens: list[int] = []
    segments: list[Segment] = []
    runs: list[tuple[int, int]] = []

    def grow(size: int) -> tuple[int, int]:
        start = len(tokens)
        tokens.extend(draw(st.lists(st.integers(0, 999), min_size=size, max_size=size)))
        return start, len(tokens)

    def segment(kind: SegmentKind) -> None:
        start, end = grow(draw(st.integers(1, 5)))
        identity = segment_identity(tokens[start:end], "")
        segments.append(Segment(kind, start, end, identity, identity))

    for kind in draw(st.lists(st.sampled_from([SegmentKind.SYSTEM, SegmentKind.TOOL_SCHEMA]), max_size=2)):
        segment(kind)
        grow(draw(st.integers(0, 2)))
    first = len(segments)
    for _ in range(draw(st.integers(0, 5))):
        grow(draw(st.integers(0, 1)))
        start, _ = grow(draw(st.integers(0, 2)))
        segment(SegmentKind.DOCUMENT)
        runs.append((start, grow(draw(st.integers(0, 2)))[1]))
    for kind in draw(st.lists(st.sampled_from([SegmentKind.HISTORY, SegmentKind.PRIVATE]), max_size=2)):
        segment(kind)
    movable = tuple(range(first, first + len(runs)))
    plan = PromptPlan("tenant", tuple(segments), tuple(runs), movable, 7, None)
    return Permutation(tokens, plan, draw(st.permutations(range(len(runs)))))


@modest
@given(permutations())
def test_segments_hold_the_same_tokens_after_a_permutation(case: Permutation) -> None:
    moved = permute_runs(case.tokens, case.plan.movable, case.order)
    plan = permute_plan(case.plan, case.order)
    for segment in plan.segments:
        assert segment.identity == segment_identity(moved[segment.start : segment.end], "")
    assert case.content(plan, moved) == case.content(case.plan, case.tokens)


@modest
@given(permutations())
def test_permuted_segments_are_ascending_and_disjoint(case: Permutation) -> None:
    segments = permute_plan(case.plan, case.order).segments
    bounds = [bound for segment in segments for bound in (segment.start, segment.end)]
    assert bounds == sorted(bounds)
    assert len(segments) == len(case.plan.segments)


@modest
@given(permutations())
def test_only_the_movable_runs_move(case: Permutation) -> None:
    plan = permute_plan(case.plan, case.order)
    fixed = [s for index, s in enumerate(case.plan.segments) if index not in case.plan.movable_segments]
    assert [s for index, s in enumerate(plan.segments) if index not in plan.moved_segments] == fixed


@modest
@given(permutations())
def test_documents_stand_in_the_order_that_was_asked_for(case: Permutation) -> None:
    plan = permute_plan(case.plan, case.order)
    before = [case.plan.segments[index].identity for index in case.plan.movable_segments]
    assert [plan.segments[i].identity for i in plan.moved_segments] == [before[k] for k in case.order]


@modest
@given(permutations())
def test_a_prompt_is_permuted_once(case: Permutation) -> None:
    plan = permute_plan(case.plan, case.order)
    assert not plan.can_reorder
    assert (plan.namespace, plan.render_generation) == (case.plan.namespace, case.plan.render_generation)


@modest
@given(permutations())
def test_a_permutation_keeps_every_token_and_the_length(case: Permutation) -> None:
    moved = permute_runs(case.tokens, case.plan.movable, case.order)
    assert sorted(moved) == sorted(case.tokens)
    if case.order == sorted(case.order):
        assert moved == case.tokens


@pytest.mark.parametrize("order", [[0], [0, 0], [1, 2], [0, 1, 2]])
def test_an_order_that_is_no_permutation_is_refused(order: list[int]) -> None:
    with pytest.raises(ValueError, match="each run once"):
        permute_runs([1, 2, 3, 4], [(0, 1), (2, 4)], order)


def test_a_fixed_segment_among_the_runs_is_refused() -> None:
    kinds = (SegmentKind.DOCUMENT, SegmentKind.TOOL_OUTPUT, SegmentKind.DOCUMENT)
    segments = tuple(Segment(kind, at, at + 1, b"", b"") for at, kind in enumerate(kinds))
    with pytest.raises(ValueError, match="among the movable runs"):
        permute_plan(PromptPlan("", segments, ((0, 1), (2, 3)), (0, 2)), [1, 0])


def test_each_movable_run_needs_its_segment() -> None:
    with pytest.raises(ValueError, match="needs its segment"):
        PromptPlan("", (), ((0, 1),), ())


@pytest.mark.parametrize(("runs", "free"), [(0, False), (1, False), (2, True)])
def test_an_order_is_free_only_between_two_runs_or_more(runs: int, free: bool) -> None:
    plan = PromptPlan("", (), tuple((k, k + 1) for k in range(runs)), tuple(range(runs)))
    assert plan.can_reorder is free


def test_every_kind_but_private_is_reusable() -> None:
    assert [kind for kind in SegmentKind if not kind.reusable] == [SegmentKind.PRIVATE]


@modest
@given(TOKENS, TOKENS, st.text(max_size=4), st.text(max_size=4))
def test_identities_are_equal_only_for_equal_tokens_in_one_namespace(
    ours: list[int], theirs: list[int], our_name: str, their_name: str
) -> None:
    same = segment_identity(ours, our_name) == segment_identity(theirs, their_name)
    assert same == ((ours, our_name) == (theirs, their_name))


def test_no_namespace_can_imitate_anothers_tokens() -> None:
    letters = int.from_bytes(b"salt", "little")
    assert segment_identity([letters, 5], "x") != segment_identity([5], "xsalt")
    assert segment_identity([letters], "") != segment_identity([], "salt")


@modest
@given(st.text(max_size=4), st.text(max_size=4), st.text(max_size=4), st.text(max_size=4))
def test_a_callers_id_groups_within_its_namespace_only(a: str, b: str, our_name: str, their_name: str) -> None:
    same = group_identity(a, our_name) == group_identity(b, their_name)
    assert same == ((a, our_name) == (b, their_name))


@modest
@given(st.text(max_size=8), st.text(max_size=4))
def test_a_callers_id_is_never_the_identity_of_tokens(name: str, namespace: str) -> None:
    tokens = list(name.encode())
    assert group_identity(name, namespace) != segment_identity(tokens, namespace)
