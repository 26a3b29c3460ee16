"""A small server of OpenAI's streamed form whose latency is known: real HTTP, no engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


@dataclass
class FakeServer:
    """Serves `slots` requests at once, `seconds` each, those in excess in order of arrival.

    Attributes:
        chunks: what each answer's stream says after `seconds`.
        failing: every n-th request gets a 500; 0 for none.
        resettable: has vLLM's route that empties the cache.
        asked: bodies in order of arrival.
        log: what happened, `ask` or `reset`.
    """

    slots: int = 1
    seconds: float = 0.0
    chunks: tuple[Any, ...] = ({"choices": [{"delta": {"content": "yes"}}]}, "[DONE]")
    failing: int = 0
    resettable: bool = True
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def app(self) -> Starlette:
        free = asyncio.Semaphore(self.slots)

        async def chat(request: Request) -> Response:
            self.asked.append(await request.json())
            self.log.append("ask")
            if self.failing and len(self.asked) % self.failing == 0:
                return JSONResponse({"error": {"message": "no such luck"}}, status_code=500)
            return StreamingResponse(self._stream(free), media_type="text/event-stream")

        async def reset(_: Request) -> Response:
            self.log.append("reset")
            return Response()

        async def models(_: Request) -> Response:
            return JSONResponse({"data": [{"id": "fake"}]})

        routes = [Route("/v1/chat/completions", chat, methods=["POST"]), Route("/v1/models", models)]
        if self.resettable:
            routes.append(Route("/reset_prefix_cache", reset, methods=["POST"]))
        return Starlette(routes=routes)

    async def _stream(self, free: asyncio.Semaphore) -> AsyncIterator[str]:
        async with free:
            await asyncio.sleep(self.seconds)
        for chunk in self.chunks:
            yield f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\n\n"


class _Quiet(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


@contextlib.asynccontextmanager
async def _serving(fake: FakeServer) -> AsyncIterator[FakeServer]:
    server = _Quiet(uvicorn.Config(fake.app(), host="127.0.0.1", port=0, log_config=None, lifespan="off"))
    running = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    fake.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield fake
    finally:
        server.should_exit = True
        await running


@pytest.fixture
def fake_server() -> Callable[..., AbstractAsyncContextManager[FakeServer]]:
    """Makes a running server from `FakeServer`'s fields."""

    def make(**fields: Any) -> AbstractAsyncContextManager[FakeServer]:
        return _serving(FakeServer(**fields))

    return make
