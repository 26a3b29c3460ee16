"""The predictor at a glance, from its metrics."""

from __future__ import annotations

import msgspec
import pytest

from prism.telemetry.metrics import Metrics
from prism.telemetry.timeline import RequestTimeline
from prism.telemetry.top import SettingsView, TopView, top_view

SETTINGS = SettingsView(generation=3, digest="d", source="team/rag", role="stable", refusal=None)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("smol", clock=lambda: 0.0)


def view(metrics: Metrics, now: float = 10.0) -> TopView:
    return top_view(metrics, "ready", SETTINGS, now)


def test_an_idle_predictor_has_no_rates_and_no_percentiles(metrics: Metrics) -> None:
    metrics.sample()
    seen = view(metrics)
    assert (seen.window_seconds, seen.traffic.arrived, seen.cache.hit_rate, seen.latency.ttft.p50) == (
        10,
        0,
        None,
        None,
    )


def test_rates_and_hit_rates_are_of_the_window(metrics: Metrics, finished: RequestTimeline) -> None:
    metrics.request_admitted({"document": 0}, {"document": 1000})
    metrics.sample()
    metrics.request_arrived()
    metrics.request_ended(finished)
    metrics.request_admitted({"document": 30, "private": 0}, {"document": 40, "private": 10})
    seen = view(metrics)
    assert (seen.traffic.arrived, seen.traffic.finished, seen.traffic.failed) == (0.1, 0.1, 0)
    assert (seen.cache.hit_rate, seen.cache.hit_rate_by_kind["document"]) == (0.6, 0.75)
    assert seen.cache.hit_rate_by_kind["history"] is None


def test_refusals_are_told_by_the_reasons_that_occurred(metrics: Metrics, finished: RequestTimeline) -> None:
    metrics.sample()
    finished.outcome, finished.reason = None, None
    finished.refused(1001.0, 429, "queue_full")
    metrics.request_ended(finished)
    assert view(metrics).traffic.refused_by_reason == {"queue_full": 0.1}


def test_ttft_is_told_with_its_parts(metrics: Metrics, finished: RequestTimeline) -> None:
    metrics.sample()
    for _ in range(100):
        metrics.request_ended(finished)
    latency = view(metrics).latency
    assert latency.ttft.count == 100
    assert latency.ttft.p99 == pytest.approx(0.51, rel=0.25)
    assert {part: told.p50 for part, told in latency.parts.items()} == {
        "admission_wait": pytest.approx(0.2, rel=0.25),
        "prefill": pytest.approx(0.3, rel=0.25),
        "first_token": pytest.approx(0.01, rel=0.6),
    }


def test_the_view_survives_its_way_over_http(metrics: Metrics) -> None:
    seen = view(metrics)
    assert msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(seen)), type=TopView) == seen
