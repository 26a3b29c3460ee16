"""An admin port that answers what a test wants, on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class Answers:
    """What the port answers next, and what it was asked."""

    def __init__(self) -> None:
        self.address = ""
        self.status = 200
        self.body = b"{}"
        self.asked: list[str] = []


@pytest.fixture
def answers() -> Iterator[Answers]:
    given = Answers()

    class Port(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given.asked.append(self.path)
            self.send_response(given.status)
            self.end_headers()
            self.wfile.write(given.body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: a test's output is for the test."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Port)
    given.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield given
    server.shutdown()
    thread.join()
    server.server_close()
