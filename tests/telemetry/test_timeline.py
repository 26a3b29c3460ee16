"""A request's parts: contiguous, never negative, adding up, whatever came, in whatever order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism.telemetry.timeline import (
    MAX_CHUNKS,
    MAX_PAUSES,
    Admission,
    EngineRequest,
    Interval,
    Outcome,
    PartName,
    RequestInfo,
    RequestTimeline,
    TtftEnd,
)

T = 1000.0

MakeTimeline = Callable[..., RequestTimeline]


def lengths(timeline: RequestTimeline) -> dict[str, float]:
    """Part name → milliseconds."""
    return {part.name.value: part.duration_us / 1000 for part in timeline.parts()}


def admit(engine: EngineRequest, admission: Admission, at: float, prefilled: float | None = None) -> EngineRequest:
    engine.admitted(at, admission)
    if prefilled is not None:
        engine.prefilled(prefilled)
    return engine


def test_a_finished_request_has_four_parts(finished: RequestTimeline) -> None:
    assert lengths(finished) == {"admission_wait": 200, "prefill": 300, "first_token": 10, "decode": 490}
    assert not finished.incomplete


def test_a_request_under_way_has_no_parts_but_its_ttft(make_timeline: MakeTimeline, admission: Admission) -> None:
    timeline = make_timeline()
    assert timeline.end_us is None
    assert timeline.ttft() is None
    assert timeline.ttft_us is None
    admit(timeline.engine_added(T, "a"), admission, T + 0.1, T + 0.2)
    timeline.first_content_sent(T + 0.25)
    ttft = timeline.ttft()
    assert ttft is not None
    assert (ttft.admission_wait, ttft.prefill, ttft.first_token, ttft.total) == (0.1, 0.1, 0.05, 0.25)
    assert timeline.parts() == ()
    assert timeline.rendering() is None
    assert timeline.end_us is None


def test_a_stream_s_ttft_ends_when_its_first_chunk_is_sent(finished: RequestTimeline) -> None:
    assert finished.ttft_end is TtftEnd.FIRST_CHUNK_SENT
    assert finished.ttft_us == 510_000


def test_a_whole_answer_s_ttft_ends_when_its_first_token_arrives(
    make_timeline: MakeTimeline, admission: Admission
) -> None:
    timeline = make_timeline(streamed=False)
    admit(timeline.engine_added(T, "a"), admission, T + 0.1, T + 0.2)
    timeline.first_output(T + 0.3, "a")
    timeline.finished(T + 2)
    assert timeline.ttft_end is TtftEnd.FIRST_TOKEN_RECEIVED
    assert lengths(timeline) == {"admission_wait": 100, "prefill": 100, "first_token": 100, "decode": 1700}


def test_tokens_held_back_before_the_first_chunk_are_counted(make_timeline: MakeTimeline) -> None:
    timeline = make_timeline()
    timeline.first_content_sent(T + 1, held_back_tokens=12)
    timeline.first_content_sent(T + 2, held_back_tokens=99)
    assert timeline.held_back_tokens == 12
    assert timeline.ttft_us == 1_000_000


def test_a_stream_without_content_has_no_ttft(make_timeline: MakeTimeline, admission: Admission) -> None:
    timeline = make_timeline()
    admit(timeline.engine_added(T, "a"), admission, T + 0.1, T + 0.2)
    timeline.first_output(T + 0.3, "a")
    timeline.finished(T + 0.4)
    assert timeline.ttft() is None
    assert timeline.ttft_end is None
    assert lengths(timeline) == {"admission_wait": 100, "prefill": 100, "first_token": 200}


def test_a_request_refused_before_the_engine_only_waited(make_timeline: MakeTimeline) -> None:
    timeline = make_timeline()
    timeline.refused(T + 0.05, 429, "queue_full")
    (part,) = timeline.parts()
    assert (part.name, part.seconds, part.outcome) == (PartName.ADMISSION_WAIT, 0.05, Outcome.REFUSED)
    assert timeline.lead is None
    assert timeline.admission is None
    assert not timeline.incomplete


def test_a_request_given_up_while_it_queued_only_waited(make_timeline: MakeTimeline) -> None:
    timeline = make_timeline()
    timeline.engine_added(T + 0.01, "a").queued(T + 0.02, 3)
    timeline.cancelled(T + 0.5)
    assert lengths(timeline) == {"admission_wait": 500}
    assert timeline.parts()[0].outcome is Outcome.CANCELLED
    assert not timeline.incomplete


def test_an_engine_that_dies_in_prefill_ends_the_prefill(make_timeline: MakeTimeline, admission: Admission) -> None:
    timeline = make_timeline()
    admit(timeline.engine_added(T, "a"), admission, T + 0.1)
    timeline.failed(T + 0.4, 503, "engine_dead")
    assert lengths(timeline) == {"admission_wait": 100, "prefill": 300}
    assert [part.outcome for part in timeline.parts()] == [None, Outcome.FAILED]


def test_what_the_engine_does_after_the_end_is_no_part(make_timeline: MakeTimeline, admission: Admission) -> None:
    timeline = make_timeline()
    timeline.engine_added(T, "a")
    timeline.cancelled(T + 0.5)
    admit(timeline.engine_request("a"), admission, T + 0.6, T + 0.7)
    assert lengths(timeline) == {"admission_wait": 500}


def test_a_lost_prefill_fact_leaves_the_parts_that_are_known(make_timeline: MakeTimeline, admission: Admission) -> None:
    timeline = make_timeline()
    admit(timeline.engine_added(T, "a"), admission, T + 0.1)
    timeline.first_content_sent(T + 0.4)
    timeline.finished(T + 1)
    assert lengths(timeline) == {"admission_wait": 100, "prefill": 300, "decode": 600}
    assert [part.lost for part in timeline.parts()] == [False, True, False]
    assert timeline.incomplete
    assert timeline.ttft() is None
    assert timeline.ttft_us == 400_000


def test_facts_that_stop_before_a_token_came_are_known_to_be_lost(make_timeline: MakeTimeline) -> None:
    timeline = make_timeline()
    timeline.engine_added(T, "a")
    timeline.first_output(T + 0.3, "a")
    timeline.cancelled(T + 0.4)
    (part,) = timeline.parts()
    assert part.lost
    assert part.outcome is Outcome.CANCELLED
    assert timeline.incomplete


def test_a_lost_admission_is_dated_by_its_first_chunk(make_timeline: MakeTimeline) -> None:
    timeline = make_timeline()
    timeline.engine_added(T, "a").chunk(T + 0.1, 0, 64)
    timeline.engine_request("a").prefilled(T + 0.2)
    timeline.first_content_sent(T + 0.3)
    timeline.finished(T + 1)
    assert lengths(timeline) == {"admission_wait": 100, "prefill": 100, "first_token": 100, "decode": 700}
    assert timeline.incomplete
    assert timeline.admission is None


def test_a_gap_in_the_channel_makes_a_request_incomplete(finished: RequestTimeline) -> None:
    finished.facts_missing()
    assert finished.incomplete


def test_an_event_before_its_predecessor_is_moved_to_it(make_timeline: MakeTimeline, admission: Admission) -> None:
    timeline = make_timeline()
    admit(timeline.engine_added(T, "a"), admission, T + 0.3, T + 0.2)
    timeline.first_content_sent(T + 0.4)
    timeline.finished(T + 0.35)
    assert lengths(timeline) == {"admission_wait": 300, "prefill": 0, "first_token": 100, "decode": 0}


def test_the_engine_s_times_never_change_what_the_server_measured(
    make_timeline: MakeTimeline, admission: Admission
) -> None:
    timeline = make_timeline()
    admit(timeline.engine_added(T, "a"), admission, T - 5, T + 9)
    timeline.first_content_sent(T + 0.4)
    timeline.finished(T + 1)
    assert lengths(timeline) == {"admission_wait": 0, "prefill": 400, "first_token": 0, "decode": 600}


def test_preemption_in_prefill_is_a_wait_inside_ttft(make_timeline: MakeTimeline, admission: Admission) -> None:
    timeline = make_timeline()
    engine = admit(timeline.engine_added(T, "a"), admission, T + 0.1)
    engine.preempted(T + 0.2)
    engine.resumed(T + 0.5, 600)
    engine.prefilled(T + 0.6)
    timeline.first_content_sent(T + 0.7)
    timeline.finished(T + 1)
    assert timeline.ttft_us == 700_000
    assert [part.preempted for part in timeline.parts()] == [(), (Interval(200_000, 500_000),), (), ()]


def test_preemption_after_the_first_token_leaves_ttft_alone(finished: RequestTimeline) -> None:
    engine = finished.engine_request("a")
    engine.preempted(T + 0.6)
    engine.resumed(T + 0.8, 0)
    engine.prefilled(T + 0.9)
    assert finished.ttft_us == 510_000
    assert finished.parts()[3].preempted == (Interval(600_000, 800_000),)


def test_a_wait_across_two_parts_is_cut_at_their_border(finished: RequestTimeline) -> None:
    engine = finished.engine_request("a")
    engine.preempted(T + 0.505)
    engine.resumed(T + 0.6, 0)
    assert finished.parts()[2].preempted == (Interval(505_000, 510_000),)
    assert finished.parts()[3].preempted == (Interval(510_000, 600_000),)


def test_a_wait_whose_end_was_lost_ends_by_the_next_sign_of_life(finished: RequestTimeline) -> None:
    engine = finished.engine_request("a")
    engine.preempted(T + 0.25)
    assert finished.parts()[1].preempted == (Interval(250_000, 300_000),)


def test_a_wait_that_nothing_ended_lasts_until_the_end(make_timeline: MakeTimeline, admission: Admission) -> None:
    timeline = make_timeline()
    admit(timeline.engine_added(T, "a"), admission, T + 0.1).preempted(T + 0.2)
    timeline.cancelled(T + 0.9)
    assert timeline.parts()[1].preempted == (Interval(200_000, 900_000),)


def test_a_resumption_without_its_preemption_shows_a_loss(finished: RequestTimeline) -> None:
    finished.engine_request("a").resumed(T + 0.6, 0)
    assert finished.incomplete


def test_endless_preemption_is_counted_but_not_kept() -> None:
    engine = EngineRequest("a")
    for index in range(MAX_PAUSES + 5):
        engine.preempted(T + index)
        engine.resumed(T + index + 0.5, 0)
    assert len(engine.pauses) == MAX_PAUSES
    assert engine.preemptions == MAX_PAUSES + 5
    assert not engine.lost


def test_chunks_beyond_the_bound_are_joined_to_the_last() -> None:
    engine = EngineRequest("a")
    for index in range(MAX_CHUNKS + 10):
        engine.chunk(T + index, index, index + 1)
    assert len(engine.chunks) == MAX_CHUNKS
    assert (engine.chunks[-1].start, engine.chunks[-1].end) == (MAX_CHUNKS - 1, MAX_CHUNKS + 10)


def test_of_two_facts_of_one_kind_the_first_counts(finished: RequestTimeline, admission: Admission) -> None:
    before = finished.parts()
    engine = finished.engine_added(T + 9, "a")
    engine.queued(T + 9, 99)
    admit(engine, admission, T + 0.4, T + 0.505)
    engine.first_output(T + 9)
    engine.ended(T + 9, "abort")
    finished.rendering_started(T + 9)
    assert finished.parts() == before
    assert (engine.queue_depth, engine.end_reason) == (5, "stop")


def test_a_request_ends_once(finished: RequestTimeline) -> None:
    finished.failed(T + 5, 500, "late")
    assert (finished.outcome, finished.status, finished.end_us) == (Outcome.FINISHED, 200, 1_000_000)


def test_the_parts_are_those_of_the_request_whose_token_went_out_first(
    make_timeline: MakeTimeline, admission: Admission
) -> None:
    timeline = make_timeline()
    admit(timeline.engine_added(T, "a"), admission, T + 0.1, T + 0.2)
    admit(timeline.engine_added(T, "b"), admission, T + 0.15, T + 0.3)
    timeline.first_output(T + 0.31, "a")
    timeline.first_output(T + 0.32, "b")
    timeline.first_content_sent(T + 0.4, "b")
    timeline.finished(T + 1)
    assert lengths(timeline)["prefill"] == 150
    assert [request.name for request in timeline.others] == ["a"]


def test_before_any_token_the_furthest_request_leads(make_timeline: MakeTimeline, admission: Admission) -> None:
    timeline = make_timeline()
    timeline.engine_added(T, "a")
    admit(timeline.engine_added(T, "b"), admission, T + 0.15)
    timeline.failed(T + 1, 500, "error")
    assert lengths(timeline) == {"admission_wait": 150, "prefill": 850}


def test_a_sequence_stands_where_it_was_handed_over_and_ended(finished: RequestTimeline) -> None:
    other = finished.engine_added(T + 0.03, "b")
    assert finished.sequence(other) == Interval(30_000, 1_000_000)
    other.ended(T + 0.7, "stop")
    assert finished.sequence(other) == Interval(30_000, 700_000)
    assert finished.sequence(EngineRequest("never added")) == Interval(0, 1_000_000)


def test_rendering_lies_inside_the_admission_wait(finished: RequestTimeline) -> None:
    assert finished.rendering() == Interval(1_000, 20_000)
    finished.rendering_ended(T + 0.9)
    assert finished.rendering() == Interval(1_000, 200_000)


def test_rendering_that_was_cut_short_lasts_until_the_end(make_timeline: MakeTimeline) -> None:
    timeline = make_timeline()
    timeline.rendering_started(T + 0.1)
    timeline.refused(T + 0.2, 400, "too_long")
    assert timeline.rendering() == Interval(100_000, 200_000)


@pytest.mark.parametrize(("order", "reordered"), [((), False), ((0, 1), False), ((1, 0), True)])
def test_only_a_changed_order_counts_as_reordered(order: tuple[int, ...], reordered: bool) -> None:
    assert Admission("hot", "", "none", 0, 16, 64, 0, 0, order, 1).reordered is reordered


def test_computed_tokens_are_those_not_cached(admission: Admission) -> None:
    assert admission.computed_tokens == 300


ADMISSION = Admission("hot", "", "none", 0, 16, 64, 0, 0, (), 1)
NAMES = st.sampled_from(["a", "b", "c"])
TIMES = st.floats(T - 1, T + 10)
EVENTS: tuple[Callable[[RequestTimeline, str, float], object], ...] = (
    lambda t, n, at: t.rendering_started(at),
    lambda t, n, at: t.rendering_ended(at),
    lambda t, n, at: t.engine_added(at, n),
    lambda t, n, at: t.engine_request(n).queued(at, 1),
    lambda t, n, at: t.engine_request(n).admitted(at, ADMISSION),
    lambda t, n, at: t.engine_request(n).chunk(at, 16, 64),
    lambda t, n, at: t.engine_request(n).prefilled(at),
    lambda t, n, at: t.engine_request(n).preempted(at),
    lambda t, n, at: t.engine_request(n).resumed(at, 0),
    lambda t, n, at: t.engine_request(n).ended(at, "stop"),
    lambda t, n, at: t.first_output(at, n),
    lambda t, n, at: t.first_content_sent(at, n),
    lambda t, n, at: t.first_content_sent(at),
    lambda t, n, at: t.facts_missing(),
)
ENDS: tuple[Callable[[RequestTimeline, float], None], ...] = (
    lambda t, at: t.finished(at),
    lambda t, at: t.failed(at, 500, "error"),
    lambda t, at: t.refused(at, 429, "queue_full"),
    lambda t, at: t.cancelled(at),
)


@st.composite
def any_request(draw: st.DrawFn) -> RequestTimeline:
    """A request to which anything happened, in any order, any number of times, and that ended."""
    info = RequestInfo(operation="chat", streamed=draw(st.booleans()))
    timeline = RequestTimeline("r", arrived_at=T, arrived_wall_ns=0, info=info)
    for event, name, at in draw(st.lists(st.tuples(st.sampled_from(EVENTS), NAMES, TIMES), max_size=25)):
        event(timeline, name, at)
    draw(st.sampled_from(ENDS))(timeline, draw(TIMES))
    return timeline


@settings(max_examples=60)
@given(any_request())
def test_parts_are_contiguous_and_add_up_to_the_lifetime(timeline: RequestTimeline) -> None:
    parts = timeline.parts()
    assert parts[0].start_us == 0
    assert parts[-1].end_us == timeline.end_us
    assert all(before.end_us == after.start_us for before, after in pairwise(parts))
    assert sum(part.duration_us for part in parts) == timeline.end_us
    assert all(part.duration_us >= 0 for part in parts)


@settings(max_examples=60)
@given(any_request())
def test_parts_come_in_order_and_only_the_last_says_how_it_ended(timeline: RequestTimeline) -> None:
    parts, order = timeline.parts(), list(PartName)
    places = [order.index(part.name) for part in parts]
    assert places == sorted(set(places))
    assert places[0] == 0
    assert [part.outcome for part in parts] == [None] * (len(parts) - 1) + [timeline.outcome]


@settings(max_examples=60)
@given(any_request())
def test_the_three_parts_add_up_to_ttft_exactly(timeline: RequestTimeline) -> None:
    until_first = [part for part in timeline.parts() if part.name is not PartName.DECODE]
    if timeline.ttft_us is not None:
        assert sum(part.duration_us for part in until_first) == timeline.ttft_us
    ttft = timeline.ttft()
    if ttft is not None:
        assert ttft.total_us == timeline.ttft_us
        assert [part.duration_us for part in until_first] == [
            ttft.admission_wait_us,
            ttft.prefill_us,
            ttft.first_token_us,
        ]


@settings(max_examples=60)
@given(any_request())
def test_a_part_is_missing_only_where_that_is_said(timeline: RequestTimeline) -> None:
    places = [list(PartName).index(part.name) for part in timeline.parts()]
    if places != list(range(len(places))):
        assert timeline.incomplete


@settings(max_examples=60)
@given(any_request())
def test_waits_after_preemption_lie_inside_their_part(timeline: RequestTimeline) -> None:
    for part in timeline.parts():
        for pause in part.preempted:
            assert part.start_us <= pause.start_us < pause.end_us <= part.end_us
