"""The end of the session's server; this file comes last in its folder, since nothing can be asked afterwards."""

from __future__ import annotations

import time
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(700)]

LONG = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 200, "ignore_eos": True}


@pytest.fixture(scope="module")
def ended(served: Any) -> dict[str, Any]:
    """A request to stop in the middle of a stream: what the client read, the exit status, what is left running."""
    family = psutil.Process(served.process.pid).children(recursive=True)
    url = f"{served.url}/openai/v1/chat/completions"
    with httpx.stream("POST", url, json={**LONG, "stream": True}, timeout=120) as answer:
        lines = answer.iter_lines()
        first = next(lines)
        served.process.terminate()
        text = "\n".join([first, *lines])
    status = served.process.wait(60)
    gone, left = psutil.wait_procs(family, timeout=10)
    return {"text": text, "status": status, "left": left, "gone": gone, "at": time.monotonic()}


def test_a_stream_under_way_is_finished(ended: dict[str, Any]) -> None:
    assert ended["text"].rstrip().endswith("data: [DONE]")


def test_the_exit_status_is_zero(ended: dict[str, Any]) -> None:
    assert ended["status"] == 0


def test_no_process_is_left(ended: dict[str, Any]) -> None:
    assert ended["left"] == []
