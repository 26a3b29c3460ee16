"""Constants are found again from steps that were made by them."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from prism.bench.cost_model import A800, QWEN3_4B, CostModel, read_cost_model
from prism.bench.fit import MeasuredStep, document, fit_device, read_steps, shapes
from prism.engine.enginecore.synthetic import StepWork

TRUE = replace(A800, flops_reached=0.41, bandwidth_reached=0.66, step_overhead_s=0.0052)


def prefill(tokens: int) -> StepWork:
    return StepWork(tokens, tokens * (tokens + 1) // 2, tokens, 1)


def decode(requests: int, context: int) -> StepWork:
    return StepWork(requests, requests * context, requests * context, requests)


WORK = [prefill(tokens) for tokens in range(256, 8_193, 512)] + [
    decode(requests, context) for requests in (1, 16, 64, 200) for context in (200, 1_000, 4_000)
]


def measured(noise: float, seed: int = 1) -> list[MeasuredStep]:
    rng, model = random.Random(seed), CostModel(QWEN3_4B, TRUE)
    return [MeasuredStep(work, model.step_seconds(work) * (1 + noise * rng.gauss(0, 1))) for work in WORK]


def test_exact_steps_give_their_constants_back() -> None:
    found = fit_device(CostModel(QWEN3_4B), measured(noise=0.0))
    assert found.device.flops_reached == pytest.approx(0.41, rel=1e-3)
    assert found.device.bandwidth_reached == pytest.approx(0.66, rel=1e-3)
    assert found.device.step_overhead_s == pytest.approx(0.0052, rel=1e-3)
    assert found.p90_error < 1e-3


def test_a_few_slow_steps_do_not_pull_the_constants() -> None:
    steps = measured(noise=0.02)
    steps[3] = replace(steps[3], seconds=steps[3].seconds * 10)
    steps[20] = replace(steps[20], seconds=steps[20].seconds * 10)
    found = fit_device(CostModel(QWEN3_4B), steps)
    assert found.device.flops_reached == pytest.approx(0.41, rel=0.05)
    assert found.device.step_overhead_s == pytest.approx(0.0052, rel=0.05)


def test_few_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        fit_device(CostModel(QWEN3_4B), measured(0.0)[:5])


def test_steps_of_one_kind_are_refused() -> None:
    with pytest.raises(ValueError, match="alike"):
        fit_device(CostModel(QWEN3_4B), [MeasuredStep(decode(4, 100), 0.01)] * 30)


def test_a_fitted_device_is_read_back(tmp_path: Path) -> None:
    cost = CostModel(QWEN3_4B)
    found = fit_device(cost, measured(0.0))
    path = tmp_path / "fitted.yaml"
    path.write_text(document(cost, found))
    assert read_cost_model(str(path)) == CostModel(QWEN3_4B, found.device)


def test_steps_are_read_a_line_each(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text(json.dumps({**asdict(decode(2, 50)), "seconds": 0.02}) + "\n")
    assert read_steps(path) == [MeasuredStep(decode(2, 50), 0.02)]


def test_a_line_that_is_no_step_is_named(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text(json.dumps({**asdict(decode(2, 50)), "seconds": 0.02}) + "\n{}\n")
    with pytest.raises(ValueError, match="line 2"):
        read_steps(path)


def test_shapes_go_from_one_short_prompt_to_many_and_long_ones() -> None:
    sizes = {(len(batch), len(batch[0])) for batch in shapes(0, 8_192, 32_768)}
    assert {(1, 64), (64, 64), (1, 16_384), (16, 4_096)} <= sizes
    assert all(length < 4_096 for _, length in {(len(b), len(b[0])) for b in shapes(0, 8_192, 4_096)})
