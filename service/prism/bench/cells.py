"""One cell of a comparison: one arm on one workload of one seed, and what it gave.

A cell is named by a hash of its definition, in which stands all that its outcome depends on: the workload's
parameters, the seed, the load, the arm and its settings, the constants of the cost model. Equal names are equal cells,
so outcomes are kept in files and a grid goes on where it was left. Outcomes repeat exactly (but for the processor time
they took): nothing in a run depends on the machine, on when it runs, or on other cells.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from prism.bench.arms import ARMS, PRISM_SCHEDULER, Arm
from prism.bench.baselines.belady import Future, clairvoyant
from prism.bench.cost_model import CostModel, read_cost_model
from prism.bench.scenarios import OUTPUT_TOKENS, SCENARIOS, Place, Scenario
from prism.bench.simulator import Charge, Simulation, SimulationResult, SteadyCharge
from prism.bench.summary import Summary, summarize
from prism.bench.workloads import Workload, replaced
from prism.engine.enginecore.synthetic import EngineLimits, SyntheticRequest

FORMAT = 1
"""Raised when a change of the simulator changes outcomes of equal definitions."""

PRISM_CHARGE = SteadyCharge(
    per_pass_s=0.0001, per_admitted_s=0.0006, beside_per_pass_s=0.0006, beside_per_admitted_s=0.0020
)
"""What PRISM takes beyond stock vLLM, in a pass and beside its step (what processing a step takes more is counted
there): measured by `prism.bench.pass_time` (see docs/figures.md). It is charged to every arm that runs in PRISM's
scheduler and is PRISM's own; baselines are charged nothing."""

