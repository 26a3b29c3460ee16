"""`python -m prism.bench.sim_quick`: arms x loads x seeds in the simulator, as a table and as JSON.

python -m prism.bench.sim_quick --model qwen3-4b --load 8.5 --load 9.5 --arm stock --arm prism --seeds 3
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from prism.bench.arms import Arm, parse_arm
from prism.bench.cost_model import MODELS, CostModel
from prism.bench.scenarios import SCENARIOS, Scenario
from prism.bench.simulator import PassCharge, Simulation, SimulationResult
from prism.bench.summary import Summary, summarize
from prism.bench.workloads import Workload


@dataclass(frozen=True, slots=True)
class Cell:
    """One arm at one load, over seeds."""

    scenario: str
    model: str
    load_per_s: float
    arm: str
    seeds: tuple[int, ...]
    summary: Summary
    by_seed: tuple[Summary, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. Each seed's workload is the same for all arms.

    Attributes:
        kv_share: share of the model's KV cache.
        charge: put a scheduler's time beyond stock vLLM's on the virtual clock.
        stop_after_s: virtual seconds after which a run is given up.
    """

    scenario: Scenario
    model: str
    arms: tuple[Arm, ...]
    loads_per_s: tuple[float, ...]
    seeds: tuple[int, ...]
    seconds: float
    kv_share: float = 1.0
    warm_up_s: float = 0.0
    charge: bool = False
    stop_after_s: float = float("inf")

    @property
    def runs(self) -> int:
        return len(self.arms) * len(self.loads_per_s) * len(self.seeds)


def run_plan(plan: Plan, progress: Progress) -> Iterator[Cell]:
    """Runs it, load by load and seed by seed with the arms next to each other; yields a load's cells when done."""
    task = progress.add_task("simulating", total=plan.runs)
    for load in plan.loads_per_s:
        results: dict[str, list[SimulationResult]] = {arm.name: [] for arm in plan.arms}
        charge: PassCharge | None = None
        for seed in plan.seeds:
            workload = plan.scenario.workload(plan.model, load, plan.seconds, seed)
            for arm in plan.arms:
                progress.update(task, description=f"{arm.name} {load:g}/s seed {seed}")
                result = run_once(plan, arm, workload, None if arm.name == "stock" else charge)
                results[arm.name].append(result)
                if plan.charge and arm.name == "stock" and charge is None:
                    charge = PassCharge.fit(result.passes)
                progress.advance(task)
        yield from (_cell(plan, load, name, runs) for name, runs in results.items())


def run_once(plan: Plan, arm: Arm, workload: Workload, charge: PassCharge | None) -> SimulationResult:
    cost = CostModel(MODELS[plan.model])
    limits = cost.limits(plan.kv_share)
    if arm.endless_cache:
        limits = replace(limits, kv_blocks=workload.tokens() // limits.block_tokens + 2 * len(workload) + 1)
    return Simulation(arm.engine(limits), workload, cost, charge, plan.stop_after_s).run()


def _cell(plan: Plan, load: float, name: str, runs: Sequence[SimulationResult]) -> Cell:
    by_seed = tuple(summarize([run], plan.warm_up_s) for run in runs)
    summary = summarize(runs, plan.warm_up_s)
    return Cell(plan.scenario.name, plan.model, load, name, plan.seeds, summary, by_seed)


def table(cells: Sequence[Cell]) -> Table:
    shown = Table(title="TTFT in seconds of the virtual clock; pass: thread CPU time of schedule()")
    for heading in ("load/s", "arm", "requests", "hit %", "P50", "P90", "P99", "wait P99", "pass ms", "max", "upd ms"):
        shown.add_column(heading, justify="left" if heading == "arm" else "right")
    for cell in cells:
        one = cell.summary
        seconds = (_seconds(s) for s in (one.ttft_p50_s, one.ttft_p90_s, one.ttft_p99_s, one.wait_p99_s))
        millis = (f"{ms:.2f}" for ms in (one.pass_mean_ms, one.pass_max_ms, one.update_mean_ms))
        count = str(one.requests) + (f" ({one.unfinished} unfinished)" if one.unfinished else "")
        shown.add_row(f"{cell.load_per_s:g}", cell.arm, count, f"{one.hit_percent:.1f}", *seconds, *millis)
    return shown


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}" if value < 1 else f"{value:.2f}"


def main(
    scenario: Annotated[str, typer.Option(help=f"One of {', '.join(SCENARIOS)}.")] = "rag",
    model: Annotated[str, typer.Option(help=f"One of {', '.join(MODELS)}.")] = "qwen3-4b",
    arm: Annotated[list[str] | None, typer.Option(help="Name, or name=CLASS:{JSON spec}; repeatable.")] = None,
    load: Annotated[list[float] | None, typer.Option(help="Arrivals per second; repeatable.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds 1 to this.", min=1)] = 1,
    first_seed: Annotated[int, typer.Option(help="Begin with another seed than 1.")] = 1,
    seconds: Annotated[float, typer.Option(help="Virtual seconds of arrivals.", min=1)] = 180.0,
    kv_share: Annotated[float, typer.Option(help="Share of the model's KV cache.", min=0.01)] = 1.0,
    warm_up: Annotated[float, typer.Option(help="Virtual seconds left out of the summary.")] = 0.0,
    charge: Annotated[bool, typer.Option(help="Put pass time beyond stock's on the clock (needs arm stock).")] = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write all cells here.")] = None,
) -> None:
    """Compare schedulers on a simulated A800."""
    logging.getLogger("vllm").setLevel(logging.ERROR)
    try:
        arms = tuple(parse_arm(text) for text in arm or ["stock", "prism"])
        chosen = SCENARIOS[scenario]
    except (ValueError, KeyError) as error:
        raise typer.BadParameter(str(error)) from error
    if model not in MODELS:
        raise typer.BadParameter(f"no model {model!r}: choose from {', '.join(MODELS)}")
    if not load and model not in chosen.loads_per_s:
        raise typer.BadParameter(f"{scenario} has no usual loads for {model}: give --load")
    if charge:
        arms = tuple(sorted(arms, key=lambda one: one.name != "stock"))
    plan = Plan(
        chosen,
        model,
        arms,
        tuple(load or chosen.loads_per_s[model]),
        tuple(range(first_seed, first_seed + seeds)),
        seconds,
        kv_share * chosen.kv_share,
        warm_up,
        charge,
    )
    console = Console(stderr=True)
    with Progress(console=console) as progress:
        cells = list(run_plan(plan, progress))
    Console(width=120).print(table(cells))
    if json_out is not None:
        json_out.write_text(json.dumps([asdict(cell) for cell in cells], indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
