"""`python -m prism.bench.nothing_shared`: what PRISM costs where there is nothing to gain.

Stock vLLM's server and `prism serve` stand side by side with the same engine arguments and a random model, and answer
the same prompts in turn, one at a time, so that whatever else the machine does hits both alike. Prompts are random
words and share nothing. Compared are the time to the first content and the CPU time of all processes of each server,
pair by pair; the interval is a paired bootstrap of the ratio of medians (TTFT) and of means (CPU). With
`--dead-collector` the two are PRISM whose spans go to a collector that never answers, and PRISM that exports none.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.progress import track

from prism.bench.collectors import black_hole
from prism.bench.demo_server import DemoServer, free_port, running_server
from prism.bench.estimates import mean, median, paired_ratio
from prism.bench.exact import stock_server
from prism.bench.models import YARDSTICK, tiny_model, yardstick_arguments

MODEL = "nothing-shared"
ARGUMENTS = yardstick_arguments(MODEL, longest=2048)
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Sample:
    """One answered request: seconds to its first content, CPU seconds of the server meanwhile."""

    ttft: float
    cpu: float


def group_cpu_seconds(group: int) -> float:
    """User and system time so far of all living processes of a process group."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has just ended
        if int(fields[2]) == group:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


async def ask(client: httpx.AsyncClient, url: str, group: int, prompt: str, tokens: int) -> Sample:
    """One streamed completion, to its end."""
    body = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
    }
    cpu, began, first = group_cpu_seconds(group), time.perf_counter(), None
    async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if first is None and line.startswith("data: {") and json.loads(line[6:]).get("choices"):
                first = time.perf_counter() - began
    assert first is not None
    return Sample(first, group_cpu_seconds(group) - cpu)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two servers side by side: address and process group of each, the one that is judged first."""

    what: str
    client: httpx.AsyncClient
    arms: tuple[tuple[str, int], tuple[str, int]]


@contextlib.asynccontextmanager
async def with_stock(model: Path, folder: Path) -> AsyncIterator[Pair]:
    """PRISM and stock vLLM."""
    async with (
        stock_server(model, ARGUMENTS, folder) as (client, stock_url, stock_group),
        _prism(model, folder) as prism,
    ):
        yield Pair("PRISM over stock", client, ((prism.url, prism.process.pid), (stock_url, stock_group)))


@contextlib.asynccontextmanager
async def with_dead_collector(model: Path, folder: Path) -> AsyncIterator[Pair]:
    """PRISM whose collector never answers, and PRISM that exports nothing."""
    with black_hole() as address:
        async with (
            _prism(model, _inside(folder), {"OTEL_EXPORTER_OTLP_ENDPOINT": address}) as dead,
            _prism(model, _inside(folder), {"OTEL_SDK_DISABLED": "true"}) as none,
        ):
            arms = ((dead.url, dead.process.pid), (none.url, none.process.pid))
            yield Pair("A collector that never answers over none", dead.client, arms)


def _inside(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=folder))


@contextlib.asynccontextmanager
async def _prism(model: Path, folder: Path, environ: Mapping[str, str] | None = None) -> AsyncIterator[DemoServer]:
    ports = free_port(None, 0), free_port(None, 0)
    async with running_server(model, ARGUMENTS, folder, *ports, environ=environ) as server:
        await server.wait_until_ready(lambda _: None)
        yield server


async def compare(
    tokenizer: Path, requests: int, words: int, tokens: int, console: Console, dead_collector: bool
) -> str:
    """Both servers, warmed up, then `requests` pairs. Which goes first alternates."""
    model, folder = tiny_model(tokenizer, YARDSTICK), Path(tempfile.mkdtemp(prefix="prism-nothing-"))
    rng = random.Random(0)
    console.print("starting both servers")
    async with (with_dead_collector if dead_collector else with_stock)(model, folder) as pair:
        client, arms = pair.client, pair.arms
        samples: tuple[list[Sample], list[Sample]] = ([], [])
        for number in track(range(-10, requests), console=console, description="pairs"):
            prompt = " ".join(str(rng.randrange(10**6)) for _ in range(words))
            for arm in (0, 1) if number % 2 else (1, 0):
                url, group = arms[arm]
                sample = await ask(client, url, group, prompt, tokens)
                if number >= 0:
                    samples[arm].append(sample)
    # One request at a time: pairs are independent.
    ttft = paired_ratio([s.ttft for s in samples[0]], [s.ttft for s in samples[1]], median, block=1)
    cpu = paired_ratio([s.cpu for s in samples[0]], [s.cpu for s in samples[1]], mean, block=1)
    return (
        f"{requests} pairs; {pair.what}, with 95 % intervals: P50 of TTFT {ttft.value:.3f} ({ttft.low:.3f} to "
        f"{ttft.high:.3f}), CPU time a request {cpu.value:.3f} ({cpu.low:.3f} to {cpu.high:.3f})"
    )


def main(
    tokenizer: Annotated[Path, typer.Argument(help="Folder of a tokenizer of at most 16,384 ids.")],
    requests: Annotated[int, typer.Option(help="Pairs of requests.")] = 200,
    words: Annotated[int, typer.Option(help="Random numbers a prompt is made of.")] = 150,
    tokens: Annotated[int, typer.Option(help="Tokens of an answer.")] = 8,
    dead_collector: Annotated[
        bool,
        typer.Option("--dead-collector", help="PRISM with a collector that never answers against PRISM with none."),
    ] = False,
) -> None:
    """Compare PRISM with stock vLLM on prompts that share nothing."""
    console = Console(stderr=True)
    said = asyncio.run(compare(tokenizer, requests, words, tokens, console, dead_collector))
    Console().print(said, highlight=False)


if __name__ == "__main__":
    typer.run(main)
