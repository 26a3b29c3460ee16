"""The span tree: what stands where, and that children never stick out of their parents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import opentelemetry.semconv._incubating.attributes.gen_ai_attributes as gen_ai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.semconv.attributes import error_attributes, http_attributes, server_attributes, url_attributes

from prism.telemetry import names
from prism.telemetry.shape import MAX_LISTED, SpanNode, span_tree
from prism.telemetry.timeline import Admission, RequestInfo, RequestTimeline

T = 1000.0

MakeTimeline = Callable[..., RequestTimeline]


def spans_of(node: SpanNode) -> Iterator[SpanNode]:
    yield node
    for child in node.children:
        yield from spans_of(child)


def span(timeline: RequestTimeline, name: str) -> SpanNode:
    return next(node for node in spans_of(span_tree(timeline)) if node.name == name)


def test_the_tree_has_one_branch_for_each_part(finished: RequestTimeline) -> None:
    root = span_tree(finished)
    (chat,) = root.children
    assert root.name == "POST /openai/v1/chat/completions"
    assert chat.name == "chat smol"
    assert [child.name for child in chat.children] == [
        names.ADMISSION_WAIT,
        names.PREFILL,
        names.FIRST_TOKEN,
        names.DECODE,
    ]
    assert [child.name for child in chat.children[0].children] == [names.RENDER]


def test_a_request_under_way_has_no_tree(make_timeline: MakeTimeline) -> None:
    with pytest.raises(ValueError, match="has ended"):
        span_tree(make_timeline())


def test_a_route_without_inference_has_the_server_span_only(make_timeline: MakeTimeline) -> None:
    timeline = make_timeline(operation=None, route="/tokenize")
    timeline.finished(T + 1)
    assert [node.name for node in spans_of(span_tree(timeline))] == ["POST /tokenize"]


def test_no_name_comes_from_a_client(make_timeline: MakeTimeline) -> None:
    timeline = make_timeline(route=None, path="/no/such/path", model=None)
    timeline.refused(T + 1, 404, "unknown_model")
    assert [node.name for node in spans_of(span_tree(timeline))] == ["POST", "chat", names.ADMISSION_WAIT]


def test_the_server_span_sums_the_request_up(finished: RequestTimeline) -> None:
    attributes = span_tree(finished).attributes
    expected = {
        names.REQUEST_ID: "req-1",
        names.OUTCOME: "finished",
        names.TTFT: 0.51,
        names.TTFT_END: "first_chunk_sent",
        names.HELD_BACK_TOKENS: 0,
        names.LANE: "hot",
        names.HTTP_STATUS: 200,
    }
    assert {name: attributes[name] for name in expected} == expected
    assert names.INCOMPLETE not in attributes
    assert names.ERROR_TYPE not in attributes


def test_the_admission_wait_says_why(finished: RequestTimeline) -> None:
    waiting = span(finished, names.ADMISSION_WAIT)
    assert waiting.attributes == {
        names.LANE: "hot",
        names.BUCKET: "ab12",
        names.QUEUE_DEPTH: 5,
        names.WAIT_REASON: "memory",
        names.OVERTAKEN: 2,
        names.SETTINGS_GENERATION: 7,
    }


def test_the_prefill_says_what_was_reused(finished: RequestTimeline) -> None:
    attributes = span(finished, names.PREFILL).attributes
    assert (attributes[names.CACHED_TOKENS], attributes[names.COMPUTED_TOKENS]) == (600, 300)
    assert (attributes[names.SEGMENTS_HIT], attributes[names.SEGMENTS]) == (3, 4)
    assert attributes[names.WAS_REORDERED] is True
    assert attributes[names.PROMPT_TOKENS] == 900


def test_decisions_and_chunks_are_events(finished: RequestTimeline) -> None:
    waiting, prefill = span(finished, names.ADMISSION_WAIT), span(finished, names.PREFILL)
    assert [(event.name, event.at_us) for event in waiting.events] == [
        (names.QUEUED, 22_000),
        (names.ADMITTED, 200_000),
        (names.REORDERED, 200_000),
    ]
    assert waiting.events[2].attributes == {names.ORDER: (1, 0)}
    assert [(event.name, event.at_us) for event in prefill.events] == [(names.CHUNK, 200_000), (names.CHUNK, 300_000)]


def test_a_lost_queued_fact_leaves_its_event_out(make_timeline: MakeTimeline, admission: Admission) -> None:
    timeline = make_timeline()
    timeline.engine_added(T, "a").admitted(T + 0.1, admission)
    timeline.cancelled(T + 1)
    waiting = span(timeline, names.ADMISSION_WAIT)
    assert [event.name for event in waiting.events] == [names.ADMITTED, names.REORDERED]
    assert names.QUEUE_DEPTH not in waiting.attributes


def test_the_caller_s_order_is_no_event(make_timeline: MakeTimeline, admission: Admission) -> None:
    timeline = make_timeline()
    timeline.engine_added(T, "a").admitted(T + 0.1, replace(admission, order=()))
    timeline.cancelled(T + 1)
    assert [event.name for event in span(timeline, names.ADMISSION_WAIT).events] == [names.ADMITTED]


def test_a_long_permutation_is_cut(make_timeline: MakeTimeline) -> None:
    timeline = make_timeline()
    order = tuple(reversed(range(500)))
    timeline.engine_added(T, "a").admitted(T + 0.1, Admission("hot", "", "none", 0, 0, 9, 0, 0, order, 1))
    timeline.finished(T + 1)
    assert span(timeline, names.ADMISSION_WAIT).events[-1].attributes == {names.ORDER: order[:MAX_LISTED]}


@pytest.mark.parametrize(("rendered_with", "shown"), [(7, None), (6, 6), (None, None)])
def test_the_generation_of_rendering_is_shown_where_it_differs(
    finished: RequestTimeline, rendered_with: int | None, shown: int | None
) -> None:
    finished.info.render_generation = rendered_with
    attributes = span(finished, "chat smol").attributes
    assert attributes[names.SETTINGS_GENERATION] == 7
    assert attributes.get(names.RENDER_GENERATION) == shown


def test_a_failure_is_an_error_in_the_part_it_came_in(make_timeline: MakeTimeline) -> None:
    timeline = make_timeline()
    timeline.failed(T + 1, 503, "engine_dead")
    assert [node.error for node in spans_of(span_tree(timeline))] == ["engine_dead"] * 3
    assert span(timeline, names.ADMISSION_WAIT).attributes[names.OUTCOME_REASON] == "engine_dead"


@pytest.mark.parametrize(("status", "error"), [(429, None), (400, None), (503, "draining"), (504, "draining")])
def test_a_refusal_is_an_error_only_where_the_server_is_at_fault(
    make_timeline: MakeTimeline, status: int, error: str | None
) -> None:
    timeline = make_timeline()
    timeline.refused(T + 1, status, "draining")
    root = span_tree(timeline)
    assert root.error == error
    assert root.attributes[names.OUTCOME] == "refused"


def test_a_client_that_hangs_up_is_no_error_of_the_server(make_timeline: MakeTimeline) -> None:
    timeline = make_timeline()
    timeline.cancelled(T + 1)
    root = span_tree(timeline)
    assert root.error is None
    assert root.attributes[names.OUTCOME] == "cancelled"
    assert names.HTTP_STATUS not in root.attributes


def test_missing_facts_are_shown(finished: RequestTimeline) -> None:
    finished.facts_missing()
    assert span_tree(finished).attributes[names.INCOMPLETE] is True


def test_a_wait_after_preemption_is_a_child_of_its_part(finished: RequestTimeline) -> None:
    finished.engine_request("a").preempted(T + 0.25)
    finished.engine_request("a").resumed(T + 0.28, 0)
    (preempted,) = span(finished, names.PREFILL).children
    assert (preempted.name, preempted.interval.start_us, preempted.interval.end_us) == (
        names.PREEMPTED,
        250_000,
        280_000,
    )
    assert span(finished, "chat smol").attributes[names.PREEMPTIONS] == 1


def test_further_engine_requests_are_sequences(finished: RequestTimeline, admission: Admission) -> None:
    other = finished.engine_added(T + 0.03, "b")
    other.queued(T + 0.04, 6)
    other.admitted(T + 0.3, admission)
    other.preempted(T + 0.4)
    other.resumed(T + 0.5, 0)
    other.ended(T + 0.9, "length")
    sequence = span(finished, names.SEQUENCE)
    assert (sequence.interval.start_us, sequence.interval.end_us) == (30_000, 900_000)
    assert sequence.attributes[names.ENGINE_END] == "length"
    assert sequence.attributes[names.CACHED_TOKENS] == 600
    assert [child.name for child in sequence.children] == [names.PREEMPTED]


def test_a_sequence_that_was_never_admitted_says_less(finished: RequestTimeline) -> None:
    finished.engine_added(T + 0.03, "b")
    sequence = span(finished, names.SEQUENCE)
    assert names.CACHED_TOKENS not in sequence.attributes
    assert sequence.events == ()


def test_zero_and_false_are_values(finished: RequestTimeline) -> None:
    finished.info.temperature, finished.info.streamed, finished.info.output_tokens = 0.0, False, 0
    attributes = span(finished, "chat smol").attributes
    assert attributes[names.REQUEST_TEMPERATURE] == 0.0
    assert attributes[names.REQUEST_STREAM] is False
    assert attributes[names.USAGE_OUTPUT_TOKENS] == 0


INSTALLED = {
    value
    for module in (gen_ai, error_attributes, http_attributes, server_attributes, url_attributes)
    for value in vars(module).values()
    if isinstance(value, str)
}
CONVENTIONAL = [
    value for value in vars(names).values() if isinstance(value, str) and value.startswith(("gen_ai.", "http.", "url."))
] + [names.SERVER_ADDRESS, names.SERVER_PORT, names.ERROR_TYPE]


@pytest.mark.parametrize("name", CONVENTIONAL)
def test_conventional_names_are_those_of_the_installed_conventions(name: str) -> None:
    assert name in INSTALLED


def test_none_of_the_conventional_names_is_a_deprecated_one() -> None:
    deprecated = {"gen_ai.system", "gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens", "gen_ai.prompt"}
    assert not deprecated & set(CONVENTIONAL)


TIMES = st.floats(T - 1, T + 5)
ADMISSION = Admission("cold", "", "order", 0, 16, 64, 0, 0, (1, 0), 1)


@st.composite
def any_request(draw: st.DrawFn) -> RequestTimeline:
    info = RequestInfo(operation="chat", model="m", streamed=draw(st.booleans()))
    timeline = RequestTimeline("r", arrived_at=T, arrived_wall_ns=0, info=info)
    timeline.rendering_started(draw(TIMES))
    timeline.rendering_ended(draw(TIMES))
    for name in draw(st.sets(st.sampled_from("abc"))):
        engine = timeline.engine_added(draw(TIMES), name)
        engine.queued(draw(TIMES), 1)
        engine.admitted(draw(TIMES), ADMISSION)
        engine.chunk(draw(TIMES), 16, 64)
        engine.prefilled(draw(TIMES))
        engine.preempted(draw(TIMES))
        engine.resumed(draw(TIMES), 0)
        timeline.first_output(draw(TIMES), name)
    timeline.finished(draw(TIMES))
    return timeline


def assert_inside(node: SpanNode) -> None:
    assert node.interval.start_us <= node.interval.end_us
    for event in node.events:
        assert node.interval.start_us <= event.at_us <= node.interval.end_us
    for child in node.children:
        assert node.interval.start_us <= child.interval.start_us <= child.interval.end_us <= node.interval.end_us
        assert_inside(child)


@settings(max_examples=60)
@given(any_request())
def test_children_and_events_lie_inside_their_parent(timeline: RequestTimeline) -> None:
    assert_inside(span_tree(timeline))
