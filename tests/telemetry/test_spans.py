"""Spans as the SDK exports them: joined to the caller's trace and to nothing else, with the times of the timeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags, set_span_in_context

from prism.telemetry import names
from prism.telemetry.provider import MAX_ATTRIBUTE_LENGTH, Telemetry
from prism.telemetry.spans import MAX_STATUS_LENGTH, LiveRatioSampler, RequestTracer
from prism.telemetry.timeline import RequestTimeline

T = 1000.0
CALLER_TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER_SPAN = "b7ad6b7169203331"

MakeTimeline = Callable[..., RequestTimeline]


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def telemetry(exporter: InMemorySpanExporter) -> Iterator[Telemetry]:
    started = Telemetry(Resource.get_empty(), [exporter])
    yield started
    started.shutdown()


def exported(telemetry: Telemetry, exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    assert telemetry.flush()
    return {span.name: span for span in exporter.get_finished_spans()}


def traceparent(flags: str) -> str:
    return f"00-{CALLER_TRACE}-{CALLER_SPAN}-{flags}"


def test_without_a_caller_there_is_one_trace(
    telemetry: Telemetry, exporter: InMemorySpanExporter, finished: RequestTimeline
) -> None:
    trace = telemetry.tracer.begin(finished)
    trace.finish(finished)
    spans = exported(telemetry, exporter)
    assert {f"{span.context.trace_id:032x}" for span in spans.values()} == {trace.trace_id}
    assert spans["POST /openai/v1/chat/completions"].parent is None


def test_a_caller_s_span_is_the_parent_of_the_server_span(
    telemetry: Telemetry, exporter: InMemorySpanExporter, finished: RequestTimeline
) -> None:
    trace = telemetry.tracer.begin(finished, traceparent=traceparent("01"), tracestate="vendor=1")
    trace.finish(finished)
    root = exported(telemetry, exporter)["POST /openai/v1/chat/completions"]
    assert root.kind is SpanKind.SERVER
    assert root.parent is not None
    assert (trace.trace_id, f"{root.parent.span_id:016x}") == (CALLER_TRACE, CALLER_SPAN)
    assert trace.headers()["tracestate"] == "vendor=1"


def test_a_caller_that_does_not_sample_gets_nothing_exported(
    telemetry: Telemetry, exporter: InMemorySpanExporter, finished: RequestTimeline
) -> None:
    trace = telemetry.tracer.begin(finished, traceparent=traceparent("00"))
    trace.finish(finished)
    assert exported(telemetry, exporter) == {}
    assert (trace.trace_id, trace.sampled) == (CALLER_TRACE, False)


def test_a_caller_that_samples_outweighs_a_ratio_of_nothing(telemetry: Telemetry, finished: RequestTimeline) -> None:
    telemetry.set_sampling_ratio(0.0)
    assert telemetry.tracer.begin(finished, traceparent=traceparent("01")).sampled
    assert not telemetry.tracer.begin(finished).sampled


def test_the_ratio_can_change_at_any_time(telemetry: Telemetry, finished: RequestTimeline) -> None:
    sampled = []
    for ratio in (0.0, 1.0, 0.0, None):
        telemetry.set_sampling_ratio(ratio)
        sampled.append(telemetry.tracer.begin(finished).sampled)
    assert sampled == [False, True, False, True]


def test_a_ratio_takes_about_its_share(telemetry: Telemetry, finished: RequestTimeline) -> None:
    telemetry.set_sampling_ratio(0.25)
    sampled = sum(telemetry.tracer.begin(finished).sampled for _ in range(400))
    assert 50 < sampled < 160


def test_a_ratio_outside_its_range_is_refused_and_changes_nothing() -> None:
    sampler = LiveRatioSampler(0.5)
    with pytest.raises(ValueError, match="Probability"):
        sampler.set_ratio(1.5)
    assert sampler.ratio == 0.5
    assert "0.5" in sampler.get_description()


@pytest.mark.parametrize("header", ["", "garbage", f"00-{'0' * 32}-{CALLER_SPAN}-01", traceparent("01") + "-more"])
def test_a_bad_traceparent_starts_a_trace_of_its_own(
    telemetry: Telemetry, finished: RequestTimeline, header: str
) -> None:
    trace = telemetry.tracer.begin(finished, traceparent=header)
    assert trace.sampled
    assert trace.trace_id != CALLER_TRACE


def test_neither_environment_nor_ambient_context_is_a_parent(
    telemetry: Telemetry, exporter: InMemorySpanExporter, finished: RequestTimeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", traceparent("00"))
    ambient = SpanContext(int(CALLER_TRACE, 16), int(CALLER_SPAN, 16), is_remote=True, trace_flags=TraceFlags(0))
    token = attach(set_span_in_context(NonRecordingSpan(ambient), Context()))
    try:
        telemetry.tracer.begin(finished).finish(finished)
    finally:
        detach(token)
    spans = exported(telemetry, exporter)
    assert len(spans) == 7
    assert CALLER_TRACE not in {f"{span.context.trace_id:032x}" for span in spans.values()}


def test_spans_hang_together_as_the_tree_does(
    telemetry: Telemetry, exporter: InMemorySpanExporter, finished: RequestTimeline
) -> None:
    telemetry.tracer.begin(finished).finish(finished)
    spans = exported(telemetry, exporter)
    by_id = {span.context.span_id: name for name, span in spans.items()}
    parents = {name: by_id[span.parent.span_id] for name, span in spans.items() if span.parent}
    assert parents == {
        "chat smol": "POST /openai/v1/chat/completions",
        names.ADMISSION_WAIT: "chat smol",
        names.RENDER: names.ADMISSION_WAIT,
        names.PREFILL: "chat smol",
        names.FIRST_TOKEN: "chat smol",
        names.DECODE: "chat smol",
    }


def test_times_are_wall_clock_arrival_plus_monotonic_offsets(
    telemetry: Telemetry, exporter: InMemorySpanExporter, finished: RequestTimeline
) -> None:
    telemetry.tracer.begin(finished).finish(finished)
    spans = exported(telemetry, exporter)
    arrived = finished.arrived_wall_ns // 1000 * 1000
    prefill = spans[names.PREFILL]
    assert (prefill.start_time, prefill.end_time) == (arrived + 200_000_000, arrived + 500_000_000)
    assert [event.timestamp for event in prefill.events] == [arrived + 200_000_000, arrived + 300_000_000]


def test_exported_times_are_whole_microseconds(
    telemetry: Telemetry, exporter: InMemorySpanExporter, make_timeline: MakeTimeline
) -> None:
    timeline = make_timeline()
    timeline.first_content_sent(T + 0.1234567891)
    timeline.finished(T + 0.9876543219)
    telemetry.tracer.begin(timeline).finish(timeline)
    for span in exported(telemetry, exporter).values():
        assert span.start_time is not None
        assert span.start_time % 1000 == 0
        assert span.end_time is not None
        assert span.end_time % 1000 == 0


def test_the_parts_of_exported_spans_add_up_to_the_ttft_attribute(
    telemetry: Telemetry, exporter: InMemorySpanExporter, finished: RequestTimeline
) -> None:
    telemetry.tracer.begin(finished).finish(finished)
    spans = exported(telemetry, exporter)
    parts = [spans[name] for name in (names.ADMISSION_WAIT, names.PREFILL, names.FIRST_TOKEN)]
    total = sum((part.end_time or 0) - (part.start_time or 0) for part in parts)
    attributes = spans["POST /openai/v1/chat/completions"].attributes
    assert attributes is not None
    assert attributes[names.TTFT] == total / 1e9


def test_a_failed_request_has_an_error_status_of_bounded_length(
    telemetry: Telemetry, exporter: InMemorySpanExporter, make_timeline: MakeTimeline
) -> None:
    timeline = make_timeline()
    timeline.failed(T + 1, 500, "x" * 10_000)
    telemetry.tracer.begin(timeline).finish(timeline)
    status = exported(telemetry, exporter)["POST /openai/v1/chat/completions"].status
    assert status.status_code is StatusCode.ERROR
    assert len(status.description or "") == MAX_STATUS_LENGTH


def test_attribute_values_are_of_bounded_length(
    telemetry: Telemetry, exporter: InMemorySpanExporter, make_timeline: MakeTimeline
) -> None:
    timeline = make_timeline(path="/" + "p" * 200_000)
    timeline.finished(T + 1)
    telemetry.tracer.begin(timeline).finish(timeline)
    attributes = exported(telemetry, exporter)["POST /openai/v1/chat/completions"].attributes
    assert attributes is not None
    assert len(str(attributes[names.URL_PATH])) == MAX_ATTRIBUTE_LENGTH


def test_a_route_learnt_later_names_the_server_span(
    telemetry: Telemetry, exporter: InMemorySpanExporter, make_timeline: MakeTimeline
) -> None:
    timeline = make_timeline(route=None, operation=None)
    trace = telemetry.tracer.begin(timeline)
    timeline.info.route = "/tokenize"
    timeline.finished(T + 1)
    trace.finish(timeline)
    assert set(exported(telemetry, exporter)) == {"POST /tokenize"}


def test_a_trace_is_finished_once(
    telemetry: Telemetry, exporter: InMemorySpanExporter, finished: RequestTimeline
) -> None:
    trace = telemetry.tracer.begin(finished)
    trace.finish(finished)
    trace.finish(finished)
    assert telemetry.flush()
    assert len(exporter.get_finished_spans()) == 7
    assert len(telemetry.ring) == 1


def test_a_trace_is_not_finished_before_its_request(telemetry: Telemetry, make_timeline: MakeTimeline) -> None:
    timeline = make_timeline()
    trace = telemetry.tracer.begin(timeline)
    with pytest.raises(ValueError, match="has ended"):
        trace.finish(timeline)
    timeline.cancelled(T + 1)
    trace.finish(timeline)
    assert len(telemetry.ring) == 1


def test_the_outgoing_context_names_the_server_span(
    telemetry: Telemetry, exporter: InMemorySpanExporter, finished: RequestTimeline
) -> None:
    trace = telemetry.tracer.begin(finished)
    trace.finish(finished)
    root = exported(telemetry, exporter)["POST /openai/v1/chat/completions"]
    version, trace_id, span_id, flags = trace.headers()["traceparent"].split("-")
    assert (version, trace_id, span_id) == ("00", trace.trace_id, f"{root.context.span_id:016x}")
    assert int(flags, 16) & 1


def test_a_request_that_is_not_sampled_is_still_kept_in_memory(telemetry: Telemetry, finished: RequestTimeline) -> None:
    telemetry.set_sampling_ratio(0.0)
    trace = telemetry.tracer.begin(finished)
    trace.finish(finished)
    kept = telemetry.ring.find("req-1")
    assert kept is not None
    assert kept.trace_id == trace.trace_id


def test_a_tracer_without_a_ring_keeps_nothing(
    telemetry: Telemetry, exporter: InMemorySpanExporter, finished: RequestTimeline
) -> None:
    RequestTracer(telemetry.provider).begin(finished).finish(finished)
    assert len(exported(telemetry, exporter)) == 7
    assert len(telemetry.ring) == 0
