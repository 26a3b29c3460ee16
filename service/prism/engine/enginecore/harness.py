"""vLLM's scheduler without a model: for the simulator and for the scheduler's own tests.

Every scheduling decision is made by the real class, over the real KV cache manager. What is missing is the model: the
caller says when a step is done, and a step's tokens are made up. The steps overlap as in vLLM's engine loop: with
asynchronous scheduling step N + 1 is scheduled while step N runs.

Nothing here reads a clock but `time.thread_time`, to say what a pass cost.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.core.kv_cache_utils import BlockHash, get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from prism.core.decisions import Decisions, Policies
from prism.core.segments import fixed_plan
from prism.engine.enginecore.synthetic import EngineLimits, FirstToken, StepResult, StepWork, SyntheticRequest
from prism.engine.wire import EXTRA_ARGS_KEY, encode_plan

STOCK_SCHEDULER = "vllm.v1.core.sched.async_scheduler.AsyncScheduler"
"""What vLLM uses with asynchronous scheduling, its default on a GPU."""

_MODEL_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "torch_dtype": "float32",
}


def quiet_vllm() -> None:
    """From now on vLLM logs errors only: each engine that is built would log a dozen lines."""
    logging.getLogger("vllm").setLevel(logging.ERROR)


@dataclass(slots=True)
class Step:
    """A scheduled step that is not processed yet.

    Attributes:
        work: see `StepWork`.
        admitted: requests scheduled for the first time, in order.
        resumed: requests scheduled again after a preemption.
        pass_seconds: thread CPU time that `schedule()` took.
        beside_seconds: thread CPU time of what the scheduler does while the device runs the step.
        running, waiting: requests running and waiting after the pass.
        free_blocks: KV blocks that no running request holds, after the pass.
    """

    work: StepWork
    admitted: list[str]
    resumed: list[str]
    pass_seconds: float
    beside_seconds: float
    running: int
    waiting: int
    free_blocks: int
    output: SchedulerOutput = field(repr=False)
    sampled: list[str] = field(repr=False)


class ModelFreeEngine:
    """vLLM's engine loop over one scheduler, with the device and the clock left to the caller.

    `schedule()` makes the next pass, `complete()` processes the oldest scheduled step. The caller alternates as
    vLLM does: schedule while `can_schedule`, else complete.

    Args:
        scheduler_class: dotted path or class, as for vLLM's `scheduler_cls`.
        limits: see `EngineLimits`.
        additional_config: vLLM's argument of that name.
    """

    def __init__(
        self,
        scheduler_class: str | type[Scheduler] = STOCK_SCHEDULER,
        limits: EngineLimits | None = None,
        additional_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.limits = limits or EngineLimits(kv_blocks=1024)
        self.scheduler = build_scheduler(scheduler_class, self.limits, additional_config)
        self._depth = 2 if self.limits.asynchronous else 1
        self._hash_blocks = block_hasher(self.limits.block_tokens)
        self._steps: deque[Step] = deque()
        self._answers: dict[str, int] = {}

    @property
    def in_flight(self) -> int:
        """Steps scheduled and not yet completed."""
        return len(self._steps)

    @property
    def can_schedule(self) -> bool:
        return len(self._steps) < self._depth and self.scheduler.has_requests()

    @property
    def unfinished(self) -> int:
        return int(self.scheduler.get_num_unfinished_requests())

    def use_clock(self, clock: Callable[[], float]) -> None:
        """Makes a scheduler that has a `prism_clock` read the time from `clock`; others never read one."""
        if hasattr(self.scheduler, "prism_clock"):
            self.scheduler.prism_clock = clock

    def use_settings(self, spec: object) -> None:
        """Hands settings to a scheduler that takes them.

        Raises:
            ValueError: the scheduler takes none.
        """
        adopt = getattr(self.scheduler, "adopt_settings", None)
        if adopt is None:
            raise ValueError(f"{type(self.scheduler).__name__} takes no settings")
        adopt(spec)

    def play(self, policies: Callable[[Decisions], Policies]) -> None:
        """Lets other policies than those of the settings decide, over PRISM's tree.

        Raises:
            ValueError: the scheduler is not PRISM's.
        """
        play = getattr(self.scheduler, "play", None)
        if play is None:
            raise ValueError(f"{type(self.scheduler).__name__} has its own policies: none can be put in their place")
        play(policies)

    def block_hashes(self, name: str) -> Sequence[bytes]:
        """Hashes of the full blocks of an unfinished request, in its final order once it is admitted; else none."""
        request = self.scheduler.requests.get(name)
        return request.block_hashes if request is not None else ()

    def is_cached(self, block_hash: bytes) -> bool:
        """Whether the KV cache holds this block now. No side effects."""
        pool = self.scheduler.kv_cache_manager.block_pool
        return pool.get_cached_block(BlockHash(block_hash), [0]) is not None

    def final(self, name: str, request: SyntheticRequest) -> SyntheticRequest:
        """The same request with its documents as they were put when it was admitted, and fixed there.

        Raises:
            KeyError: it is finished, or never came.
        """
        tokens = list(self.scheduler.requests[name].prompt_token_ids or ())
        decisions = getattr(self.scheduler, "decisions", None)
        prompt = decisions.prompt(name) if decisions is not None else None
        plan = prompt.plan if prompt is not None else request.plan
        return replace(request, tokens=tokens, plan=fixed_plan(plan) if plan is not None else None)

    def hashes_of(self, request: SyntheticRequest) -> Sequence[bytes]:
        """Hashes of the full blocks that this prompt would have here, where it stays as it is."""
        hashes: Sequence[bytes] = build_request(request, 0.0, self._hash_blocks).block_hashes
        return hashes

    def add(self, request: SyntheticRequest, arrival_s: float) -> None:
        """Queues a request that arrived at `arrival_s`, in seconds of the caller's clock."""
        self._answers[request.name] = 0
        self.scheduler.add_request(build_request(request, arrival_s, self._hash_blocks))

    def abort(self, name: str) -> None:
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        self._answers.pop(name, None)

    def schedule(self) -> Step:
        """The next pass. Its step may be empty (`work.tokens == 0`), and must be completed all the same."""
        began = time.thread_time()
        output = self.scheduler.schedule()
        took = time.thread_time() - began
        sampled = self._sampled(output)
        began = time.thread_time()
        self.scheduler.get_grammar_bitmask(output)
        beside = time.thread_time() - began
        step = Step(
            work=step_work(output),
            admitted=[new.req_id for new in output.scheduled_new_reqs],
            resumed=list(output.scheduled_cached_reqs.resumed_req_ids),
            pass_seconds=took,
            beside_seconds=beside,
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting) + len(self.scheduler.skipped_waiting),
            free_blocks=self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
            output=output,
            sampled=sampled,
        )
        self._steps.append(step)
        return step

    def complete(self) -> StepResult:
        """Processes the oldest step as if the device had run it."""
        step = self._steps.popleft()
        tokens = self._model_output(step)
        began = time.thread_time()
        outputs = self.scheduler.update_from_output(step.output, tokens)
        took = time.thread_time() - began
        result = StepResult([], [], took)
        for batch in outputs.values():
            for one in batch.outputs:
                stats = one.prefill_stats
                if stats is not None:
                    result.first_tokens.append(
                        FirstToken(one.request_id, stats.num_prompt_tokens, stats.num_cached_tokens)
                    )
                if one.finish_reason is not None:
                    result.finished.append(one.request_id)
                    self._answers.pop(one.request_id, None)
        return result

    def _sampled(self, output: SchedulerOutput) -> list[str]:
        requests = self.scheduler.requests
        return [name for name in output.num_scheduled_tokens if not requests[name].is_prefill_chunk]

    def _model_output(self, step: Step) -> ModelRunnerOutput:
        names = list(step.output.num_scheduled_tokens)
        sampled = set(step.sampled)
        answers = self._answers
        tokens: list[list[int]] = []
        for name in names:
            if name not in sampled or name not in answers:
                tokens.append([])
                continue
            answers[name] += 1
            tokens.append([answers[name] % self.limits.vocabulary])
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=tokens,
        )


