"""A stand-in for predictor pods where there is an API server and no node.

The pod is an object whose address is one of this machine's loopback addresses. Behind it answers a server that speaks
the admin port's contract, from the predictor's own reader of settings and with metrics of the predictor's own names.
What the kubelet does, the stand-in does too: it brings the document from the ConfigMap to a file.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from prism.config.document import Settings
from prism.config.watcher import SettingsWatcher
from prism.engine.frontend.settings import EngineSettings
from prism.engine.wire import SettingsAdopted, SettingsRefused
from prism.errors import ConfigError
from prism.telemetry.metrics import (
    CACHED,
    KIND,
    LANE,
    MODEL_NAME,
    OUTCOME,
    PROMPT_TOKENS,
    REQUESTS,
    SECONDS_BUCKETS,
    TTFT,
)


class AdminPort:
    """The admin port of one predictor, and what it has served so far."""

    def __init__(self, address: str, port: int, file: Path, pod: str) -> None:
        self.file = file
        self.settings = EngineSettings()
        self._watcher = SettingsWatcher(file, pod, settle_seconds=0)
        self._registry = CollectorRegistry()
        labels = {MODEL_NAME: "m"}
        self._ttft = Histogram(TTFT, "x", [LANE, *labels], buckets=SECONDS_BUCKETS, registry=self._registry)
        self._requests = Counter(REQUESTS, "x", [OUTCOME, *labels], registry=self._registry)
        self._tokens = Counter(PROMPT_TOKENS, "x", [KIND, CACHED, *labels], registry=self._registry)
        answers = {"/prism/v1/settings": self._settings, "/prism/v1/metrics": self._metrics}
        self._server = ThreadingHTTPServer((address, port), _handler(answers))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.look()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    def serve(self, requests: int, seconds: float, *, failed: int = 0, cached: float = 0.5) -> None:
        """Counts requests of 100 prompt tokens, all with the same time to first token."""
        for _ in range(requests):
            self._ttft.labels("hot", "m").observe(seconds)
        self._requests.labels("finished", "m").inc(requests - failed)
        self._requests.labels("failed", "m").inc(failed)
        self._tokens.labels("document", "true", "m").inc(100 * requests * cached)
        self._tokens.labels("document", "false", "m").inc(100 * requests * (1 - cached))

    def look(self) -> None:
        """Looks at the file as the engine's settings thread does, and announces what came of it."""
        now = time.monotonic()
        event = self._watcher.poll(now)
        if isinstance(event, Settings):
            spec = event.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
            told = (event.generation, event.digest, event.source, event.uid, event.role, spec)
            self.settings.adopted(0, SettingsAdopted(now, *told))
        elif isinstance(event, ConfigError):
            self.settings.refused(0, SettingsRefused(now, event.reason, str(event), ""))

    def close(self) -> None:
        """Closes the port."""
        self._server.shutdown()
        self._server.server_close()

    def _settings(self) -> bytes:
        self.look()
        return json.dumps(self.settings.as_json()).encode()

    def _metrics(self) -> bytes:
        return generate_latest(self._registry)


def _handler(answers: dict[str, Callable[[], bytes]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path)
            body = found() if found is not None else b""
            self.send_response(200 if found is not None else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

    return Handler
