"""A draft becomes a plan once the namespace is known."""

from __future__ import annotations

from prism.core.segments import SegmentKind, group_identity, segment_identity
from prism.engine.frontend.plan import DraftPlan, DraftSegment
from prism.engine.wire import decode_plan, encode_plan

_DRAFT = DraftPlan(
    segments=(
        DraftSegment(SegmentKind.SYSTEM, 0, 2),
        DraftSegment(SegmentKind.DOCUMENT, 2, 4, "d"),
        DraftSegment(SegmentKind.DOCUMENT, 4, 6),
    ),
    movable=((2, 4), (4, 6)),
    movable_segments=(1, 2),
    render_generation=3,
)
_TOKENS = [5, 6, 7, 8, 9, 10, 11]


def test_identities_are_those_of_the_tokens_in_their_namespace() -> None:
    plan = _DRAFT.resolve(_TOKENS, "t")
    assert [s.identity for s in plan.segments] == [segment_identity(_TOKENS[a : a + 2], "t") for a in (0, 2, 4)]


def test_an_id_groups_within_the_namespace_and_changes_no_identity() -> None:
    one, other = (_DRAFT.resolve(_TOKENS, name).segments[1] for name in ("t", "u"))
    assert one.group == group_identity("d", "t")
    assert one.group != other.group
    assert one.identity == segment_identity([7, 8], "t")


def test_the_generation_of_rendering_travels_unless_another_is_given() -> None:
    assert _DRAFT.resolve(_TOKENS, "").render_generation == 3
    assert _DRAFT.resolve(_TOKENS, "", 9).render_generation == 9


def test_a_plan_of_another_prompt_loses_its_segments() -> None:
    assert _DRAFT.resolve(_TOKENS[:5], "").segments == ()


def test_a_resolved_plan_crosses_the_wire() -> None:
    plan = _DRAFT.resolve(_TOKENS, "t")
    assert decode_plan(encode_plan(plan), len(_TOKENS)) == plan