def build_scheduler(
    scheduler_class: str | type[Scheduler],
    limits: EngineLimits,
    additional_config: Mapping[str, Any] | None = None,
) -> Scheduler:
    """A scheduler of the given class, as EngineCore would construct it, for a model of one tiny layer."""
    config = build_config(limits, additional_config)
    cls = resolve_obj_by_qualname(scheduler_class) if isinstance(scheduler_class, str) else scheduler_class
    scheduler: Scheduler = cls(
        vllm_config=config,
        kv_cache_config=_kv_cache_config(limits),
        structured_output_manager=StructuredOutputManager(config),
        block_size=limits.block_tokens,
        log_stats=False,
    )
    # Both queues of free blocks count by what is taken and given back: from here on they count so many less.
    scheduler.kv_cache_manager.block_pool.free_block_queue.num_free_blocks -= limits.kept_blocks
    return scheduler


def build_config(limits: EngineLimits, additional_config: Mapping[str, Any] | None = None) -> VllmConfig:
    """The `VllmConfig` that belongs to `limits`; no weights, no tokenizer."""
    with tempfile.TemporaryDirectory(prefix="prism-sim-") as folder:
        model = dict(_MODEL_CONFIG, vocab_size=limits.vocabulary, max_position_embeddings=limits.model_tokens)
        Path(folder, "config.json").write_text(json.dumps(model))
        model_config = ModelConfig(
            model=folder,
            tokenizer=folder,
            skip_tokenizer_init=True,
            dtype="float32",
            seed=0,
            max_model_len=limits.model_tokens,
        )
        config = VllmConfig(
            model_config=model_config,
            scheduler_config=_scheduler_config(limits),
            cache_config=CacheConfig(block_size=limits.block_tokens, enable_prefix_caching=True),
            device_config=DeviceConfig(device="cpu"),
            additional_config=dict(additional_config or {}),
        )
    # vLLM turns asynchronous scheduling off on a processor; the device that is simulated has it.
    config.scheduler_config.async_scheduling = limits.asynchronous
    config.cache_config.num_gpu_blocks = limits.kv_blocks + limits.kept_blocks
    return config


