"""Every name of vLLM that is not public and that PRISM builds on, in one place.

A move to the next vLLM is a change of the lock and of this module: `check_engine` compares what the installed vLLM has
with what is written here, at start, and names what is missing in one sentence.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from prism.errors import IncompatibleEngine

VLLM_SERIES = "0.28"

ASYNC_SCHEDULER = "prism.engine.enginecore.scheduler.PrismAsyncScheduler"
SCHEDULER = "prism.engine.enginecore.scheduler.PrismScheduler"

# Module, object in it, names that must exist on it.
_NAMES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "vllm.v1.core.sched.scheduler",
        "Scheduler",
        (
            "schedule",
            "update_from_output",
            "add_request",
            "reset_prefix_cache",
            "has_requests",
            "shutdown",
            "_enqueue_waiting_request",
            "_is_blocked_waiting_status",
            "_free_request",
            "_free_request_blocks",
            "_preempt_request",
        ),
    ),
    ("vllm.v1.core.sched.async_scheduler", "AsyncScheduler", ("schedule",)),
    (
        "vllm.v1.core.sched.request_queue",
        "RequestQueue",
        (
            "add_request",
            "pop_request",
            "peek_request",
            "prepend_request",
            "prepend_requests",
            "remove_request",
            "remove_requests",
        ),
    ),
    (
        "vllm.v1.core.kv_cache_utils",
        "FreeKVCacheBlockQueue",
        (
            "popleft",
            "popleft_n",
            "remove",
            "append",
            "append_n",
            "prepend_n",
            "get_all_free_blocks",
            "iter_blocks_after",
        ),
    ),
    ("vllm.v1.core.kv_cache_utils", "KVCacheBlock", ("block_hash", "block_hash_num_tokens", "is_null")),
    ("vllm.v1.core.block_pool", "BlockPool", ("get_cached_block", "get_num_free_blocks", "get_new_blocks")),
    ("vllm.v1.core.kv_cache_manager", "KVCacheManager", ("get_computed_blocks", "get_blocks")),
    ("vllm.v1.request", "Request", ("update_block_hashes", "num_tokens", "is_finished")),
)

# Arguments that a call of ours, or a call to ours, is made with.
_PARAMETERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("vllm.v1.core.sched.scheduler", "Scheduler._free_request", ("request", "delay_free_blocks")),
    ("vllm.v1.core.sched.scheduler", "Scheduler._preempt_request", ("request", "timestamp", "drop_stale_output")),
    ("vllm.v1.core.sched.scheduler", "Scheduler.schedule", ("throttle_prefills",)),
    ("vllm.v1.core.sched.scheduler", "Scheduler.reset_prefix_cache", ("reset_running_requests", "reset_connector")),
    ("vllm.v1.core.block_pool", "BlockPool.get_cached_block", ("block_hash", "kv_cache_group_ids")),
    (
        "vllm.v1.core.kv_cache_coordinator",
        "KVCacheCoordinator.get_num_blocks_to_allocate",
        (
            "request_id",
            "num_tokens",
            "new_computed_blocks",
            "num_encoder_tokens",
            "total_computed_tokens",
            "num_local_computed_tokens",
            "num_tokens_main_model",
            "apply_admission_cap",
        ),
    ),
)

# Attributes that a constructed request must have.
_REQUEST_STATE = (
    "_all_token_ids",
    "block_hashes",
    "drop_stale_output",
    "lora_request",
    "mm_features",
    "num_computed_tokens",
    "num_preemptions",
    "num_stale_output_tokens",
    "prompt_embeds",
    "prompt_token_ids",
    "resumable",
    "skip_reading_prefix_cache",
    "status",
)

# Attributes that a constructed scheduler must have.
_SCHEDULER_STATE = (
    "waiting",
    "skipped_waiting",
    "running",
    "requests",
    "kv_cache_manager.block_pool.cached_block_hash_to_block",
    "kv_cache_manager.block_pool.free_block_queue",
    "kv_cache_manager.block_pool.num_gpu_blocks",
    "kv_cache_manager.coordinator",
    "kv_cache_manager.empty_kv_cache_blocks",
    "kv_cache_manager.watermark_blocks",
    "kv_cache_config.kv_cache_groups",
    "cache_config.prefix_caching_hash_algo",
    "parallel_config.data_parallel_index",
    "scheduler_config.async_scheduling",
    "scheduler_reserve_full_isl",
    "vllm_config.additional_config",
    "max_model_len",
    "policy",
    "max_num_running_reqs",
    "max_num_scheduled_tokens",
    "num_waiting_for_streaming_input",
    "connector",
    "hash_block_size",
)


# What the serving process builds on: `check_frontend` looks at these, EngineCore never imports them.
_FRONTEND_NAMES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "vllm.v1.engine.async_llm",
        "AsyncLLM",
        ("abort", "add_lora", "add_request", "_add_request", "generate", "errored", "reset_prefix_cache"),
    ),
    ("vllm.v1.engine.output_processor", "OutputProcessor", ("process_outputs",)),
    (
        "vllm.v1.engine",
        "EngineCoreRequest",
        ("request_id", "prompt_token_ids", "sampling_params", "lora_request", "cache_salt"),
    ),
    ("vllm.v1.engine", "EngineCoreOutput", ("request_id", "new_token_ids")),
    ("vllm.sampling_params", "SamplingParams", ("extra_args",)),
    ("vllm.config.scheduler", "SchedulerConfig", ("scheduler_cls", "async_scheduling")),
)

_FRONTEND_PARAMETERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("vllm.v1.engine.async_llm", "AsyncLLM._add_request", ("request", "prompt", "parent_req", "index", "queue")),
    ("vllm.v1.engine.output_processor", "OutputProcessor.__init__", ("tokenizer", "log_stats", "stream_interval")),
    ("vllm.v1.engine.output_processor", "OutputProcessor.process_outputs", ("engine_core_outputs",)),
    ("vllm.entrypoints.openai.api_server", "build_app", ("args", "supported_tasks", "model_config")),
    ("vllm.entrypoints.openai.api_server", "init_app_state", ("engine_client", "state", "args", "supported_tasks")),
    ("vllm.entrypoints.openai.api_server", "validate_api_server_args", ("args",)),
    ("vllm.inputs.engine", "tokens_input", ("prompt_token_ids",)),
    ("vllm.utils.system_utils", "kill_process_tree", ("pid",)),
)


def check_frontend() -> None:
    """What `check_engine` does, for the serving process.

    Raises:
        IncompatibleEngine: another series, or a name is missing.
    """
    _check(_FRONTEND_NAMES, _FRONTEND_PARAMETERS)


def check_engine() -> None:
    """Compare the installed vLLM with what PRISM was made for.

    Raises:
        IncompatibleEngine: another series, or a name is missing.
    """
    _check(_NAMES, _PARAMETERS)


def _check(
    names: tuple[tuple[str, str, tuple[str, ...]], ...], calls: tuple[tuple[str, str, tuple[str, ...]], ...]
) -> None:
    version = importlib.import_module("vllm").__version__
    for module, name, attributes in names:
        for attribute in attributes:
            _resolve(version, module, f"{name}.{attribute}")
    for module, path, parameters in calls:
        found = inspect.signature(_resolve(version, module, path)).parameters
        for parameter in parameters:
            if parameter not in found:
                raise _mismatch(version, f"{module}.{path} takes no argument {parameter}")
    request = _resolve(version, "vllm.v1.request", "Request")(
        "probe", [0], importlib.import_module("vllm").SamplingParams(max_tokens=1), None
    )
    for name in _REQUEST_STATE:
        if not hasattr(request, name):
            raise _mismatch(version, f"its requests have no {name}")


def check_scheduler(scheduler: object) -> None:
    """The same for a scheduler that has just been constructed.

    Raises:
        IncompatibleEngine: it lacks state that PRISM reads.
    """
    for name in _SCHEDULER_STATE:
        try:
            attrgetter(name)(scheduler)
        except AttributeError:
            raise _mismatch(importlib.import_module("vllm").__version__, f"its scheduler has no {name}") from None


def _resolve(version: str, module: str, path: str) -> Callable[..., Any]:
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = _member(found, part)
    except (ImportError, AttributeError) as error:
        raise _mismatch(version, f"{module}.{path} is not there") from error
    result: Callable[..., Any] = found
    return result


def _member(owner: Any, name: str) -> Any:
    # Fields of a slotted or plain dataclass are annotations, not attributes, on the class.
    if name in getattr(owner, "__annotations__", {}) and not hasattr(owner, name):
        return owner.__annotations__[name]
    return getattr(owner, name)


def _mismatch(version: str, what: str) -> IncompatibleEngine:
    return IncompatibleEngine(
        f"This PRISM is made for vLLM {VLLM_SERIES}, the installed one is {version}: {what}. "
        f"Install vLLM {VLLM_SERIES} or a PRISM made for {version}."
    )
