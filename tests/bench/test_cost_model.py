"""The cost model against values computed by hand."""

from __future__ import annotations

import pytest

from prism.bench.cost_model import LLAMA2_13B, QWEN3_4B, CostModel
from prism.engine.enginecore.synthetic import StepWork


def test_kv_bytes_per_token_are_two_values_a_layer_and_kv_head() -> None:
    assert QWEN3_4B.kv_bytes_per_token == 147_456
    assert LLAMA2_13B.kv_bytes_per_token == 819_200


def test_an_empty_step_takes_no_time() -> None:
    assert CostModel(QWEN3_4B).step_seconds(StepWork(0, 0, 0, 0)) == 0.0


def test_one_decode_token_costs_weights_and_its_context() -> None:
    # 8.04 GB of weights and 2,000 x 147,456 bytes of KV at 1.6312e12 bytes/s; 2,000 pairs x 589,824 FLOPs; 3 ms.
    seconds = CostModel(QWEN3_4B).step_seconds(StepWork(1, 2_000, 2_000, 1))
    assert seconds == pytest.approx(8.04e9 / 1.6312e12 + 294_912_000 / 1.6312e12 + 1.179648e9 / 1.6536e14 + 0.003)


def test_a_full_prefill_step_costs_its_flops() -> None:
    # 8,192 tokens of one prompt: 2 x 4.02e9 x 8,192 FLOPs and 8,192 x 8,193 / 2 pairs.
    pairs = 8_192 * 8_193 // 2
    seconds = CostModel(QWEN3_4B).step_seconds(StepWork(8_192, pairs, 8_192, 1))
    compute = (2 * 4.02e9 * 8_192 + 589_824 * pairs) / 1.6536e14
    assert seconds == pytest.approx(compute + 8_192 * 147_456 / 1.6312e12 + 0.003)


def test_attention_of_a_prefill_grows_with_the_square_of_its_length() -> None:
    cost = CostModel(LLAMA2_13B)
    linear = 2 * 13.0e9 / 1.6536e14
    short, long = cost.prefill_seconds(1_000) - 1_000 * linear, cost.prefill_seconds(4_000) - 4_000 * linear
    assert long / short == pytest.approx(16, rel=0.01)


def test_cached_tokens_cost_only_the_attention_to_them() -> None:
    cost = CostModel(QWEN3_4B)
    extra = cost.prefill_seconds(100, cached=1_000) - cost.prefill_seconds(100)
    assert extra == pytest.approx(100 * 1_000 * 589_824 / 1.6536e14)


def test_a_share_of_the_kv_cache_is_a_share_of_its_blocks() -> None:
    assert CostModel(LLAMA2_13B).limits(0.25).kv_blocks == int(52_490 * 0.25) // 16 + 1
