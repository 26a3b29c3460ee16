"""Starts and stops the export of spans, as the standard `OTEL_*` variables say.

The provider is PRISM's own and never the process's global one: vLLM may set that, and a second one is refused. Between
request and collector stands a bounded queue; ending a span never waits for anything, and what the queue cannot take is
dropped and counted.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from prism.errors import DeploymentError
from prism.telemetry.ring import SpanRing
from prism.telemetry.spans import LiveRatioSampler, RequestTracer, caller_decides

MAX_ATTRIBUTE_LENGTH: Final = 1024
"""Characters of an attribute's value, unless the standard variables say otherwise."""

SHUTDOWN_SECONDS: Final = 5.0
"""How long the process waits at its end for a collector that does not answer."""

_DEFAULT_QUEUE_SIZE: Final = 2048
_DEFAULT_BATCH_SIZE: Final = 512

_logger = logging.getLogger(__name__)


class Protocol(StrEnum):
    """How spans leave the process."""

    HTTP = "http/protobuf"
    GRPC = "grpc"
    CONSOLE = "console"


@dataclass(frozen=True, slots=True)
class ExportTarget:
    """Where spans go: `endpoint` is a whole URL, with the path for HTTP; empty for the console."""

    protocol: Protocol
    endpoint: str = ""


def export_targets(environ: Mapping[str, str]) -> tuple[ExportTarget, ...]:
    """What the standard variables ask for; nothing unless an endpoint or an exporter is named.

    Raises:
        DeploymentError: a protocol, exporter or endpoint that cannot work; the message names the variable.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ()
    named = [name.strip().lower() for name in environ.get("OTEL_TRACES_EXPORTER", "").split(",") if name.strip()]
    if not named:
        named = ["otlp"] if _endpoint_variable(environ) else []
    return tuple(_target(name, environ) for name in dict.fromkeys(named) if name != "none")


def sampling_ratio(environ: Mapping[str, str]) -> float:
    """Share of the traces that start here, by `OTEL_TRACES_SAMPLER`; 1.0 where it says nothing that is known.

    The samplers with and without `parentbased_` mean the same: a caller's flag always decides.
    """
    name = environ.get("OTEL_TRACES_SAMPLER", "always_on").strip().lower().removeprefix("parentbased_")
    if name == "traceidratio":
        return _ratio_argument(environ.get("OTEL_TRACES_SAMPLER_ARG", ""))
    if name not in ("always_on", "always_off"):
        _logger.warning("OTEL_TRACES_SAMPLER=%s is not known here; all traces are sampled", name)
    return 0.0 if name == "always_off" else 1.0


def _ratio_argument(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if 0.0 <= ratio <= 1.0:
        return ratio
    _logger.warning("OTEL_TRACES_SAMPLER_ARG=%s is not a number from 0 to 1; all traces are sampled", text)
    return 1.0


def _target(name: str, environ: Mapping[str, str]) -> ExportTarget:
    if name == "console":
        return ExportTarget(Protocol.CONSOLE)
    if name != "otlp":
        raise DeploymentError(f"OTEL_TRACES_EXPORTER={name} is not supported; use otlp, console or none.")
    variable = _endpoint_variable(environ)
    asked = _asked_protocol(environ)
    if variable is None:
        port = 4317 if asked is Protocol.GRPC else 4318
        variable, endpoint = "the default endpoint", f"http://localhost:{port}"
    else:
        endpoint = environ[variable].strip()
    protocol = _fitting_protocol(asked, endpoint, variable)
    return ExportTarget(protocol, _full_endpoint(protocol, endpoint, variable))


def _endpoint_variable(environ: Mapping[str, str]) -> str | None:
    names = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return next((name for name in names if environ.get(name, "").strip()), None)


def _asked_protocol(environ: Mapping[str, str]) -> Protocol | None:
    for name in ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        value = environ.get(name, "").strip().lower()
        if value in (Protocol.HTTP, Protocol.GRPC):
            return Protocol(value)
        if value:
            raise DeploymentError(f"{name}={value} is not supported; use http/protobuf or grpc.")
    return None


def _fitting_protocol(asked: Protocol | None, endpoint: str, variable: str) -> Protocol:
    """The protocol to speak. A collector's two ports are fixed by convention, and the wrong one loses every span."""
    by_port = {4317: Protocol.GRPC, 4318: Protocol.HTTP}.get(_port(endpoint, variable) or 0)
    if asked is not None and by_port is not None and asked is not by_port:
        raise DeploymentError(
            f"{variable} names {endpoint}, whose port takes {by_port}, but the protocol is set to {asked}; "
            f"set OTEL_EXPORTER_OTLP_PROTOCOL={by_port} or name the other port."
        )
    return asked or by_port or Protocol.HTTP


