"""What a step costs on a simulated device.

A step is two kinds of kernels, one after the other, and a constant:

    linear layers   max(2 x parameters x tokens / sustained FLOP/s, weight bytes / sustained bytes/s)
    attention       4 x layers x heads x head size x pairs / sustained FLOP/s  +  KV bytes / sustained bytes/s
    overhead        seconds a step

`pairs` counts a computed token and a token it attends to (the quadratic term of prefill; 4 for scores and weighted
sum, a multiply and an add each). The KV bytes are those of every token that a request of the step has: a decoding
request reads all of them for its one token. A prompt's chunks ride with the others' decode tokens in one step, so the
weights are read once for all.

What is left of the memory is KV cache:

    KV tokens       (memory x share in use − weight bytes − bytes for activations) / KV bytes of a token

| constant | A800 | source |
|---|---|---|
| FLOP/s of dense bfloat16 | 312e12 | data sheet of the A800 80 GB SXM (that of the A100) |
| bytes/s of memory | 2.039e12 | the same |
| memory | 80e9 bytes | the same |
| share in use | 0.92 | vLLM's `--gpu-memory-utilization` |
| activations | 4.6e9 bytes | vLLM's profiling run with a step of 8,192 tokens, assumed |
| FLOP/s reached | 53 % | dense prefill kernels of 8,192 tokens on this generation, assumed |
| bytes/s reached | 80 % | decode kernels, assumed |
| seconds a step outside the kernels | 3 ms | input preparation, sampling, launch, assumed |

The last three are fitted to a real device by `prism sim fit` (see `prism.bench.fit`). Sizes of models are those of
their config.json. Other models and devices are read from a small YAML file (`read_cost_model`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TypeVar

import msgspec
import yaml

from prism.engine.enginecore.synthetic import EngineLimits, StepWork

_Part = TypeVar("_Part", "Device", "Model")


@dataclass(frozen=True, slots=True)
class Device:
    """A device and how much of it kernels reach.

    Attributes:
        peak_flops: FLOP/s of dense bfloat16.
        peak_bandwidth: bytes/s of its memory.
        flops_reached, bandwidth_reached: share of the peak, 0 to 1.
        step_overhead_s: seconds a step takes beside its kernels.
        memory_bytes: its memory.
        memory_share: share of it that the engine may use.
        activation_bytes: what it needs beside weights and KV cache.
    """

    peak_flops: float
    peak_bandwidth: float
    flops_reached: float
    bandwidth_reached: float
    step_overhead_s: float
    memory_bytes: float
    memory_share: float = 0.92
    activation_bytes: float = 4.6e9


@dataclass(frozen=True, slots=True)
class Model:
    """A decoder with full attention, in bfloat16.

    Attributes:
        parameters: all weights.
        layers, heads, kv_heads, head_size: its attention.
        bytes_per_value: of a weight and of a value in the KV cache.
    """

    parameters: float
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    bytes_per_value: int = 2

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_size * self.bytes_per_value


A800 = Device(312e12, 2.039e12, 0.53, 0.8, 0.003, 80e9)

QWEN3_4B = Model(4.02e9, 36, 32, 8, 128)
"""Qwen3-4B: 4.02 billion parameters, 36 layers, 32 heads and 8 KV heads of 128 (its config.json)."""

LLAMA2_13B = Model(13.0e9, 40, 40, 40, 128)
"""Llama-2-13B: 13.0 billion parameters, 40 layers, 40 heads and as many KV heads of 128 (its config.json)."""

MODELS = {"qwen3-4b": QWEN3_4B, "llama2-13b": LLAMA2_13B}


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of a step of `model` on `device`."""

    model: Model
    device: Device = A800

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds.

        Raises:
            ValueError: the weights leave no room.
        """
        device = self.device
        left = device.memory_bytes * device.memory_share - self.weight_bytes() - device.activation_bytes
        tokens = int(left / self.model.kv_bytes_per_token)
        if tokens <= 0:
            raise ValueError(
                f"weights of {self.weight_bytes() / 1e9:.1f} GB leave no room in {device.memory_bytes / 1e9:.0f} GB"
            )
        return tokens

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
        blocks = int(self.kv_tokens * kv_share) // block_tokens
        return EngineLimits(kv_blocks=blocks + 1, block_tokens=block_tokens)


def read_cost_model(name: str) -> CostModel:
    """A preset by its name, or a YAML file with `model` and, where it is not an A800, `device`.

    model: {parameters: 8.03e9, layers: 32, heads: 32, kv_heads: 8, head_size: 128}
    device: {peak_flops: 989e12, peak_bandwidth: 3.35e12, memory_bytes: 80e9}

    Fields are those of `Model` and `Device`; what is not given of a device is the A800's.

    Raises:
        ValueError: no preset and no such file, or it says something else.
    """
    if name in MODELS:
        return CostModel(MODELS[name])
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"no model {name!r}: choose from {', '.join(MODELS)}, or give a YAML file")
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict) or not set(document) <= {"model", "device"} or "model" not in document:
        raise ValueError(f"{path}: wants `model` and perhaps `device`, and nothing else")
    model = _read(Model, document["model"], {}, f"{path}: model")
    return CostModel(model, _read(Device, document.get("device", {}), asdict(A800), f"{path}: device"))


def _read(kind: type[_Part], given: object, defaults: dict[str, float], where: str) -> _Part:
    known = [one.name for one in fields(kind)]
    if not isinstance(given, dict) or not set(given) <= set(known):
        raise ValueError(f"{where}: fields are {', '.join(known)}")
    try:
        # Not strict: YAML 1.1 reads `8e9` as text.
        part = msgspec.convert({**defaults, **given}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"{where}: {error}") from error
    for name, value in asdict(part).items():
        if not 0 < value < float("inf"):
            raise ValueError(f"{where}.{name} is {value}: it must be above 0 and finite")
    return part
