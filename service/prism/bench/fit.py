"""A device's constants from steps that were measured on it.

    prism sim measure Qwen/Qwen3-4B --out steps.jsonl        on the device: a real engine, steps of many shapes
    prism sim fit steps.jsonl --model qwen3-4b --out h100.yaml
    prism sim --model h100.yaml …

`measure` plays prompts of several lengths in batches of several sizes through vLLM, in a scheduler that writes down
each step's tokens, attention pairs, KV tokens and seconds. `fit` finds the three constants of the cost model that no
data sheet has (FLOP/s reached, bytes/s reached, seconds a step) by least squares of the relative error over all steps,
with a loss that outliers do not pull (Cauchy's), and says how well they fit.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
import yaml
from numpy.typing import NDArray
from rich.console import Console
from scipy.optimize import least_squares

from prism.bench.cost_model import CostModel, Device, read_cost_model
from prism.engine.enginecore.synthetic import StepWork

_BOUNDS = ((0.01, 0.01, 1e-6), (1.0, 1.0, 1.0))
_FEWEST_STEPS = 20


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """What a step was, and the seconds it took."""

    work: StepWork
    seconds: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants, and the relative errors that they leave: their median and 90th percentile, 0.05 being 5 %."""

    device: Device
    steps: int
    median_error: float
    p90_error: float


def read_steps(path: Path) -> list[MeasuredStep]:
    """Steps as `StepRecorder` writes them: a JSON object a line.

    Raises:
        ValueError: a line is something else.
    """
    steps = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            fields = json.loads(line)
            seconds = float(fields.pop("seconds"))
            steps.append(MeasuredStep(StepWork(**fields), seconds))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path}, line {number} is no measured step: {error}") from error
    return steps


def fit_device(cost: CostModel, steps: Sequence[MeasuredStep]) -> Fit:
    """The constants of `cost`'s device that explain these steps best.

    Raises:
        ValueError: too few steps, or all of one kind, so that nothing tells the constants apart.
    """
    if len(steps) < _FEWEST_STEPS:
        raise ValueError(f"{len(steps)} steps are too few: {_FEWEST_STEPS} or more are needed")
    if len({step.work.tokens for step in steps}) < 3:
        raise ValueError("all steps are alike: prefills and decodes of several sizes are needed")
    seconds = np.asarray([step.seconds for step in steps])

    def error(constants: NDArray[np.float64]) -> NDArray[np.float64]:
        model = CostModel(cost.model, _with(cost.device, constants))
        relative: NDArray[np.float64] = np.asarray([model.step_seconds(step.work) for step in steps]) / seconds - 1.0
        return relative

    start = (cost.device.flops_reached, cost.device.bandwidth_reached, cost.device.step_overhead_s)
    found = least_squares(error, start, bounds=_BOUNDS, loss="cauchy", f_scale=0.05, x_scale=(0.1, 0.1, 1e-3))
    left = np.abs(error(found.x))
    return Fit(_with(cost.device, found.x), len(steps), float(np.median(left)), float(np.quantile(left, 0.9)))


def _with(device: Device, constants: Sequence[float] | NDArray[np.float64]) -> Device:
    flops, bandwidth, overhead = (float(value) for value in constants)
    return replace(device, flops_reached=flops, bandwidth_reached=bandwidth, step_overhead_s=overhead)


def document(cost: CostModel, found: Fit) -> str:
    """The YAML that `--model` reads."""
    return yaml.safe_dump({"model": asdict(cost.model), "device": asdict(found.device)}, sort_keys=False)


def shapes(seed: int, step_tokens: int, model_tokens: int) -> list[list[list[int]]]:
    """Batches of prompts: alone and together, short and long, so that steps of all kinds come about."""
    rng = random.Random(f"shapes {seed}")
    lengths = [length for length in (64, 256, 1024, 4096, 16384) if length < model_tokens - 64]
    batches = [[length] * count for length in lengths for count in (1, 4, 16, 64) if length * count <= 8 * step_tokens]
    return [[[rng.randrange(100, 30_000) for _ in range(length)] for length in batch] for batch in batches]


def fit(
    steps: Annotated[Path, typer.Argument(help="What `prism sim measure` wrote.", exists=True, dir_okay=False)],
    model: Annotated[str, typer.Option(help="The measured model: a preset or a YAML file, with its device.")],
    out: Annotated[Path | None, typer.Option(help="Write model and device here, for --model.")] = None,
) -> None:
    """Fit the device's constants to measured steps."""
    try:
        cost = read_cost_model(model)
        found = fit_device(cost, read_steps(steps))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    device = found.device
    console = Console()
    console.print(
        f"{found.steps} steps: {device.flops_reached:.1%} of peak FLOP/s, {device.bandwidth_reached:.1%} of peak "
        f"bandwidth, {device.step_overhead_s * 1e3:.2f} ms a step"
    )
    console.print(f"error: median {found.median_error:.1%}, 90th percentile {found.p90_error:.1%}")
    if out is not None:
        out.write_text(document(cost, found), encoding="utf-8")


def measure(
    model: Annotated[str, typer.Argument(help="As vLLM takes it: a folder or a name.")],
    out: Annotated[Path, typer.Option(help="Write steps here, a JSON object a line.")],
    answer_tokens: Annotated[int, typer.Option(help="Tokens generated for each prompt.", min=2)] = 32,
    seed: Annotated[int, typer.Option(help="Of the prompts' tokens.")] = 0,
) -> None:
    """Measure steps of a real engine on this machine's device."""
    from prism.engine.enginecore.measured import play_shapes  # noqa: PLC0415 - the whole engine, for this command only

    out.unlink(missing_ok=True)
    play_shapes(model, out, lambda step_tokens, model_tokens: shapes(seed, step_tokens, model_tokens), answer_tokens)
    Console().print(f"{len(read_steps(out))} steps in {out}")
