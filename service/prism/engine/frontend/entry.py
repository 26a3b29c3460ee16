"""The way in and out: what PRISM does around vLLM's application for each HTTP request.

    arrival, request id, caller's trace ─> vLLM's application ─> first content, usage, headers, outcome

A plain ASGI wrapper. It holds nothing back: a stream's chunks are passed on as they come, and only its usage chunk is
written anew. The head of an answer that is not streamed waits for its body, which vLLM sends right after.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
import uuid
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prism.engine.frontend.desk import CURRENT, LiveRequest, RequestDesk
from prism.engine.frontend.health import EngineHealth, EngineState
from prism.engine.frontend.prism_field import RAW_FIELD, raw_prism_field, refuse_prism_field
from prism.engine.frontend.routes import DROPS_UNKNOWN_KEYS, INFERENCE, InferenceRoute, takes_prism_object
from prism.engine.frontend.sse import StreamWatch, finish_reasons, is_usage_chunk, with_field
from prism.errors import CallerError, InvalidRequest, RequestRefused
from prism.telemetry.timeline import RequestInfo, RequestTimeline

_logger = logging.getLogger(__name__)

OnArrival = Callable[[LiveRequest, Headers], None]

FACTS_GRACE_SECONDS = 0.05
"""How long the head of an unstreamed answer, or a usage chunk, waits for facts that are still on their way."""

_REQUEST_ID = re.compile(r"^[\x21-\x7e]{1,128}$")


def request_id_of(headers: Headers) -> str:
    """The caller's `x-request-id`, if it is up to 128 visible characters; else a made one."""
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.match(given) else uuid.uuid4().hex


def error_body(error: CallerError) -> bytes:
    """An error object in OpenAI's form."""
    fields = {"message": error.message, "type": error.type, "param": error.param, "code": error.status}
    return json.dumps({"error": fields}).encode()


