"""The span tree of a finished request as plain values: what a trace viewer and the terminal both show.

    POST /openai/v1/chat/completions
    └ chat {model}
      ├ prism.admission_wait      └ prism.render, prism.preempted
      ├ prism.prefill             └ prism.preempted
      ├ prism.first_token         └ prism.preempted
      ├ prism.decode              └ prism.preempted
      └ prism.sequence …          one for each further engine request

Times are microseconds since arrival; every child lies inside its parent. A route that does no inference has the first
span only. Nothing here holds a word of a prompt or an answer, and names come from a fixed, small set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prism.telemetry import names
from prism.telemetry.timeline import Admission, EngineRequest, Interval, Outcome, Part, PartName, RequestTimeline

AttributeValue = str | bool | int | float | tuple[str, ...] | tuple[int, ...]
Attributes = dict[str, AttributeValue]

PROVIDER = "vllm"

MAX_LISTED = 64
"""Entries of a list-valued attribute; a longer list is cut."""

_PART_SPANS = {
    PartName.ADMISSION_WAIT: names.ADMISSION_WAIT,
    PartName.PREFILL: names.PREFILL,
    PartName.FIRST_TOKEN: names.FIRST_TOKEN,
    PartName.DECODE: names.DECODE,
}


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened inside a span, `at_us` microseconds after the request arrived."""

    name: str
    at_us: int
    attributes: Mapping[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class SpanNode:
    """A span to be: `interval` in microseconds since arrival; `error` says why it counts as failed, if it does."""

    name: str
    interval: Interval
    attributes: Mapping[str, AttributeValue]
    events: tuple[SpanEvent, ...] = ()
    children: tuple[SpanNode, ...] = ()
    error: str | None = None


def span_tree(timeline: RequestTimeline) -> SpanNode:
    """The whole tree of a request that has ended.

    Raises:
        ValueError: it has not ended.
    """
    end = timeline.end_us
    if end is None:
        raise ValueError("a request has a span tree once it has ended")
    whole = Interval(0, end)
    children = (_chat(timeline, whole),) if timeline.info.operation else ()
    return SpanNode(
        server_span_name(timeline), whole, _root_attributes(timeline), children=children, error=_http_error(timeline)
    )


def server_span_name(timeline: RequestTimeline) -> str:
    """Method and route; the method alone where no route matched, since paths are without number."""
    info = timeline.info
    return f"{info.method} {info.route}" if info.route else info.method


def request_attributes(timeline: RequestTimeline) -> Attributes:
    """What is known of the server span when the request arrives."""
    info = timeline.info
    return _present(
        {
            names.REQUEST_ID: timeline.request_id,
            names.HTTP_METHOD: info.method,
            names.HTTP_ROUTE: info.route,
            names.URL_PATH: info.path,
            names.URL_SCHEME: info.scheme,
            names.SERVER_ADDRESS: info.server_address,
            names.SERVER_PORT: info.server_port,
        }
    )


def _root_attributes(timeline: RequestTimeline) -> Attributes:
    return request_attributes(timeline) | _present(
        {
            names.HTTP_STATUS: timeline.status,
            names.ERROR_TYPE: _http_error(timeline),
            names.OUTCOME: timeline.outcome,
            names.OUTCOME_REASON: timeline.reason,
            names.LANE: timeline.admission.lane if timeline.admission else None,
            names.INCOMPLETE: timeline.incomplete or None,
            **_ttft_attributes(timeline),
        }
    )


def _ttft_attributes(timeline: RequestTimeline) -> dict[str, AttributeValue | None]:
    total = timeline.ttft_us
    if total is None:
        return {}
    return {
        names.TTFT: total / 1e6,
        names.TTFT_END: timeline.ttft_end,
        names.HELD_BACK_TOKENS: timeline.held_back_tokens,
    }


def _http_error(timeline: RequestTimeline) -> str | None:
    """Why a span is an error: it failed, or its status is the server's fault; a 4xx or a hang-up is the client's."""
    if timeline.outcome is Outcome.FAILED or (timeline.status or 0) >= 500:
        return timeline.reason or str(timeline.status)
    return None


def _chat(timeline: RequestTimeline, whole: Interval) -> SpanNode:
    info = timeline.info
    operation = info.operation or ""
    parts = tuple(_part(timeline, part) for part in timeline.parts())
    sequences = tuple(_sequence(timeline, request, index) for index, request in enumerate(timeline.others[:MAX_LISTED]))
    return SpanNode(
        f"{operation} {info.model}" if info.model else operation,
        whole,
        _gen_ai_attributes(timeline) | _decisions(timeline),
        children=parts + sequences,
        error=_http_error(timeline),
    )


def _gen_ai_attributes(timeline: RequestTimeline) -> Attributes:
    info, admission, total = timeline.info, timeline.admission, timeline.ttft_us
    return _present(
        {
            names.OPERATION_NAME: info.operation,
            names.PROVIDER_NAME: PROVIDER,
            names.REQUEST_MODEL: info.model,
            names.REQUEST_STREAM: info.streamed,
            names.REQUEST_CHOICES: info.choices,
            names.REQUEST_MAX_TOKENS: info.max_tokens,
            names.REQUEST_TEMPERATURE: info.temperature,
            names.REQUEST_TOP_P: info.top_p,
            names.RESPONSE_ID: info.response_id,
            names.RESPONSE_MODEL: info.model if info.response_id else None,
            names.RESPONSE_FINISH_REASONS: info.finish_reasons[:MAX_LISTED] or None,
            names.RESPONSE_TIME_TO_FIRST_CHUNK: total / 1e6 if info.streamed and total is not None else None,
            names.USAGE_INPUT_TOKENS: info.input_tokens,
            names.USAGE_OUTPUT_TOKENS: info.output_tokens,
            names.USAGE_CACHED_TOKENS: admission.cached_tokens if admission else None,
            names.SERVER_ADDRESS: info.server_address,
            names.SERVER_PORT: info.server_port,
            names.ERROR_TYPE: _http_error(timeline),
        }
    )


def _decisions(timeline: RequestTimeline) -> Attributes:
    """What was decided about the request, on the chat span."""
    lead = timeline.lead
    info, admission = timeline.info, timeline.admission
    generation = admission.generation if admission else None
    return _present(
        {
            **({} if admission is None else {**_waiting(admission), **_work(admission)}),
            names.REORDER_REFUSED: info.reorder_refused,
            names.PREEMPTIONS: lead.preemptions if lead else None,
            names.SETTINGS_GENERATION: generation,
            names.RENDER_GENERATION: info.render_generation if info.render_generation != generation else None,
            names.ENGINE_REQUEST: lead.name if lead else None,
            names.ENGINE_END: lead.end_reason if lead else None,
        }
    )


def _waiting(admission: Admission) -> dict[str, AttributeValue | None]:
    return {
        names.LANE: admission.lane,
        names.BUCKET: admission.bucket or None,
        names.WAIT_REASON: admission.why,
        names.OVERTAKEN: admission.overtaken,
    }


def _work(admission: Admission) -> dict[str, AttributeValue | None]:
    return {
        names.CACHED_TOKENS: admission.cached_tokens,
        names.COMPUTED_TOKENS: admission.computed_tokens,
        names.PROMPT_TOKENS: admission.prompt_tokens,
        names.SEGMENTS_HIT: admission.segments_hit,
        names.SEGMENTS: admission.segments,
        names.WAS_REORDERED: admission.reordered,
    }


def _part(timeline: RequestTimeline, part: Part) -> SpanNode:
    lead = timeline.lead
    attributes: dict[str, AttributeValue | None] = {
        names.OUTCOME: part.outcome,
        names.OUTCOME_REASON: timeline.reason if part.outcome else None,
        names.INCOMPLETE: part.lost or None,
    }
    events: tuple[SpanEvent, ...] = ()
    if lead is not None:
        attributes |= _part_values(part.name, lead)
        events = _part_events(timeline, part, lead)
    preempted = tuple(SpanNode(names.PREEMPTED, pause, {}) for pause in part.preempted)
    return SpanNode(
        _PART_SPANS[part.name],
        Interval(part.start_us, part.end_us),
        _present(attributes),
        events,
        _render(timeline, part) + preempted,
        _http_error(timeline) if part.outcome else None,
    )


def _render(timeline: RequestTimeline, part: Part) -> tuple[SpanNode, ...]:
    rendering = timeline.rendering() if part.name is PartName.ADMISSION_WAIT else None
    if rendering is None:
        return ()
    return (SpanNode(names.RENDER, rendering, _present({names.RENDER_GENERATION: timeline.info.render_generation})),)


def _part_values(name: PartName, lead: EngineRequest) -> dict[str, AttributeValue | None]:
    admission = lead.admission
    generation = {names.SETTINGS_GENERATION: admission.generation if admission else None}
    if name is PartName.ADMISSION_WAIT:
        return {names.QUEUE_DEPTH: lead.queue_depth, **(_waiting(admission) if admission else {}), **generation}
    if name is PartName.PREFILL and admission is not None:
        return {**_work(admission), **generation}
    return {}


def _part_events(timeline: RequestTimeline, part: Part, lead: EngineRequest) -> tuple[SpanEvent, ...]:
    if part.name is PartName.ADMISSION_WAIT:
        return _queue_events(timeline, part, lead)
    if part.name is PartName.PREFILL:
        return _prefill_events(timeline, part, lead)
    return ()


def _queue_events(timeline: RequestTimeline, part: Part, lead: EngineRequest) -> tuple[SpanEvent, ...]:
    events = []
    if lead.queued_at is not None:
        depth = _present({names.QUEUE_DEPTH: lead.queue_depth})
        events.append(SpanEvent(names.QUEUED, timeline.clamped_us(lead.queued_at, part), depth))
    if lead.admission is not None and part.outcome is None:
        admitted = _present({**_waiting(lead.admission), names.QUEUE_DEPTH: lead.admission.depth})
        events.append(SpanEvent(names.ADMITTED, part.end_us, admitted))
        if lead.admission.reordered:
            events.append(SpanEvent(names.REORDERED, part.end_us, {names.ORDER: lead.admission.order[:MAX_LISTED]}))
    return tuple(events)


def _prefill_events(timeline: RequestTimeline, part: Part, lead: EngineRequest) -> tuple[SpanEvent, ...]:
    return tuple(
        SpanEvent(
            names.CHUNK,
            timeline.clamped_us(chunk.at, part),
            {names.CHUNK_START: chunk.start, names.CHUNK_END: chunk.end},
        )
        for chunk in lead.chunks
    )


def _sequence(timeline: RequestTimeline, request: EngineRequest, index: int) -> SpanNode:
    interval = timeline.sequence(request)
    admission = request.admission
    pauses = timeline.pauses_inside(request, interval)
    values: dict[str, AttributeValue | None] = {
        names.ENGINE_REQUEST: request.name,
        names.ENGINE_END: request.end_reason,
        names.PREEMPTIONS: request.preemptions,
        names.QUEUE_DEPTH: request.queue_depth,
        names.INCOMPLETE: request.facts_lost or None,
    }
    if admission is not None:
        values |= {**_waiting(admission), **_work(admission), names.SETTINGS_GENERATION: admission.generation}
    events = [
        SpanEvent(name, timeline.clamped_us(at, interval), {})
        for name, at in ((names.QUEUED, request.queued_at), (names.ADMITTED, request.admitted_at))
        if at is not None
    ]
    children = tuple(SpanNode(names.PREEMPTED, pause, {}) for pause in pauses)
    return SpanNode(names.SEQUENCE, interval, _present(values), tuple(events), children)


def _present(values: Mapping[str, AttributeValue | None]) -> Attributes:
    """Without what is not known; 0, false and the empty text are values."""
    return {name: value for name, value in values.items() if value is not None}
