"""Steps are written down as they were, a line each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from prism.engine.enginecore.harness import ModelFreeEngine
from prism.engine.enginecore.recorder import STEPS_KEY, StepRecorder
from prism.engine.enginecore.synthetic import EngineLimits, SyntheticRequest
from prism.errors import UnsupportedArgument

LIMITS = EngineLimits(kv_blocks=64, max_running=4, step_tokens=64, model_tokens=512, asynchronous=False)


def test_each_step_leaves_its_work_and_its_seconds(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    engine = ModelFreeEngine(StepRecorder, LIMITS, {STEPS_KEY: str(path)})
    engine.add(SyntheticRequest("a", list(range(100)), 3), 0.0)
    while engine.unfinished:
        engine.schedule()
        engine.complete()
    engine.scheduler.shutdown()
    steps = [json.loads(line) for line in path.read_text().splitlines()]
    # The prompt in two chunks of 64 and 36; then each answer token but the last is read once.
    assert [step["tokens"] for step in steps] == [64, 36, 1, 1]
    assert [step["context_tokens"] for step in steps] == [64, 100, 101, 102]
    assert steps[1]["attention_pairs"] == 36 * 64 + 36 * 37 // 2
    assert all(0 < step["seconds"] < 1 for step in steps)


def test_it_says_where_the_file_is_named() -> None:
    with pytest.raises(UnsupportedArgument, match=STEPS_KEY):
        ModelFreeEngine(StepRecorder, LIMITS)


def test_overlapping_steps_are_refused(tmp_path: Path) -> None:
    overlapping = replace(LIMITS, asynchronous=True)
    with pytest.raises(UnsupportedArgument, match="async_scheduling"):
        ModelFreeEngine(StepRecorder, overlapping, {STEPS_KEY: str(tmp_path / "steps.jsonl")})
