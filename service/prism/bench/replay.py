"""`prism replay`: what other policies would have done with traffic that `prism serve --record` wrote down.

Requests that were refused before they reached the engine are not in a recording. A conversation's next request comes
when it came, however fast an arm has answered the one before.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from prism.bench.arms import ARMS, Arm, parse_arm
from prism.bench.cells import OnPass, Setting, charge_of, play
from prism.bench.cost_model import MODELS, read_cost_model
from prism.bench.estimates import BLOCK, LEVELS, Interval, paired_ratio, percentiles, seconds_text, statistics_for
from prism.bench.recorded_traffic import Traffic, read_traffic
from prism.bench.sim import progress_bars
from prism.bench.simulator import RequestRecord
from prism.bench.summary import hit_percent
from prism.engine.enginecore.harness import quiet_vllm
from prism.engine.enginecore.synthetic import EngineLimits
from prism.errors import DeploymentError, PrismError

AS_RECORDED = "as recorded"

OnArm = Callable[[str], OnPass | None]
"""Told the name of each arm that begins; what it returns is told of the arm's passes."""

_GIVE_UP_AFTER = 4.0
_GIVE_UP_LEAST_S = 600.0
"""An overloaded arm is stopped this long after four times the traffic's length."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One arm on the recorded traffic, or what was measured of it (`as recorded`).

    Attributes:
        requests, unfinished: of the traffic after the warm-up; one without a first token counts as infinite.
        ttft_s: percentiles by name, as far as there are samples for them.
        hit_rate: prompt tokens from the cache of all prompt tokens, 0 to 1.
        ratios: TTFT over the first simulated arm's, request by request, by what is compared; empty for the others.
    """

    arm: str
    requests: int
    unfinished: int
    ttft_s: dict[str, float]
    mean_ttft_s: float
    hit_rate: float
    ratios: dict[str, Interval]


@dataclass(frozen=True, slots=True)
class Replay:
    """What to play: traffic, arms, and the engine it is played on.

    Attributes:
        model: whose costs a step has: a preset or a YAML file (see `prism.bench.cost_model`).
        kv_tokens: of the KV cache; None for as many as the recorded engine had.
        speed: arrivals come this many times as fast.
        warm_up_s: requests that arrived before, in the replay's time, are left out.
    """

    traffic: Traffic
    arms: tuple[Arm, ...]
    model: str = "qwen3-4b"
    kv_tokens: int | None = None
    speed: float = 1.0
    warm_up_s: float = 0.0

    def limits(self) -> EngineLimits:
        """The recorded engine's.

        Raises:
            DeploymentError: the longest prompt and its answer do not fit into its cache.
        """
        header = self.traffic.header
        recorded = header.kv_blocks * header.block_tokens
        tokens = self.kv_tokens or recorded or read_cost_model(self.model).kv_tokens
        longest = max(one.prompt_tokens + max(1, one.output_tokens) for one in self.traffic.requests)
        blocks = tokens // header.block_tokens
        if blocks * header.block_tokens <= longest:
            raise DeploymentError(f"a KV cache of {tokens} tokens does not hold the longest request, {longest} tokens")
        return EngineLimits(
            kv_blocks=blocks + 1,
            block_tokens=header.block_tokens,
            max_running=header.max_running,
            step_tokens=header.step_tokens,
            model_tokens=max(header.model_tokens, longest + 1),
        )

    def run(self, on_arm: OnArm = lambda _: None) -> list[Replayed]:
        """The recorded figures, then each arm's in turn."""
        setting = Setting(
            self.traffic.workload(self.speed), read_cost_model(self.model), 1.0, self._give_up_s, self.limits()
        )
        played: list[Replayed] = []
        first: list[RequestRecord] = []
        for arm in self.arms:
            result = play(arm, setting, charge_of(arm), on_pass=on_arm(arm.name))
            records = [one for one in result.records if one.arrived_s >= self.warm_up_s]
            first = first or records
            played.append(_replayed(arm.name, records, {} if first is records else _ratios(records, first)))
        return [self.as_recorded(), *played]

    def as_recorded(self) -> Replayed:
        """What the server itself measured."""
        after = self.warm_up_s * self.speed
        asked = [one for one in self.traffic.requests if one.at_s >= after]
        served = [one for one in asked if one.cached_tokens is not None]
        prompt = sum(one.prompt_tokens for one in served)
        hit = sum(one.cached_tokens or 0 for one in served) / prompt if prompt else 0.0
        ttft = [math.inf if one.ttft_s is None else one.ttft_s for one in asked]
        return Replayed(AS_RECORDED, len(asked), ttft.count(math.inf), percentiles(ttft), _mean(ttft), hit, {})

    @property
    def _give_up_s(self) -> float:
        return _GIVE_UP_AFTER * self.traffic.seconds / self.speed + _GIVE_UP_LEAST_S


