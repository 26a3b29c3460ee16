"""What goes into the engine without a model and what comes out, as plain values.

Apart from `harness`, so that workloads and cost models need no vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prism.core.segments import PromptPlan


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What the scheduler may use.

    Attributes:
        kv_blocks: blocks of the KV cache, the null block included.
        block_tokens: tokens a block holds.
        max_running: requests that run at once (`max_num_seqs`).
        step_tokens: tokens a step computes at most (`max_num_batched_tokens`).
        model_tokens: longest prompt with its answer (`max_model_len`).
        vocabulary: token ids are below it.
        asynchronous: whether a step is scheduled while the one before it runs.
        policy: vLLM's own `fcfs` or `priority`.
        kept_blocks: beyond `kv_blocks`, and no request may fill them: room in which cached prefixes stay. No engine has
            such; it is for bounds.
    """

    kv_blocks: int
    block_tokens: int = 16
    max_running: int = 256
    step_tokens: int = 8192
    model_tokens: int = 32768
    vocabulary: int = 151_936
    asynchronous: bool = True
    policy: Literal["fcfs", "priority"] = "fcfs"
    kept_blocks: int = 0


@dataclass(frozen=True, slots=True)
class SyntheticRequest:
    """A request for the scheduler.

    Attributes:
        name: its id, unique in a run.
        tokens: the prompt, token ids.
        output_tokens: how many tokens it generates; at least 1.
        plan: what rendering would have sent with it.
        cache_salt: as vLLM gets it.
        priority: vLLM's; lower runs first under the `priority` policy.
    """

    name: str
    tokens: list[int]
    output_tokens: int
    plan: PromptPlan | None = None
    cache_salt: str | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step asks of the device, as sums over its requests.

    Attributes:
        tokens: tokens computed.
        attention_pairs: pairs of a computed token and a token it attends to, itself included.
        context_tokens: tokens whose KV is read or written.
        requests: requests in the step.
    """

    tokens: int
    attention_pairs: int
    context_tokens: int
    requests: int


@dataclass(frozen=True, slots=True)
class FirstToken:
    """A request's first token: `cached_tokens` of its `prompt_tokens` came from the cache at its first admission."""

    name: str
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class StepResult:
    """What processing a step showed. `update_seconds` is the thread CPU time of `update_from_output()`."""

    first_tokens: list[FirstToken]
    finished: list[str]
    update_seconds: float
