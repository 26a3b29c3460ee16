"""What the admin port shows: a finished request, the settings in force, the predictor at a glance."""

from __future__ import annotations

from typing import Any

from prism.engine.frontend.app import Frontend
from prism.engine.frontend.settings import EngineSettings
from prism.telemetry.ring import FinishedRequest
from prism.telemetry.timeline import RequestTimeline
from prism.telemetry.top import SettingsView, TopView, top_view


def shown_state(frontend: Frontend, now: float) -> TopView:
    """The predictor at `now`, in monotonic seconds."""
    return top_view(frontend.metrics, frontend.health.state.value, _settings(frontend.settings), now)


def _settings(settings: EngineSettings) -> SettingsView:
    now, refusal = settings.in_force, settings.last_refusal
    return SettingsView(
        generation=now.generation,
        digest=now.digest,
        source=now.source,
        role=now.role,
        refusal=None if refusal is None else f"{refusal.reason}: {refusal.message}",
    )


def shown_request(finished: FinishedRequest) -> dict[str, Any]:
    """One request: ids, outcome, its parts in seconds, and what the scheduler decided. No word of the prompt."""
    timeline = finished.timeline
    ttft = timeline.ttft_us
    return {
        "request_id": timeline.request_id,
        "trace_id": finished.trace_id,
        "route": timeline.info.route,
        "model": timeline.info.model,
        "arrived_unix_s": timeline.arrived_wall_ns / 1e9,
        "outcome": timeline.outcome,
        "status": timeline.status,
        "reason": timeline.reason,
        "ttft_s": None if ttft is None else ttft / 1e6,
        "parts": [{"name": part.name, "seconds": part.seconds} for part in timeline.parts()],
        "input_tokens": timeline.info.input_tokens,
        "output_tokens": timeline.info.output_tokens,
        "reorder_refused": timeline.info.reorder_refused,
        "incomplete": timeline.incomplete,
        "admission": _admission(timeline),
    }


def _admission(timeline: RequestTimeline) -> dict[str, Any] | None:
    admission = timeline.admission
    if admission is None:
        return None
    return {
        "lane": admission.lane,
        "bucket": admission.bucket,
        "why": admission.why,
        "depth": admission.depth,
        "cached_tokens": admission.cached_tokens,
        "prompt_tokens": admission.prompt_tokens,
        "segments_hit": admission.segments_hit,
        "segments": admission.segments,
        "reordered": admission.reordered,
        "order": list(admission.order),
        "generation": admission.generation,
        "overtaken": admission.overtaken,
    }
