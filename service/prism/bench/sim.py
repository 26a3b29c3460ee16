"""`prism sim`: arms x loads x seeds on vLLM's own scheduler with a simulated device, as a table and as JSON.

    prism sim --model qwen3-4b --load 8.5 --load 9.5 --arm stock --arm prism --seeds 3

`prism sim measure` and `prism sim fit` bring the device's constants to those of a real one (see `prism.bench.fit`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from prism.bench.arms import ARMS, Arm, parse_arm
from prism.bench.cells import Setting, charge_of, play
from prism.bench.cost_model import MODELS, read_cost_model
from prism.bench.estimates import Interval, mean, paired_ratio, seconds_text
from prism.bench.fit import fit, measure
from prism.bench.scenarios import SCENARIOS, Scenario
from prism.bench.simulator import Charge, PassCharge, SimulationResult
from prism.bench.summary import Summary, summarize
from prism.engine.enginecore.harness import quiet_vllm
from prism.errors import PrismError

FEWEST_SEEDS = 3
"""An interval over fewer runs would say nothing."""


@dataclass(frozen=True, slots=True)
class Row:
    """One arm at one load, over seeds.

    Attributes:
        p99_ratio: its P99 TTFT over that of the first arm, run by run, with its paired 95 % interval over seeds; None
            for the first arm, for fewer than three seeds, and where a P99 is infinite or lacks the samples for it.
    """

    scenario: str
    model: str
    load_per_s: float
    arm: str
    seeds: tuple[int, ...]
    summary: Summary
    by_seed: tuple[Summary, ...]
    p99_ratio: Interval | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. Each seed's workload is the same for all arms.

    Attributes:
        kv_share: share of the model's KV cache, the scenario's own included.
        charge: what PRISM's passes are charged: `measured` as they are made, `steady` by a measured mean, or `none`.
    """

    scenario: Scenario
    model: str
    arms: tuple[Arm, ...]
    loads_per_s: tuple[float, ...]
    seeds: tuple[int, ...]
    seconds: float
    kv_share: float = 1.0
    warm_up_s: float = 0.0
    charge: str = "steady"

    @property
    def runs(self) -> int:
        return len(self.arms) * len(self.loads_per_s) * len(self.seeds)


def run_plan(plan: Plan, progress: Progress) -> Iterator[Row]:
    """Runs it, load by load and seed by seed with the arms next to each other; yields a load's rows when done."""
    whole = progress.add_task("all runs", total=plan.runs)
    for load in plan.loads_per_s:
        results: dict[str, list[SimulationResult]] = {arm.name: [] for arm in plan.arms}
        stock: PassCharge | None = None
        for seed in plan.seeds:
            setting = Setting.of(plan.scenario, plan.model, load, seed, plan.seconds, plan.kv_share)
            for arm in plan.arms:
                run = progress.add_task(f"{arm.name} {load:g}/s seed {seed}", total=len(setting.workload))
                result = play(arm, setting, _charge(plan, arm, stock), on_pass=_show(progress, run))
                results[arm.name].append(result)
                if arm.name == "stock" and stock is None:
                    stock = PassCharge.fit(result.passes)
                progress.remove_task(run)
                progress.advance(whole)
        yield from _rows(plan, load, results)


def _show(progress: Progress, task: object) -> Callable[[int], None]:
    def on_pass(finished: int) -> None:
        progress.update(task, completed=finished)  # type: ignore[arg-type]

    return on_pass


def _charge(plan: Plan, arm: Arm, stock: PassCharge | None) -> Charge | None:
    if plan.charge == "none" or arm.name == "stock":
        return None
    return stock if plan.charge == "measured" else charge_of(arm)


def _rows(plan: Plan, load: float, results: dict[str, list[SimulationResult]]) -> Iterator[Row]:
    first: tuple[Summary, ...] | None = None
    for name, runs in results.items():
        by_seed = tuple(summarize([run], plan.warm_up_s) for run in runs)
        ratio = None if first is None else p99_ratio(by_seed, first)
        first = first or by_seed
        summary = summarize(runs, plan.warm_up_s)
        yield Row(plan.scenario.name, plan.model, load, name, plan.seeds, summary, by_seed, ratio)


def p99_ratio(ours: Sequence[Summary], theirs: Sequence[Summary]) -> Interval | None:
    """Mean P99 of our runs over that of theirs, seed by seed, with its paired interval."""
    pairs = [(mine.ttft_p99_s, other.ttft_p99_s) for mine, other in zip(ours, theirs, strict=True)]
    finite = [(a, b) for a, b in pairs if a is not None and b is not None and max(a, b) < float("inf")]
    if len(finite) < max(FEWEST_SEEDS, len(pairs)):
        return None
    return paired_ratio([a for a, _ in finite], [b for _, b in finite], mean, block=1)


