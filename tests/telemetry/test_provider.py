"""Where spans go and what that costs: real receivers, and collectors that hang, refuse or answer with errors."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import TYPE_CHECKING

import grpc  # type: ignore[import-untyped]  # its stubs are another package
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from prism.errors import DeploymentError
from prism.telemetry import provider
from prism.telemetry.provider import ExportTarget, Protocol, Telemetry, export_targets, sampling_ratio, start_telemetry
from prism.telemetry.timeline import RequestTimeline

if TYPE_CHECKING:
    from tests.telemetry.conftest import Collector

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
SPANS = 7
"""Spans of one ordinary request."""


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("environ", "target"),
    [
        ({ENDPOINT: "http://jaeger:4318"}, ExportTarget(Protocol.HTTP, "http://jaeger:4318/v1/traces")),
        ({ENDPOINT: "http://jaeger:4318/"}, ExportTarget(Protocol.HTTP, "http://jaeger:4318/v1/traces")),
        ({ENDPOINT: "https://otel.example/otlp"}, ExportTarget(Protocol.HTTP, "https://otel.example/otlp/v1/traces")),
        ({ENDPOINT: "http://jaeger:4317"}, ExportTarget(Protocol.GRPC, "http://jaeger:4317")),
        ({ENDPOINT: "http://jaeger:9999"}, ExportTarget(Protocol.HTTP, "http://jaeger:9999/v1/traces")),
        ({ENDPOINT: "http://jaeger:9999", PROTOCOL: "grpc"}, ExportTarget(Protocol.GRPC, "http://jaeger:9999")),
        ({TRACES_ENDPOINT: "http://jaeger:1/x"}, ExportTarget(Protocol.HTTP, "http://jaeger:1/x")),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, ExportTarget(Protocol.HTTP, "http://localhost:4318/v1/traces")),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", PROTOCOL: "grpc"},
            ExportTarget(Protocol.GRPC, "http://localhost:4317"),
        ),
        (
            {ENDPOINT: "http://a:1", PROTOCOL: "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"},
            ExportTarget(Protocol.GRPC, "http://a:1"),
        ),
        ({"OTEL_TRACES_EXPORTER": "console"}, ExportTarget(Protocol.CONSOLE)),
    ],
)
def test_the_standard_variables_choose_the_exporter(environ: dict[str, str], target: ExportTarget) -> None:
    assert export_targets(environ) == (target,)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {ENDPOINT: ""},
        {ENDPOINT: "http://jaeger:4318", "OTEL_SDK_DISABLED": "true"},
        {ENDPOINT: "http://jaeger:4318", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_nothing_is_exported_unless_asked_for(environ: dict[str, str]) -> None:
    assert export_targets(environ) == ()


def test_several_exporters_may_be_named() -> None:
    targets = export_targets({ENDPOINT: "http://jaeger:4318", "OTEL_TRACES_EXPORTER": "otlp, console,otlp"})
    assert [target.protocol for target in targets] == [Protocol.HTTP, Protocol.CONSOLE]


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({ENDPOINT: "http://jaeger:4318", PROTOCOL: "grpc"}, "whose port takes http/protobuf"),
        ({ENDPOINT: "http://jaeger:4317", PROTOCOL: "http/protobuf"}, "whose port takes grpc"),
        ({ENDPOINT: "http://jaeger:4318", PROTOCOL: "http/json"}, "http/json is not supported"),
        ({ENDPOINT: "jaeger:4318"}, "must begin with http"),
        ({ENDPOINT: "http://"}, "names no host"),
        ({ENDPOINT: "http://jaeger:port"}, "is not a URL"),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "zipkin is not supported"),
        ({ENDPOINT: "http://jaeger:4318", "OTEL_BSP_MAX_QUEUE_SIZE": "none"}, "OTEL_BSP_MAX_QUEUE_SIZE"),
    ],
)
def test_what_cannot_work_stops_the_start_with_a_sentence(environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(DeploymentError, match=sentence):
        start_telemetry("test", environ=environ)


def test_a_value_that_the_sdk_refuses_stops_the_start_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "-1")
    with pytest.raises(DeploymentError, match="schedule_delay"):
        start_telemetry("test", environ={ENDPOINT: "http://jaeger:4318"})


def test_a_traces_endpoint_without_a_path_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    # Whatever another library has set the root logger to.
    with caplog.at_level(logging.WARNING, "prism.telemetry.provider"):
        assert export_targets({TRACES_ENDPOINT: "http://jaeger:4318"})[0].endpoint == "http://jaeger:4318"
    assert "no /v1/traces added" in caplog.text


@pytest.mark.parametrize(
    ("sampler", "argument", "ratio"),
    [
        ("", "", 1.0),
        ("always_on", "", 1.0),
        ("parentbased_always_off", "", 0.0),
        ("traceidratio", "0.25", 0.25),
        ("parentbased_traceidratio", "0", 0.0),
        ("parentbased_traceidratio", "2", 1.0),
        ("parentbased_traceidratio", "some", 1.0),
        ("jaeger_remote", "", 1.0),
    ],
)
def test_the_sampler_variables_give_the_ratio(sampler: str, argument: str, ratio: float) -> None:
    environ = {"OTEL_TRACES_SAMPLER_ARG": argument} | ({"OTEL_TRACES_SAMPLER": sampler} if sampler else {})
    assert sampling_ratio(environ) == ratio


def test_the_settings_ratio_wins_over_the_variables_until_it_is_unset() -> None:
    telemetry = start_telemetry("test", environ={"OTEL_TRACES_SAMPLER": "always_off"})
    telemetry.set_sampling_ratio(0.5)
    assert telemetry.sampling_ratio == 0.5
    telemetry.set_sampling_ratio(None)
    assert telemetry.sampling_ratio == 0.0
    telemetry.shutdown()


def test_without_an_exporter_a_request_has_an_id_but_records_nothing(finished: RequestTimeline) -> None:
    telemetry = start_telemetry("test", environ={})
    trace = telemetry.tracer.begin(finished)
    trace.finish(finished)
    assert not telemetry.exporting
    assert not trace.sampled
    assert int(trace.trace_id, 16) > 0
    assert telemetry.counts.snapshot() == {"exported": 0, "dropped": 0, "failed": 0}
    assert telemetry.flush()
    assert telemetry.shutdown()


def test_the_deployer_s_resource_wins_over_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.version=9,team=a")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "theirs")
    telemetry = start_telemetry("ours", {"service.version": "1", "k8s.pod.name": "p"}, {})
    attributes = telemetry.provider.resource.attributes
    assert [attributes[name] for name in ("service.name", "service.version", "team")] == ["theirs", "9", "a"]
    assert attributes["k8s.pod.name"] == "p"
    assert attributes["host.name"]


def test_the_standard_length_limit_wins_over_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    assert provider._span_limits().max_span_attribute_length == provider.MAX_ATTRIBUTE_LENGTH
    monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "99")
    assert provider._span_limits().max_span_attribute_length == 99


def send(telemetry: Telemetry, timeline: RequestTimeline) -> None:
    telemetry.tracer.begin(timeline).finish(timeline)


def test_spans_arrive_over_http(http_collector: Collector, finished: RequestTimeline) -> None:
    telemetry = start_telemetry("test", environ={ENDPOINT: http_collector.endpoint})
    send(telemetry, finished)
    assert telemetry.shutdown()
    assert len(http_collector.names()) == SPANS
    assert telemetry.counts.snapshot() == {"exported": SPANS, "dropped": 0, "failed": 0}


def test_headers_and_compression_come_from_the_standard_variables(
    http_collector: Collector, finished: RequestTimeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENDPOINT, http_collector.endpoint)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    telemetry = start_telemetry("test")
    send(telemetry, finished)
    assert telemetry.shutdown()
    assert len(http_collector.names()) == SPANS
    assert http_collector.headers[0]["authorization"] == "Bearer x"


@pytest.fixture
def grpc_collector(make_collector: type[Collector]) -> Iterator[Collector]:
    collector = make_collector()

    class Receiver(TraceServiceServicer):
        def Export(  # noqa: N802  # the service's own word
            self, request: ExportTraceServiceRequest, context: grpc.ServicerContext
        ) -> ExportTraceServiceResponse:
            collector.take(request)
            return ExportTraceServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
    add_TraceServiceServicer_to_server(Receiver(), server)  # type: ignore[no-untyped-call]  # generated
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield collector
    server.stop(None).wait()


def test_spans_arrive_over_grpc(grpc_collector: Collector, finished: RequestTimeline) -> None:
    telemetry = start_telemetry("test", environ={ENDPOINT: grpc_collector.endpoint, PROTOCOL: "grpc"})
    send(telemetry, finished)
    assert telemetry.shutdown()
    assert len(grpc_collector.names()) == SPANS


def test_large_batches_arrive_whole(http_collector: Collector, finished: RequestTimeline) -> None:
    finished.info.path = "/" + "p" * 200_000
    telemetry = start_telemetry("test", environ={ENDPOINT: http_collector.endpoint})
    for _ in range(50):
        send(telemetry, finished)
    assert telemetry.shutdown()
    assert telemetry.counts.snapshot()["exported"] == 50 * SPANS


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_black_holed_collector_costs_requests_nothing_and_shutdown_its_time(
    black_hole: str, finished: RequestTimeline, protocol: str
) -> None:
    telemetry = start_telemetry("test", environ={ENDPOINT: black_hole, PROTOCOL: protocol})
    started = time.monotonic()
    for _ in range(50):
        send(telemetry, finished)
    assert time.monotonic() - started < 3.0
    started = time.monotonic()
    assert not telemetry.shutdown(0.3)
    assert time.monotonic() - started < 2.0


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_a_refused_connection_keeps_shutdown_no_longer_than_asked(
    refused: str, finished: RequestTimeline, protocol: str
) -> None:
    telemetry = start_telemetry("test", environ={ENDPOINT: refused, PROTOCOL: protocol})
    send(telemetry, finished)
    started = time.monotonic()
    telemetry.shutdown(0.3)
    assert time.monotonic() - started < 2.0
    assert telemetry.counts.snapshot()["exported"] == 0


def test_a_collector_that_answers_not_found_is_counted_as_failure(
    http_collector: Collector, finished: RequestTimeline
) -> None:
    telemetry = start_telemetry("test", environ={TRACES_ENDPOINT: f"{http_collector.endpoint}/wrong"})
    send(telemetry, finished)
    assert telemetry.shutdown()
    assert telemetry.counts.snapshot() == {"exported": 0, "dropped": 0, "failed": SPANS}


class Gate(SpanExporter):
    """Holds every batch until it is opened; then fails as told."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.batches: list[int] = []
        self.error: Exception | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        self.opened.wait()
        if self.error is not None:
            raise self.error
        self.batches.append(len(spans))
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self.opened.set()


