"""The state of a running predictor at a glance: what `GET /prism/v1/top` answers and `prism top` shows.

Everything comes from the metrics: what is now from their gauges, what happens from their growth over the last minute.
"""

from __future__ import annotations

import msgspec

from prism.telemetry import metrics as m
from prism.telemetry.metrics import Metrics
from prism.telemetry.window import Growth, Quantiles


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """Requests now: waiting by lane, running, and how the oldest waiting one fares."""

    waiting: dict[str, int]
    running: int
    open: int
    oldest_wait_seconds: float
    cold_lane_overtakes: int


class TrafficView(msgspec.Struct, frozen=True, kw_only=True):
    """Requests a second over the window; refusals also by reason, without those that did not occur."""

    arrived: float
    finished: float
    failed: float
    refused: float
    cancelled: float
    refused_by_reason: dict[str, float]


class CacheView(msgspec.Struct, frozen=True, kw_only=True):
    """The KV cache: blocks now, and over the window evictions a second by class, and the share of prompt tokens found
    cached, of all and by segment kind; None where no such token was admitted."""

    free_blocks: int
    total_blocks: int
    evictions: dict[str, float]
    hit_rate: float | None
    hit_rate_by_kind: dict[str, float | None]


class LatencyView(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds over the window; a P99 is None under 100 observations."""

    ttft: Quantiles
    parts: dict[str, Quantiles]
    scheduler_pass: Quantiles


class SettingsView(msgspec.Struct, frozen=True, kw_only=True):
    """The settings in force, and why a newer document is not, if there is one."""

    generation: int
    digest: str
    source: str
    role: str
    refusal: str | None


class TopView(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    model_name: str
    engine: str
    window_seconds: float
    queue: QueueView
    traffic: TrafficView
    cache: CacheView
    latency: LatencyView
    settings: SettingsView


def top_view(metrics: Metrics, engine: str, settings: SettingsView, now: float) -> TopView:
    """The state at `now` (monotonic seconds).

    Args:
        engine: state of the engine, as the readiness probe says it.
    """
    growth = metrics.window.growth(now)
    return TopView(
        model_name=metrics.model_name,
        engine=engine,
        window_seconds=growth.seconds,
        queue=_queue(metrics),
        traffic=_traffic(growth),
        cache=_cache(metrics, growth),
        latency=_latency(growth),
        settings=settings,
    )


def _queue(metrics: Metrics) -> QueueView:
    return QueueView(
        waiting={lane: metrics.waiting(lane) for lane in m.LANES},
        running=metrics.running(),
        open=metrics.open_requests(),
        oldest_wait_seconds=metrics.oldest_wait_seconds(),
        cold_lane_overtakes=metrics.cold_lane_overtakes(),
    )


def _traffic(growth: Growth) -> TrafficView:
    ended = {outcome: growth.rate(m.REQUESTS, outcome=outcome) for outcome in m.OUTCOMES}
    reasons = {reason: growth.rate(m.REFUSED_REQUESTS, reason=reason) for reason in m.REFUSAL_REASONS}
    return TrafficView(
        arrived=growth.rate(m.ARRIVED_REQUESTS),
        refused_by_reason={reason: rate for reason, rate in reasons.items() if rate},
        **ended,
    )


def _cache(metrics: Metrics, growth: Growth) -> CacheView:
    free, total = metrics.blocks()
    return CacheView(
        free_blocks=free,
        total_blocks=total,
        evictions={name: growth.rate(m.EVICTIONS, **{m.CLASS: name}) for name in m.CLASSES},
        hit_rate=_hit_rate(growth),
        hit_rate_by_kind={kind: _hit_rate(growth, kind=kind) for kind in m.KINDS},
    )


def _hit_rate(growth: Growth, **labels: str) -> float | None:
    tokens = growth.of(m.PROMPT_TOKENS, **labels)
    return growth.of(m.PROMPT_TOKENS, cached="true", **labels) / tokens if tokens else None


def _latency(growth: Growth) -> LatencyView:
    return LatencyView(
        ttft=growth.quantiles(m.TTFT),
        parts={part: growth.quantiles(m.TTFT_PART, part=part) for part in m.PARTS},
        scheduler_pass=growth.quantiles(m.SCHEDULER_PASS),
    )
