"""vLLM's engine client, with what PRISM adds to each request on its way to EngineCore and sees on the way back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from vllm.lora.request import LoRARequest
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import OutputProcessor, OutputProcessorOutput, RequestOutputCollector
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.metrics.stats import IterationStats

from prism.core.namespace import AdapterLoads, namespace
from prism.core.reuse import OtherTenants
from prism.core.segments import PromptPlan
from prism.engine.frontend.desk import CURRENT, LiveRequest, RequestDesk
from prism.engine.frontend.mistakes import RefusedRequest
from prism.engine.frontend.plan import PLAN_KEY, DraftPlan
from prism.engine.wire import EXTRA_ARGS_KEY, encode_plan
from prism.errors import RequestRefused
from prism.telemetry.timeline import Outcome

_DRAFT: ContextVar[DraftPlan | None] = ContextVar("prism_draft", default=None)

_UNSENDABLE = (OverflowError, TypeError, RecursionError)
"""What encoding a message to EngineCore raises: a number beyond 64 bits, an object of no plain type, too deep a one."""


class PrismOutputProcessor(OutputProcessor):
    """Tells each request's HTTP request when its first token, and how many tokens, came to this process.

    The only place that sees this for answers that are not streamed: those leave vLLM's queues whole.
    """

    def __init__(self, desk: RequestDesk, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._desk = desk

    def process_outputs(
        self,
        engine_core_outputs: list[EngineCoreOutput],
        engine_core_timestamp: float | None = None,
        iteration_stats: IterationStats | None = None,
    ) -> OutputProcessorOutput:
        now = time.monotonic()
        for output in engine_core_outputs:
            self._desk.received(output.request_id, len(output.new_token_ids), now)
        return super().process_outputs(engine_core_outputs, engine_core_timestamp, iteration_stats)


class PrismAsyncLLM(AsyncLLM):
    """vLLM's `AsyncLLM` that hands plans and namespaces to EngineCore.

    Must be made outside of an event loop (in a thread): vLLM then starts its output handler with the first request,
    when everything is in place.

    Args:
        desk: where the engine's internal ids are linked to HTTP requests.
    """

    def __init__(self, *args: Any, desk: RequestDesk, **kwargs: Any) -> None:
        self._desk = desk
        self._loads = AdapterLoads()
        self._tenants = OtherTenants()
        super().__init__(*args, **kwargs)
        if self.output_handler is not None:
            raise RuntimeError("PrismAsyncLLM must be made outside of an event loop")
        stock = self.output_processor
        self.output_processor = PrismOutputProcessor(
            desk,
            stock.tokenizer,
            log_stats=stock.log_stats,
            stream_interval=stock.stream_interval,
            tracing_enabled=stock.tracing_enabled,
        )

    async def add_request(
        self, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any
    ) -> RequestOutputCollector:
        """vLLM's own, with the renderer's draft of a plan taken from the rendered prompt."""
        draft = prompt.get(PLAN_KEY) if isinstance(prompt, dict) else None
        live = CURRENT.get()
        if live is not None:
            _note_rendering(live, draft)
        token = _DRAFT.set(draft)
        try:
            return await super().add_request(request_id, prompt, params, *args, **kwargs)
        finally:
            _DRAFT.reset(token)

    async def _add_request(
        self,
        request: EngineCoreRequest,
        prompt: str | None,
        parent_req: ParentRequest | None,
        index: int,
        queue: RequestOutputCollector,
    ) -> None:
        """Every request passes here, children of `n > 1` and streamed input included, with its internal id."""
        plan = _prepare(request, _DRAFT.get(), self._loads)
        live = CURRENT.get()
        if live is not None:
            self._link(request, live)
            if plan is not None:
                engine_request = live.timeline.engine_request(request.request_id)
                engine_request.sent_by_others = self._tenants.sent_before(plan, request.prompt_token_ids or ())
            _note_request(live, request, self.vllm_config.model_config.served_model_name)
            if self._desk.on_added is not None and self._desk.knows(live):
                self._desk.on_added(live, *_added(request))
        try:
            await super()._add_request(request, prompt, parent_req, index, queue)
        except _UNSENDABLE as error:
            # vLLM's output processor knows the request already, and would keep it for ever.
            await self.abort(request.request_id, internal=True)
            raise RefusedRequest(f"The request holds a value that the engine can't be sent: {error}.") from error

    def _link(self, request: EngineCoreRequest, live: LiveRequest) -> None:
        try:
            self._desk.link(request.request_id, live, len(request.prompt_token_ids or ()))
        except RequestRefused as refusal:
            live.end(refusal, Outcome.REFUSED)
            raise RefusedRequest(refusal.message) from None

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """vLLM's own; what is asked of this adapter from now on shares nothing with an earlier load of its name."""
        self._loads.loaded(lora_request.lora_name)
        return bool(await super().add_lora(lora_request))


def _namespace_of(request: EngineCoreRequest, loads: AdapterLoads) -> str:
    if request.lora_request is None:
        return namespace(request.cache_salt)
    adapter = request.lora_request.lora_name
    return namespace(request.cache_salt, adapter, loads.number(adapter))


def _prepare(request: EngineCoreRequest, draft: DraftPlan | None, loads: AdapterLoads) -> PromptPlan | None:
    """Put its namespace and its plan, if it has one, where EngineCore finds them."""
    name = _namespace_of(request, loads)
    request.cache_salt = name or None
    params = request.sampling_params
    if params is None:
        return None
    # What a client wrote under this key (`vllm_xargs`) is never a plan.
    extra = {key: value for key, value in (params.extra_args or {}).items() if key != EXTRA_ARGS_KEY}
    plan = None
    if draft is not None and request.prompt_token_ids is not None:
        plan = draft.resolve(request.prompt_token_ids, name)
        extra[EXTRA_ARGS_KEY] = encode_plan(plan)
    params.extra_args = extra or None
    return plan


def _added(request: EngineCoreRequest) -> tuple[str, Sequence[int], str, bytes | None]:
    extra = request.sampling_params.extra_args if request.sampling_params is not None else None
    plan = (extra or {}).get(EXTRA_ARGS_KEY)
    return request.request_id, request.prompt_token_ids or (), request.cache_salt or "", plan


def _note_rendering(live: LiveRequest, draft: DraftPlan | None) -> None:
    live.timeline.rendering_ended(time.monotonic())
    if draft is None:
        return
    live.timeline.info.render_generation = draft.render_generation
    live.timeline.info.reorder_refused = draft.reorder_refused
    if draft.deadline_seconds is not None:
        live.set_deadline(draft.deadline_seconds)


def _note_request(live: LiveRequest, request: EngineCoreRequest, served: str | list[str] | None) -> None:
    info = live.timeline.info
    base = served[0] if isinstance(served, list) else served
    info.model = base if request.lora_request is None else request.lora_request.lora_name
    if request.prompt_token_ids is not None and len(live.names) == 1:
        info.input_tokens = len(request.prompt_token_ids)
    params = request.sampling_params
    if params is not None:
        info.choices, info.max_tokens = len(live.names), params.max_tokens
        info.temperature, info.top_p = params.temperature, params.top_p
