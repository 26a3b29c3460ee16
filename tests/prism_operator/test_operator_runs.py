"""The operator's servers, logs and traces."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import httpx
import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from prism.telemetry.provider import Telemetry
from prism_operator.logs import JsonLines
from prism_operator.metrics import LEADER
from prism_operator.probes import metrics, probe, serve
from prism_operator.tracing import RECONCILE, WRITE, Tracing


@pytest.fixture
def trouble() -> list[str]:
    """What is wrong; empty: nothing."""
    return []


@pytest.fixture
def server(trouble: list[str]) -> Iterator[ThreadingHTTPServer]:
    routes = {"/readyz": probe(lambda: trouble[0] if trouble else ""), "/metrics": metrics}
    running = serve("127.0.0.1", 0, routes, "test")
    yield running
    running.shutdown()
    running.server_close()


def get(server: ThreadingHTTPServer, path: str) -> httpx.Response:
    return httpx.get(f"http://127.0.0.1:{server.server_address[1]}{path}", trust_env=False)


def test_a_probe_says_what_is_wrong(server: ThreadingHTTPServer, trouble: list[str]) -> None:
    assert get(server, "/readyz").status_code == 200
    trouble.append("the CRD is too old")
    answer = get(server, "/readyz")
    assert (answer.status_code, answer.text) == (503, "the CRD is too old\n")


def test_metrics_are_in_prometheus_text_format(server: ThreadingHTTPServer) -> None:
    LEADER.set(0)
    assert "prism_operator_leader 0.0" in get(server, "/metrics").text


def test_another_path_is_not_found(server: ThreadingHTTPServer) -> None:
    assert get(server, "/").status_code == 404


def test_a_log_line_is_one_json_object_with_its_fields() -> None:
    record = logging.LogRecord("prism_operator.x", logging.WARNING, "f", 1, "a\nb %s", ("c",), None)
    record.__dict__["fields"] = {"namespace": "team-a"}
    line = JsonLines().format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert (found["level"], found["message"], found["namespace"]) == ("warning", "a\nb c", "team-a")


def test_a_write_is_a_span_within_its_reconciliation() -> None:
    exporter = InMemorySpanExporter()
    telemetry = Telemetry(Resource.create({}), [exporter])
    tracing = Tracing(telemetry)
    with tracing.span(RECONCILE, kind="namespace", key="team-a/"), tracing.span(WRITE, verb="apply"):
        pass
    tracing.shutdown()
    write, look = exporter.get_finished_spans()
    assert (write.name, look.name) == (WRITE, RECONCILE)
    assert write.parent is not None
    assert write.parent.span_id == look.context.span_id
    assert look.attributes == {"prism_operator.kind": "namespace", "prism_operator.key": "team-a/"}
