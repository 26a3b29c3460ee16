"""What a step costs on a simulated device.

A step is two kinds of kernels, one after the other, and a constant:

    linear layers   max(2 x parameters x tokens / sustained FLOP/s, weight bytes / sustained bytes/s)
    attention       4 x layers x heads x head size x pairs / sustained FLOP/s  +  KV bytes / sustained bytes/s
    overhead        seconds a step

`pairs` counts a computed token and a token it attends to (the quadratic term of prefill; 4 for scores and weighted
sum, a multiply and an add each). The KV bytes are those of every token that a request of the step has: a decoding
request reads all of them for its one token. A prompt's chunks ride with the others' decode tokens in one step, so the
weights are read once for all.

`A800`: NVIDIA A800 80 GB SXM: 312 TFLOP/s of dense bfloat16 and 2,039 GB/s (data sheet). 53 % of the FLOPs is what
dense prefill kernels of 8,192 tokens reach on this generation, 80 % of the bandwidth what decode kernels reach; 3 ms
is what an engine spends a step outside the kernels (input preparation, sampling, launch). These three are assumptions
to be fitted on a real device.
"""

from __future__ import annotations

from dataclasses import dataclass

from prism.engine.enginecore.synthetic import EngineLimits, StepWork


@dataclass(frozen=True, slots=True)
class Device:
    """A device and how much of it kernels reach.

    Attributes:
        peak_flops: FLOP/s of dense bfloat16.
        peak_bandwidth: bytes/s of its memory.
        flops_reached, bandwidth_reached: share of the peak, 0 to 1.
        step_overhead_s: seconds a step takes beside its kernels.
    """

    peak_flops: float
    peak_bandwidth: float
    flops_reached: float
    bandwidth_reached: float
    step_overhead_s: float


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder with full attention, in bfloat16.

    Attributes:
        parameters: all weights.
        layers, heads, kv_heads, head_size: its attention.
        kv_tokens: tokens that the KV cache holds beside the weights.
    """

    parameters: float
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    kv_tokens: int
    bytes_per_value: int = 2

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_size * self.bytes_per_value


A800 = Device(312e12, 2.04e12, 0.53, 0.8, 0.003)

QWEN3_4B = Model(4.02e9, 36, 32, 8, 128, 413_000)
"""Qwen3-4B: 4.02 billion parameters, 36 layers, 32 heads and 8 KV heads of 128 (its config.json)."""

LLAMA2_13B = Model(13.0e9, 40, 40, 40, 128, 52_000)
"""Llama-2-13B: 13.0 billion parameters, 40 layers, 40 heads and as many KV heads of 128 (its config.json)."""

MODELS = {"qwen3-4b": QWEN3_4B, "llama2-13b": LLAMA2_13B}


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of a step of `model` on `device`."""

    model: Model
    device: Device = A800

    def linear_flops(self, work: StepWork) -> float:
        return 2.0 * self.model.parameters * work.tokens

    def attention_flops(self, work: StepWork) -> float:
        return 4.0 * self.model.layers * self.model.heads * self.model.head_size * work.attention_pairs

    def weight_bytes(self) -> float:
        return self.model.parameters * self.model.bytes_per_value

    def kv_bytes(self, work: StepWork) -> float:
        return float(self.model.kv_bytes_per_token) * work.context_tokens

    def step_seconds(self, work: StepWork) -> float:
        """Seconds from start to end of the step; 0 for an empty one."""
        if work.tokens == 0:
            return 0.0
        flops_per_s = self.device.peak_flops * self.device.flops_reached
        bytes_per_s = self.device.peak_bandwidth * self.device.bandwidth_reached
        linear = max(self.linear_flops(work) / flops_per_s, self.weight_bytes() / bytes_per_s)
        attention = self.attention_flops(work) / flops_per_s + self.kv_bytes(work) / bytes_per_s
        return linear + attention + self.device.step_overhead_s

    def prefill_seconds(self, tokens: int, cached: int = 0) -> float:
        """Compute seconds of `tokens` prompt tokens after `cached` ones, alone on the device, without overhead."""
        pairs = tokens * cached + tokens * (tokens + 1) // 2
        work = StepWork(tokens, pairs, tokens + cached, 1)
        flops = self.linear_flops(work) + self.attention_flops(work)
        return flops / (self.device.peak_flops * self.device.flops_reached)

    def limits(self, kv_share: float = 1.0, block_tokens: int = 16) -> EngineLimits:
        """The scheduler's limits with this share of the KV cache; the null block comes on top."""
        blocks = int(self.model.kv_tokens * kv_share) // block_tokens
        return EngineLimits(kv_blocks=blocks + 1, block_tokens=block_tokens)
