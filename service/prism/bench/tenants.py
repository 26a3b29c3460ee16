"""`python -m prism.bench.tenants`: what a quiet tenant waits for while another floods the engine.

Two tenants ask the same kind of retrieval questions on one simulated device. One asks steadily; the other, for the
middle third of the run, asks `times` as much, which is more than the device can do. Shown is the time to first token of
what arrived in that third, for each tenant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from prism.bench.arms import Arm, parse_arm
from prism.bench.arrivals import POISSON, arrival_times
from prism.bench.cells import Setting, charge_of, play
from prism.bench.cost_model import read_cost_model
from prism.bench.estimates import percentile
from prism.bench.scenarios import OUTPUT_TOKENS
from prism.bench.simulator import RequestRecord
from prism.bench.summary import hit_percent
from prism.bench.workloads import Arrival, Corpus, RagShape, Workload, mixed, rag
from prism.core.namespace import namespace
from prism.engine.enginecore.harness import quiet_vllm

QUIET, FLOOD = "quiet", "flood"

_FAIR = '{"scheduler": {"order": "Prism", "fairness": {"enabled": true}, "coldLane": {"maxWaitSeconds": %d}}}'

CHOICES = (
    "stock",
    "prism",
    "shares, overdue after 2 s=prism:" + _FAIR % 2,
    "shares, overdue after 10 s=prism:" + _FAIR % 10,
    "shares, overdue after 600 s=prism:" + _FAIR % 600,
)
"""Stock vLLM, PRISM as it is, and equal shares with a short, the default and a patient clock of the cold lane."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What comes.

    Attributes:
        per_second: requests of the quiet tenant.
        times: how much more the flood asks, while it lasts.
        seconds: of the whole run; the flood is its middle third.
    """

    model: str = "qwen3-4b"
    per_second: float = 1.2
    times: float = 10.0
    seconds: float = 120.0

    @property
    def flood(self) -> tuple[float, float]:
        """From when until when."""
        return self.seconds / 3, self.seconds * 2 / 3

    def workload(self, seed: int) -> Workload:
        shape = RagShape(output_tokens=OUTPUT_TOKENS.get(self.model, (60, 140)))
        corpus = Corpus.drawn(seed)
        start, end = self.flood
        quiet = arrival_times(POISSON, self.per_second, self.seconds, seed)
        flood = [start + at for at in arrival_times(POISSON, self.per_second * self.times, end - start, seed + 1)]
        return mixed(
            *(
                _named(tenant, rag(corpus, shape, times, seed, [namespace(tenant)]))
                for tenant, times in ((QUIET, quiet), (FLOOD, flood))
            )
        )


DEFAULT = Traffic()


def _named(tenant: str, workload: Workload) -> Workload:
    arrivals = [
        Arrival(one.at_s, replace(one.request, name=f"{tenant} {one.request.name}")) for one in workload.arrivals
    ]
    return Workload(tuple(arrivals))


def in_the_flood(arm: Arm, traffic: Traffic, seeds: Sequence[int]) -> Iterator[RequestRecord]:
    """What arrived while it lasted."""
    start, end = traffic.flood
    for seed in seeds:
        setting = Setting(traffic.workload(seed), read_cost_model(traffic.model), 1.0, 20 * traffic.seconds)
        for record in play(arm, setting, charge_of(arm)).records:
            if start <= record.arrived_s < end:
                yield record


def table(rows: Sequence[tuple[str, list[RequestRecord]]], traffic: Traffic) -> Table:
    shown = Table(title=f"TTFT in seconds in the flood: {traffic.per_second:g}/s against {traffic.times:g} times that")
    for heading in ("arm", "tenant", "requests", "hit %", "P50", "P90", "P99"):
        shown.add_column(heading, justify="left" if heading in ("arm", "tenant") else "right", no_wrap=True)
    for arm, records in rows:
        for tenant in (QUIET, FLOOD):
            own = [record for record in records if record.name.startswith(tenant)]
            found = [percentile([record.ttft_s for record in own], level) for level in (50, 90, 99)]
            cells = ["–" if value is None else f"{value:.2f}" for value in found]
            shown.add_row(arm, tenant, str(len(own)), f"{hit_percent(own):.1f}", *cells)
    return shown


def main(
    arm: Annotated[list[str] | None, typer.Option(help="Name, or name=ARM:{JSON spec}; repeatable.")] = None,
    model: Annotated[str, typer.Option(help="A preset of the cost model.")] = DEFAULT.model,
    per_second: Annotated[float, typer.Option(help="Requests per second of the quiet tenant.")] = DEFAULT.per_second,
    times: Annotated[float, typer.Option(help="How much more the flood asks.")] = DEFAULT.times,
    seconds: Annotated[float, typer.Option(help="Virtual seconds of arrivals.")] = DEFAULT.seconds,
    seeds: Annotated[int, typer.Option(help="Number of runs that are pooled.")] = 2,
) -> None:
    """Compare what a quiet tenant waits for."""
    quiet_vllm()
    try:
        arms = [parse_arm(text) for text in arm or CHOICES]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    traffic = Traffic(model, per_second, times, seconds)
    rows = [(one.name, list(in_the_flood(one, traffic, range(seeds)))) for one in arms]
    Console(width=110).print(table(rows, traffic))


if __name__ == "__main__":
    typer.run(main)
