"""The operator's own two ports: metrics, and the probes of the kubelet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from prism_operator.metrics import REGISTRY

Trouble = Callable[[], str]
"""What is wrong, as a sentence; empty if nothing is."""

Answer = Callable[[], tuple[int, str, bytes]]

_TEXT: Final = "text/plain; charset=utf-8"


def probe(trouble: Trouble) -> Answer:
    """200 while there is no trouble, else 503 with the sentence."""

    def answer() -> tuple[int, str, bytes]:
        said = trouble()
        return (503 if said else 200), _TEXT, (said or "ok").encode() + b"\n"

    return answer


def metrics() -> tuple[int, str, bytes]:
    """The operator's metrics in Prometheus' text format."""
    return 200, CONTENT_TYPE_LATEST, generate_latest(REGISTRY)


def serve(host: str, port: int, routes: dict[str, Answer], name: str) -> ThreadingHTTPServer:
    """Answers GET on these paths, in threads of its own, until `shutdown`. Port 0 takes any free one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            route = routes.get(self.path.partition("?")[0])
            status, kind, body = route() if route is not None else (404, _TEXT, b"not found\n")
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Probes come every few seconds: nobody reads that."""

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name=name, daemon=True).start()
    return server
