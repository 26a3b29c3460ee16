"""How a serving process fails, and what it says when its engine dies (cases E1, E2)."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(700)]

CHAT = "/openai/v1/chat/completions"
LONG = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1900, "ignore_eos": True}


def engine_core(process: subprocess.Popen[bytes]) -> psutil.Process:
    """The child that runs EngineCore: the one that has a child itself, the worker."""
    children = psutil.Process(process.pid).children()
    return next(child for child in children if child.children())


@pytest.fixture(scope="module")
def begun(module_server: Any) -> list[str]:
    """What a client has read of a stream that had begun when the engine was killed."""
    lines: list[str] = []
    reader = threading.Thread(target=_read, args=(module_server.url, lines), daemon=True)
    reader.start()
    while len(lines) < 5:
        time.sleep(0.05)
    engine_core(module_server.process).kill()
    reader.join(30)
    return lines


def _read(url: str, lines: list[str]) -> None:
    with (
        contextlib.suppress(httpx.HTTPError),
        httpx.stream("POST", url + CHAT, json={**LONG, "stream": True}, timeout=60) as answer,
    ):
        for line in answer.iter_lines():
            lines.append(line)  # noqa: PERF402 - another thread watches it grow


def test_a_begun_stream_ends_with_an_error_object(begun: list[str]) -> None:
    assert any(line.startswith('data: {"error"') for line in begun)


@pytest.mark.usefixtures("begun")
def test_the_probes_tell_the_truth_about_a_dead_engine(module_server: Any) -> None:
    states = [httpx.get(f"{module_server.url}/v2/health/{probe}").status_code for probe in ("ready", "live")]
    assert states == [503, 503]


@pytest.mark.usefixtures("begun")
def test_a_request_to_a_dead_engine_is_a_503_that_may_be_tried_again(module_server: Any) -> None:
    answer = httpx.post(module_server.url + CHAT, json=LONG)
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "ServiceUnavailableError")


@pytest.mark.usefixtures("begun")
def test_the_begun_stream_has_left_a_trace(module_server: Any) -> None:
    limit = time.monotonic() + 5
    outcomes: list[str] = []
    while "failed" not in outcomes and time.monotonic() < limit:
        shown = httpx.get(f"{module_server.admin}/requests?last=5").json()["requests"]
        outcomes = [request["outcome"] for request in shown]
    assert "failed" in outcomes


def test_a_failed_start_says_why_in_its_last_line(
    failed_start: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    ended = failed_start("--model", "/nowhere/at-all", "--port", "0", "--admin-port", "0")
    assert ended.returncode == 1
    assert ended.stderr.strip().splitlines()[-1].startswith("prism serve: ")
