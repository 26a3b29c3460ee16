"""`prism bench`: the command line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from prism.bench.http.load import Load
from prism.bench.http.report import Results, as_json, markdown, rate_text, table
from prism.bench.http.run import Cell, Cold, OnBegin, Plan, run
from prism.bench.http.servers import Server, parse_server, served_model
from prism.bench.http.workloads import Agents, Documents, FromFile, Rag, Workload
from prism.errors import DeploymentError, PrismError

KEY_VARIABLE = "OPENAI_API_KEY"
_SHIPPED = ("rag", "documents", "agents")
_REFRESH_S = 0.25


def bench_command(
    arm: Annotated[list[str], typer.Option(help="NAME=URL, or NAME=URL,ADMIN_URL of PRISM; repeatable.")],
    workload: Annotated[str, typer.Option(help="rag, documents, agents, or a file of your own (JSON lines).")] = "rag",
    rate: Annotated[list[float] | None, typer.Option(min=0.001, help="Sessions a second; repeatable.")] = None,
    together: Annotated[int | None, typer.Option(min=1, help="Closed loop: sessions kept under way.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="How long sessions begin, warm-up included.")] = 120.0,
    warm_up: Annotated[float, typer.Option(min=0, help="Seconds at the begin of a cell that no figure is of.")] = 20.0,
    repeats: Annotated[int, typer.Option(min=1, help="Of every cell, each with the next seed.")] = 3,
    seed: Annotated[int, typer.Option(help="Of the first repeat.")] = 0,
    model: Annotated[str | None, typer.Option(help="Model to ask for; the first one served if not given.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of an answer (rag, documents).")] = 64,
    passages: Annotated[int, typer.Option(min=1, max=10, help="Passages of a question (rag).")] = 5,
    passage_chars: Annotated[int, typer.Option(min=1, help="Longest passage in characters (rag).")] = 10_000,
    articles: Annotated[int | None, typer.Option(min=1, help="Articles that are asked about (rag).")] = None,
    reorder: Annotated[bool, typer.Option(help="Declare the passages unordered (rag).")] = True,
    cold: Annotated[Cold, typer.Option(help="How a cell begins with nothing cached.")] = Cold.AUTO,
    limit: Annotated[float, typer.Option(min=1, help="Seconds after which a request is given up.")] = 600.0,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write everything here, each request too.")] = None,
    markdown_out: Annotated[Path | None, typer.Option("--markdown", help="Write the report here.")] = None,
) -> None:
    """Measure servers of OpenAI's API side by side: any of them can be an arm.

    A key, where the servers want one, is taken from the environment variable OPENAI_API_KEY.
    """
    console = Console(stderr=True)

    def plan(servers: tuple[Server, ...], name: str) -> Plan:
        asked: dict[str, Workload] = {
            "rag": Rag(name, max_tokens, passages, passage_chars, articles, reorder),
            "documents": Documents(name, max_tokens),
            "agents": Agents(name),
        }
        work = asked.get(workload) or FromFile(Path(workload), name)
        rates = tuple(rate or [0.0])
        return Plan(servers, work, rates, seconds, warm_up, repeats, together, seed, cold, limit)

    try:
        _check(workload, rate, together, seconds, warm_up)
        results = asyncio.run(_measure(_servers(arm), model, plan, console))
    except PrismError as error:
        console.print(f"prism bench: {error}", style="bold red", highlight=False)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    publish(results, json_out, markdown_out)
    if results.all_failed:
        raise typer.Exit(1)


def _check(workload: str, rate: list[float] | None, together: int | None, seconds: float, warm_up: float) -> None:
    if rate is not None and together is not None:
        raise DeploymentError("--rate is an open loop, --together a closed one: give one of them")
    if workload not in _SHIPPED and not Path(workload).is_file():
        raise DeploymentError(f"--workload {workload}: neither {', '.join(_SHIPPED)} nor a file")
    if rate is None and together is None and workload in _SHIPPED:
        raise DeploymentError("give --rate (open loop) or --together (closed loop)")
    if warm_up >= seconds:
        raise DeploymentError(f"--warm-up {warm_up:g} leaves nothing of --seconds {seconds:g} to measure")


def _servers(arms: list[str]) -> tuple[Server, ...]:
    servers = tuple(map(parse_server, arms))
    if len({server.name for server in servers}) < len(servers):
        raise DeploymentError("two arms have one name: give each its own")
    return servers


async def _measure(
    servers: tuple[Server, ...],
    model: str | None,
    plan: Callable[[tuple[Server, ...], str], Plan],
    console: Console,
) -> Results:
    key = os.environ.get(KEY_VARIABLE)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    # No limit of connections: requests must not queue in this process. No proxy: it would be measured too.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
    async with httpx.AsyncClient(timeout=None, limits=limits, headers=headers, trust_env=False) as client:
        chosen = plan(servers, model or await served_model(client, servers[0]))
        with progress_shown(chosen, console) as begin:
            cells = [cell async for cell in run(chosen, client, begin)]
    return Results(chosen, cells)


@contextlib.contextmanager
def progress_shown(plan: Plan, console: Console) -> Iterator[OnBegin]:
    """A progress bar over all cells; what is yielded is told of each that begins."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("starting", total=plan.cells, state="")
        loads: list[tuple[Load, int]] = []

        async def redraw() -> None:
            while True:
                load, count = loads[-1]
                answered = sum(reply.done for reply in load.replies)
                progress.update(bar, state=f"{answered} of {count if plan.together is None else len(load.replies)}")
                await asyncio.sleep(_REFRESH_S)

        redrawing: list[asyncio.Task[None]] = []

        def begin(cell: Cell, load: Load, count: int) -> None:
            loads.append((load, count))
            what = f"{cell.server}, {rate_text(plan, cell.rate)}, repeat {cell.repeat + 1}"
            progress.update(bar, completed=len(loads) - 1, description=what)
            if not redrawing:
                redrawing.append(asyncio.create_task(redraw()))

        try:
            yield begin
        finally:
            for task in redrawing:
                task.cancel()


def publish(results: Results, json_out: Path | None, markdown_out: Path | None) -> None:
    """Show the results, and write them where that was asked for."""
    Console().print(table(results), highlight=False)
    if json_out is not None:
        json_out.write_text(json.dumps(as_json(results), indent=1) + "\n")
    if markdown_out is not None:
        markdown_out.write_text(markdown(results))