class Entry:
    """Wraps vLLM's application.

    Args:
        app: vLLM's.
        desk: where each request is known while it is under way.
        health: whether there is an engine to answer.
        on_arrival: called with each inference request when its headers are there.
        prefix: path below which the routes stand too, as in `/openai/v1`.
    """

    def __init__(
        self,
        app: ASGIApp,
        desk: RequestDesk,
        health: EngineHealth,
        on_arrival: OnArrival = lambda *_: None,
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
            await self._plain(inner, receive, _with_request_id(send, request_id))
            return
        info = _request_info(inner, shown, route, headers)
        timeline = RequestTimeline(request_id, arrived_at=arrived_at, arrived_wall_ns=arrived_wall_ns, info=info)
        live = LiveRequest(timeline)
        self._desk.opened(live)
        self._on_arrival(live, headers)
        await self._follow(live, _Exchange(live, route, self._health, receive, send), inner)

    async def _follow(self, live: LiveRequest, exchange: _Exchange, scope: Scope) -> None:
        token = CURRENT.set(live)
        try:
            await self._answer(exchange, scope)
        except asyncio.CancelledError:
            live.timeline.cancelled(time.monotonic(), "server_stopped")
            raise
        except Exception:
            live.timeline.failed(time.monotonic(), HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error")
            raise
        finally:
            CURRENT.reset(token)
            exchange.finish()
            self._desk.closed(live)

    async def _answer(self, exchange: _Exchange, scope: Scope) -> None:
        try:
            self._refuse_without_engine()
            await exchange.read_body()
            if not takes_prism_object(scope["path"]) and _is_json(scope):
                refuse_prism_field(exchange.body, scope["path"])
        except CallerError as error:
            await exchange.refuse(error)
            return
        await self._pass_on(exchange, scope)
        await exchange.settle()

    async def _pass_on(self, exchange: _Exchange, scope: Scope) -> None:
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
        body, unread = await _read(receive)
        try:
            refuse_prism_field(body, scope["path"])
        except InvalidRequest as error:
            await _send_error(send, error)
            return

        async def again() -> Message:
            return unread.pop(0) if unread else await receive()

        await self._app(scope, again, send)

    def _refuse_without_engine(self) -> None:
        if self._health.state in (EngineState.STARTING, EngineState.DEAD):
            raise _no_engine(self._health.state)

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


class _Exchange:
    """One inference request's messages in both directions."""

    def __init__(
        self, live: LiveRequest, route: InferenceRoute, health: EngineHealth, receive: Receive, send: Send
    ) -> None:
        self.body = b""
        self._live = live
        self._route = route
        self._health = health
        self._receive = receive
        self._send = send
        self._unread: list[Message] = []
        self._head: Message | None = None
        self._started = False
        self._complete = False
        self._status: int | None = None
        self._watch: StreamWatch | None = None
        self._disconnected = False
        self._late = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._refusal: CallerError | None = None
        live.on_deadline = self._watch_deadline

    # In

    async def read_body(self) -> None:
        self.body, self._unread = await _read(self._receive)
        self._live.timeline.rendering_started(time.monotonic())

    async def receive(self) -> Message:
        """The client's next message; a disconnect also when the deadline has passed: vLLM then gives the request up."""
        if self._late.is_set():
            return {"type": "http.disconnect"}
        message = self._unread.pop(0) if self._unread else await self._next_or_late()
        if message["type"] == "http.disconnect" and not self._late.is_set():
            self._disconnected = True
        return message

    async def _next_or_late(self) -> Message:
        client, late = asyncio.ensure_future(self._receive()), asyncio.ensure_future(self._late.wait())
        try:
            await asyncio.wait((client, late), return_when=asyncio.FIRST_COMPLETED)
            return client.result() if client.done() else {"type": "http.disconnect"}
        finally:
            client.cancel()
            late.cancel()

    def _watch_deadline(self, deadline: float) -> None:
        left = max(0.0, deadline - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(left, self._deadline_passed)

    def _deadline_passed(self) -> None:
        if self._live.timeline.ttft_end is None and not self._complete:
            self._late.set()

    # Out

    async def send(self, message: Message) -> None:
        if self._late.is_set():
            # What vLLM says to a client that it takes for gone; `settle` answers.
            return
        if message["type"] == "http.response.start":
            await self._start(message)
        elif message["type"] == "http.response.body":
            await self._chunk(message)
        else:
            await self._send(message)

    async def settle(self) -> None:
        """vLLM is done with the request; when it gave it up for the deadline, the client has not heard of that yet."""
        if self._late.is_set() and not self._complete:
            await self._answer_late()

    async def refuse(self, error: CallerError) -> None:
        """Answer with an error object, in place of whatever was to come."""
        self._refusal = error
        self._status = error.status
        self._head = None
        self._started = self._complete = True
        await _send_error(_with_request_id(self._send, self._live.timeline.request_id), error)

    async def _start(self, message: Message) -> None:
        self._status = message["status"]
        headers = MutableHeaders(raw=message["headers"])
        headers["x-request-id"] = self._live.timeline.request_id
        self._head = message
        if headers.get("content-type", "").startswith("text/event-stream"):
            self._live.timeline.info.streamed = True
            if self._route.content_of is not None:
                self._watch = StreamWatch(self._route.content_of)
            await self._send_head()

    async def _chunk(self, message: Message) -> None:
        body: bytes = message.get("body", b"")
        if self._started:
            await self._stream_chunk(message, body)
        else:
            await self._whole_answer(message, body)
        if not message.get("more_body", False):
            self._complete = True

    async def _whole_answer(self, message: Message, body: bytes) -> None:
        if self._status == HTTPStatus.INTERNAL_SERVER_ERROR and self._health.state is EngineState.DEAD:
            # vLLM tells its engine's death as a plain 500, which a client would not try again.
            await self.refuse(_no_engine(EngineState.DEAD))
            return
        if self._status == HTTPStatus.OK and self._live.names:
            await self._live.wait_for_facts(FACTS_GRACE_SECONDS)
            self._live.timeline.info.finish_reasons = tuple(finish_reasons(body))
            self._add_headers()
        await self._send_head()
        await self._send(message)

    async def _stream_chunk(self, message: Message, body: bytes) -> None:
        first = self._watch is not None and self._watch.look(body)
        if self._route.usage_chunk and is_usage_chunk(body):
            await self._live.wait_for_facts(FACTS_GRACE_SECONDS)
            message = {**message, "body": with_field(body, "prism", response_object(self._live))}
        await self._send(message)
        if first and self._watch is not None:
            self._first_content_sent(self._watch.first_choice or 0)

    def _first_content_sent(self, choice: int) -> None:
        names = self._live.names
        name = names[choice] if choice < len(names) else None
        held_back = self._live.tokens.get(name, (0, 0))[0] if name is not None else 0
        self._live.timeline.first_content_sent(time.monotonic(), name, held_back)

    async def _send_head(self) -> None:
        if self._head is not None:
            head, self._head, self._started = self._head, None, True
            await self._send(head)

    def _add_headers(self) -> None:
        if self._head is not None:
            headers = MutableHeaders(raw=self._head["headers"])
            for name, value in response_headers(self._live).items():
                headers[name] = value

    async def _answer_late(self) -> None:
        error = RequestRefused(
            "The deadline passed before a first token; raise prism.deadline_seconds or try again later.",
            status=HTTPStatus.GATEWAY_TIMEOUT,
        )
        if not self._started:
            await self.refuse(error)
            return
        self._refusal, self._complete = error, True
        body = b"data: " + error_body(error) + b"\n\ndata: [DONE]\n\n"
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    # The end

    def finish(self) -> None:
        """Says how it ended, if nothing has said so yet."""
        if self._timer is not None:
            self._timer.cancel()
        timeline, now = self._live.timeline, time.monotonic()
        if self._watch is not None and self._watch.finish_reasons:
            timeline.info.finish_reasons = tuple(self._watch.finish_reasons)
        if self._live.tokens:
            timeline.info.output_tokens = sum(before + last for before, last in self._live.tokens.values())
        self._outcome(timeline, now, self._status or 0)

    def _outcome(self, timeline: RequestTimeline, now: float, status: int) -> None:
        if self._refusal is not None:
            timeline.refused(now, self._refusal.status, _reason(self._refusal.status))
        elif self._disconnected and not self._complete:
            timeline.cancelled(now)
        elif status >= HTTPStatus.INTERNAL_SERVER_ERROR or (self._watch is not None and self._watch.failed):
            timeline.failed(now, status, _reason(status))
        elif status >= HTTPStatus.BAD_REQUEST:
            timeline.refused(now, status, _reason(status))
        elif self._disconnected or not self._complete:
            timeline.cancelled(now)
        else:
            timeline.finished(now, status)


def response_object(live: LiveRequest) -> dict[str, Any]:
    """What a response says about how it was served; None where the fact has not come. Times in seconds."""
    timeline = live.timeline
    admission, ttft = timeline.admission, timeline.ttft()
    return {
        "lane": admission.lane if admission else None,
        "reordered": admission.reordered if admission else None,
        "cached_tokens": admission.cached_tokens if admission else None,
        "ttft": None
        if ttft is None
        else {"admission_wait": ttft.admission_wait, "prefill": ttft.prefill, "first_token": ttft.first_token},
    }


def response_headers(live: LiveRequest) -> dict[str, str]:
    """The same as headers; what is not known is left out."""
    said = response_object(live)
    ttft = said["ttft"]
    values = {
        "x-prism-lane": said["lane"],
        "x-prism-reordered": None if said["reordered"] is None else str(said["reordered"]).lower(),
        "x-prism-cached-tokens": said["cached_tokens"],
        "x-prism-ttft": ttft and "; ".join(f"{part}={seconds:.6f}" for part, seconds in ttft.items()),
    }
    return {name: str(value) for name, value in values.items() if value is not None}


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


def _no_engine(state: EngineState) -> RequestRefused:
    if state is EngineState.DEAD:
        return RequestRefused("The engine has died; this replica will be restarted, try again.", status=503)
    return RequestRefused("The model is still loading; try again.", status=503, retry_after_s=5)


def _reason(status: int) -> str:
    return {400: "invalid_request", 404: "unknown_model", 429: "queue_full", 504: "deadline"}.get(status, str(status))


def _is_json(scope: Scope) -> bool:
    return Headers(scope=scope).get("content-type", "").lower().startswith("application/json")


async def _read(receive: Receive) -> tuple[bytes, list[Message]]:
    """The whole body, and the messages to give to whoever wants to read it again."""
    chunks: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            # The client went away in the middle of its body.
            return b"".join(chunks), [{"type": "http.request", "body": b"".join(chunks), "more_body": True}, message]
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            body = b"".join(chunks)
            return body, [{"type": "http.request", "body": body, "more_body": False}]


def _with_request_id(send: Send, request_id: str) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(raw=message["headers"])["x-request-id"] = request_id
        await send(message)

    return wrapped


async def _send_error(send: Send, error: CallerError) -> None:
    headers = [(b"content-type", b"application/json")]
    if isinstance(error, RequestRefused) and error.retry_after_s is not None:
        headers.append((b"retry-after", str(error.retry_after_s).encode()))
    body = error_body(error)
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