def _replayed(arm: str, records: Sequence[RequestRecord], ratios: dict[str, Interval]) -> Replayed:
    ttft = [one.ttft_s for one in records]
    return Replayed(
        arm,
        len(records),
        sum(one.first_token_s is None for one in records),
        percentiles(ttft),
        _mean(ttft),
        hit_percent(records) / 100,
        ratios,
    )


def _mean(ttft: Sequence[float]) -> float:
    finite = [one for one in ttft if math.isfinite(one)]
    return sum(finite) / len(finite) if finite else math.inf


def _ratios(ours: Sequence[RequestRecord], theirs: Sequence[RequestRecord]) -> dict[str, Interval]:
    pairs = [(a.ttft_s, b.ttft_s) for a, b in zip(ours, theirs, strict=True)]
    finite = [(a, b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    if len(finite) < 2 * BLOCK:
        return {}
    mine, first = [a for a, _ in finite], [b for _, b in finite]
    return {name: paired_ratio(mine, first, statistic) for name, statistic in statistics_for(len(finite)).items()}


def table(played: Sequence[Replayed], replay: Replay) -> RenderableType:
    """For a terminal."""
    shown = Table(title="time to first token, seconds", box=box.SIMPLE_HEAD)
    for column in ("", "requests", *LEVELS, "mean", "cached"):
        shown.add_column(column, justify="right" if column else "left", no_wrap=True)
    for one in played:
        count = f"{one.requests}" + (f" ({one.unfinished} without a first token)" if one.unfinished else "")
        levels = (seconds_text(one.ttft_s.get(level)) for level in LEVELS)
        shown.add_row(one.arm, count, *levels, seconds_text(one.mean_ttft_s), f"{one.hit_rate:.1%}")
    simulated = [one for one in played if one.arm != AS_RECORDED]
    said = [
        f"{one.arm} over {simulated[0].arm}: " + ", ".join(f"{name} × {ratio}" for name, ratio in one.ratios.items())
        for one in simulated
        if one.ratios
    ]
    said.append(_conditions(replay))
    return Group(shown, *map(Text, said))


def _conditions(replay: Replay) -> str:
    traffic, limits = replay.traffic, replay.limits()
    speed = "" if replay.speed == 1 else f", played {replay.speed:g} times as fast"
    return (
        f"{traffic.header.model}: {len(traffic.requests)} requests in {traffic.seconds:.0f} s{speed}; simulated with "
        f"the costs of {replay.model} and a KV cache of {(limits.kv_blocks - 1) * limits.block_tokens:,} tokens. "
        "Compare simulated arms with each other; the recorded figures are those of the machine that served. "
        "Ratios: 95 % intervals, paired bootstrap."
    )


def replay_command(
    file: Annotated[list[Path], typer.Argument(help="Of `prism serve --record`; FILE.1 too, for all of it.")],
    policy: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(ARMS)}, or name=ARM:{{JSON spec}}; repeatable.")
    ] = None,
    model: Annotated[str, typer.Option(help=f"Costs of a step: {', '.join(MODELS)}, or a YAML file.")] = "qwen3-4b",
    kv_tokens: Annotated[int | None, typer.Option(min=1, help="KV cache; the recorded engine's if not given.")] = None,
    speed: Annotated[float, typer.Option(min=0.001, help="Let arrivals come this many times as fast.")] = 1.0,
    warm_up: Annotated[float, typer.Option(min=0, help="Seconds left out of the figures.")] = 0.0,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write all figures here.")] = None,
) -> None:
    """Say what other policies would have done with recorded traffic: vLLM's own scheduler, a virtual clock."""
    quiet_vllm()
    console = Console(stderr=True)
    try:
        arms = tuple(map(parse_arm, policy or ["stock", "prism"]))
        replay = Replay(read_traffic(file), arms, model, kv_tokens, speed, warm_up)
        with progress_bars() as progress:
            played = replay.run(partial(_show, progress, len(replay.traffic.requests)))
    except (PrismError, ValueError) as error:
        console.print(f"prism replay: {error}", style="bold red", highlight=False)
        raise typer.Exit(1) from None
    Console().print(table(played, replay), highlight=False)
    if json_out is not None:
        json_out.write_text(json.dumps([_plain(one) for one in played], indent=1) + "\n")


def _show(progress: Progress, requests: int, arm: str) -> OnPass:
    task = progress.add_task(arm, total=requests)
    return lambda finished: progress.update(task, completed=finished)


def _plain(one: Replayed) -> dict[str, object]:
    """As JSON has it, without infinities."""
    told = asdict(one)
    told["ttft_s"] = {name: value if math.isfinite(value) else None for name, value in one.ttft_s.items()}
    told["mean_ttft_s"] = one.mean_ttft_s if math.isfinite(one.mean_ttft_s) else None
    return told
