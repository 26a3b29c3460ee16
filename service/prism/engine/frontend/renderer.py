"""vLLM's renderer with segments.

Chat, responses, messages, completions, batches and tokenize all render through `OnlineRenderer.preprocess_chat` and
`preprocess_completion`; this subclass lets vLLM do it and then looks at the result, so token ids are vLLM's. What it
finds goes into the returned engine input, which vLLM hands to the engine client as it is.

A request is never failed because its segments could not be made; only for what its caller got wrong.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.engine.protocol import ErrorResponse
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.tokenize.protocol import TokenizeChatRequest, TokenizeCompletionRequest
from vllm.inputs import EngineInput
from vllm.renderers import ChatParams, merge_kwargs
from vllm.renderers.online_renderer import OnlineRenderer

from prism.config.schema import Reorder
from prism.errors import InvalidRequest, RequestRefused

from .mistakes import STUMBLES, RefusedRequest, unreadable
from .plan import PLAN_KEY, DraftPlan
from .prism_field import FIELD, PrismField, check_hints, read_prism_field, refuse_prism_field
from .segmenter import Rendered, Segmenter
from .tokens import FastTokenizer, TokenLens

_T = TypeVar("_T")

logger = logging.getLogger(__name__)

RenderSettings = Callable[[], tuple[Reorder, int]]
"""The setting `reorder` in force, and the generation it is of."""


OnRendered = Callable[[list[int], int], None]


class PrismRenderer(OnlineRenderer):
    """vLLM's renderer, which leaves a `DraftPlan` under `PLAN_KEY` in each engine input.

    Args:
        settings: asked once per request, so that everything rendering decides is of one generation.
        on_rendered: told each prompt's tokens, and how many engine requests there will be of each; may refuse them.
        args, kwargs: those of vLLM's renderer.
    """

    def __init__(
        self, *args: Any, settings: RenderSettings, on_rendered: OnRendered = lambda *_: None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._settings = settings
        self._on_rendered = on_rendered
        self._segmenter: Segmenter | None = None
        self._segmenter_made = False
        self._failures: set[str] = set()

    @classmethod
    def from_stock(
        cls, stock: OnlineRenderer, settings: RenderSettings, on_rendered: OnRendered = lambda *_: None
    ) -> PrismRenderer:
        """The same renderer with segments: shares everything with one that vLLM has already built."""
        own = cls.__new__(cls)
        own.__dict__.update(stock.__dict__)
        own._settings = settings
        own._on_rendered = on_rendered
        own._segmenter = None
        own._segmenter_made = False
        own._failures = set()
        return own

    def warmup(self) -> None:
        """Besides vLLM's own warm-up: copy the tokenizer and learn how it cuts words."""
        super().warmup()
        self.prepare()

    def prepare(self) -> None:
        """What the first request would otherwise wait for; a second or so for a large vocabulary."""
        segmenter = self.segmenter
        if segmenter is not None:
            segmenter.prepare()

    @property
    def segmenter(self) -> Segmenter | None:
        """None where the tokenizer is not one that can be looked into."""
        if not self._segmenter_made:
            self._segmenter_made = True
            lens = _lens(self.renderer.tokenizer)
            self._segmenter = Segmenter(lens) if lens is not None else None
        return self._segmenter

    async def render_chat(
        self, request: ChatCompletionRequest, *, skip_mm_cache: bool = False
    ) -> tuple[list[Any], list[EngineInput]] | ErrorResponse:
        """As vLLM's. Prompts that vLLM renders without a template (gpt-oss) get an empty plan."""
        result = await super().render_chat(request, skip_mm_cache=skip_mm_cache)
        if isinstance(result, tuple) and any(PLAN_KEY not in engine_input for engine_input in result[1]):
            self._attach_plain(result[1], self._field(request), request.messages)
            self._rendered(request, result[1])
        return result

    async def preprocess_chat(
        self,
        request: Any,
        messages: list[Any],
        default_template: str | None,
        default_template_content_format: Any,
        default_template_kwargs: dict[str, Any] | None,
        tool_dicts: list[dict[str, Any]] | None = None,
        parser: Any = None,
        *,
        skip_mm_cache: bool = False,
    ) -> tuple[list[Any], list[EngineInput]]:
        """As vLLM's, with a plan in the engine input.

        Raises:
            RefusedRequest: a bad `prism` object, `documents` that the template would drop, or messages that vLLM's code
                stumbles over.
        """
        field = self._field(request)
        params = None
        if isinstance(request, (ChatCompletionRequest, ResponsesRequest)):
            messages = [_settled(message) for message in messages]
            params = self._chat_params(
                request, default_template, default_template_content_format, default_template_kwargs, tool_dicts
            )
        try:
            conversation, engine_inputs = await super().preprocess_chat(
                request,
                messages,
                default_template,
                default_template_content_format,
                default_template_kwargs,
                tool_dicts,
                parser,
                skip_mm_cache=skip_mm_cache,
            )
        except STUMBLES as error:
            raise unreadable(error) from None
        if params is not None:
            for engine_input in engine_inputs:
                plan = self._chat_plan(request, field, messages, params, tool_dicts or [], engine_input)
                cast("dict[str, Any]", engine_input)[PLAN_KEY] = plan
        self._rendered(request, engine_inputs)
        return conversation, engine_inputs

    async def preprocess_completion(
        self,
        request: Any,
        prompt_input: Any,
        prompt_embeds: Any,
        *,
        skip_mm_cache: bool = False,
    ) -> list[EngineInput]:
        """As vLLM's. Plain prompts have no segments.

        Raises:
            RefusedRequest: a bad `prism` object.
        """
        field = self._field(request)
        if field is not None:
            _refusing(lambda: check_hints(field.segments, ()))
        engine_inputs = await super().preprocess_completion(
            request, prompt_input, prompt_embeds, skip_mm_cache=skip_mm_cache
        )
        if not isinstance(request, TokenizeCompletionRequest):
            self._attach_plain(engine_inputs, field, ())
            self._rendered(request, engine_inputs)
        return engine_inputs

    def _rendered(self, request: object, engine_inputs: Sequence[EngineInput]) -> None:
        lengths = [len(cast("dict[str, Any]", one).get("prompt_token_ids") or ()) for one in engine_inputs]
        try:
            self._on_rendered(lengths, getattr(request, "n", None) or 1)
        except RequestRefused as refusal:
            raise RefusedRequest(refusal.message) from None

    def _field(self, request: object) -> PrismField | None:
        if isinstance(request, (TokenizeChatRequest, TokenizeCompletionRequest)):
            extras = request.model_extra or {}
            _refusing(lambda: refuse_prism_field({FIELD: None} if FIELD in extras else {}, "/tokenize"))
            return None
        return _refusing(lambda: read_prism_field(request))

    def _attach_plain(
        self, engine_inputs: Sequence[EngineInput], field: PrismField | None, messages: Sequence[Any]
    ) -> None:
        if field is not None and messages:
            _refusing(lambda: check_hints(field.segments, messages))
        plan = self._plain_plan(field, "this prompt has no documents that are told apart")
        for engine_input in engine_inputs:
            cast("dict[str, Any]", engine_input)[PLAN_KEY] = plan

    def _plain_plan(self, field: PrismField | None, reason: str) -> DraftPlan:
        asked = field is not None and field.reorder
        return DraftPlan(
            reorder_refused=reason if asked else None,
            render_generation=self._settings()[1],
            deadline_seconds=field.deadline_seconds if field is not None else None,
        )

    def _chat_params(
        self,
        request: ChatCompletionRequest | ResponsesRequest,
        template: str | None,
        content_format: Any,
        template_kwargs: dict[str, Any] | None,
        tool_dicts: list[dict[str, Any]] | None,
    ) -> ChatParams:
        """What vLLM's `preprocess_chat` makes of the same arguments, as far as the template sees it."""
        defaults = merge_kwargs(template_kwargs, {"tools": tool_dicts, "tokenize": False})
        params: ChatParams = request.build_chat_params(template, content_format).with_defaults(defaults)
        return params

    def _chat_plan(
        self,
        request: object,
        field: PrismField | None,
        messages: list[Any],
        params: ChatParams,
        tools: Sequence[Any],
        engine_input: EngineInput,
    ) -> DraftPlan:
        inputs = cast("dict[str, Any]", engine_input)
        if field is not None:
            _refusing(lambda: check_hints(field.segments, messages))
        segmenter = self.segmenter
        if segmenter is None or inputs.get("type") != "token" or not isinstance(inputs.get("prompt"), str):
            return self._plain_plan(field, "this prompt is not rendered as text alone")
        rendered = Rendered(
            text=inputs["prompt"],
            token_ids=inputs["prompt_token_ids"],
            messages=messages,
            tools=tools,
            documents=params.chat_template_kwargs.get("documents"),
            context=_context(params),
            continued=bool(params.chat_template_kwargs.get("continue_final_message")),
            add_special_tokens=bool(getattr(request, "add_special_tokens", False)),
            offsets=inputs.get("prompt_token_offsets"),
        )
        try:
            return segmenter.plan(request, field, rendered, self._settings(), self._rendering(params))
        except InvalidRequest as mistake:
            raise RefusedRequest(mistake.message, param=mistake.param) from None
        except Exception as error:  # noqa: BLE001 - segments are a gain, never a reason to fail a request
            self._log_once(error)
            return self._plain_plan(field, "segments could not be made")

    def _rendering(self, params: ChatParams) -> Callable[[list[Any], list[Any] | None], str | None]:
        def render(messages: list[Any], documents: list[Any] | None) -> str | None:
            kwargs = dict(params.chat_template_kwargs)
            if documents is not None:
                kwargs["documents"] = documents
            try:
                _, prompt = self.renderer.render_messages(messages, replace(params, chat_template_kwargs=kwargs))
            except Exception as error:  # noqa: BLE001 - a template may raise whatever it likes at a marker
                self._log_once(error)
                return None
            text = cast("dict[str, Any]", prompt).get("prompt")
            return text if isinstance(text, str) else None

        return render

    def _log_once(self, error: Exception) -> None:
        kind = f"{type(error).__name__}: {error}"[:200]
        if kind not in self._failures and len(self._failures) < 100:
            self._failures.add(kind)
            logger.warning("A prompt is served without segments: %s", kind, exc_info=error)


def _refusing(check: Callable[[], _T]) -> _T:
    try:
        return check()
    except InvalidRequest as mistake:
        raise RefusedRequest(mistake.message, param=mistake.param) from None


def _context(params: ChatParams) -> tuple[object, ...]:
    """What else a rendering depends on, to key its shape by."""
    others = {key: value for key, value in params.chat_template_kwargs.items() if key not in ("tools", "documents")}
    return (
        params.chat_template,
        params.chat_template_content_format,
        json.dumps(others, sort_keys=True, default=repr) if others else "",
        repr(params.tool_choice) if params.tool_choice is not None else "",
        repr(params.response_format) if params.response_format is not None else "",
    )


def _settled(message: Any) -> Any:
    """A message whose lists can be read twice: pydantic leaves some of them as iterators."""
    if not isinstance(message, dict):
        return message
    lazy = {
        key: list(value)
        for key, value in message.items()
        if key in ("content", "tool_calls") and value is not None and not isinstance(value, (str, list))
    }
    return {**message, **lazy} if lazy else message


def _lens(tokenizer: object) -> TokenLens | None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return TokenLens(cast("FastTokenizer", copy.deepcopy(backend))) if backend is not None else None
