"""vLLM's `Request` as PRISM reads and, once, rewrites it."""

from __future__ import annotations

import logging

from vllm.v1.request import Request

from prism.core.segments import PromptPlan, permute_runs
from prism.engine.wire import EXTRA_ARGS_KEY, decode_plan

logger = logging.getLogger(__name__)


def namespace_of(request: Request) -> str:
    """Tenant and adapter of a request that brought no plan: equal strings may share KV, different ones never do."""
    parts = [request.cache_salt or ""]
    if request.lora_request is not None:
        parts += [request.lora_request.lora_name, str(request.lora_request.lora_int_id)]
    return "\0".join(parts) if any(parts) else ""


def plan_of(request: Request) -> PromptPlan:
    """The plan that rendering sent along; that of a plain prompt where there is none or it is none of ours."""
    params = request.sampling_params
    data = (params.extra_args or {}).get(EXTRA_ARGS_KEY) if params is not None else None
    if data is None or request.prompt_token_ids is None:
        return PromptPlan(namespace_of(request))
    try:
        return decode_plan(data, len(request.prompt_token_ids))
    except ValueError as error:
        # Under plain vLLM a client can write here whatever it likes.
        logger.warning("Request %s: its segments are ignored: %s", request.request_id, error)
        return PromptPlan(namespace_of(request))


def may_rewrite(request: Request) -> bool:
    """Whether the order of its documents may still be changed: nothing of it was computed, or is asked back."""
    params = request.sampling_params
    return (
        params is not None
        and params.prompt_logprobs is None
        and request.prompt_token_ids is not None
        and request.prompt_embeds is None
        and not request.mm_features
        and not request.resumable
        and request.num_preemptions == 0
        and request.num_computed_tokens == 0
        and request.num_output_tokens == 0
    )


def rewrite(request: Request, plan: PromptPlan, order: list[int], hash_block_tokens: int) -> None:
    """Put the movable runs of a prompt into another order, one that differs; tokens and block hashes follow.

    vLLM keeps the prompt twice and hands the first to the workers; the views it gives out alias the second, so that is
    changed in place.
    """
    assert request.prompt_token_ids is not None
    tokens = permute_runs(request.prompt_token_ids, plan.movable, order)
    first = next(place for place, source in enumerate(order) if place != source)
    unchanged = plan.movable[first][0] // hash_block_tokens
    request.prompt_token_ids = tokens
    request._all_token_ids[:] = tokens
    # Hashes are chained: those before the first token that changed still hold, and hashing is what this costs.
    del request.block_hashes[unchanged:]
    request.update_block_hashes()
