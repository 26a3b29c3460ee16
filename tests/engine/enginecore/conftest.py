"""The scheduler's tests run the real vLLM classes in this process, with no model, no weights and no engine process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# Read when vLLM is imported: a line per constructed configuration would bury a failure's own words.
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from tests.engine.enginecore.channel import Channel, Told
from tests.engine.enginecore.rig import SMALL, Rig, RigFactory
from vllm.v1.core.sched.scheduler import Scheduler

from prism.config.schema import PrismSpec
from prism.engine.enginecore.synthetic import EngineLimits
from prism.engine.internals import ASYNC_SCHEDULER
from prism.engine.wire import CONFIG_KEY


@pytest.fixture
def rig() -> Iterator[RigFactory]:
    """Makes rigs and shuts their schedulers down."""
    made: list[Rig] = []

    def make(*args: Any, **kwargs: Any) -> Rig:
        made.append(Rig(*args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.scheduler.shutdown()


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[Channel]:
    one = Channel(f"ipc://{tmp_path}/facts")
    yield one
    one.close()


@pytest.fixture
def told(rig: RigFactory, channel: Channel) -> Told:
    """Makes rigs that send their facts to the channel."""

    def make(
        limits: EngineLimits = SMALL,
        spec: PrismSpec | None = None,
        scheduler: str | type[Scheduler] = ASYNC_SCHEDULER,
        **options: Any,
    ) -> Rig:
        return rig(scheduler, limits, spec, {CONFIG_KEY: {"facts_address": channel.address, **options}})

    return make
