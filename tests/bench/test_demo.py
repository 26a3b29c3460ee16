"""The demo's own arithmetic and its manners; the demo as a whole is run by hand and in CI by `make demo`."""

from __future__ import annotations

import socket
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from prism.bench.demo_report import Run, report, save_picture
from prism.bench.demo_server import free_port, write_settings
from prism.bench.demo_trace import telling, trace
from prism.bench.http.load import Reply
from prism.config.document import in_force, parse_document
from prism.config.schema import PrismSpec
from prism.errors import DeploymentError


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
