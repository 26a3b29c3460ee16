"""`python -m prism.bench.pass_time`: what a scheduler pass costs with many requests waiting.

All arms stand in one process and take turns pass by pass, so that whatever else the machine does hits all alike. Each
keeps `running` requests running and `waiting` requests waiting: for every request that is admitted another arrives.
Times are thread CPU time; garbage collection is off while they are taken, as in vLLM's engine.
"""

from __future__ import annotations

import gc
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from prism.bench.arms import Arm, parse_arm
from prism.bench.estimates import percentile
from prism.bench.workloads import Corpus, RagPrompts, random_tokens
from prism.bench.zipf import ZipfLaw
from prism.engine.enginecore.harness import quiet_vllm
from prism.engine.enginecore.synthetic import EngineLimits, SyntheticRequest

_STEP_SECONDS = 0.04
"""How far the virtual clock moves from pass to pass."""


@dataclass(frozen=True, slots=True)
class Load:
    """What stands in the scheduler, constant over all passes."""

    running: int
    waiting: int
    passes: int
    output_tokens: tuple[int, int] = (60, 140)


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Thread CPU milliseconds. `p999_ms` is None under 5,000 passes."""

    arm: str
    waiting: int
    running: float
    mean_ms: float
    p50_ms: float
    p999_ms: float | None
    max_ms: float
    beside_mean_ms: float
    update_mean_ms: float
    arrival_mean_ms: float


class Bench:
    """One arm, filled and kept full."""

    def __init__(self, arm: Arm, load: Load, seed: int = 0) -> None:
        self.arm = arm
        self._load = load
        self._requests = endless_requests(load, seed)
        limits = EngineLimits(kv_blocks=60_000, max_running=load.running)
        self._engine = arm.engine(limits)
        self._now = 0.0
        self._engine.use_clock(lambda: self._now)
        self._measured = False
        self._schedule_ms: list[float] = []
        self._beside_ms: list[float] = []
        self._update_ms: list[float] = []
        self._arrival_ms: list[float] = []
        self._running: list[int] = []
        self._arrive(load.waiting + load.running)

    def fill(self) -> None:
        """Passes until all slots run and the first ones have finished, so that every pass admits a few."""
        for _ in range(self._load.output_tokens[1] + 40):
            self.advance()
        self._measured = True

    def advance(self) -> None:
        """One pass, the step before it processed, and an arrival for every admission."""
        step = self._engine.schedule()
        self._now += _STEP_SECONDS
        update = self._engine.complete().update_seconds if not self._engine.can_schedule else None
        self._arrive(len(step.admitted) if step.waiting < self._load.waiting else 0)
        if self._measured:
            self._schedule_ms.append(step.pass_seconds * 1e3)
            self._beside_ms.append(step.beside_seconds * 1e3)
            self._running.append(step.running)
            if update is not None:
                self._update_ms.append(update * 1e3)

    def _arrive(self, count: int) -> None:
        for _ in range(count):
            request = next(self._requests)
            began = time.thread_time()
            self._engine.add(request, self._now)
            if self._measured:
                self._arrival_ms.append((time.thread_time() - began) * 1e3)

    def times(self) -> PassTimes:
        taken = np.asarray(self._schedule_ms)
        return PassTimes(
            self.arm.name,
            self._load.waiting,
            float(np.mean(self._running)),
            float(taken.mean()),
            float(np.median(taken)),
            percentile(self._schedule_ms, 99.9),
            float(taken.max()),
            float(np.mean(self._beside_ms)),
            float(np.mean(self._update_ms or [0.0])),
            float(np.mean(self._arrival_ms or [0.0])),
        )


def endless_requests(load: Load, seed: int) -> Iterator[SyntheticRequest]:
    """Retrieval requests, one after another."""
    rng = random.Random(f"pass time {seed}")
    corpus = Corpus.drawn(seed)
    law = ZipfLaw(len(corpus.documents), 1.0)
    prompts = RagPrompts(corpus)
    number = 0
    while True:
        number += 1
        question = random_tokens(rng, rng.randint(20, 60))
        yield prompts.build(f"r{number}", law.draw_distinct(rng, 5), question, rng.randint(*load.output_tokens))


def measure(arms: Sequence[Arm], load: Load, progress: Progress) -> list[PassTimes]:
    """Times of all arms under one load, interleaved; which goes first alternates."""
    benches = [Bench(arm, load) for arm in arms]
    task = progress.add_task(f"{load.waiting} waiting", total=load.passes)
    for bench in benches:
        bench.fill()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for number in range(load.passes):
            for bench in benches if number % 2 else benches[::-1]:
                bench.advance()
            progress.advance(task)
    finally:
        gc.enable()
        gc.unfreeze()
    return [bench.times() for bench in benches]


def table(rows: Sequence[PassTimes]) -> Table:
    shown = Table(
        title="thread CPU ms of schedule(); beside: while the device runs the step; "
        "update: update_from_output(); arrival: add_request()"
    )
    for heading in ("waiting", "arm", "running", "mean", "P50", "P99.9", "max", "beside", "update", "arrival"):
        shown.add_column(heading, justify="left" if heading == "arm" else "right", no_wrap=True)
    for row in rows:
        rest = (
            row.mean_ms,
            row.p50_ms,
            row.p999_ms,
            row.max_ms,
            row.beside_mean_ms,
            row.update_mean_ms,
            row.arrival_mean_ms,
        )
        cells = ("–" if value is None else f"{value:.2f}" for value in rest)
        shown.add_row(str(row.waiting), row.arm, f"{row.running:.0f}", *cells)
    return shown


def main(
    arm: Annotated[list[str] | None, typer.Option(help="Name, or name=CLASS:{JSON spec}; repeatable.")] = None,
    waiting: Annotated[list[int] | None, typer.Option(help="Waiting requests; repeatable.")] = None,
    running: Annotated[int, typer.Option(help="Running requests.")] = 250,
    passes: Annotated[int, typer.Option(help="Passes measured; 5,000 and more for a P99.9.")] = 5000,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write all rows here.")] = None,
) -> None:
    """Compare what a scheduler pass costs."""
    quiet_vllm()
    try:
        arms = [parse_arm(text) for text in arm or ["stock", "prism"]]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    rows: list[PassTimes] = []
    with Progress(console=Console(stderr=True)) as progress:
        for count in waiting or [1000, 10_000]:
            rows += measure(arms, Load(running, count, passes), progress)
    Console(width=110).print(table(rows))
    if json_out is not None:
        json_out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
