"""A benchmark's cells: every rate, every repeat, every arm, interleaved.

    rate 2/s   repeat 0: stock, prism   repeat 1: prism, stock   …
    rate 3/s   …

Within a repeat all arms get the same requests, so each request has its pair; which arm goes first alternates, so that
whatever else the machines do hits all alike. A cell begins cold: its cache was emptied, or, where a server cannot do
that, a line of its own in front of every prompt of the cell shares nothing with what was sent before. Load runs
without a break from the first request on; those that are due in the first `warm_up_s` seconds are sent and kept, but
the figures are of the window after them.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain

import httpx

from prism.bench.http.load import Load, Reply, Session
from prism.bench.http.servers import Server, emptied, reset_of
from prism.bench.http.workloads import Workload, marked
from prism.errors import DeploymentError

_DRAWN_FOR_CLOSED_LOOP = 1_000.0
"""Sessions a second that are drawn for a closed loop: more than any server plays."""


class Cold(StrEnum):
    """How a cell is made to begin without anything cached."""

    AUTO = "auto"
    RESET = "reset"
    MARKER = "marker"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run.

    Attributes:
        servers: the arms; the first is what the others are compared with.
        rates: sessions a second; one entry, unused, for a closed loop.
        seconds: how long sessions begin, warm-up included.
        together: sessions kept under way in a closed loop; None for an open one.
        seed: of the first repeat; the next ones count on from it.
        limit_s: seconds after which a request is given up.
    """

    servers: tuple[Server, ...]
    workload: Workload
    rates: tuple[float, ...]
    seconds: float
    warm_up_s: float = 0.0
    repeats: int = 1
    together: int | None = None
    seed: int = 0
    cold: Cold = Cold.AUTO
    limit_s: float = 600.0

    @property
    def cells(self) -> int:
        return len(self.servers) * len(self.rates) * self.repeats


@dataclass(slots=True)
class Cell:
    """One arm under one load, once.

    Attributes:
        cold: how it was made to begin cold.
        took_s: from its begin to its last answer.
        replies: of all its requests, warm-up included.
    """

    server: str
    rate: float
    repeat: int
    seed: int
    cold: Cold
    warm_up_s: float
    took_s: float = 0.0
    replies: list[Reply] = field(default_factory=list)

    @property
    def window(self) -> list[Reply]:
        """Requests that the figures are of."""
        return [reply for reply in self.replies if reply.due >= self.warm_up_s]


OnBegin = Callable[[Cell, Load, int], None]
"""Told of each cell that begins, with its load under way and how many requests it will send at most."""


async def run(plan: Plan, client: httpx.AsyncClient, on_begin: OnBegin = lambda *_: None) -> AsyncIterator[Cell]:
    """Runs the plan; yields each cell when it is done.

    Raises:
        DeploymentError: a server cannot be made cold in the way that was asked for.
    """
    resets = await _resets(plan, client)
    await _prime(plan, client)
    for rate in plan.rates:
        for repeat in range(plan.repeats):
            turn = repeat % len(plan.servers)
            for server in plan.servers[turn:] + plan.servers[:turn]:
                yield await _cell(plan, client, server, resets[server.name], rate, repeat, on_begin)


async def _resets(plan: Plan, client: httpx.AsyncClient) -> dict[str, str | None]:
    if plan.cold is Cold.MARKER:
        return dict.fromkeys(server.name for server in plan.servers)
    found = {server.name: await reset_of(client, server) for server in plan.servers}
    missing = [name for name, address in found.items() if address is None]
    if missing and plan.cold is Cold.RESET:
        raise DeploymentError(
            f"arm {missing[0]} has no route that empties its cache: give PRISM's admin address, start vLLM with "
            "VLLM_SERVER_DEV_MODE=1, or use --cold marker"
        )
    # One way for all arms: an empty cache and one full of what nobody asks for are not the same start.
    return dict.fromkeys(found) if missing else found


async def _prime(plan: Plan, client: httpx.AsyncClient) -> None:
    """One request to each server that no figure contains: the first one may compile kernels."""
    first = _drawn(plan, plan.rates[0], 0)[:1]
    if not first:
        raise DeploymentError("this load has no requests: give more --seconds or a higher --rate")
    for server in plan.servers:
        load = Load(client, server.url, plan.limit_s)
        await load.run_closed(marked([Session(0.0, first[0].turns[:1])], _marker()), 1)
        if load.replies[0].error:
            raise DeploymentError(f"arm {server.name} fails the first request: {load.replies[0].error}")


async def _cell(
    plan: Plan,
    client: httpx.AsyncClient,
    server: Server,
    reset: str | None,
    rate: float,
    repeat: int,
    on_begin: OnBegin,
) -> Cell:
    sessions = server.front(_drawn(plan, rate, repeat))
    if reset is None:
        sessions = marked(sessions, _marker())
    elif not await emptied(client, reset):
        raise DeploymentError(f"arm {server.name}: {reset} did not empty the cache; is something else using it?")
    cold = Cold.MARKER if reset is None else Cold.RESET
    cell = Cell(server.name, rate, repeat, plan.seed + repeat, cold, plan.warm_up_s)
    load = Load(client, server.url, plan.limit_s)
    cell.replies = load.replies
    on_begin(cell, load, sum(len(one.turns) for one in sessions))
    if plan.together is None:
        await load.run_open(sessions)
    else:
        await load.run_closed(sessions, plan.together, plan.seconds)
    cell.took_s = load.now
    return cell


def _drawn(plan: Plan, rate: float, repeat: int) -> list[Session]:
    if plan.together is not None:
        rate = _DRAWN_FOR_CLOSED_LOOP / plan.seconds
    return plan.workload.draw(rate, plan.seconds, plan.seed + repeat)


def _marker() -> str:
    return f"[{secrets.token_hex(8)}]"


def paired(ours: Sequence[Cell], theirs: Sequence[Cell]) -> list[tuple[Reply, Reply]]:
    """The same requests under two arms, in order of repeat and due; those in both windows."""
    both: list[tuple[Reply, Reply]] = []
    by_repeat: Mapping[int, Cell] = {cell.repeat: cell for cell in theirs}
    for cell in ours:
        if cell.repeat in by_repeat:
            named = {reply.name: reply for reply in by_repeat[cell.repeat].window}
            both += [(reply, named[reply.name]) for reply in cell.window if reply.name in named]
    return both


def windows(cells: Sequence[Cell]) -> list[Reply]:
    """The windows of several cells as one list."""
    return list(chain.from_iterable(cell.window for cell in cells))
