"""What the figures say, and what they keep quiet."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from prism.bench.http.command import bench_command
from prism.bench.http.load import Reply
from prism.bench.http.report import Results, as_json, markdown, sentences, table
from prism.bench.http.run import Cell, Cold, Plan
from prism.bench.http.servers import Server
from prism.bench.http.workloads import Rag

PLAN = Plan((Server("stock", "http://a"), Server("prism", "http://b")), Rag("m", 8), (2.0,), 60, 10)


def _reply(number: int, ttft: float | None, error: str = "", cached: int | None = 40) -> Reply:
    due = 10 + number / 2
    return Reply(due, str(number), due, ttft, due + 9, 100, cached, 8, error=error)


def _cell(server: str, replies: Sequence[Reply]) -> Cell:
    return Cell(server, 2.0, 0, 0, Cold.RESET, 10, 60.0, list(replies))


def _results(count: int, **fields: Any) -> Results:
    stock = [_reply(n, 1 + n % 7) for n in range(count)]
    prism = [_reply(n, (1 + n % 7) / 2, **fields) for n in range(count)]
    return Results(PLAN, [_cell("stock", stock), _cell("prism", prism)])


def test_forty_requests_have_no_p99() -> None:
    results = _results(40)
    assert list(results.summaries[0].ttft_s) == ["P50"]
    assert "P99" not in results.comparisons[0].ratios
    assert "| – |" in markdown(results)


def test_failures_are_counted_listed_and_kept_in_the_percentiles() -> None:
    replies = [_reply(n, 1.0) for n in range(30)] + [_reply(n, None, "HTTP 503: engine is gone") for n in range(30, 40)]
    results = Results(PLAN, [_cell("stock", replies), _cell("prism", replies)])
    summary = results.summaries[0]
    assert (summary.requests, summary.failed, summary.errors) == (40, 10, {"HTTP 503: engine is gone": 10})
    assert "stock at 2/s: 10 × HTTP 503: engine is gone" in sentences(results)
    more = Results(PLAN, [_cell("stock", replies[:10] + replies[30:]), _cell("prism", replies)])
    assert more.summaries[0].ttft_s["P50"] in (1.0, math.inf)


def test_pairs_that_one_arm_did_not_answer_are_counted() -> None:
    stock = [_reply(n, 1.0 + n % 3) for n in range(40)]
    prism = [_reply(n, None if n < 4 else 1.0 + n % 3, "gone" if n < 4 else "") for n in range(40)]
    (compared,) = Results(PLAN, [_cell("stock", stock), _cell("prism", prism)]).comparisons
    assert (compared.pairs, compared.left_out) == (36, 4)


def test_an_arm_is_compared_with_the_first() -> None:
    (compared,) = _results(100).comparisons
    assert (compared.arm, compared.to, compared.ratios["P50"].value) == ("prism", "stock", 0.5)


def test_a_silent_cache_is_not_a_hit_rate_of_zero() -> None:
    results = _results(40, cached=None)
    assert [summary.hit_rate for summary in results.summaries] == [0.4, None]
    assert any("--enable-prompt-tokens-details" in line for line in sentences(results))


def test_a_client_that_sends_late_says_so() -> None:
    late = [Reply(n, str(n), n + 0.2, 1.0, n + 2.0) for n in range(10, 60)]
    results = Results(PLAN, [_cell("stock", late), _cell("prism", late)])
    assert any("The client itself sent late" in line for line in sentences(results))


def test_json_holds_every_request_and_no_text() -> None:
    results = _results(40)
    results.cells[0].replies[0].text = "a secret"
    told = json.dumps(as_json(results), allow_nan=False)
    assert len(json.loads(told)["cells"][0]["replies"]) == 40
    assert "secret" not in told


def test_the_table_says_what_it_rests_on() -> None:
    console = Console(width=150, record=True, file=StringIO())
    console.print(table(_results(100)))
    text = " ".join(console.export_text().split())
    assert "cache emptied before each cell" in text
    assert "P50 × 0.50" in text


def _invoke(*arguments: str) -> Any:
    command = typer.Typer()
    command.command()(bench_command)
    return CliRunner().invoke(command, arguments)


async def test_the_command_measures_and_writes_both_files(fake_server: Any, tmp_path: Path) -> None:
    import asyncio

    async with fake_server(slots=9) as fake:
        arms = ("--arm", f"a={fake.url}", "--arm", f"b={fake.url}", "--rate", "20", "--seconds", "2", "--warm-up", "1")
        out = ("--repeats", "1", "--json", str(tmp_path / "x.json"), "--markdown", str(tmp_path / "x.md"))
        done = await asyncio.to_thread(_invoke, *arms, *out)
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "x.json").read_text())["summaries"][1]["failed"] == 0
    assert (tmp_path / "x.md").read_text().startswith("| sessions/s | arm |")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give --rate"),
        (["--rate", "1", "--together", "2"], "give one of them"),
        (["--rate", "1", "--warm-up", "120"], "leaves nothing"),
        (["--rate", "1", "--workload", "nowhere.jsonl"], "neither rag, documents, agents nor a file"),
        (["--rate", "1", "--arm", "a=http://127.0.0.1:1"], "two arms have one name"),
        (["--rate", "1"], "is the server up"),
    ],
)
def test_what_cannot_be_measured_is_said(arguments: list[str], said: str) -> None:
    done = _invoke("--arm", "a=http://127.0.0.1:1", *arguments)
    assert done.exit_code == 1
    assert said in " ".join(done.output.split())
