"""`python -m prism.bench.overload`: what becomes of goodput when more is asked for than can be done.

A real `prism serve` on a random model, its queue bounded, is first kept busy by clients that each wait for their
answer: what it finishes a second then is the knee. After that requests come at random at multiples of the knee, whoever
was refused does not come back, and what was finished inside the window is counted. The multiples take turns, in a new
order each round, so that whatever else the machine does hits them alike.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.table import Table

from prism.bench.arrivals import poisson_times
from prism.bench.demo_server import DemoServer, free_port, running_server
from prism.bench.http.pacing import open_loop
from prism.bench.models import YARDSTICK, YARDSTICK_SLOTS, tiny_model, yardstick_arguments
from prism.config.schema import Limits, PrismSpec

MODEL = "overload"
ARGUMENTS = yardstick_arguments(MODEL)
MULTIPLES = (1.0, 1.5, 2.0, 3.0)
MOST_WAITING = 2 * YARDSTICK_SLOTS
TOKENS = 32  # of an answer: enough for the engine, and not its clients, to be what is busy
WARM_UP_SECONDS = 5.0
_WORDS = 60


@dataclass(frozen=True, slots=True)
class Reply:
    """How one request ended: seconds since the load began, and its status."""

    ended: float
    status: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One round at one multiple of the knee.

    Attributes:
        goodput: requests a second that were finished in the window.
        statuses: of all that were sent.
    """

    multiple: float
    goodput: float
    statuses: Counter[int]


class Asker:
    """Sends requests that share nothing.

    Args:
        seed: of what is asked.
    """

    def __init__(self, client: httpx.AsyncClient, url: str, seed: int = 0) -> None:
        self._client = client
        self._url = f"{url}/v1/completions"
        self._random = random.Random(seed)

    async def ask(self, began: float) -> Reply:
        """One whole answer, or a refusal."""
        prompt = " ".join(str(self._random.randrange(10**5)) for _ in range(_WORDS))
        body = {"model": MODEL, "prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True}
        answer = await self._client.post(self._url, json=body)
        return Reply(time.monotonic() - began, answer.status_code)


async def closed_loop(asker: Asker, seconds: float) -> float:
    """Answers a second when twice as many clients as slots ask one after the other, warm-up left out."""
    began = time.monotonic()
    replies: list[Reply] = []

    async def client() -> None:
        while time.monotonic() - began < seconds:
            replies.append(await asker.ask(began))

    await asyncio.gather(*[client() for _ in range(2 * YARDSTICK_SLOTS)])
    return goodput(replies, WARM_UP_SECONDS, seconds)


async def at_rate(asker: Asker, rate: float, seconds: float, seed: int) -> list[Reply]:
    """Replies to requests that come at random moments."""
    began = time.monotonic()
    return await open_loop(poisson_times(random.Random(seed), rate, seconds), lambda _: asker.ask(began))


def goodput(replies: Sequence[Reply], begin: float, end: float) -> float:
    """Requests a second that were finished between two moments."""
    return sum(reply.status == 200 and begin <= reply.ended < end for reply in replies) / (end - begin)


async def measure(server: DemoServer, seconds: float, rounds: int, console: Console) -> tuple[float, list[Cell]]:
    """The knee, and all cells in the order in which they were measured."""
    asker, order = Asker(server.client, server.url), random.Random(0)
    knee = await closed_loop(asker, seconds)
    console.print(f"the knee: {knee:.2f} requests a second")
    await server.adopt(PrismSpec(limits=Limits(max_waiting_requests=MOST_WAITING)))
    cells = []
    for number in range(rounds):
        for multiple in order.sample(MULTIPLES, len(MULTIPLES)):
            replies = await at_rate(asker, multiple * knee, seconds, number)
            statuses = Counter(reply.status for reply in replies)
            cells.append(Cell(multiple, goodput(replies, WARM_UP_SECONDS, seconds), statuses))
            console.print(f"{multiple:g} times the knee: {cells[-1].goodput:.2f} a second, {dict(statuses)}")
    return knee, cells


def report(cells: Sequence[Cell]) -> Table:
    """A row for each multiple: goodput of all rounds, its share of the best multiple's, what was refused."""
    means = {multiple: statistics.mean(_goodputs(cells, multiple)) for multiple in MULTIPLES}
    table = Table("times the knee", "goodput, 1/s (least to most)", "of the best", "refused", "other ends")
    for multiple, mean in means.items():
        found = _goodputs(cells, multiple)
        statuses = sum((cell.statuses for cell in cells if cell.multiple == multiple), Counter[int]())
        spread = f"{mean:.2f} ({min(found):.2f} to {max(found):.2f})"
        share, refused = mean / max(means.values()), statuses[429] / statuses.total()
        others = statuses.total() - statuses[200] - statuses[429]
        table.add_row(f"{multiple:g}", spread, f"{share:.1%}", f"{refused:.1%}", str(others))
    return table


def _goodputs(cells: Sequence[Cell], multiple: float) -> list[float]:
    return [cell.goodput for cell in cells if cell.multiple == multiple]


async def overload(tokenizer: Path, seconds: float, rounds: int, console: Console) -> tuple[float, list[Cell]]:
    """Starts the server and measures."""
    model, folder = tiny_model(tokenizer, YARDSTICK), Path(tempfile.mkdtemp(prefix="prism-overload-"))
    ports = free_port(None, 0), free_port(None, 0)
    async with running_server(model, ARGUMENTS, folder, *ports, environ={"OTEL_SDK_DISABLED": "true"}) as server:
        console.print("starting")
        await server.wait_until_ready(lambda _: None)
        return await measure(server, seconds, rounds, console)


def main(
    tokenizer: Annotated[Path, typer.Argument(help="Folder of a tokenizer of at most 16,384 ids.")],
    seconds: Annotated[float, typer.Option(min=10, help="Of each load, its first five are warm-up.")] = 30.0,
    rounds: Annotated[int, typer.Option(min=1, help="How often each multiple is measured.")] = 3,
) -> None:
    """Ask for multiples of what a server can do, and count what it still finishes."""
    knee, cells = asyncio.run(overload(tokenizer, seconds, rounds, Console(stderr=True)))
    Console().print(f"the knee: {knee:.2f} requests a second", report(cells))


if __name__ == "__main__":
    typer.run(main)