def table(rows: Sequence[Row]) -> Table:
    against = rows[0].arm if rows else ""
    shown = Table(title="TTFT in seconds of the virtual clock; pass: thread CPU time of schedule()")
    headings = (
        "load/s",
        "arm",
        "requests",
        "hit %",
        "P50",
        "P90",
        "P99",
        f"P99 / {against}",
        "wait P99",
        "pass ms",
        "max",
    )
    for heading in headings:
        shown.add_column(heading, justify="left" if heading == "arm" else "right")
    for row in rows:
        one = row.summary
        ttft = (seconds_text(s) for s in (one.ttft_p50_s, one.ttft_p90_s, one.ttft_p99_s))
        ratio = "" if row.p99_ratio is None else str(row.p99_ratio)
        millis = (f"{ms:.2f}" for ms in (one.pass_mean_ms, one.pass_max_ms))
        count = str(one.requests) + (f" ({one.unfinished} unfinished)" if one.unfinished else "")
        hit = f"{one.hit_percent:.1f}"
        shown.add_row(f"{row.load_per_s:g}", row.arm, count, hit, *ttft, ratio, seconds_text(one.wait_p99_s), *millis)
    return shown


def progress_bars() -> Progress:
    """On standard error, so that tables and JSON can be piped."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)


app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
app.command()(measure)
app.command()(fit)


@app.callback(invoke_without_command=True)
def sim(
    context: typer.Context,
    scenario: Annotated[str, typer.Option(help=f"One of {', '.join(SCENARIOS)}.")] = "rag",
    model: Annotated[str, typer.Option(help=f"{', '.join(MODELS)}, or a YAML file.")] = "qwen3-4b",
    arm: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join(ARMS)}, or name=ARM:{{JSON spec}}; repeatable."),
    ] = None,
    load: Annotated[list[float] | None, typer.Option(help="Arrivals per second; repeatable.")] = None,
    seeds: Annotated[int, typer.Option(help="How many; three and more for intervals.", min=1)] = 1,
    first_seed: Annotated[int, typer.Option(help="Begin with another seed than 1.")] = 1,
    seconds: Annotated[float, typer.Option(help="Virtual seconds of arrivals.", min=1)] = 180.0,
    kv_share: Annotated[float, typer.Option(help="Share of the model's KV cache.", min=0.01)] = 1.0,
    warm_up: Annotated[float, typer.Option(help="Virtual seconds left out of the summary.", min=0)] = 0.0,
    charge: Annotated[
        str,
        typer.Option(help="What PRISM's passes cost beyond stock's: steady (a mean), measured (needs stock), none."),
    ] = "steady",
    json_out: Annotated[Path | None, typer.Option("--json", help="Write all rows here.")] = None,
) -> None:
    """Compare schedulers on a simulated device: vLLM's own scheduler, a virtual clock, no model."""
    if context.invoked_subcommand is not None:
        return
    quiet_vllm()
    chosen, arms = _chosen(scenario, model, arm or ["stock", "prism"], load, charge)
    loads = tuple(load or chosen.loads_per_s[model])
    numbers = tuple(range(first_seed, first_seed + seeds))
    plan = Plan(chosen, model, arms, loads, numbers, seconds, kv_share * chosen.kv_share, warm_up, charge)
    try:
        with progress_bars() as progress:
            rows = list(run_plan(plan, progress))
    except PrismError as error:
        raise typer.BadParameter(str(error)) from error
    Console(width=140).print(table(rows))
    if json_out is not None:
        json_out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def _chosen(
    scenario: str, model: str, arms: Sequence[str], loads: Sequence[float] | None, charge: str
) -> tuple[Scenario, tuple[Arm, ...]]:
    """Raises `typer.BadParameter`, which says what to choose from."""
    if scenario not in SCENARIOS:
        raise typer.BadParameter(f"no scenario {scenario!r}: choose from {', '.join(SCENARIOS)}")
    chosen = SCENARIOS[scenario]
    try:
        read_cost_model(model)
        found = tuple(parse_arm(text) for text in arms)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if not loads and model not in chosen.loads_per_s:
        raise typer.BadParameter(f"{scenario} has no usual loads for {model}: give --load")
    if charge not in ("steady", "measured", "none"):
        raise typer.BadParameter(f"no charge {charge!r}: choose from steady, measured, none")
    if charge == "measured" and not any(one.name == "stock" for one in found):
        raise typer.BadParameter("a measured charge is what passes take beyond stock's: add --arm stock")
    if charge == "measured":
        found = tuple(sorted(found, key=lambda one: one.name != "stock"))
    return chosen, found


if __name__ == "__main__":
    app()
