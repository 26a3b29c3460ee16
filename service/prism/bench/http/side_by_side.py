"""`python -m prism.bench.http.side_by_side`: stock vLLM, ContextPilot and PRISM here, measured by `prism bench`.

Both servers run at once with the same engine arguments, and are asked in turn: while one is measured the other is idle.
ContextPilot is stock vLLM again, with the passages of each request aligned on the way to it.
The rates are shares of what stock order sustains here, which is measured first. A model is `tiny` (random weights, as
large as two cores can serve) or `smollm2` (a real small chat model).
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import httpx
import typer
from rich.console import Console

from prism.bench.demo_server import free_port, running_server
from prism.bench.exact import stock_server
from prism.bench.http.alignment import aligned
from prism.bench.http.command import progress_shown, publish
from prism.bench.http.load import Load
from prism.bench.http.report import Results
from prism.bench.http.run import Cold, Plan, run
from prism.bench.http.servers import Server
from prism.bench.http.workloads import Documents, Rag, Workload
from prism.bench.models import YARDSTICK, smollm2, tiny_model
from prism.errors import DeploymentError

MODEL = "side-by-side"
TOGETHER = 8
CALIBRATION = 40
"""Questions that measure what stock order sustains."""

COMMON = (
    f"--served-model-name={MODEL}",
    "--dtype=float32",
    "--max-num-batched-tokens=1024",
    "--max-model-len=2048",
    "--enforce-eager",
    "--enable-prompt-tokens-details",
)
ARGUMENTS = {
    "tiny": (*COMMON, "--block-size=32", "--num-gpu-blocks-override=300", "--max-num-seqs=32"),
    "smollm2": (*COMMON, "--block-size=16", "--num-gpu-blocks-override=480", f"--max-num-seqs={TOGETHER}"),
}
WORKLOADS: dict[tuple[str, str], Workload] = {
    ("tiny", "rag"): Rag(MODEL, max_tokens=8, passages=5, longest=600, articles=20),
    ("smollm2", "rag"): Rag(MODEL, max_tokens=8, passages=5, longest=320, articles=8),
    ("tiny", "documents"): Documents(MODEL, max_tokens=6),
    ("smollm2", "documents"): Documents(MODEL, max_tokens=6, documents=40),
}
"""As many articles, or documents, as together do not fit into the cache that runs leave."""


async def measure(
    model: str,
    workload: str,
    tokenizer: Path | None,
    shares: Sequence[float],
    seconds: float,
    warm_up: float,
    repeats: int,
    console: Console,
) -> Results:
    """Start both servers, find what stock sustains, and run the plan."""
    folder = Path(tempfile.mkdtemp(prefix="prism-side-by-side-"))
    weights = _weights(model, tokenizer)
    console.print(f"starting both servers; their logs: {folder}", highlight=False)
    async with (
        # Its route that empties the cache stands among those of the development mode.
        stock_server(weights, ARGUMENTS[model], folder, {"VLLM_SERVER_DEV_MODE": "1"}) as (client, stock, _),
        running_server(weights, ARGUMENTS[model], folder, free_port(None, 0), free_port(None, 0)) as prism,
    ):
        await prism.wait_until_ready(lambda _: None)
        work = WORKLOADS[model, workload]
        rate = await _sustained(client, stock, work)
        console.print(f"stock order sustains about {rate:.2f} requests/s here", highlight=False)
        arms = (
            Server("stock", stock),
            Server("contextpilot", stock, front=aligned),
            Server("prism", prism.url, prism.admin_url.removesuffix("/prism/v1")),
        )
        rates = tuple(round(rate * share, 2) for share in shares)
        plan = Plan(arms, work, rates, seconds, warm_up, repeats, cold=Cold.RESET)
        with progress_shown(plan, console) as begin:
            return Results(plan, [cell async for cell in run(plan, client, begin)])


def _weights(model: str, tokenizer: Path | None) -> Path:
    if model == "smollm2":
        return smollm2(lambda *_: None)
    if tokenizer is None:
        raise DeploymentError("the tiny model needs --tokenizer, the folder of a tokenizer of at most 16,384 ids")
    return tiny_model(tokenizer, YARDSTICK)


async def _sustained(client: httpx.AsyncClient, url: str, workload: Workload) -> float:
    """Requests a second with all places taken, after a warm-up of as many."""
    sessions = workload.draw(2.0 * CALIBRATION, 1.0, seed=1_000)
    await Load(client, url).run_closed(sessions[:CALIBRATION], TOGETHER)
    measured = Load(client, url)
    await measured.run_closed(sessions[CALIBRATION:], TOGETHER)
    failed = [reply.error for reply in measured.replies if reply.error]
    if failed:
        raise DeploymentError(f"stock vLLM fails: {failed[0]}")
    return len(measured.replies) / measured.now


def main(
    model: Annotated[str, typer.Argument(help="tiny or smollm2.")] = "smollm2",
    workload: Annotated[str, typer.Option(help="rag or documents.")] = "rag",
    tokenizer: Annotated[Path | None, typer.Option(help="For the tiny model: a tokenizer of up to 16,384 ids.")] = None,
    share: Annotated[list[float] | None, typer.Option(help="Rate over what stock order sustains; repeatable.")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Of a cell, warm-up included.")] = 45.0,
    warm_up: Annotated[float, typer.Option(min=0, help="Seconds of a cell that no figure is of.")] = 5.0,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write everything here.")] = None,
    markdown_out: Annotated[Path | None, typer.Option("--markdown", help="Write the report here.")] = None,
) -> None:
    """Measure stock vLLM, ContextPilot's alignment before it, and PRISM side by side on this machine."""
    if (model, workload) not in WORKLOADS:
        known = ", ".join(" ".join(pair) for pair in WORKLOADS)
        raise typer.BadParameter(f"no {model!r} with {workload!r}: choose from {known}")
    shares = tuple(share or (0.7, 0.9))
    console = Console(stderr=True)
    results = asyncio.run(measure(model, workload, tokenizer, shares, seconds, warm_up, repeats, console))
    publish(results, json_out, markdown_out)


if __name__ == "__main__":
    typer.run(main)
