"""`prism demo`: a real small model under a skewed load, first on stock order and LRU, then on PRISM.

One engine serves both: the settings switch live and the cache is emptied between. Nothing is simulated.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from prism.bench.demo_report import Run, lanes, report, save_picture
from prism.bench.demo_server import DemoServer, free_port, running_server
from prism.bench.demo_trace import telling, trace
from prism.bench.http.load import Load, Session
from prism.bench.models import smollm2
from prism.bench.passages import Question, questions
from prism.bench.rag_load import asked_once, draw_load, sessions
from prism.config.schema import Order, PrismSpec, Reorder, Retention, RetentionPolicy, Scheduler
from prism.errors import DeploymentError, PrismError

MODEL = "smollm2"
PASSAGES = 5
LONGEST_PASSAGE = 320
"""Characters: short passages let two cores answer enough questions in a minute."""

ARTICLES = 8
"""Articles that are asked about: as many as a minute of this load meets more than once."""

MAX_TOKENS = 8
TOGETHER = 8
"""Requests that the engine runs at once."""

BLOCK_TOKENS = 16
CACHE_BLOCKS = 480
"""What runs takes about half of them, and all passages together would need more than the rest."""

CALIBRATION = 16
"""Questions that measure what this machine sustains; they are not asked again."""

FEW = 20
"""Requests below which the two runs say nothing."""

NEEDED_BYTES = 600 << 20
ENGINE_ARGUMENTS = (
    f"--served-model-name={MODEL}",
    f"--block-size={BLOCK_TOKENS}",
    f"--num-gpu-blocks-override={CACHE_BLOCKS}",
    f"--max-num-seqs={TOGETHER}",
    "--max-num-batched-tokens=1024",
    "--max-model-len=2048",
    "--enforce-eager",
)
STOCK = PrismSpec(
    scheduler=Scheduler(order=Order.FCFS, reorder=Reorder.NEVER), retention=Retention(policy=RetentionPolicy.LRU)
)
PRISM = PrismSpec()
GREETING = "What is the capital of France?"


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line said.

    Attributes:
        seconds: length of each of the two loads; 0 sends none.
        load: arrival rate as a share of what stock order sustains.
        serve: keep the server up afterwards.
        out: folder for the picture, the log and the settings document.
    """

    seconds: float
    load: float
    seed: int
    serve: bool
    port: int | None
    out: Path


def demo_command(
    seconds: Annotated[float, typer.Option(min=0, help="Length of each of the two loads; 0 sends none.")] = 60.0,
    load: Annotated[float, typer.Option(min=0.1, max=2.0, help="Arrival rate over what stock order sustains.")] = 0.9,
    seed: Annotated[int, typer.Option(help="Of the load; equal seeds draw equal loads.")] = 0,
    serve: Annotated[bool, typer.Option("--serve", help="Keep the server up afterwards, until Ctrl-C.")] = False,
    port: Annotated[int | None, typer.Option(help="Port of the API; 8080 or a free one if not given.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the picture and the server's log.")] = Path("demo-out"),
) -> None:
    """Serve a real small model and compare stock order with PRISM under a skewed load, live."""
    console = Console()
    options = Options(seconds, load, seed, serve, port, out)
    try:
        asyncio.run(_until_stopped(options, console))
    except PrismError as error:
        console.print(f"prism demo: {error}", style="bold red", highlight=False)
        raise typer.Exit(1) from None
    except OSError as error:
        console.print(f"prism demo: {error.filename or out}: {error.strerror}", style="bold red", highlight=False)
        raise typer.Exit(1) from None
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("Stopped; the server is gone too.")
        raise typer.Exit(130) from None


async def _until_stopped(options: Options, console: Console) -> None:
    """The demo, ended in order by SIGTERM as well as by Ctrl-C."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await _demo(options, console)


async def _demo(options: Options, console: Console) -> None:
    began = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    _check_disk(options.out)
    port, admin_port = free_port(options.port, 8080), free_port(None, 8090)
    model = _prepared_model(console)
    arguments = [*ENGINE_ARGUMENTS, f"--dtype={_number_form()}"]
    async with running_server(model, arguments, options.out, port, admin_port) as server:
        await _start(server, console)
        if options.seconds:
            await _compare(server, options, console)
        await _answer(server, console)
        console.print(f"\n{time.monotonic() - began:.0f} s in all.", highlight=False)
        if options.serve:
            _explain(server, console)
            await asyncio.Event().wait()
    console.print(
        "To try it by hand: [bold]prism demo --serve --seconds 0[/] (or make demo ARGS='--serve --seconds 0')."
    )


def _check_disk(folder: Path) -> None:
    if shutil.disk_usage(folder).free < NEEDED_BYTES:
        raise DeploymentError(f"{folder.resolve()} has less than {NEEDED_BYTES >> 20} MB of free disk: make room there")


def _number_form() -> str:
    """bfloat16 where the processor computes with it; elsewhere it is emulated, five times as slow as float32."""
    flags = Path("/proc/cpuinfo").read_text()
    return "bfloat16" if "avx512_bf16" in flags or "amx_bf16" in flags else "float32"


def _prepared_model(console: Console) -> Path:
    """The model's folder; a progress bar is shown only if there is something to do."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bars = {name: progress.add_task(text, total=1.0, visible=False) for name, text in _PREPARATION.items()}
        return smollm2(lambda name, done: progress.update(bars[name], completed=done, visible=True))


_PREPARATION = {
    "fetching": "fetching SmolLM2-135M-Instruct (93 MB)",
    "converting": "converting it to Hugging Face's form",
}


