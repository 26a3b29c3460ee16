"""A real Jaeger on the cluster: OTLP in, traces out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from realcluster.cluster import Cluster
from realcluster.images import JAEGER_IMAGE
from realcluster.namespaces import DidNotHappen, wait_for

NAMESPACE = "observability"
OTLP_ENDPOINT = f"http://jaeger.{NAMESPACE}.svc.cluster.local:4318"
_PORTS = {"otlp-grpc": 4317, "otlp-http": 4318, "query": 16686}


def _documents() -> Iterator[dict[str, Any]]:
    labels, metadata = {"app": "jaeger"}, {"name": "jaeger", "namespace": NAMESPACE}
    container = {
        "name": "jaeger",
        "image": JAEGER_IMAGE,
        "imagePullPolicy": "Never",
        "env": [{"name": "JAEGER_LISTEN_HOST", "value": "0.0.0.0"}],
        "ports": [{"name": name, "containerPort": port} for name, port in _PORTS.items()],
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}},
    }
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    yield {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
    ports = [{"name": name, "port": port} for name, port in _PORTS.items()]
    yield {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"selector": labels, "ports": ports}}


@dataclass(frozen=True)
class Span:
    """One span as Jaeger's API tells it; times in seconds."""

    id: str
    parent: str | None
    name: str
    service: str
    starts: float
    seconds: float
    tags: dict[str, Any]

    @property
    def ends(self) -> float:
        """When it ended."""
        return self.starts + self.seconds


class Jaeger:
    """Its query API."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._url = ""

    def start(self) -> None:
        """Runs it and waits until it answers."""
        self._cluster.apply(*_documents())
        self._cluster.kubectl("rollout", "status", "deployment/jaeger", "-n", NAMESPACE, "--timeout=60s")
        address = self._cluster.get("service", "jaeger", "-n", NAMESPACE)["spec"]["clusterIP"]
        self._url = f"http://{address}:{_PORTS['query']}"
        wait_for("Jaeger's API answers", self._answers, seconds=30)

    def trace(self, trace_id: str, *, seconds: float = 30) -> list[Span]:
        """The spans of a trace, once they have come in."""
        found: list[Span] = []

        def complete() -> bool:
            found[:] = self._spans(trace_id)
            return bool(found)

        try:
            wait_for(f"trace {trace_id} is in Jaeger", complete, seconds=seconds, every=0.5)
        except DidNotHappen:
            return []
        return found

    def services(self) -> list[str]:
        """Names of the services that have sent spans."""
        return list(self._get("/api/services").get("data") or [])

    def _answers(self) -> bool:
        try:
            return "data" in self._get("/api/services")
        except httpx.HTTPError:
            return False

    def _spans(self, trace_id: str) -> list[Span]:
        data = self._get(f"/api/traces/{trace_id}").get("data") or []
        return [_span(one, trace["processes"]) for trace in data for one in trace["spans"]]

    def _get(self, path: str) -> dict[str, Any]:
        with httpx.Client(base_url=self._url, trust_env=False, timeout=10) as client:
            answer: dict[str, Any] = client.get(path).json()
        return answer


def _span(found: dict[str, Any], processes: dict[str, Any]) -> Span:
    parents = [one["spanID"] for one in found.get("references", []) if one["refType"] == "CHILD_OF"]
    return Span(
        id=found["spanID"],
        parent=parents[0] if parents else None,
        name=found["operationName"],
        service=processes[found["processID"]]["serviceName"],
        starts=found["startTime"] / 1e6,
        seconds=found["duration"] / 1e6,
        tags={tag["key"]: tag["value"] for tag in found["tags"]},
    )
