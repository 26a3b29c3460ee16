"""The scheduler's tests run the real vLLM classes in this process, with no model, no weights and no engine process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

# Read when vLLM is imported: a line per constructed configuration would bury a failure's own words.
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from tests.engine.enginecore.rig import Rig, RigFactory


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
