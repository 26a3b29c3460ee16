"""Schedulers to compare, by name: a class and the settings it is given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prism.config.schema import PrismSpec
from prism.engine.enginecore.harness import STOCK_SCHEDULER, ModelFreeEngine
from prism.engine.enginecore.synthetic import EngineLimits

PRISM_SCHEDULER = "prism.engine.enginecore.scheduler.PrismAsyncScheduler"


@dataclass(frozen=True, slots=True)
class Arm:
    """`spec` is written as in a settings document; a class without settings has None."""

    name: str
    scheduler_class: str
    spec: Mapping[str, Any] | None = None
    endless_cache: bool = False

    def engine(self, limits: EngineLimits) -> ModelFreeEngine:
        """A fresh engine with this arm's scheduler.

        Raises:
            pydantic.ValidationError: the spec is not one.
        """
        engine = ModelFreeEngine(self.scheduler_class, limits)
        if self.spec is not None:
            engine.use_settings(PrismSpec.model_validate(dict(self.spec)))
        return engine


def _prism(name: str, order: str, retention: str, **scheduler: Any) -> Arm:
    spec = {"scheduler": {"order": order, **scheduler}, "retention": {"policy": retention}}
    return Arm(name, PRISM_SCHEDULER, spec)


ARMS: dict[str, Arm] = {
    arm.name: arm
    for arm in (
        Arm("stock", STOCK_SCHEDULER),
        _prism("prism", "Prism", "DemandAware"),
        _prism("prism-lru", "Prism", "LRU"),
        _prism("paper", "Paper", "DemandAware"),
        _prism("fcfs", "FCFS", "LRU"),
        _prism("fcfs-demand", "FCFS", "DemandAware"),
        _prism("lpm", "LPM", "LRU"),
        Arm("stock-endless", STOCK_SCHEDULER, endless_cache=True),
        Arm(
            "prism-endless",
            PRISM_SCHEDULER,
            {"scheduler": {"order": "Prism"}, "retention": {"policy": "LRU"}},
            endless_cache=True,
        ),
    )
}
"""`stock` is vLLM's own class; `fcfs` must decide as it does. An endless cache is a bound, not a policy."""


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
    base = ARMS.get(cls)
    if base is not None:
        cls = base.scheduler_class
    return Arm(name, cls, json.loads(spec) if spec else (base.spec if base else None))