def test_spans_that_the_queue_cannot_take_are_dropped_and_counted(finished: RequestTimeline) -> None:
    gate = Gate()
    telemetry = Telemetry(Resource.get_empty(), [gate], queue_size=10)
    for _ in range(5):
        send(telemetry, finished)
    gate.opened.set()
    assert telemetry.shutdown()
    counts = telemetry.counts.snapshot()
    assert counts["exported"] == sum(gate.batches) >= 10
    assert counts["exported"] + counts["dropped"] == 5 * SPANS


def test_spans_given_up_at_shutdown_are_dropped_and_counted(finished: RequestTimeline) -> None:
    gate = Gate()
    telemetry = Telemetry(Resource.get_empty(), [gate])
    send(telemetry, finished)
    assert not telemetry.flush(0.01)
    assert gate.entered.wait(5)
    send(telemetry, finished)
    assert not telemetry.shutdown(0.1)
    assert telemetry.counts.snapshot()["dropped"] == SPANS


def test_an_exporter_that_raises_loses_its_batch_and_nothing_else(finished: RequestTimeline) -> None:
    gate = Gate()
    gate.opened.set()
    gate.error = RuntimeError("broken")
    telemetry = Telemetry(Resource.get_empty(), [gate])
    send(telemetry, finished)
    assert telemetry.flush()
    gate.error = None
    send(telemetry, finished)
    assert telemetry.shutdown()
    assert telemetry.counts.snapshot() == {"exported": SPANS, "dropped": 0, "failed": SPANS}


