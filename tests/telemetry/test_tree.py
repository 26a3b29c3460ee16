"""The terminal's view of a trace, and the memory it comes from."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rich.console import Console, RenderableType

from prism.telemetry.ring import FinishedRequest, SpanRing
from prism.telemetry.shape import span_tree
from prism.telemetry.timeline import RequestTimeline
from prism.telemetry.tree import BAR_CELLS, render_tree

T = 1000.0

MakeTimeline = Callable[..., RequestTimeline]


def text(renderable: RenderableType) -> str:
    console = Console(width=160, no_color=True)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def line(shown: str, name: str) -> str:
    return next(row for row in shown.splitlines() if name in row)


def test_every_span_has_a_line_with_its_milliseconds(finished: RequestTimeline) -> None:
    shown = text(render_tree(finished))
    for name, milliseconds in (("admission_wait", "200.0"), ("prefill", "300.0"), ("decode", "490.0")):
        assert milliseconds in line(shown, name)


def test_bars_stand_side_by_side_on_one_axis(finished: RequestTimeline) -> None:
    shown = text(render_tree(finished))
    wait, prefill = line(shown, "admission_wait"), line(shown, "prefill")
    assert wait.count("━") == BAR_CELLS // 5
    assert wait.rindex("━") + 1 == prefill.index("━")


def test_a_span_shorter_than_a_cell_is_still_seen(finished: RequestTimeline) -> None:
    assert "╸" in line(text(render_tree(finished)), "first_token")


def test_what_was_reused_stands_beside_the_prefill(finished: RequestTimeline) -> None:
    shown = line(text(render_tree(finished)), "prefill")
    assert "cached 600, computed 300, segments hit 3 of 4, reordered" in shown


def test_how_a_request_ended_stands_beside_its_last_part(make_timeline: MakeTimeline) -> None:
    timeline = make_timeline()
    timeline.failed(T + 0.4, 503, "engine_dead")
    assert "failed, engine_dead" in line(text(render_tree(timeline)), "admission_wait")


def test_a_request_that_took_no_time_can_be_shown(make_timeline: MakeTimeline) -> None:
    timeline = make_timeline()
    timeline.refused(T, 429, "queue_full")
    assert "0.0" in line(text(render_tree(span_tree(timeline))), "admission_wait")


def kept(make_timeline: MakeTimeline, trace_id: str) -> FinishedRequest:
    timeline = make_timeline()
    timeline.finished(T + 1)
    return FinishedRequest(timeline, trace_id)


def test_a_ring_keeps_the_newest(make_timeline: MakeTimeline) -> None:
    ring = SpanRing(2)
    for trace_id in ("1", "2", "3"):
        ring.add(kept(make_timeline, trace_id))
    assert [request.trace_id for request in ring.last()] == ["2", "3"]
    assert [request.trace_id for request in ring.last(1)] == ["3"]
    assert len(ring) == len(ring.last(9)) == 2
    assert ring.last(0) == ()


def test_of_two_requests_with_one_id_the_newer_is_found(make_timeline: MakeTimeline) -> None:
    ring = SpanRing(4)
    for trace_id in ("1", "2"):
        ring.add(kept(make_timeline, trace_id))
    by_id, by_trace = ring.find("req-1"), ring.find("1")
    assert by_id is not None
    assert by_id.trace_id == "2"
    assert by_trace is not None
    assert by_trace.trace_id == "1"
    assert ring.find("never seen") is None


def test_an_empty_ring_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        SpanRing(0)
