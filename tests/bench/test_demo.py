"""The demo's own arithmetic and its manners; the demo as a whole is run by hand and in CI by `make demo`."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from rich.console import Console

from prism.bench.demo_load import OpenLoop, Reply
from prism.bench.demo_report import Run, median_change, percentiles, report, save_picture
from prism.bench.demo_server import free_port, write_settings
from prism.bench.demo_trace import telling, trace
from prism.bench.passages import questions
from prism.bench.rag_load import draw_load
from prism.config.document import in_force, parse_document
from prism.config.schema import PrismSpec
from prism.errors import DeploymentError

FACTS = {"lane": "hot", "reordered": True, "ttft": {"admission_wait": 0.1, "prefill": 0.2, "first_token": 0.01}}


def test_percentiles_need_samples_beyond_them() -> None:
    assert list(percentiles(range(9))) == []
    assert list(percentiles(range(10))) == ["P50"]
    assert list(percentiles(range(100))) == ["P50", "P90", "P95"]
    assert list(percentiles(range(500))) == ["P50", "P90", "P95", "P99"]


def test_interval_holds_the_ratio_of_medians() -> None:
    before = [1.0 + index % 7 for index in range(80)]
    ratio, low, high = median_change(before, [value / 2 for value in before])
    assert low <= ratio == 0.5 <= high


def test_interval_of_noise_holds_one() -> None:
    before = [1.0 + (index * 37 % 80) / 80 for index in range(80)]
    after = [1.0 + (index * 53 % 80) / 80 for index in range(80)]
    _, low, high = median_change(before, after)
    assert low < 1 < high


def test_first_content_ends_the_time_to_first_token() -> None:
    reply = Reply(due=1.0)
    reply.take({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, 1.5)
    reply.take({"choices": [{"delta": {"content": "Pa"}}]}, 2.0)
    reply.take({"choices": [{"delta": {"content": "ris"}}]}, 3.0)
    assert (reply.ttft_s, reply.text) == (1.0, "Paris")


def test_usage_chunk_tells_cached_tokens_and_parts() -> None:
    reply = Reply(due=0.0)
    usage = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 64}}
    reply.take({"choices": [], "usage": usage, "prism": FACTS}, 1.0)
    assert (reply.prompt_tokens, reply.cached_tokens, reply.lane, reply.reordered) == (100, 64, "hot", True)
    assert reply.parts == FACTS["ttft"]


def test_a_port_in_use_is_said_with_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(DeploymentError, match=f"port {port} is in use: .*--port"):
            free_port(port, 8080)
        assert free_port(None, port) != port


def test_written_settings_are_read_back(tmp_path: Path) -> None:
    write_settings(tmp_path / "settings.yaml", PrismSpec(), 7)
    settings = in_force(parse_document((tmp_path / "settings.yaml").read_bytes()), None)
    assert (settings.generation, settings.source, settings.spec) == (7, "demo", PrismSpec())


def _runs() -> tuple[Run, Run]:
    def replies(scale: float) -> list[Reply]:
        parts = {"admission_wait": scale, "prefill": 0.2, "first_token": 0.01}
        return [
            Reply(due=n / 2, ttft_s=scale * (1 + n % 5), prompt_tokens=10, cached_tokens=4, lane="hot", parts=parts)
            for n in range(60)
        ]

    return Run("stock", replies(1.0)), Run("PRISM", replies(0.5))


def test_report_says_how_far_it_can_be_believed() -> None:
    console = Console(width=160, record=True, file=StringIO())
    console.print(report(*_runs()))
    text = console.export_text()
    assert "P90" in text
    assert "P99" not in text
    assert "0.50 times stock's" in text
    assert "one run" in text


def test_picture_is_a_png(tmp_path: Path) -> None:
    save_picture(*_runs(), tmp_path / "ttft.png", 1.5)
    assert (tmp_path / "ttft.png").read_bytes().startswith(b"\x89PNG")


def _finished(**admission: Any) -> dict[str, Any]:
    decided = {"lane": "hot", "depth": 3, "why": "slots", "segments_hit": 2, "segments": 6, "cached_tokens": 0}
    return {
        "route": "/v1/chat/completions",
        "model": "m",
        "outcome": "finished",
        "ttft_s": 0.3,
        "parts": [{"name": "admission_wait", "seconds": 0.1}, {"name": "prefill", "seconds": 0.2}],
        "admission": {**decided, "reordered": False, **admission},
    }


def test_the_trace_shown_is_a_reordered_one_with_most_from_the_cache() -> None:
    requests = [_finished(cached_tokens=900), _finished(reordered=True, cached_tokens=10), _finished(reordered=True)]
    assert telling(requests) is requests[1]


def test_trace_names_its_spans() -> None:
    console = Console(width=160, record=True, file=StringIO())
    console.print(trace(_finished(reordered=True)))
    text = console.export_text()
    assert "prism.admission_wait" in text
    assert "segments hit 2 of 6" in text


class _Answers(BaseHTTPRequestHandler):
    """A server of the streamed form that fails every third request."""

    protocol_version = "HTTP/1.1"
    asked = 0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked += 1
        if type(self).asked % 3 == 0:
            self.send_response(500)
            answer = b"no"
        else:
            self.send_response(200)
            chunks = [{"choices": [{"delta": {"content": body["model"]}}]}, {"choices": [], "prism": FACTS}]
            answer = (
                b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
            )
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Nothing to say."""


@pytest.fixture
def answering() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


async def test_every_arrival_gets_its_reply_whether_it_fails_or_not(answering: str) -> None:
    load = draw_load(questions(5), 100, 0.3)
    async with httpx.AsyncClient(trust_env=False) as client:
        loop = OpenLoop(client, answering, "m", 8)
        await loop.run(load)
    assert len(loop.replies) == len(load)
    assert all(reply.done and bool(reply.error) != (reply.ttft_s is not None) for reply in loop.replies)


async def test_a_dead_server_is_an_error_of_each_request() -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        loop = OpenLoop(client, f"http://127.0.0.1:{free_port(None, 0)}", "m", 8)
        await loop.run(draw_load(questions(5), 100, 0.1))
    assert all("ConnectError" in reply.error for reply in loop.replies)