def test_a_flush_keeps_its_time(finished: RequestTimeline) -> None:
    gate = Gate()
    telemetry = Telemetry(Resource.get_empty(), [gate])
    send(telemetry, finished)
    assert not telemetry.flush(0.05)
    gate.opened.set()
    assert telemetry.shutdown()


def test_after_shutdown_spans_are_dropped_and_a_second_shutdown_says_the_same(finished: RequestTimeline) -> None:
    telemetry = Telemetry(Resource.get_empty(), [InMemorySpanExporter()])
    assert telemetry.shutdown()
    send(telemetry, finished)
    assert telemetry.counts.snapshot()["dropped"] == SPANS
    assert telemetry.shutdown()
    assert not telemetry.flush()


def test_the_sdk_s_own_shutdown_flushes_too(finished: RequestTimeline) -> None:
    exporter = InMemorySpanExporter()
    telemetry = Telemetry(Resource.get_empty(), [exporter])
    send(telemetry, finished)
    telemetry.provider.shutdown()
    assert len(exporter.get_finished_spans()) == SPANS
    assert telemetry.shutdown()


def test_one_collector_that_hangs_does_not_keep_another_from_its_spans(finished: RequestTimeline) -> None:
    gate, other = Gate(), InMemorySpanExporter()
    telemetry = Telemetry(Resource.get_empty(), [gate, other])
    send(telemetry, finished)
    assert not telemetry.shutdown(0.2)
    assert len(other.get_finished_spans()) == SPANS


