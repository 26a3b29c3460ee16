"""The way in and out: what PRISM does around vLLM's application for each HTTP request.

    arrival, request id, caller's trace ─> vLLM's application ─> first content, usage, headers, outcome

A plain ASGI wrapper. It holds nothing back: a stream's chunks are passed on as they come, and only its usage chunk is
written anew. The head of an answer that is not streamed waits for its body, which vLLM sends right after. What happens
inside one request is in `exchange`.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Callable, Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prism.engine.frontend.desk import CURRENT, LiveRequest, RequestDesk
from prism.engine.frontend.exchange import Exchange, read_whole, send_error, with_request_id
from prism.engine.frontend.health import EngineHealth
from prism.engine.frontend.prism_field import RAW_FIELD, raw_prism_field, refuse_prism_field
from prism.engine.frontend.routes import DROPS_UNKNOWN_KEYS, INFERENCE, InferenceRoute, takes_prism_object
from prism.errors import CallerError, InvalidRequest
from prism.telemetry.timeline import RequestInfo, RequestTimeline

OnArrival = Callable[[LiveRequest, Headers], Mapping[str, str]]
"""Told of a request when its headers are there; gives the trace headers that vLLM is to see."""

_TRACE = frozenset({b"traceparent", b"tracestate"})
_REQUEST_ID = re.compile(r"^[\x21-\x7e]{1,128}$")


def request_id_of(headers: Headers) -> str:
    """The caller's `x-request-id`, if it is up to 128 visible characters; else a made one."""
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.match(given) else uuid.uuid4().hex


class Entry:
    """Wraps vLLM's application.

    Args:
        app: vLLM's.
        desk: where each request is known while it is under way.
        health: whether requests are taken.
        on_arrival: called with each inference request when its headers are there; what it gives is what spans of vLLM's
            own, where its tracing is on, hang below.
        prefix: path below which the routes stand too, as in `/openai/v1`.
    """

    def __init__(
        self,
        app: ASGIApp,
        desk: RequestDesk,
        health: EngineHealth,
        on_arrival: OnArrival = lambda *_: {},
        prefix: str = "/openai",
    ) -> None:
        self._app = app
        self._desk = desk
        self._health = health
        self._on_arrival = on_arrival
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        arrived_at, arrived_wall_ns = time.monotonic(), time.time_ns()
        headers = Headers(scope=scope)
        request_id = request_id_of(headers)
        inner, shown = self._inner_scope(scope, request_id)
        route = INFERENCE.get(inner["path"]) if scope["method"] == "POST" else None
        if route is None:
            await self._plain(inner, receive, with_request_id(send, request_id))
            return
        info = _request_info(inner, shown, route, headers)
        timeline = RequestTimeline(request_id, arrived_at=arrived_at, arrived_wall_ns=arrived_wall_ns, info=info)
        live = LiveRequest(timeline)
        self._desk.opened(live)
        trace = self._on_arrival(live, headers)
        if trace:
            kept = [(name, value) for name, value in inner["headers"] if name not in _TRACE]
            inner["headers"] = [*kept, *((name.encode(), value.encode()) for name, value in trace.items())]
        await self._follow(live, Exchange(live, route, self._health, receive, send), inner)

    async def _follow(self, live: LiveRequest, exchange: Exchange, scope: Scope) -> None:
        token = CURRENT.set(live)
        try:
            await self._answer(exchange, scope)
        except asyncio.CancelledError:
            live.timeline.cancelled(time.monotonic(), "server_stopped")
            raise
        except Exception:
            if await exchange.broke():
                raise
        finally:
            CURRENT.reset(token)
            exchange.finish()
            self._desk.closed(live)

    async def _answer(self, exchange: Exchange, scope: Scope) -> None:
        try:
            self._take_in(exchange.live)
            whole = await exchange.read_body()
            if whole and not takes_prism_object(scope["path"]) and _is_json(scope):
                refuse_prism_field(exchange.body, scope["path"])
        except CallerError as error:
            await exchange.refuse(error)
            return
        if whole:
            await self._pass_on(exchange, scope)
        await exchange.settle()

    async def _pass_on(self, exchange: Exchange, scope: Scope) -> None:
        dropped = raw_prism_field(exchange.body) if scope["path"] == DROPS_UNKNOWN_KEYS else None
        token = RAW_FIELD.set(dropped)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        finally:
            RAW_FIELD.reset(token)

    async def _plain(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A route without inference. Those that post JSON must not hold a `prism` object either."""
        if scope["method"] != "POST" or not _is_json(scope):
            await self._app(scope, receive, send)
            return
        body, unread = await read_whole(receive)
        try:
            refuse_prism_field(body, scope["path"])
        except InvalidRequest as error:
            await send_error(send, error)
            return

        async def again() -> Message:
            return unread.pop(0) if unread else await receive()

        await self._app(scope, again, send)

    def _take_in(self, live: LiveRequest) -> None:
        """Before a byte of the body is read: is there an engine, and room in its queue?"""
        refusal = self._health.refusal()
        if refusal is not None:
            raise refusal
        self._desk.intake.arrived(live)

    def _inner_scope(self, scope: Scope, request_id: str) -> tuple[Scope, str]:
        """The scope that vLLM's application sees, and the path as the client wrote it."""
        path: str = scope["path"]
        inner = dict(scope)
        if self._prefix and path.startswith(self._prefix + "/"):
            inner["path"] = path[len(self._prefix) :]
            inner["raw_path"] = inner["path"].encode()
        # vLLM takes its own ids from this header, so that its log and ours name a request alike.
        others = [(name, value) for name, value in scope["headers"] if name != b"x-request-id"]
        inner["headers"] = [*others, (b"x-request-id", request_id.encode())]
        return inner, path


def _request_info(inner: Scope, shown: str, route: InferenceRoute, headers: Headers) -> RequestInfo:
    server = inner.get("server") or (None, None)
    return RequestInfo(
        method=inner["method"],
        path=shown,
        route=shown,
        scheme=inner.get("scheme", "http"),
        server_address=headers.get("host", "").rpartition(":")[0] or server[0],
        server_port=server[1],
        operation=route.operation,
    )


def _is_json(scope: Scope) -> bool:
    return Headers(scope=scope).get("content-type", "").lower().startswith("application/json")
