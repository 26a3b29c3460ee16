"""What is compared, by name: a scheduler class, its settings, and what stands in their place or before the engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from prism.bench.baselines import sglang
from prism.bench.baselines.contextpilot import Proxy, RegionSchedule
from prism.bench.baselines.klpm import KLongestPrefixMatch
from prism.bench.baselines.retention import FrequencyInWindow, GreedyDualSizeFrequency, TimeToLive
from prism.bench.simulator import Front
from prism.bench.workloads import Workload, as_written
from prism.config.schema import PrismSpec
from prism.core.decisions import Decisions, Policies
from prism.core.tree import Retention
from prism.engine.enginecore.harness import STOCK_SCHEDULER, ModelFreeEngine
from prism.engine.enginecore.synthetic import EngineLimits

PRISM_SCHEDULER = "prism.engine.enginecore.scheduler.PrismAsyncScheduler"

Play = Callable[[Decisions], Policies]
Stand = Callable[[ModelFreeEngine], Front]


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of a comparison.

    Attributes:
        spec: written as in a settings document; a class without settings has None.
        endless_cache: a KV cache that never fills: a bound, not a policy.
        keeps_all: nothing that was cached is ever given up, though what runs has no more room than ever: a bound.
        play: policies in place of those that the spec names.
        front: made for an engine, stands before it.
        declares: whether it gets to know which documents may move; an order of SGLang's knows of none.
        block_tokens: another size of KV blocks than the limits'.
        after: the name of an arm whose order is played again with clairvoyant eviction.
    """

    name: str
    scheduler_class: str
    spec: Mapping[str, Any] | None = None
    endless_cache: bool = False
    keeps_all: bool = False
    play: Play | None = None
    front: Stand | None = None
    declares: bool = True
    block_tokens: int | None = None
    after: str | None = None

    def engine(self, limits: EngineLimits) -> ModelFreeEngine:
        """A fresh engine with this arm's scheduler.

        Raises:
            pydantic.ValidationError: the spec is not one.
        """
        if self.block_tokens is not None:
            tokens = limits.kv_blocks * limits.block_tokens
            limits = replace(limits, block_tokens=self.block_tokens, kv_blocks=tokens // self.block_tokens)
        engine = ModelFreeEngine(self.scheduler_class, limits)
        if self.spec is not None:
            engine.use_settings(PrismSpec.model_validate(dict(self.spec)))
        if self.play is not None:
            engine.play(self.play)
        return engine

    def workload(self, workload: Workload) -> Workload:
        """What it gets to see of a workload."""
        return workload if self.declares else as_written(workload)

    def definition(self) -> dict[str, Any]:
        """All that its results depend on, as plain values; code goes by the arm's name."""
        plain = {
            "name": self.name,
            "scheduler_class": self.scheduler_class,
            "spec": dict(self.spec) if self.spec is not None else None,
            "endless_cache": self.endless_cache,
            "declares": self.declares,
            "block_tokens": self.block_tokens,
            "after": self.after,
        }
        # Only where it is so: cells that were run before it could be are still what they were.
        return plain | ({"keeps_all": True} if self.keeps_all else {})


def _settings(order: str, retention: str, **scheduler: Any) -> dict[str, Any]:
    return {"scheduler": {"order": order, **scheduler}, "retention": {"policy": retention}}


def _prism(name: str, order: str, retention: str, **scheduler: Any) -> Arm:
    return Arm(name, PRISM_SCHEDULER, _settings(order, retention, **scheduler))


def _fixed(name: str, play: Play, block_tokens: int | None = None) -> Arm:
    """An order that knows no movable documents, over stock LRU or its own retention."""
    return Arm(name, PRISM_SCHEDULER, _settings("FCFS", "LRU"), play=play, declares=False, block_tokens=block_tokens)


def _retained(name: str, retention: Callable[[], Retention]) -> Arm:
    """PRISM's order with another retention."""
    return Arm(name, PRISM_SCHEDULER, _settings("Prism", "LRU"), play=lambda _: Policies(retention=retention()))


def _sglang(order: Callable[[Decisions], sglang.LongestPrefixMatch | sglang.DepthFirstByWeight]) -> Play:
    return lambda _: Policies(order, retention=sglang.LeastRecentlyUsed())


def _klpm(k: int) -> Play:
    return lambda _: Policies(lambda decisions: KLongestPrefixMatch(decisions.cached_tokens, k))


def _scheduled_proxy(engine: ModelFreeEngine) -> Proxy:
    """ContextPilot before the engine, and its schedule inside, over one index."""
    proxy = Proxy(engine)
    engine.play(lambda _: Policies(lambda _: RegionSchedule(proxy.placed.get)))
    return proxy


QWEN3_4B_ATTENTION = 4 * 36 * 32 * 128 / (2 * 4.02e9)
"""How much longer a token takes for each token before it, in units of its linear layers (see `cost_model`)."""


def _growing_cost(depth: int) -> float:
    return 1.0 + QWEN3_4B_ATTENTION * depth


_LIST = (
    Arm("stock", STOCK_SCHEDULER),
    _prism("prism", "Prism", "DemandAware"),
    _prism("prism-lru", "Prism", "LRU"),
    _prism("paper", "Paper", "DemandAware"),
    *(
        _prism(f"paper-quota-{percent}", "Paper", "DemandAware", coldLane={"quota": percent / 100})
        for percent in (0, 25, 50)
    ),
    _prism("fcfs", "FCFS", "LRU"),
    _prism("fcfs-demand", "FCFS", "DemandAware"),
    _prism("lpm", "LPM", "LRU"),
    _fixed("sglang", _sglang(sglang.LongestPrefixMatch)),
    _fixed("sglang-token", _sglang(sglang.LongestPrefixMatch), block_tokens=1),
    _fixed("sglang-dfs", _sglang(sglang.DepthFirstByWeight)),
    *(_fixed(f"klpm-{k}", _klpm(k)) for k in (2, 4, 10, 20)),
    Arm("contextpilot", STOCK_SCHEDULER, front=Proxy),
    Arm("contextpilot-unhooked", STOCK_SCHEDULER, front=partial(Proxy, hooked=False)),
    Arm("contextpilot-scheduled", PRISM_SCHEDULER, _settings("FCFS", "LRU"), front=_scheduled_proxy),
    _retained("prism-lfu", sglang.LeastFrequentlyUsed),
    _retained("prism-lfu-window", FrequencyInWindow),
    _retained("prism-slru", sglang.SegmentedLru),
    _retained("prism-fifo", sglang.FirstInFirstOut),
    _retained("prism-gdsf", lambda: GreedyDualSizeFrequency(_growing_cost)),
    *(_retained(f"prism-ttl-{lifetime}", partial(TimeToLive, lifetime)) for lifetime in (250, 1000)),
    Arm("prism-belady", PRISM_SCHEDULER, _settings("FCFS", "LRU"), after="prism"),
    Arm("fcfs-belady", PRISM_SCHEDULER, _settings("FCFS", "LRU"), after="stock"),
    Arm("stock-kept", STOCK_SCHEDULER, keeps_all=True),
    Arm("stock-endless", STOCK_SCHEDULER, endless_cache=True),
    Arm("prism-endless", PRISM_SCHEDULER, _settings("Prism", "LRU"), endless_cache=True),
)

ARMS: dict[str, Arm] = {arm.name: arm for arm in _LIST}
"""`stock` is vLLM's own class; `fcfs` must decide as it does. Endless caches and clairvoyant eviction are bounds."""

BASELINES = (
    "stock",
    "sglang",
    "sglang-dfs",
    "klpm-2",
    "klpm-4",
    "klpm-10",
    "contextpilot",
    "contextpilot-unhooked",
    "contextpilot-scheduled",
)
"""What PRISM is measured against; the strongest is the best of them in each cell."""


def parse_arm(text: str) -> Arm:
    """An arm by its name, or `name=CLASS` or `name=CLASS:{JSON spec}`; `CLASS` may be the name of another arm.

    Raises:
        ValueError: no such arm, or not JSON.
    """
    name, given, rest = text.partition("=")
    if not given:
        if name not in ARMS:
            raise ValueError(f"no arm {name!r}: choose from {', '.join(ARMS)}, or write name=CLASS:{{spec}}")
        return ARMS[name]
    cls, _, spec = rest.partition(":")
    base = ARMS.get(cls, Arm(name, cls))
    return replace(base, name=name, spec=json.loads(spec) if spec else base.spec)