def test_the_provider_is_never_the_process_s_own() -> None:
    from opentelemetry import trace

    telemetry = start_telemetry("test", environ={"OTEL_TRACES_EXPORTER": "console"})
    assert trace.get_tracer_provider() is not telemetry.provider
    telemetry.shutdown()


ONE_REQUEST = """
    import time
    from prism.telemetry.provider import start_telemetry
    from prism.telemetry.timeline import RequestInfo, RequestTimeline

    telemetry = start_telemetry("test", exit_timeout_s=0.4)
    info = RequestInfo(route="/v1/completions", operation="text_completion", model="m")
    timeline = RequestTimeline("r", arrived_at=time.monotonic(), arrived_wall_ns=time.time_ns(), info=info)
    trace = telemetry.tracer.begin(timeline)
    timeline.finished(time.monotonic())
    trace.finish(timeline)
    print("done", flush=True)
    {end}
"""


def seconds_to_exit(endpoint: str, end: str = "") -> float:
    """How long a process goes on to run after its last request ended."""
    environ = {**os.environ, ENDPOINT: endpoint, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    program = textwrap.dedent(ONE_REQUEST).format(end=end)
    with subprocess.Popen([sys.executable, "-c", program], env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        started = time.monotonic()
        assert process.wait(30) == 0
    return time.monotonic() - started


def test_a_process_that_just_ends_still_exports_its_last_request(http_collector: Collector) -> None:
    seconds_to_exit(http_collector.endpoint)
    assert http_collector.names() == {"POST /v1/completions", "text_completion m", "prism.admission_wait"}


@pytest.mark.parametrize("end", ["telemetry.shutdown(0.4)", ""])
def test_a_process_with_a_black_holed_collector_ends_in_its_time(black_hole: str, end: str) -> None:
    assert 0.4 <= seconds_to_exit(black_hole, end) < 6.0
