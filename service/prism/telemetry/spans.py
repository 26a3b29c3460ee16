"""From a request to its spans.

The server span starts when the request arrives: its trace id and whether it is sampled must be known then, for logs,
for the response and for whatever the request is forwarded to. All other spans are made when the request has ended,
from its timeline, with their times given. A process that dies in between exports nothing of that request.

No span ever takes its parent from an ambient context: vLLM leaves a start-up context behind, and `TRACEPARENT` may
stand in the environment. The parent is the caller's `traceparent`, or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ParentBased, Sampler, SamplingResult, TraceIdRatioBased
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.trace.span import TraceState
from opentelemetry.util.types import Attributes as OtelAttributes

from prism.telemetry.ring import FinishedRequest, SpanRing
from prism.telemetry.shape import SpanNode, request_attributes, server_span_name, span_tree
from prism.telemetry.timeline import RequestTimeline

INSTRUMENTATION: Final = "prism"

MAX_STATUS_LENGTH: Final = 256
"""Characters of a status description; the SDK's own limits do not cut it."""

_PROPAGATOR = TraceContextTextMapPropagator()


class LiveRatioSampler(Sampler):
    """Samples a share of the traces that start here, by their id; the share may change at any time.

    Args:
        default: share in [0, 1] while nothing else is set.
    """

    def __init__(self, default: float) -> None:
        self._default = default
        self._sampler = TraceIdRatioBased(default)

    @property
    def ratio(self) -> float:
        return self._sampler.rate

    def set_ratio(self, ratio: float | None) -> None:
        """From the next request on, sample this share; None goes back to the default.

        Raises:
            ValueError: not in [0, 1].
        """
        self._sampler = TraceIdRatioBased(self._default if ratio is None else ratio)

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: OtelAttributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        return self._sampler.should_sample(parent_context, trace_id, name, kind, attributes, links, trace_state)

    def get_description(self) -> str:
        return f"LiveRatioSampler{{{self.ratio}}}"


def caller_decides(sampler: Sampler) -> Sampler:
    """A sampler that obeys the caller's flag where there is one, and asks `sampler` where there is none."""
    return ParentBased(root=sampler)


class RequestTrace:
    """The trace of one request under way.

    Attributes:
        trace_id: 32 hex digits; also of a request that is not sampled, since logs want it.
        sampled: whether its spans will be exported.
    """

    def __init__(self, spans: RequestTracer, root: Span) -> None:
        self._spans = spans
        self._root = root
        self._finished = False
        context = root.get_span_context()
        self.trace_id = format_trace_id(context.trace_id)
        self.sampled = context.trace_flags.sampled

    def headers(self) -> dict[str, str]:
        """`traceparent` and `tracestate` for whatever this request is forwarded to."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, set_span_in_context(self._root, Context()))
        return carrier

    def finish(self, timeline: RequestTimeline) -> None:
        """Makes all spans of a request that has ended, and hands them to the exporter's queue. Later calls do nothing.

        Raises:
            ValueError: the request has not ended.
        """
        if self._finished:
            return
        if timeline.outcome is None:
            raise ValueError("a trace is finished once its request has ended")
        tree = span_tree(timeline) if self._root.is_recording() else None
        self._finished = True
        self._spans.keep(FinishedRequest(timeline, self.trace_id))
        if tree is not None:
            self._spans.write(self._root, tree, timeline)


class RequestTracer:
    """Begins traces.

    Args:
        provider: where the spans go.
        ring: keeps finished requests whether they are sampled or not; None keeps none.
        version: of PRISM, as the instrumentation scope's.
    """

    def __init__(self, provider: TracerProvider, *, ring: SpanRing | None = None, version: str | None = None) -> None:
        self._tracer = provider.get_tracer(INSTRUMENTATION, version)
        self._ring = ring

    def begin(
        self, timeline: RequestTimeline, *, traceparent: str | None = None, tracestate: str | None = None
    ) -> RequestTrace:
        """Starts the server span of a request that just arrived, as child of its caller's, if it named a valid one."""
        headers = {"traceparent": traceparent, "tracestate": tracestate}
        carrier = {name: value for name, value in headers.items() if value is not None}
        root = self._tracer.start_span(
            server_span_name(timeline),
            context=_PROPAGATOR.extract(carrier, Context()),
            kind=SpanKind.SERVER,
            attributes=request_attributes(timeline),
            start_time=_nanoseconds(timeline, 0),
        )
        return RequestTrace(self, root)

    def keep(self, request: FinishedRequest) -> None:
        if self._ring is not None:
            self._ring.add(request)

    def write(self, root: Span, tree: SpanNode, timeline: RequestTimeline) -> None:
        """Fills in and ends the server span, after all below it; a parent's end never precedes a child's."""
        root.update_name(tree.name)
        self._complete(root, tree, timeline)

    def _complete(self, span: Span, node: SpanNode, timeline: RequestTimeline) -> None:
        span.set_attributes(dict(node.attributes))
        for event in node.events:
            span.add_event(event.name, dict(event.attributes), _nanoseconds(timeline, event.at_us))
        for child in node.children:
            self._complete(self._child(span, child, timeline), child, timeline)
        if node.error is not None:
            span.set_status(Status(StatusCode.ERROR, node.error[:MAX_STATUS_LENGTH]))
        span.end(_nanoseconds(timeline, node.interval.end_us))

    def _child(self, parent: Span, node: SpanNode, timeline: RequestTimeline) -> Span:
        return self._tracer.start_span(
            node.name,
            context=set_span_in_context(parent, Context()),
            start_time=_nanoseconds(timeline, node.interval.start_us),
        )


def _nanoseconds(timeline: RequestTimeline, offset_us: int) -> int:
    """Wall-clock arrival plus an offset, in nanoseconds but on whole microseconds.

    Viewers keep microseconds and cut start and length one by one: off that grid, a child that ends with its parent
    would stick out by one and be moved by their clock-skew correction.
    """
    return (timeline.arrived_wall_ns // 1000 + offset_us) * 1000
