"""`python -m prism.bench.soak`: mixed traffic at the knee for as long as one likes, and what grows meanwhile.

A real `prism serve` on a random model answers streams and plain answers, requests with movable documents, several
choices, clients that hang up, deadlines that pass, and mistakes. First it is measured how many such requests a second
it is done with when always busy; then they come at random at that rate, so that the queue comes and goes. All the time
the memory and open files of its processes and the sizes of its tables are looked at. At the end everything that
arrived must have ended and every table must be empty; what memory grew by is told.
"""

from __future__ import annotations

import asyncio
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from prism.bench.arrivals import poisson_times
from prism.bench.collectors import willing
from prism.bench.demo_server import DemoServer, free_port, running_server
from prism.bench.http.pacing import open_loop
from prism.bench.models import YARDSTICK, tiny_model, yardstick_arguments
from prism.config.schema import Limits, PrismSpec

MODEL = "soak"
ARGUMENTS = yardstick_arguments(MODEL)
MOST_WAITING = 64
CLIENTS = 24
CALIBRATION_SECONDS = 20.0
SETTLE_SECONDS = 8.0
CURVE_POINTS = 11
_HANG_UP_SECONDS = 0.3


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the server at one moment."""

    name: str
    resident_mb: float
    open_files: int


@dataclass(frozen=True, slots=True)
class Sample:
    """The server at one moment: seconds since the load began, its processes, and the sizes it tells itself."""

    at: float
    processes: tuple[Process, ...]
    sizes: dict[str, int]


def processes(pid: int) -> tuple[Process, ...]:
    """This process and its descendants, the oldest first."""
    found = []
    for number, one in enumerate((pid, *_descendants(pid))):
        status = Path(f"/proc/{one}/status").read_text()
        resident = re.search(r"VmRSS:\s+(\d+) kB", status)
        name = re.search(r"Name:\s+(.+)", status)
        label = "server" if number == 0 else f"{name[1] if name else '?'} {number}"
        files = len(list(Path(f"/proc/{one}/fd").iterdir()))
        found.append(Process(label, int(resident[1]) / 1024 if resident else 0.0, files))
    return tuple(found)


def _descendants(pid: int) -> list[int]:
    children: list[int] = []
    for path in sorted(Path(f"/proc/{pid}/task").glob("*/children")):
        children += [int(child) for child in path.read_text().split()]
    return [one for child in sorted(children) for one in (child, *_descendants(child))]


class Traffic:
    """Requests of all kinds.

    Args:
        seed: of what is asked.
    """

    def __init__(self, client: httpx.AsyncClient, url: str, seed: int = 0) -> None:
        self.statuses: Counter[str] = Counter()
        self._client = client
        self._url = f"{url}/v1/chat/completions"
        self._random = random.Random(seed)
        self._documents = [self._words(40) for _ in range(60)]
        self._kinds = {
            self._plain: 5,
            self._streamed: 5,
            self._documented: 6,
            self._choices: 1,
            self._hang_up: 3,
            self._late: 1,
            self._mistaken: 1,
        }

    async def one(self) -> None:
        """One request of some kind, to its end."""
        (kind,) = self._random.choices(list(self._kinds), list(self._kinds.values()))
        try:
            self.statuses[await kind()] += 1
        except httpx.HTTPError as error:
            self.statuses[type(error).__name__] += 1

    async def _plain(self) -> str:
        return await self._post(max_tokens=16)

    async def _streamed(self) -> str:
        return await self._post(max_tokens=24, stream=True, stream_options={"include_usage": True})

    async def _documented(self) -> str:
        texts = [*self._random.sample(self._documents, 4), "Which of them is right?"]
        content = [{"type": "text", "text": text} for text in texts]
        messages = [{"role": "user", "content": content}]
        return await self._post(messages=messages, max_tokens=8, prism={"reorder": True}, stream=True)

    async def _choices(self) -> str:
        return await self._post(n=3, temperature=1.0, max_tokens=8)

    async def _late(self) -> str:
        return await self._post(max_tokens=8, prism={"deadline_seconds": 1e-3})

    async def _mistaken(self) -> str:
        wrong: dict[str, Any] = self._random.choice(
            [{"prism": {"nonsense": 1}}, {"model": "nobody"}, {"max_tokens": -1}, {"messages": "none"}]
        )
        return await self._post(**wrong)

    async def _hang_up(self) -> str:
        body = self._body(max_tokens=600, ignore_eos=True, stream=True)
        try:
            async with asyncio.timeout(self._random.uniform(0, _HANG_UP_SECONDS)):
                await self._client.post(self._url, json=body)
        except TimeoutError:
            return "hung up"
        return "hung up late"

    async def _post(self, **fields: Any) -> str:
        return str((await self._client.post(self._url, json=self._body(**fields))).status_code)

    def _body(self, **fields: Any) -> dict[str, Any]:
        return {"model": MODEL, "messages": [{"role": "user", "content": self._words(30)}], **fields}

    def _words(self, count: int) -> str:
        return " ".join(str(self._random.randrange(10**5)) for _ in range(count))


async def busy_rate(traffic: Traffic, seconds: float) -> float:
    """Requests a second that are done with when the server is always kept busy."""
    limit, done = time.monotonic() + seconds, 0

    async def client() -> None:
        nonlocal done
        while time.monotonic() < limit:
            await traffic.one()
            done += 1

    await asyncio.gather(*[client() for _ in range(CLIENTS)])
    return done / seconds


async def at_rate(traffic: Traffic, rate: float, seconds: float) -> int:
    """Requests at random moments; how many."""
    return len(await open_loop(poisson_times(random.Random(1), rate, seconds), lambda _: traffic.one()))


async def watch(server: DemoServer, samples: list[Sample], every: float, stop: asyncio.Event) -> None:
    """Takes samples until it is told to stop."""
    began = time.monotonic()
    while not stop.is_set():
        samples.append(await sample(server, time.monotonic() - began))
        try:
            await asyncio.wait_for(stop.wait(), every)
        except TimeoutError:
            continue


async def sample(server: DemoServer, at: float) -> Sample:
    """The server now."""
    sizes = (await server.client.get(f"{server.admin_url}/sizes")).json()
    return Sample(at, processes(server.process.pid), sizes)


async def counters(server: DemoServer) -> dict[str, float]:
    """Arrived requests, ended ones by outcome, spans by result."""
    text = (await server.client.get(f"{server.admin_url}/metrics")).text
    found: dict[str, float] = {}
    for name, label in (("arrived_requests", None), ("requests", "outcome"), ("spans", "result")):
        for labels, value in re.findall(rf"^prism_{name}_total(?:\{{(.*)\}})? (\S+)$", text, re.MULTILINE):
            word = re.search(rf'{label}="(\w+)"', labels) if label else None
            key = word[1] if word else "arrived"
            found[key] = found.get(key, 0.0) + float(value)
    return found


def growth_per_hour(samples: Sequence[Sample], value: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Slope of the second half by least squares: the first half fills caches and pools."""
    half = len(samples) // 2
    times = np.array([one.at for one in samples[half:]])
    return float(np.polyfit(times, value[half:], 1)[0] * 3600)


