"""What the session's server has recorded of its traffic, and that a real benchmark of it holds together."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import typer
from typer.testing import CliRunner

from prism.bench.http.command import bench_command
from prism.bench.recorded_traffic import Traffic, read_traffic


def _ask(http: httpx.Client, *parts: str) -> dict[str, Any]:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": [{"type": "text", "text": part} for part in parts]}],
        "max_tokens": 5,
        "prism": {"reorder": True},
    }
    answer = http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    usage: dict[str, Any] = answer.json()["usage"]
    return usage


def _recorded(path: Path, count: int) -> Traffic:
    """What is recorded, once that many requests more are there than are awaited by the caller."""
    limit = time.monotonic() + 20
    while time.monotonic() < limit:
        if path.read_bytes().count(b"\n") > count:
            break
        time.sleep(0.05)
    return read_traffic([path])


def test_a_request_is_recorded_with_its_spans_and_lengths(served: Any, http: httpx.Client) -> None:
    before = served.record.read_bytes().count(b"\n")
    usage = _ask(http, "One passage about rivers. " * 20, "Another passage about hills. " * 20, "Which of them?")
    last = max(_recorded(served.record, before).requests, key=lambda one: one.at_s)
    assert (last.prompt_tokens, last.output_tokens) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert [span.movable for span in last.spans if span.kind == "document"] == [True, True]
    assert last.ttft_s is not None
    assert last.ttft_s > 0


def test_a_recording_holds_no_word_of_a_prompt(served: Any, http: httpx.Client) -> None:
    before = served.record.read_bytes().count(b"\n")
    _ask(http, "Zanzibar lies in the ocean. " * 5, "Where does Zanzibar lie?")
    _recorded(served.record, before)
    assert b"anzibar" not in served.record.read_bytes()


def test_the_same_documents_are_the_same_digests(served: Any, http: httpx.Client) -> None:
    passages = ["The first passage. " * 30, "The second passage. " * 30]
    before = served.record.read_bytes().count(b"\n")
    _ask(http, *passages, "One?")
    _ask(http, *reversed(passages), "Two?")
    *_, one, other = sorted(_recorded(served.record, before + 1).requests, key=lambda request: request.at_s)
    documents = [[span.digests[0] for span in last.spans if span.kind == "document"] for last in (one, other)]
    assert documents[0] == documents[1][::-1]


def test_a_benchmark_of_a_real_server_loses_nothing(served: Any, tmp_path: Path) -> None:
    command = typer.Typer()
    command.command()(bench_command)
    out = tmp_path / "bench.json"
    done = CliRunner().invoke(
        command,
        [
            *("--arm", f"one={served.url},{served.admin.removesuffix('/prism/v1')}"),
            *("--rate", "4", "--seconds", "8", "--warm-up", "2", "--repeats", "1", "--max-tokens", "4"),
            *("--passages", "3", "--passage-chars", "200", "--articles", "4", "--json", str(out)),
        ],
    )
    assert done.exit_code == 0, done.output
    told = json.loads(out.read_text())
    (summary,) = told["summaries"]
    assert (len(told["cells"][0]["replies"]), summary["failed"], told["cells"][0]["cold"]) == (32, 0, "reset")
    assert summary["hit_rate"] > 0.05
    assert all(reply["parts"] for reply in told["cells"][0]["replies"])
