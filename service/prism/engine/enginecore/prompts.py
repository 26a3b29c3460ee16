"""vLLM's `Request` as PRISM reads and, once, rewrites it."""

from __future__ import annotations

import logging
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from vllm.v1.core.kv_cache_utils import BlockHash, generate_block_hash_extra_keys, hash_block_tokens
from vllm.v1.request import Request

from prism.core.namespace import namespace
from prism.core.segments import PromptPlan, permute_plan, permute_runs
from prism.engine.wire import EXTRA_ARGS_KEY, decode_plan

logger = logging.getLogger(__name__)


def namespace_of(request: Request, salts_are_namespaces: bool = False) -> str:
    """Tenant and adapter of a request that brought no plan: equal strings may share KV, different ones never do.

    Args:
        salts_are_namespaces: PRISM's serving process has put the namespace in the place of the client's salt.
    """
    adapter = request.lora_request
    if salts_are_namespaces:
        return request.cache_salt or ""
    if adapter is None:
        return namespace(request.cache_salt)
    return namespace(request.cache_salt, adapter.lora_name, adapter.lora_int_id)


def plan_of(request: Request, salts_are_namespaces: bool = False) -> PromptPlan:
    """The plan that rendering sent along; that of a plain prompt where there is none or it is none of ours."""
    params = request.sampling_params
    data = (params.extra_args or {}).get(EXTRA_ARGS_KEY) if params is not None else None
    if data is None or request.prompt_token_ids is None:
        return PromptPlan(namespace_of(request, salts_are_namespaces))
    try:
        return decode_plan(data, len(request.prompt_token_ids))
    except ValueError as error:
        # Under plain vLLM a client can write here whatever it likes.
        logger.warning("Request %s: its segments are ignored: %s", request.request_id, error)
        return PromptPlan(namespace_of(request, salts_are_namespaces))


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


_Key = tuple[BlockHash | None, bytes, tuple[Any, ...] | None]
"""All that a block's hash is made of: its parent's, its tokens (packed: a tuple takes six times the room), vLLM's extra
keys."""


class _Rewritten(NamedTuple):
    """A prompt with its runs in another order: plan and tokens, and the hashes of its full blocks from `first` on."""

    plan: PromptPlan
    order: list[int]
    permuted: PromptPlan
    tokens: list[int]
    first: int
    hashes: list[BlockHash]

    def answers(self, plan: PromptPlan, order: list[int]) -> bool:
        return self.plan is plan and self.order == order


class PromptRewriter:
    """Puts the movable runs of prompts into another order; tokens and block hashes follow.

    Hashing is what this costs, and paths repeat: a hash is remembered by all that it is made of, its parent, its tokens
    and vLLM's extra keys, so that following a known path needs none. What is remembered is bounded: two tables, the
    older thrown away when the younger is full. What will likely be asked for can be worked out before (`prepare`).

    Args:
        hash_function: vLLM's, as its settings name it.
        block_tokens: tokens of one hashed block.
    """

    _TABLE = 1 << 15
    _PREPARED = 64

    def __init__(self, hash_function: Callable[[Any], bytes], block_tokens: int) -> None:
        self._hash_function = hash_function
        self._block_tokens = block_tokens
        self._young: dict[_Key, BlockHash] = {}
        self._old: dict[_Key, BlockHash] = {}
        self._prepared: OrderedDict[str, _Rewritten] = OrderedDict()

    def prepare(self, request: Request, plan: PromptPlan, order: list[int]) -> None:
        """Have a rewriting ready that will likely be asked for; the request stays as it is."""
        ready = self._prepared.get(request.request_id)
        if ready is not None and ready.answers(plan, order):
            return
        self._prepared[request.request_id] = self._rewritten(request, plan, order)
        if len(self._prepared) > self._PREPARED:
            self._prepared.popitem(last=False)

    def rewrite(self, request: Request, plan: PromptPlan, order: list[int]) -> PromptPlan:
        """vLLM keeps the prompt twice and hands the first to the workers; the views it gives out alias the second, so
        that is changed in place.

        Args:
            order: see `permute_runs`; differs from the order as it is.

        Returns:
            The plan of the prompt as it is now.
        """
        ready = self._prepared.pop(request.request_id, None)
        if ready is None or not ready.answers(plan, order):
            ready = self._rewritten(request, plan, order)
        request.prompt_token_ids = ready.tokens
        request._all_token_ids[:] = ready.tokens
        request.block_hashes[ready.first :] = ready.hashes
        return ready.permuted

    def order_prepared(self, request_id: str, plan: PromptPlan) -> list[int] | None:
        """The order that is ready for this request, if one is."""
        ready = self._prepared.get(request_id)
        return ready.order if ready is not None and ready.plan is plan else None

    def forget(self, request_id: str) -> None:
        """This request is gone."""
        self._prepared.pop(request_id, None)

    def _rewritten(self, request: Request, plan: PromptPlan, order: list[int]) -> _Rewritten:
        assert request.prompt_token_ids is not None
        tokens = permute_runs(request.prompt_token_ids, plan.movable, order)
        moved = next(place for place, source in enumerate(order) if place != source)
        # Hashes are chained: those before the first token that changed still hold.
        first = plan.movable[moved][0] // self._block_tokens
        hashes = self._hashes(request, tokens, first) if request.block_hashes else []
        return _Rewritten(plan, order, permute_plan(plan, order), tokens, first, hashes)

    def _hashes(self, request: Request, tokens: list[int], first: int) -> list[BlockHash]:
        size, known = self._block_tokens, self._young
        has_extra = bool(request.cache_salt) or request.lora_request is not None
        hashes: list[BlockHash] = []
        parent = request.block_hashes[first - 1] if first else None
        packed = array("i", tokens)
        extra = None
        for start in range(first * size, len(packed) - size + 1, size):
            if has_extra:
                extra, _ = generate_block_hash_extra_keys(request, start, start + size, 0)
            block = packed[start : start + size]
            key = (parent, block.tobytes(), extra)
            parent = known.get(key) or self._hash(key, block)
            hashes.append(parent)
        self._turn_over()
        return hashes

    def _hash(self, key: _Key, tokens: Sequence[int]) -> BlockHash:
        """The hash of a block that is not among the young ones; it is now."""
        found = self._old.get(key)
        if found is None:
            parent, _, extra = key
            found = hash_block_tokens(self._hash_function, parent, tuple(tokens), extra)
        self._young[key] = found
        return found

    def _turn_over(self) -> None:
        if len(self._young) >= self._TABLE:
            self._old, self._young = self._young, {}