async def soak(tokenizer: Path, minutes: float, every: float, console: Console) -> bool:
    """The whole measurement; whether everything balanced."""
    model, folder = tiny_model(tokenizer, YARDSTICK), Path(tempfile.mkdtemp(prefix="prism-soak-"))
    ports = free_port(None, 0), free_port(None, 0)
    async with (
        willing() as collector,
        running_server(model, ARGUMENTS, folder, *ports, environ={"OTEL_EXPORTER_OTLP_ENDPOINT": collector}) as server,
    ):
        console.print("starting")
        await server.wait_until_ready(lambda _: None)
        await server.adopt(PrismSpec(limits=Limits(max_waiting_requests=MOST_WAITING)))
        traffic = Traffic(server.client, server.url)
        rate = await busy_rate(traffic, CALIBRATION_SECONDS)
        console.print(f"{rate:.1f} requests a second for {minutes:g} minutes")
        samples: list[Sample] = []
        stop = asyncio.Event()
        watching = asyncio.create_task(watch(server, samples, every, stop))
        sent = await at_rate(traffic, rate, minutes * 60)
        stop.set()
        await watching
        await asyncio.sleep(SETTLE_SECONDS)
        last, ends = await sample(server, samples[-1].at + SETTLE_SECONDS), await counters(server)
    Console().print(curve(samples), report(samples, last))
    Console().print(f"{sent:,} requests at {rate:.1f}/s; clients saw {dict(traffic.statuses)}")
    Console().print(ends)
    return balanced(last, ends, traffic)


def report(samples: Sequence[Sample], last: Sample) -> Table:
    """Memory and files at the beginning, in the middle and at the end, with what they grew by."""
    table = Table("", "first", "middle", "last", "after the load", "an hour's growth")
    ticks = (samples[0], samples[len(samples) // 2], samples[-1], last)
    for number, process in enumerate(last.processes):
        memory = np.array([one.processes[number].resident_mb for one in samples])
        files = np.array([float(one.processes[number].open_files) for one in samples])
        seen = [f"{one.processes[number].resident_mb:.0f}" for one in ticks]
        table.add_row(f"{process.name}, MB", *seen, f"{growth_per_hour(samples, memory):+.1f}")
        seen = [str(one.processes[number].open_files) for one in ticks]
        table.add_row(f"{process.name}, open files", *seen, f"{growth_per_hour(samples, files):+.1f}")
    for name in last.sizes:
        most = max(one.sizes[name] for one in samples)
        table.add_row(f"{name} (most: {most})", *[str(one.sizes[name]) for one in ticks], "")
    return table


def curve(samples: Sequence[Sample]) -> Table:
    """Memory at eleven moments: a cache that fills flattens, a leak goes on."""
    table = Table("seconds", *[f"{process.name}, MB" for process in samples[0].processes])
    for one in (samples[round(index)] for index in np.linspace(0, len(samples) - 1, CURVE_POINTS)):
        table.add_row(f"{one.at:.0f}", *[f"{process.resident_mb:.0f}" for process in one.processes])
    return table


def balanced(last: Sample, ends: dict[str, float], traffic: Traffic) -> bool:
    """Whether all that arrived has ended, the tables are empty, and no answer was a failure of the server."""
    ended = sum(ends.get(outcome, 0.0) for outcome in ("finished", "failed", "refused", "cancelled"))
    tables = {name: size for name, size in last.sizes.items() if name not in ("asyncio_tasks", "threads")}
    return ends["arrived"] == ended and not any(tables.values()) and not traffic.statuses["500"]


def main(
    tokenizer: Annotated[Path, typer.Argument(help="Folder of a tokenizer of at most 16,384 ids.")],
    minutes: Annotated[float, typer.Option(help="How long.")] = 10.0,
    every: Annotated[float, typer.Option(help="Seconds between two looks.")] = 5.0,
) -> None:
    """Keep a server at the knee with traffic of all kinds, and see what grows."""
    if not asyncio.run(soak(tokenizer, minutes, every, Console(stderr=True))):
        Console(stderr=True).print("the counters do not balance, or a table is not empty")
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