_GIVE_UP_AFTER = 4.0
"""Times the run's length: an overloaded engine is stopped there, with what has not finished counted as infinite."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What to run. All plain values, so that another process can run it; names are those of the registries.

    Attributes:
        model: a preset, or the path of a YAML file.
        load_per_s: arrivals (of requests, for agents of sessions) per second.
        seconds: virtual seconds of arrivals.
        warm_up_s: requests that arrived before are left out.
        kv_share: share of the KV cache, times the scenario's own.
    """

    scenario: str
    model: str
    load_per_s: float
    arm: str
    seed: int
    seconds: float
    warm_up_s: float = 0.0
    kv_share: float = 1.0

    def definition(self) -> dict[str, Any]:
        """All that the outcome depends on."""
        cost = read_cost_model(self.model)
        whole = {
            "format": FORMAT,
            **asdict(self),
            "scenario": SCENARIOS[self.scenario].definition(),
            "kv_tokens": int(cost.kv_tokens * self.share),
            "arm": ARMS[self.arm].definition(),
            "charge": asdict(PRISM_CHARGE) if _is_charged(ARMS[self.arm]) else None,
            "cost": asdict(cost),
        }
        # As it will be read back: JSON knows no tuples.
        plain: dict[str, Any] = json.loads(json.dumps(whole))
        return plain

    @property
    def share(self) -> float:
        return self.kv_share * SCENARIOS[self.scenario].kv_share

    @property
    def key(self) -> str:
        """Its name: 16 hex digits."""
        text = json.dumps(self.definition(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class Outcome(msgspec.Struct, frozen=True):
    """What a cell gave.

    Attributes:
        ttft_ms: time to first token of each request after the warm-up, in order of arrival, in whole milliseconds; -1
            for one that got none.
        rare: places in that list of the requests that contain nothing popular.
    """

    key: str
    definition: dict[str, Any]
    summary: Summary
    ttft_ms: list[int]
    rare: list[int] = msgspec.field(default_factory=list)

    def ttft_s(self) -> list[float]:
        return [float("inf") if ms < 0 else ms / 1e3 for ms in self.ttft_ms]

    def rare_ttft_s(self) -> list[float]:
        ttft = self.ttft_s()
        return [ttft[place] for place in self.rare]


@dataclass(frozen=True, slots=True)
class Setting:
    """A workload in front of a device; every arm is played on the same.

    Attributes:
        engine: limits of the engine where they are known; else those that the cost model leaves room for.
    """

    workload: Workload
    cost: CostModel
    kv_share: float
    stop_after_s: float = float("inf")
    engine: EngineLimits | None = None

    @classmethod
    def of(
        cls, scenario: Scenario, model: str, load_per_s: float, seed: int, seconds: float, kv_share: float
    ) -> Setting:
        cost = read_cost_model(model)
        kv_tokens = int(cost.kv_tokens * kv_share)
        place = Place(kv_tokens, OUTPUT_TOKENS[model]) if model in OUTPUT_TOKENS else Place(kv_tokens)
        workload = scenario.workload(place, load_per_s, seconds, seed)
        return cls(workload, cost, kv_share, _GIVE_UP_AFTER * seconds)

    def limits(self, arm: Arm) -> EngineLimits:
        limits = self.engine or self.cost.limits(self.kv_share)
        if not (arm.endless_cache or arm.keeps_all):
            return limits
        enough = self.workload.tokens() // limits.block_tokens + 2 * len(self.workload) + 1
        return replace(limits, kept_blocks=enough) if arm.keeps_all else replace(limits, kv_blocks=enough)


OnPass = Callable[[int], None]


def play(
    arm: Arm,
    setting: Setting,
    charge: Charge | None = None,
    *,
    remembered: dict[str, SyntheticRequest] | None = None,
    on_pass: OnPass | None = None,
) -> SimulationResult:
    """Runs an arm; one with clairvoyant eviction needs a run before it, of the arm whose order it repeats.

    Args:
        charge: puts what its passes take beyond stock vLLM's on the clock.
        remembered: gets the requests as they were admitted.
    """
    if arm.after is not None:
        return _play_again(arm, setting, on_pass)
    engine = arm.engine(setting.limits(arm))
    front = arm.front(engine) if arm.front is not None else None
    simulation = Simulation(
        engine,
        arm.workload(setting.workload),
        setting.cost,
        charge,
        setting.stop_after_s,
        front=front,
        remembered=remembered,
        on_pass=on_pass,
    )
    return simulation.run()


def _play_again(arm: Arm, setting: Setting, on_pass: OnPass | None) -> SimulationResult:
    assert arm.after is not None
    before: dict[str, SyntheticRequest] = {}
    first = ARMS[arm.after]
    play(first, setting, charge_of(first), remembered=before, on_pass=on_pass)
    engine = arm.engine(setting.limits(arm))
    future = Future({name: engine.hashes_of(request) for name, request in before.items()})
    engine.play(lambda _: clairvoyant(future))
    workload = replaced(setting.workload, before)
    return Simulation(engine, workload, setting.cost, charge_of(first), setting.stop_after_s, on_pass=on_pass).run()


def outcome(cell: Cell, on_pass: OnPass | None = None) -> Outcome:
    """Runs a cell.

    Raises:
        DataMissing: its workload needs data that are not here.
    """
    scenario, arm = SCENARIOS[cell.scenario], ARMS[cell.arm]
    setting = Setting.of(scenario, cell.model, cell.load_per_s, cell.seed, cell.seconds, cell.share)
    result = play(arm, setting, charge_of(arm), on_pass=on_pass)
    records = [record for record in result.records if record.arrived_s >= cell.warm_up_s]
    ttft_ms = [-1 if record.first_token_s is None else round(record.ttft_s * 1e3) for record in records]
    rare = [place for place, record in enumerate(records) if record.name in setting.workload.rare]
    return Outcome(cell.key, cell.definition(), summarize([result], cell.warm_up_s), ttft_ms, rare)


def _is_charged(arm: Arm) -> bool:
    own = arm.scheduler_class == PRISM_SCHEDULER and arm.declares and arm.front is None
    return own and (arm.spec or {}).get("scheduler", {}).get("order") in ("Prism", "Paper")


def charge_of(arm: Arm) -> Charge | None:
    """What its passes are charged."""
    return PRISM_CHARGE if _is_charged(arm) else None


@dataclass(slots=True)
class CellStore:
    """Outcomes in a folder, one JSON file each."""

    folder: Path
    _known: dict[str, Outcome] = field(default_factory=dict)

    def path(self, cell: Cell) -> Path:
        return self.folder / f"{cell.key}.json"

    def get(self, cell: Cell) -> Outcome | None:
        """Its outcome; None where it was not run yet."""
        key = cell.key
        if key not in self._known:
            path = self.folder / f"{key}.json"
            if not path.is_file():
                return None
            self._known[key] = msgspec.json.decode(path.read_bytes(), type=Outcome)
        return self._known[key]

    def put(self, found: Outcome) -> None:
        """Whole or not at all: a run that is broken off leaves no half file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{found.key}.json"
        beside = path.with_suffix(f".{os.getpid()}.part")
        beside.write_bytes(msgspec.json.encode(found) + b"\n")
        beside.replace(path)
        self._known[found.key] = found
