"""Timelines to test with, and collectors that behave and misbehave, all on this machine."""

from __future__ import annotations

import contextlib
import gzip
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ReceivedSpan

from prism.telemetry.timeline import Admission, RequestInfo, RequestTimeline

ARRIVED = 1000.0
ARRIVED_WALL_NS = 1_800_000_000_123_456_789

MakeTimeline = Callable[..., RequestTimeline]


class Collector:
    """An OTLP receiver's memory: every span that came in."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.headers: list[dict[str, str]] = []
        self._spans: queue.Queue[ReceivedSpan] = queue.Queue()

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource_spans in request.resource_spans:
            for scope_spans in resource_spans.scope_spans:
                for span in scope_spans.spans:
                    self._spans.put(span)

    def names(self) -> set[str]:
        return {span.name for span in list(self._spans.queue)}

    def trace_of(self, attribute: str, value: str) -> set[str]:
        """Names of all spans of the trace in which a span has this attribute."""
        spans = list(self._spans.queue)
        trace = {
            span.trace_id
            for span in spans
            if any(pair.key == attribute and pair.value.string_value == value for pair in span.attributes)
        }
        return {span.name for span in spans if span.trace_id in trace}


@pytest.fixture
def admission() -> Admission:
    return Admission("hot", "ab12", "memory", 4, 600, 900, 3, 4, (1, 0), 7, overtaken=2)


@pytest.fixture
def make_timeline() -> MakeTimeline:
    """Makes a request for a streamed chat that arrived at monotonic 1000 s; keywords change its `RequestInfo`."""

    def make(**changes: object) -> RequestTimeline:
        info = RequestInfo(
            path="/openai/v1/chat/completions",
            route="/openai/v1/chat/completions",
            operation="chat",
            model="smol",
            streamed=True,
        )
        for name, value in changes.items():
            setattr(info, name, value)
        return RequestTimeline("req-1", arrived_at=ARRIVED, arrived_wall_ns=ARRIVED_WALL_NS, info=info)

    return make


@pytest.fixture
def finished(make_timeline: MakeTimeline, admission: Admission) -> RequestTimeline:
    """An ordinary request: admitted after 200 ms, prefilled at 500, first chunk out at 510, done after a second."""
    timeline = make_timeline()
    timeline.rendering_started(ARRIVED + 0.001)
    timeline.rendering_ended(ARRIVED + 0.020)
    engine = timeline.engine_added(ARRIVED + 0.021, "a")
    engine.queued(ARRIVED + 0.022, 5)
    engine.admitted(ARRIVED + 0.2, admission)
    engine.chunk(ARRIVED + 0.2, 600, 800)
    engine.chunk(ARRIVED + 0.3, 800, 900)
    engine.prefilled(ARRIVED + 0.5)
    timeline.first_output(ARRIVED + 0.502, "a")
    timeline.first_content_sent(ARRIVED + 0.51, "a")
    engine.ended(ARRIVED + 0.98, "stop")
    timeline.finished(ARRIVED + 1.0)
    return timeline


@pytest.fixture
def make_collector() -> type[Collector]:
    """For a test module that listens by itself."""
    return Collector


@contextlib.contextmanager
def receiving() -> Iterator[Collector]:
    """An OTLP/HTTP receiver."""
    collector = Collector()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            collector.headers.append({name.lower(): value for name, value in self.headers.items()})
            collector.take(ExportTraceServiceRequest.FromString(body))
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: a test's output is for the test."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    collector.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield collector
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def http_collector() -> Iterator[Collector]:
    """An OTLP/HTTP receiver."""
    with receiving() as collector:
        yield collector


@pytest.fixture
def black_hole() -> Iterator[str]:
    """The address of a collector that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def refused() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    return f"http://127.0.0.1:{port}"
