"""The operator's own metrics, in a registry of their own."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY: Final = CollectorRegistry()

RECONCILE_SECONDS = Histogram(
    "prism_operator_reconcile_seconds",
    "Time of one look at a key.",
    ["kind"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    registry=REGISTRY,
)
RECONCILE_FAILURES = Counter(
    "prism_operator_reconcile_failures_total", "Looks that must be repeated.", ["kind"], registry=REGISTRY
)
QUEUE_DEPTH = Gauge("prism_operator_queue_depth", "Keys that wait for a worker.", registry=REGISTRY)
API_REQUESTS = Counter(
    "prism_operator_api_requests_total",
    "Calls of the API server; code 0: no answer.",
    ["verb", "resource", "code"],
    registry=REGISTRY,
)
WATCHES_BEGUN = Counter(
    "prism_operator_watches_total",
    "Watches begun, by why: start, ended, silent, gone, failed, resync.",
    ["resource", "why"],
    registry=REGISTRY,
)
CACHED_OBJECTS = Gauge("prism_operator_cached_objects", "Objects known.", ["resource"], registry=REGISTRY)
LEADER = Gauge("prism_operator_leader", "1 while this replica holds the Lease.", registry=REGISTRY)
ASKED = Counter(
    "prism_operator_pods_asked_total",
    "Pods asked over the admin port, by result: answered, unreachable, no_answer.",
    ["result"],
    registry=REGISTRY,
)
WATCHED_PODS = Gauge("prism_operator_watched_pods", "Pods that are asked.", registry=REGISTRY)
ROLLOUTS = Counter(
    "prism_operator_rollouts_total", "Trials that have ended, by verdict.", ["verdict"], registry=REGISTRY
)
EVENTS_FAILED = Counter("prism_operator_events_failed_total", "Events that were not taken.", registry=REGISTRY)
