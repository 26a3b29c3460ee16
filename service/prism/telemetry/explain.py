"""Why a request waited, and why each of its segments hit or missed: what `prism explain` says.

Made from the request's timeline alone, under way or ended. Nothing of a prompt is in it but lengths and digests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from prism.core.reuse import Loss, Reuse, SegmentReuse
from prism.telemetry.timeline import Admission, EngineRequest, PartName, RequestTimeline

WAITED_FOR = {
    "none": "it was admitted in the first pass that saw it",
    "slots": "all running slots (--max-num-seqs) were taken",
    "memory": "the KV cache had no room for it",
    "budget": "the token budget of the steps (--max-num-batched-tokens) was used up",
    "order": "others were chosen before it",
    "grammar": "its grammar was being compiled",
    "adapter": "no adapter slot (--max-loras) was free",
    "remote_kv": "its KV was on its way from elsewhere",
}
"""What a request waited for last, in words."""

LOST_AS = {
    "private": "as a private suffix that hardly anybody goes on from",
    "unprotected": "as one that nobody waited for",
    "protected": "although requests waited for it, since nothing else was left to give up",
    "lru": "as the least recently used",
    "reset": "with the whole cache, which was emptied",
}
"""How a prefix was given up, in words."""


class SegmentView(msgspec.Struct, frozen=True, kw_only=True):
    """One segment, in the order in which the prompt was computed.

    Attributes:
        identity: equal ones are the same segment of the same tenant; empty for a prompt without segments.
        reuse: the verdict, a value of `prism.core.reuse.Reuse`.
        lost_as, lost_seconds_before: of an evicted one, how and how long before the admission, if that is remembered.
        other_tenant: whether another tenant had sent it before; None unless that was asked for.
        why: all of it in words.
    """

    kind: str
    start: int
    end: int
    identity: str
    cached_tokens: int
    reuse: str
    lost_as: str | None
    lost_seconds_before: float | None
    other_tenant: bool | None
    why: str


class WaitView(msgspec.Struct, frozen=True, kw_only=True):
    """The wait for admission, from arrival; what is not known yet, or was lost, is None."""

    seconds: float
    rendering_seconds: float | None
    queue_depth: int | None
    lane: str | None
    waited_for: str | None
    overtaken: int | None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one request.

    Attributes:
        state: `waiting` or `running`, or how it ended.
        ttft_seconds: its three parts by name; empty if it had no first token, or facts that split it were lost.
        lines: all of it in words.
    """

    request_id: str
    trace_id: str
    model: str | None
    state: str
    status: int | None
    reason: str | None
    wait: WaitView
    ttft_seconds: dict[str, float]
    prompt_tokens: int | None
    cached_tokens: int | None
    order: list[int]
    reorder_refused: str | None
    preemptions: int
    settings_generation: int | None
    incomplete: bool
    segments: list[SegmentView]
    lines: list[str]


def explain(timeline: RequestTimeline, trace_id: str, now: float, *, all_tenants: bool = False) -> Explanation:
    """Explain a request.

    Args:
        now: monotonic seconds; how long a request that still waits has done so.
        all_tenants: say of a segment that was never seen whether another tenant had sent it. Otherwise nothing that
            other tenants did can be told from the answer.
    """
    lead, admission = timeline.lead, timeline.admission
    explanation = Explanation(
        request_id=timeline.request_id,
        trace_id=trace_id,
        model=timeline.info.model,
        state=_state(timeline),
        status=timeline.status,
        reason=timeline.reason,
        wait=_wait(timeline, now),
        ttft_seconds=_ttft(timeline),
        prompt_tokens=admission.prompt_tokens if admission else timeline.info.input_tokens,
        cached_tokens=admission.cached_tokens if admission else None,
        order=list(admission.order) if admission and admission.reordered else [],
        reorder_refused=timeline.info.reorder_refused,
        preemptions=lead.preemptions if lead else 0,
        settings_generation=admission.generation if admission else None,
        incomplete=timeline.outcome is not None and timeline.incomplete,
        segments=_segments(lead, admission, all_tenants) if lead and admission else [],
        lines=[],
    )
    return msgspec.structs.replace(explanation, lines=list(_lines(explanation)))


def _state(timeline: RequestTimeline) -> str:
    if timeline.outcome is not None:
        return timeline.outcome
    return "waiting" if timeline.admission is None else "running"


def _ttft(timeline: RequestTimeline) -> dict[str, float]:
    ttft = timeline.ttft()
    if ttft is None:
        return {}
    return {"admission_wait": ttft.admission_wait, "prefill": ttft.prefill, "first_token": ttft.first_token}


def _wait(timeline: RequestTimeline, now: float) -> WaitView:
    lead, admission, rendering = timeline.lead, timeline.admission, timeline.rendering()
    return WaitView(
        seconds=_waited_seconds(timeline, now),
        rendering_seconds=rendering.seconds if rendering else None,
        queue_depth=lead.queue_depth if lead else None,
        lane=admission.lane if admission else None,
        waited_for=admission.why if admission else None,
        overtaken=admission.overtaken if admission else None,
    )