def build_request(
    request: SyntheticRequest,
    arrival_s: float,
    hash_blocks: Callable[[Request], list[BlockHash]],
) -> Request:
    """vLLM's request object, with its block hashes."""
    extra = {EXTRA_ARGS_KEY: encode_plan(request.plan)} if request.plan is not None else None
    return Request(
        request_id=request.name,
        prompt_token_ids=request.tokens,
        sampling_params=SamplingParams(
            temperature=0.0, max_tokens=request.output_tokens, ignore_eos=True, extra_args=extra
        ),
        pooling_params=None,
        arrival_time=arrival_s,
        cache_salt=request.cache_salt,
        priority=request.priority,
        block_hasher=hash_blocks,
    )


def block_hasher(block_tokens: int) -> Callable[[Request], list[BlockHash]]:
    """vLLM's block hasher with its default hash function."""
    init_none_hash(sha256)
    hasher: Callable[[Request], list[BlockHash]] = get_request_block_hasher(block_tokens, sha256)
    return hasher


def step_work(output: SchedulerOutput) -> StepWork:
    """The sums of `StepWork` for one `SchedulerOutput`."""
    scheduled = output.num_scheduled_tokens
    pairs = context = 0
    for new in output.scheduled_new_reqs:
        count, before = scheduled[new.req_id], new.num_computed_tokens
        pairs += count * before + count * (count + 1) // 2
        context += before + count
    cached = output.scheduled_cached_reqs
    for name, before in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
        count = scheduled[name]
        pairs += count * before + count * (count + 1) // 2
        context += before + count
    return StepWork(output.total_num_scheduled_tokens, pairs, context, len(scheduled))


def _scheduler_config(limits: EngineLimits) -> SchedulerConfig:
    return SchedulerConfig(
        max_num_seqs=limits.max_running,
        max_num_batched_tokens=limits.step_tokens,
        max_model_len=limits.model_tokens,
        is_encoder_decoder=False,
        enable_chunked_prefill=True,
        async_scheduling=limits.asynchronous,
        policy=limits.policy,
    )


def _kv_cache_config(limits: EngineLimits) -> KVCacheConfig:
    attention = FullAttentionSpec(block_size=limits.block_tokens, num_kv_heads=1, head_size=64, dtype=torch.float32)
    return KVCacheConfig(
        num_blocks=limits.kv_blocks + limits.kept_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)],
    )