def _port(endpoint: str, variable: str) -> int | None:
    url = endpoint if "://" in endpoint else f"//{endpoint}"
    try:
        return urlsplit(url).port
    except ValueError as error:
        raise DeploymentError(f"{variable}={endpoint} is not a URL: {error}.") from error


def _full_endpoint(protocol: Protocol, endpoint: str, variable: str) -> str:
    if not endpoint.startswith(("http://", "https://")):
        raise DeploymentError(
            f"{variable}={endpoint} must begin with http:// or https:// (which says whether to use TLS)."
        )
    if not urlsplit(endpoint).hostname:
        raise DeploymentError(f"{variable}={endpoint} names no host.")
    if protocol is Protocol.HTTP and variable != "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT":
        return f"{endpoint.rstrip('/')}/v1/traces"
    if protocol is Protocol.HTTP and urlsplit(endpoint).path in ("", "/"):
        _logger.warning("%s=%s is used as it is, with no /v1/traces added, as the standard says", variable, endpoint)
    return endpoint


class SpanCounts:
    """How many spans were exported, were dropped before export, and failed to be exported. Safe from all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = {"exported": 0, "dropped": 0, "failed": 0}

    def add(self, result: str, count: int) -> None:
        with self._lock:
            self._counts[result] += count

    def snapshot(self) -> dict[str, int]:
        """Spans so far, by result: `exported`, `dropped`, `failed`."""
        with self._lock:
            return dict(self._counts)


class _CountingExporter(SpanExporter):
    """Passes batches on, and says when they leave the queue and what became of them."""

    def __init__(self, exporter: SpanExporter, counts: SpanCounts) -> None:
        self._exporter = exporter
        self._counts = counts
        self._lock = threading.Lock()
        self._queued = 0
        self._abandoned = False

    def reserve(self, limit: int) -> bool:
        """Takes a place in the queue before a span is put there; False if all `limit` are taken."""
        with self._lock:
            if self._abandoned or self._queued >= limit:
                return False
            self._queued += 1
            return True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._lock:
            if self._abandoned:
                return SpanExportResult.FAILURE
            self._queued -= len(spans)
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            self._counts.add("exported" if result is SpanExportResult.SUCCESS else "failed", len(spans))
        return result

    def abandon(self) -> None:
        """Nothing more is exported; what stands in the queue counts as dropped. Cuts waits between tries short."""
        with self._lock:
            self._abandoned = True
            dropped, self._queued = self._queued, 0
        self._counts.add("dropped", dropped)
        self._exporter.shutdown()

    def shutdown(self) -> None:
        with self._lock:
            if self._abandoned:
                return
        self.abandon()


class BoundedSpanProcessor(SpanProcessor):
    """The SDK's batch processor, with counts of all that it loses and a shutdown that keeps its time.

    The SDK's own drops the oldest span without a count when its queue is full, and waits up to 30 s at shutdown, and
    then for the exporter's request under way, whatever time-out it is given.
    """

    def __init__(self, exporter: SpanExporter, counts: SpanCounts, queue_size: int = _DEFAULT_QUEUE_SIZE) -> None:
        self._counts = counts
        self._queue_size = queue_size
        self._exporter = _CountingExporter(exporter, counts)
        self._batches = BatchSpanProcessor(
            self._exporter, max_queue_size=queue_size, max_export_batch_size=_batch_size(queue_size)
        )
        self._closed = threading.Event()
        # Python 3.12 starts no thread any more once the interpreter is on its way out, so it waits from the start.
        self._closing = threading.Thread(target=self._close, name="prism-span-shutdown", daemon=True)
        self._closing.start()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing to do."""

    def on_end(self, span: ReadableSpan) -> None:
        if self._closed.is_set() or not self._exporter.reserve(self._queue_size):
            self._counts.add("dropped", 1)
            return
        self._batches.on_end(span)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Exports what is queued; False if that takes longer than the time-out (it goes on in the background)."""
        if self._closed.is_set():
            return False
        flushing = threading.Thread(target=self._batches.force_flush, name="prism-span-flush", daemon=True)
        flushing.start()
        flushing.join(timeout_millis / 1000)
        return not flushing.is_alive()

    def begin_shutdown(self) -> threading.Thread:
        """Starts to export what is queued and takes no more; the thread ends when all is done."""
        self._closed.set()
        return self._closing

    def _close(self) -> None:
        self._closed.wait()
        self._batches.shutdown()  # type: ignore[no-untyped-call]  # the SDK leaves it so

    def abandon(self) -> None:
        """Gives up what is still queued."""
        self._exporter.abandon()

    def shutdown(self) -> None:
        _shut_down([self], SHUTDOWN_SECONDS)


def _shut_down(processors: Sequence[BoundedSpanProcessor], timeout_s: float) -> bool:
    """Flushes all processors side by side; False if one had to be given up."""
    deadline = time.monotonic() + timeout_s
    closing = [(processor, processor.begin_shutdown()) for processor in processors]
    complete = True
    for processor, thread in closing:
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            processor.abandon()
            complete = False
    return complete


class Telemetry:
    """Spans of this process: begin traces with `tracer`, see the last requests in `ring`, read `counts`."""

    def __init__(
        self,
        resource: Resource,
        exporters: Sequence[SpanExporter],
        *,
        ratio: float = 1.0,
        targets: Sequence[ExportTarget] = (),
        queue_size: int = _DEFAULT_QUEUE_SIZE,
        ring: SpanRing | None = None,
        exit_timeout_s: float = SHUTDOWN_SECONDS,
    ) -> None:
        self.counts = SpanCounts()
        self.ring = SpanRing() if ring is None else ring
        self.targets = tuple(targets)
        self._sampler = LiveRatioSampler(ratio)
        self._processors = [BoundedSpanProcessor(exporter, self.counts, queue_size) for exporter in exporters]
        self.provider = TracerProvider(
            # Without an exporter a span would be recorded for nobody.
            sampler=caller_decides(self._sampler) if exporters else ALWAYS_OFF,
            resource=resource,
            span_limits=_span_limits(),
            shutdown_on_exit=False,
        )
        for processor in self._processors:
            self.provider.add_span_processor(processor)
        self.tracer = RequestTracer(self.provider, ring=self.ring, version=_version(resource))
        self._lock = threading.Lock()
        self._complete: bool | None = None
        self._pid = os.getpid()
        self._exit_timeout_s = exit_timeout_s
        atexit.register(self._at_exit)

    @property
    def exporting(self) -> bool:
        return bool(self._processors)

    @property
    def sampling_ratio(self) -> float:
        return self._sampler.ratio

    def set_sampling_ratio(self, ratio: float | None) -> None:
        """The settings' `tracing.samplingRatio`, from the next request on; None leaves it to the standard variables.

        Raises:
            ValueError: not in [0, 1].
        """
        self._sampler.set_ratio(ratio)

    def flush(self, timeout_s: float = SHUTDOWN_SECONDS) -> bool:
        """Exports what is queued now; False if it did not get through in time. Blocks: not for an event loop."""
        deadline = time.monotonic() + timeout_s
        left = [
            processor.force_flush(int(max(0.0, deadline - time.monotonic()) * 1000)) for processor in self._processors
        ]
        return all(left)

    def shutdown(self, timeout_s: float = SHUTDOWN_SECONDS) -> bool:
        """Exports what is queued, waits `timeout_s` at most, and drops the rest. Blocks: not for an event loop.

        Returns:
            Whether everything was handed to the exporter in time. A second call returns what the first did.
        """
        with self._lock:
            if self._complete is None:
                atexit.unregister(self._at_exit)
                self._complete = _shut_down(self._processors, timeout_s)
            return self._complete

    def _at_exit(self) -> None:
        if os.getpid() == self._pid:  # a forked child has the parent's handlers, but not its spans
            self.shutdown(self._exit_timeout_s)


def start_telemetry(
    service_name: str,
    resource: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    exporters: Sequence[SpanExporter] = (),
    ring: SpanRing | None = None,
    exit_timeout_s: float = SHUTDOWN_SECONDS,
) -> Telemetry:
    """Starts the export of spans as the environment asks for.

    Args:
        service_name: `service.name`, unless the environment gives one.
        resource: further resource attributes; those of `OTEL_RESOURCE_ATTRIBUTES` win.
        environ: variables that choose exporters and sampling; the process's own without it. What the SDK reads by
            itself (headers, certificates, queue sizes, resource) always comes from the process's own.
        exporters: exporters beside those that the environment asks for.
        ring: keeps the last finished requests; one of 512 without it.
        exit_timeout_s: how long the process's exit waits for the last spans if nobody called `shutdown`.

    Raises:
        DeploymentError: variables that cannot work together; the message says which to change.
    """
    environ = os.environ if environ is None else environ
    targets = export_targets(environ)
    ratio = sampling_ratio(environ)
    queue_size = _queue_size(environ)
    try:
        made = [_exporter(target) for target in targets]
        return Telemetry(
            _resource(service_name, resource or {}),
            [*made, *exporters],
            ratio=ratio,
            targets=targets,
            queue_size=queue_size,
            ring=ring,
            exit_timeout_s=exit_timeout_s,
        )
    except ValueError as error:  # the SDK's own reading of its variables
        raise DeploymentError(f"An OTEL_ variable has a value that cannot be used: {error}") from error


def _exporter(target: ExportTarget) -> SpanExporter:
    """Each client library is imported only where it is used: gRPC starts threads and minds being forked."""
    if target.protocol is Protocol.CONSOLE:
        return ConsoleSpanExporter()
    if target.protocol is Protocol.GRPC:
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc_exporter  # noqa: PLC0415

        insecure = target.endpoint.startswith("http://")
        return grpc_exporter.OTLPSpanExporter(endpoint=target.endpoint, insecure=insecure)
    from opentelemetry.exporter.otlp.proto.http import trace_exporter as http_exporter  # noqa: PLC0415

    return http_exporter.OTLPSpanExporter(endpoint=target.endpoint)


def _batch_size(queue_size: int) -> int | None:
    """None leaves it to the SDK's variable; its default alone would refuse a small queue."""
    return None if "OTEL_BSP_MAX_EXPORT_BATCH_SIZE" in os.environ else min(_DEFAULT_BATCH_SIZE, queue_size)


def _queue_size(environ: Mapping[str, str]) -> int:
    text = environ.get("OTEL_BSP_MAX_QUEUE_SIZE", "").strip() or str(_DEFAULT_QUEUE_SIZE)
    if not text.isdecimal() or int(text) < 1:
        raise DeploymentError(f"OTEL_BSP_MAX_QUEUE_SIZE={text} must be a whole number above 0.")
    return int(text)


def _resource(service_name: str, attributes: Mapping[str, str]) -> Resource:
    own = {"service.name": service_name, "host.name": socket.gethostname(), **attributes}
    return Resource.create(own).merge(OTELResourceDetector().detect())


def _span_limits() -> SpanLimits:
    """The standard variables' limits; where they set no length, one that keeps a batch far below a collector's."""
    limits = SpanLimits()
    if limits.max_attribute_length is None and limits.max_span_attribute_length is None:
        return SpanLimits(max_attribute_length=MAX_ATTRIBUTE_LENGTH, max_span_attribute_length=MAX_ATTRIBUTE_LENGTH)
    return limits


def _version(resource: Resource) -> str | None:
    version = resource.attributes.get("service.version")
    return None if version is None else str(version)