def _waited_seconds(timeline: RequestTimeline, now: float) -> float:
    parts = timeline.parts()
    if parts:
        return sum(part.seconds for part in parts if part.name is PartName.ADMISSION_WAIT)
    until = timeline.lead.admitted_at if timeline.lead else None
    return max(0.0, (now if until is None else until) - timeline.arrived_at)


# ---- segments ------------------------------------------------------------------------------------------------------


def _segments(lead: EngineRequest, admission: Admission, all_tenants: bool) -> list[SegmentView]:
    views: list[SegmentView] = []
    missed = False
    for segment in admission.reuse:
        before = _seconds_before(lead, segment.loss)
        other = segment.identity in lead.sent_by_others if all_tenants else None
        views.append(_segment(segment, before, other, _verdict(segment, before, other, missed)))
        missed = missed or segment.reuse is not Reuse.HIT
    return views


def _segment(segment: SegmentReuse, before: float | None, other: bool | None, why: str) -> SegmentView:
    return SegmentView(
        kind=segment.kind,
        start=segment.start,
        end=segment.end,
        identity=segment.identity.hex(),
        cached_tokens=segment.cached_tokens,
        reuse=segment.reuse,
        lost_as=segment.loss.how if segment.loss else None,
        lost_seconds_before=before,
        other_tenant=other,
        why=why,
    )


def _seconds_before(lead: EngineRequest, loss: Loss | None) -> float | None:
    return None if loss is None or lead.admitted_at is None else max(0.0, lead.admitted_at - loss.at)


def _verdict(segment: SegmentReuse, before: float | None, other: bool | None, missed: bool) -> str:
    match segment.reuse:
        case Reuse.HIT:
            return _hit(segment)
        case Reuse.LAST_BLOCK:
            return "cached, but the block of a prompt's last token is always computed again"
        case Reuse.SHORT_BLOCK:
            return "missed: it ends in a block that the prompt does not fill, and only full blocks are cached"
        case Reuse.EVICTED:
            return _evicted(segment.loss, before)
        case Reuse.DIFFERS:
            return f"differs from what is cached in the block from token {segment.start + segment.cached_tokens} on"
        case Reuse.NOT_AT_PREFIX if missed:
            return "missed: not at a prefix, since an earlier segment missed"
        case Reuse.NOT_AT_PREFIX:
            return "missed: not at a prefix, it was seen behind other segments only"
    return "missed: never seen" + (", but another tenant sent it, with whom nothing is shared" if other else "")


def _hit(segment: SegmentReuse) -> str:
    left = segment.end - segment.start - segment.cached_tokens
    return f"hit, but for {left} tokens that share a block with what follows" if left else "hit"


def _evicted(loss: Loss | None, before: float | None) -> str:
    if loss is None or before is None:
        return "missed: it was admitted before and is gone, how is no longer remembered"
    return f"missed: evicted {before:.1f} s before {LOST_AS.get(loss.how, loss.how)}"


# ---- in words ------------------------------------------------------------------------------------------------------


def _lines(told: Explanation) -> Iterator[str]:
    status = f" with {told.status}" if told.status is not None else ""
    reason = f" ({told.reason})" if told.reason else ""
    yield f"{told.request_id}: {told.state}{status}{reason}, model {told.model or 'unknown'}, trace {told.trace_id}"
    if told.ttft_seconds:
        parts = " + ".join(f"{name} {seconds:.3f}" for name, seconds in told.ttft_seconds.items())
        yield f"TTFT {sum(told.ttft_seconds.values()):.3f} s = {parts}"
    yield _wait_line(told.wait)
    if told.preemptions:
        yield f"preempted {told.preemptions} times: it lost its blocks to others and waited again"
    if told.cached_tokens is not None:
        yield _prompt_line(told)
    yield from _segment_lines(told.segments)
    if told.incomplete:
        yield "some of what the engine said about it was lost, so this is not the whole story"


def _wait_line(wait: WaitView) -> str:
    said = [f"waited {wait.seconds:.3f} s for admission"]
    if wait.rendering_seconds is not None:
        said.append(f"{wait.rendering_seconds:.3f} s of it rendering")
    if wait.queue_depth is not None:
        said.append(f"then behind {wait.queue_depth} waiting requests")
    if wait.waited_for is not None:
        said.append(f"at last because {WAITED_FOR.get(wait.waited_for, wait.waited_for)}")
    if wait.overtaken:
        said.append(f"overtaken {wait.overtaken} times in a row as the oldest")
    if wait.lane is not None:
        said.append("admitted in order of arrival" if wait.lane == "none" else f"admitted by the {wait.lane} lane")
    return ", ".join(said)


def _prompt_line(told: Explanation) -> str:
    line = f"{told.cached_tokens} of {told.prompt_tokens} prompt tokens came from the cache"
    if told.order:
        line += f"; documents in the order {', '.join(map(str, told.order))}"
    if told.reorder_refused:
        line += f"; not reordered: {told.reorder_refused}"
    return f"{line}; settings generation {told.settings_generation}"


def _segment_lines(segments: Sequence[SegmentView]) -> Iterator[str]:
    for segment in segments:
        name = f"{segment.kind} {segment.identity[:8]}".strip()
        yield f"  tokens {segment.start} to {segment.end}, {name}: {segment.why}"