async def _start(server: DemoServer, console: Console) -> None:
    began = time.monotonic()
    with console.status("starting prism serve") as status:
        await server.wait_until_ready(
            lambda passed: status.update(f"starting prism serve: {passed:.0f} s, most of it vLLM's imports")
        )
    console.print(
        f"SmolLM2-135M-Instruct is served on {server.url} (ready in {time.monotonic() - began:.0f} s).", highlight=False
    )


async def _compare(server: DemoServer, options: Options, console: Console) -> None:
    """Both loads, then tables, a trace, a picture."""
    asked = questions(PASSAGES, LONGEST_PASSAGE)
    reserve = _spread(asked, CALIBRATION)
    await server.adopt(STOCK)
    sustained = await _sustained(server, reserve, console)
    rate = sustained * options.load
    left = [question for question in asked if question not in reserve]
    drawn = draw_load(left, rate, options.seconds, articles=ARTICLES, seed=options.seed)
    load = sessions(drawn, MODEL, MAX_TOKENS)
    console.print(
        f"Stock order sustains about {sustained:.2f} requests a second here; sending {rate:.2f}/s for "
        f"{options.seconds:.0f} s to each policy: {len(load)} questions about {ARTICLES} articles, drawn by a Zipf "
        f"law, each with {PASSAGES} passages cut to {LONGEST_PASSAGE} characters, in a cache of "
        f"{CACHE_BLOCKS * BLOCK_TOKENS:,} tokens.",
        highlight=False,
    )
    if len(load) < FEW:
        console.print(
            "So few requests compare nothing: end what else runs here, or give --seconds more.", style="yellow"
        )
    stock = await _run("stock (FCFS, LRU)", server, STOCK, load, console)
    prism = await _run("PRISM", server, PRISM, load, console)
    console.print(report(stock, prism))
    console.print("One of PRISM's requests as a trace (the same spans go to an OpenTelemetry collector):")
    console.print(trace(telling(await server.last_requests(len(load)))))
    picture = options.out / "ttft.png"
    save_picture(stock, prism, picture, rate)
    console.print(f"Picture: {picture}", highlight=False)


def _spread(asked: Sequence[Question], count: int) -> list[Question]:
    """`count` questions spread over all articles."""
    chosen = np.linspace(0, len(asked) - 1, count).astype(int)
    return [asked[index] for index in chosen]


async def _sustained(server: DemoServer, reserve: Sequence[Question], console: Console) -> float:
    """Requests per second that the engine completes with all its places taken, after a warm-up."""
    with console.status("measuring what this machine sustains"):
        calls = [asked_once(question, MODEL, MAX_TOKENS) for question in reserve]
        warm_up = Load(server.client, server.url)
        await warm_up.run_closed(calls[:2], 1)
        await server.forget()
        measured = Load(server.client, server.url)
        await measured.run_closed(calls, TOGETHER)
        passed = measured.now
    failed = [reply.error for reply in warm_up.replies + measured.replies if reply.error]
    if failed:
        raise DeploymentError(f"the server answers with an error: {failed[0]} (its log: {server.log_path})")
    return len(reserve) / passed


async def _run(name: str, server: DemoServer, spec: PrismSpec, load: Sequence[Session], console: Console) -> Run:
    """The whole load under one policy, with an empty cache at its start."""
    await server.adopt(spec)
    await server.forget()
    loop = Load(server.client, server.url)
    with Live(console=console, refresh_per_second=4) as live, _updates(name, server, loop, load, live):
        await loop.run_open(load)
        live.update(_live_table(name, loop, load, (0, 0)))
    return Run(name, loop.replies)


@contextlib.contextmanager
def _updates(name: str, server: DemoServer, loop: Load, load: Sequence[Session], live: Live) -> Iterator[None]:
    """Redraws the live table every second while the block runs."""

    async def redraw() -> None:
        while True:
            live.update(_live_table(name, loop, load, await server.waiting_and_running()))
            await asyncio.sleep(1)

    task = asyncio.create_task(redraw())
    try:
        yield
    finally:
        task.cancel()


def _live_table(name: str, loop: Load, load: Sequence[Session], queue: tuple[int, int]) -> Group:
    done = [reply for reply in loop.replies if reply.done]
    run = Run(name, done)
    table = Table(title=f"{name}: {loop.now:.0f} s")
    cells = {
        "sent": f"{len(loop.replies)} of {len(load)}",
        "answered": str(len(done)),
        "waiting": str(queue[0]),
        "running": str(queue[1]),
        "TTFT P50": f"{np.median(run.ttft_s):.2f} s" if run.ttft_s else "-",
        "cached": f"{run.hit_rate:.0%}",
        "lanes": lanes(done),
    }
    for column in cells:
        table.add_column(column, justify="right", min_width=len(column))
    table.add_row(*cells.values())
    return Group(table)


async def _answer(server: DemoServer, console: Console) -> None:
    """One plain question, so that it is seen to be a real model."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": GREETING}], "max_tokens": 32, "temperature": 0}
    answer = (await server.client.post(f"{server.url}/v1/chat/completions", json=body)).json()
    console.print(f"\n[bold]{GREETING}[/]\n{answer['choices'][0]['message']['content']}", highlight=False)


def _explain(server: DemoServer, console: Console) -> None:
    console.print(
        f"""
The server stays up until Ctrl-C. For example, in another terminal:

  curl -s {server.url}/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "{GREETING}"}}], "max_tokens": 32}}' -i

Its settings: {server.settings_path} (edit it and raise the generation; no restart).
What is in force: curl -s {server.admin_url}/settings
Traces in Jaeger: start the demo with OTEL_EXPORTER_OTLP_ENDPOINT=http://HOST:4318""",
        highlight=False,
        markup=False,
    )
