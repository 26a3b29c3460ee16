"""The model that KServe's server knows: its life, and its truth about being ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from fastapi import Request
from kserve.protocol.rest.openai import OpenAIGenerativeModel
from kserve.protocol.rest.openai.types import (
    ChatCompletion,
    ChatCompletionRequest,
    Completion,
    CompletionRequest,
    ErrorResponse,
)

from prism.engine.frontend.app import Frontend


class PrismModel(OpenAIGenerativeModel):
    """A served model. Its OpenAI routes are vLLM's, mounted beside KServe's; what stands here is its life cycle.

    Args:
        name: as KServe's own routes name it.
        flush_s: asked at the end how long the last spans may take to get out.
    """

    def __init__(self, name: str, frontend: Frontend, flush_s: Callable[[], float]) -> None:
        super().__init__(name)
        self.engine = True
        self.stopped = asyncio.Event()
        self._frontend = frontend
        self._flush_s = flush_s

    def start(self) -> None:
        """KServe registers a model only while it calls itself ready; it is not, until its engine answers."""
        self.ready = False

    async def start_engine(self) -> None:
        """Runs as long as the engine does."""
        try:
            await self._frontend.start()
            self.ready = True
            await self.stopped.wait()
        finally:
            self.ready = False
            await self._frontend.close(self._flush_s())

    def stop_engine(self) -> None:
        self.ready = False
        self.stopped.set()

    async def healthy(self) -> bool:
        return self._frontend.health.ready

    async def create_completion(
        self, request: CompletionRequest, raw_request: Request | None = None, context: dict[str, Any] | None = None
    ) -> AsyncGenerator[str, None] | Completion | ErrorResponse:
        """KServe's in-process interface; requests over HTTP don't pass here."""
        answer: AsyncGenerator[str, None] | Completion | ErrorResponse = await self._frontend.create(
            "openai_serving_completion", "create_completion", request, raw_request
        )
        return answer

    async def create_chat_completion(
        self,
        request: ChatCompletionRequest,
        raw_request: Request | None = None,
        context: dict[str, Any] | None = None,
    ) -> AsyncGenerator[str, None] | ChatCompletion | ErrorResponse:
        """KServe's in-process interface; requests over HTTP don't pass here."""
        answer: AsyncGenerator[str, None] | ChatCompletion | ErrorResponse = await self._frontend.create(
            "openai_serving_chat", "create_chat_completion", request, raw_request
        )
        return answer
