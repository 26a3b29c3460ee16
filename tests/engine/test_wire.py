"""What crosses between the processes arrives as it was sent, or is refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism.core.segments import PromptPlan, Segment, SegmentKind, permute_plan
from prism.engine.wire import (
    WIRE_VERSION,
    Admitted,
    Ended,
    Fact,
    FactBatch,
    Gauges,
    Heartbeat,
    Queued,
    SettingsAdopted,
    decode_batch,
    decode_plan,
    encode_batch,
    encode_plan,
)

modest = settings(max_examples=100)
ID = b"\x07" * 16


@st.composite
def plans(draw: st.DrawFn) -> tuple[PromptPlan, int]:
    """A plan and the length of its prompt; all documents movable, or none."""
    cuts = draw(st.lists(st.integers(0, 200), max_size=12, unique=True).map(sorted))
    kinds = st.sampled_from(SegmentKind)
    digests = st.binary(min_size=16, max_size=16)
    bounds = list(zip(cuts[::2], cuts[1::2], strict=False))
    segments = tuple(Segment(draw(kinds), start, end, draw(digests), draw(digests)) for start, end in bounds)
    first = draw(st.integers(0, len(segments)))
    last = draw(st.integers(first, len(segments)))
    runs = tuple(bounds[first:last])
    length = (cuts[-1] if cuts else 0) + draw(st.integers(0, 9))
    return PromptPlan(draw(st.text()), segments, runs, tuple(range(first, last)), draw(st.integers(0, 99))), length


def message(
    segments: object = (("document", 0, 4, ID, ID), ("document", 4, 8, ID, ID)),
    movable: object = ((0, 4), (4, 8)),
    movable_segments: object = (0, 1),
    version: object = WIRE_VERSION,
) -> bytes:
    return msgspec.msgpack.encode([version, "tenant", segments, movable, movable_segments, 1])


@modest
@given(plans())
def test_a_plan_arrives_as_it_was_sent(case: tuple[PromptPlan, int]) -> None:
    plan, length = case
    assert decode_plan(encode_plan(plan), length) == plan


@modest
@given(st.binary(max_size=200) | st.none() | st.text() | st.dictionaries(st.text(), st.integers()))
def test_whatever_a_client_writes_there_is_a_plan_or_a_value_error(data: object) -> None:
    with pytest.raises(ValueError, match="plan"):
        decode_plan(data, 100)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.sampled_from(["document", "x", ID]),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=8,
)


@modest
@given(segments=VALUES, movable=VALUES, movable_segments=VALUES, version=st.just(WIRE_VERSION) | VALUES)
def test_a_message_of_the_wrong_shape_is_refused(
    segments: object, movable: object, movable_segments: object, version: object
) -> None:
    try:
        plan = decode_plan(message(segments, movable, movable_segments, version), 8)
    except ValueError:
        return
    assert isinstance(plan, PromptPlan)


SMALL = st.integers(-1, 10)
SEGMENTS = st.lists(
    st.tuples(st.sampled_from([*SegmentKind, "other"]), SMALL, SMALL, st.just(ID), st.just(ID)), max_size=4
)


@settings(max_examples=200)
@given(
    segments=SEGMENTS | st.just([("document", at, at + 2, ID, ID) for at in (0, 2, 4, 6)]),
    movable=st.lists(st.tuples(SMALL, SMALL), max_size=3)
    | st.lists(st.sampled_from([(0, 2), (2, 4), (4, 6), (6, 8)]), max_size=3),
    movable_segments=st.lists(SMALL, max_size=3),
    data=st.data(),
)
def test_a_plan_that_is_taken_can_be_permuted(
    segments: list[object], movable: list[object], movable_segments: list[object], data: st.DataObject
) -> None:
    try:
        plan = decode_plan(message(segments, movable, movable_segments), 10)
    except ValueError:
        return
    order = data.draw(st.permutations(range(len(plan.movable))))
    assert len(permute_plan(plan, order).segments) == len(plan.segments)


def refusal(data: object, prompt_tokens: int = 8) -> str:
    try:
        decode_plan(data, prompt_tokens)
    except ValueError as error:
        return str(error)
    raise AssertionError("it was taken")


def test_a_good_message_is_taken() -> None:
    assert decode_plan(message(), 8).can_reorder


def test_a_plan_of_another_version_is_refused() -> None:
    assert refusal(message(version=WIRE_VERSION + 1)) == f"plan version {WIRE_VERSION + 1}, expected {WIRE_VERSION}"


def test_a_plan_of_a_longer_prompt_is_refused() -> None:
    assert "inside the prompt" in refusal(message(), 7)


@pytest.mark.parametrize(
    "segments", [[("document", 4, 8, ID, ID), ("document", 0, 4, ID, ID)], [("document", 3, 3, ID, ID)]]
)
def test_segments_out_of_order_or_empty_are_refused(segments: object) -> None:
    assert "segments must be ascending" in refusal(message(segments, (), ()))


def test_a_kind_that_nobody_knows_is_refused() -> None:
    assert "poem" in refusal(message([("poem", 0, 4, ID, ID)], (), ()))


@pytest.mark.parametrize(("identity", "group"), [(b"short", ID), (ID, b""), (ID * 2, ID)])
def test_an_identity_that_is_no_digest_is_refused(identity: bytes, group: bytes) -> None:
    assert "16 bytes" in refusal(message([("document", 0, 4, identity, group)], (), ()))


@pytest.mark.parametrize(
    ("movable", "movable_segments", "reason"),
    [
        ([(0, 4), (4, 8)], [0, 2], "names no segment"),
        ([(0, 4), (4, 8)], [0, -1], "names no segment"),
        ([(0, 3), (4, 8)], [0, 1], "does not hold its segment"),
        ([(0, 4), (4, 8)], [1, 0], "does not hold its segment"),
        ([(4, 8), (0, 4)], [1, 0], "movable runs must be ascending"),
        ([(0, 4), (4, 8)], [0], "needs its segment"),
    ],
)
def test_runs_that_do_not_fit_their_segments_are_refused(
    movable: object, movable_segments: object, reason: str
) -> None:
    assert reason in refusal(message(movable=movable, movable_segments=movable_segments))


def test_a_fixed_segment_among_the_runs_is_refused() -> None:
    segments = [("document", at, at + 2, ID, ID) for at in (0, 2, 4)]
    assert "among the movable runs" in refusal(message(segments, [(0, 2), (4, 6)], [0, 2]))


def test_a_run_that_swallows_another_segment_is_refused() -> None:
    assert "among the movable runs" in refusal(message(movable=[(0, 8)], movable_segments=[0]))


def test_nesting_without_end_is_refused() -> None:
    assert "plan" in refusal(b"\x97" + message()[1:] + b"\x91" * 200_000 + b"\xc0")


FACTS: list[Fact] = [
    Queued("r", 1.0, 3),
    Admitted("r", 2.0, "hot", "aa", "none", 1, 16, 32, 1, 2, {"document": 16}, {"document": 32}, [1, 0], 7, 0),
    Ended("r", 3.0, "stop"),
    SettingsAdopted(4.0, 7, "digest", "ns/a", "uid", "stable", {"scheduler": {"order": "Prism"}}),
    Heartbeat(5.0, 0.0),
    Gauges(6.0, {"hot": 1}, 0.5, 2, {"private": 3}, [0.001], 1, 5, 9),
]


def test_facts_arrive_as_they_were_sent() -> None:
    batch = FactBatch(engine=1, sequence=9, dropped=2, facts=FACTS)
    assert decode_batch(encode_batch(batch)) == batch


@modest
@given(st.binary(max_size=100))
def test_what_is_no_batch_is_a_decode_error(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_batch(data)
