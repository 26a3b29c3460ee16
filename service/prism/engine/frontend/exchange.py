"""One inference request's messages in both directions, between the server and vLLM's application.

What the client sends is passed on, and so is what vLLM answers, chunk by chunk. On the way the exchange notes what the
trace needs, adds how the request was served, and gives the request up when it is told to: vLLM then sees a client that
has gone, and the client an error object.
"""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Receive, Send

from prism.engine.frontend.desk import LiveRequest
from prism.engine.frontend.health import EngineHealth, EngineState, engine_dead
from prism.engine.frontend.routes import InferenceRoute
from prism.engine.frontend.sse import StreamWatch, error_body, finish_reasons, is_usage_chunk, with_field
from prism.errors import CallerError, RequestRefused
from prism.telemetry.timeline import Outcome, RequestTimeline

UPLOAD_SECONDS = 60.0
"""Silence after which a body that is not complete is given up: its request holds a place among those that wait."""

FACTS_GRACE_SECONDS = 0.05
"""How long the head of an unstreamed answer, or a usage chunk, waits for facts that are still on their way."""


class Exchange:
    """One inference request's messages in both directions."""

    def __init__(
        self, live: LiveRequest, route: InferenceRoute, health: EngineHealth, receive: Receive, send: Send
    ) -> None:
        self.body = b""
        self.live = live
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
        self._ending: RequestRefused | None = None
        self._ended = asyncio.Event()
        self._upload: asyncio.Timeout | None = None
        self._timer: asyncio.TimerHandle | None = None
        live.on_deadline = self._watch_deadline
        live.on_end = self.end

    # In

    async def read_body(self) -> bool:
        """Read all of it; False if the client went away or fell silent meanwhile, or the request was given up."""
        try:
            async with asyncio.timeout(UPLOAD_SECONDS) as self._upload:
                self.body, self._unread = await read_whole(self._next_part)
        except TimeoutError:
            self.end(_stalled(), Outcome.REFUSED)
            return False
        finally:
            self._upload = None
        self._disconnected = self._unread[-1]["type"] == "http.disconnect"
        self.live.timeline.rendering_started(time.monotonic())
        return not self._disconnected

    async def _next_part(self) -> Message:
        message = await self._receive()
        if self._upload is not None and self._ending is None:
            self._upload.reschedule(asyncio.get_running_loop().time() + UPLOAD_SECONDS)
        return message

    async def receive(self) -> Message:
        """The client's next message; a disconnect also when the request was given up, so that vLLM does so too."""
        if self._ended.is_set():
            return {"type": "http.disconnect"}
        message = self._unread.pop(0) if self._unread else await self._next_or_ended()
        if message["type"] == "http.disconnect" and not self._ended.is_set():
            self._disconnected = True
        return message

    async def _next_or_ended(self) -> Message:
        client, ended = asyncio.ensure_future(self._receive()), asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait((client, ended), return_when=asyncio.FIRST_COMPLETED)
            return client.result() if client.done() else {"type": "http.disconnect"}
        finally:
            client.cancel()
            ended.cancel()

    # Giving it up

    def end(self, error: RequestRefused, outcome: Outcome) -> None:
        """The request is over: vLLM sees a client that has gone, and `settle` tells the client why."""
        if self._complete or self._ending is not None:
            return
        self._ending = error
        self._say_outcome(outcome, error.status, error.reason)
        self._ended.set()
        if self._upload is not None:
            self._upload.reschedule(0)

    def _watch_deadline(self, deadline: float) -> None:
        left = max(0.0, deadline - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(left, self._deadline_passed)

    def _deadline_passed(self) -> None:
        if self.live.timeline.ttft_end is None:
            self.end(_too_late(), Outcome.REFUSED)

    # Out

    async def send(self, message: Message) -> None:
        if self._ended.is_set():
            # What vLLM says to a client that it takes for gone; `settle` answers.
            return
        if message["type"] == "http.response.start":
            await self._start(message)
        elif message["type"] == "http.response.body":
            await self._chunk(message)
        else:
            await self._send(message)

    async def settle(self) -> None:
        """vLLM is done with the request; if it was given up, its client has not heard of that yet."""
        if self._ending is not None and not self._complete:
            await self._answer_with(self._ending)

    async def refuse(self, error: CallerError) -> None:
        """Answer with an error object, in place of whatever was to come."""
        reason = error.reason if isinstance(error, RequestRefused) else "invalid_request"
        self._say_outcome(Outcome.REFUSED, error.status, reason)
        await self._answer_with(error)

    async def broke(self) -> bool:
        """The application raised: tell the client, if it can still be told.

        Returns:
            Whether it is a fault of the application's: not if the engine had died, or the request was over anyway.
        """
        if self._ending is not None or self._disconnected:
            await self.settle()
            return False
        dead = self._health.state is EngineState.DEAD
        self._say_outcome(Outcome.FAILED, HTTPStatus.INTERNAL_SERVER_ERROR, "engine_dead" if dead else "internal_error")
        if not self._complete and (dead or self._started):
            await self._answer_with(engine_dead() if dead else _broken())
        return not dead

    async def _answer_with(self, error: CallerError) -> None:
        """An error object as the whole answer, or as the end of a stream that had begun."""
        begun, self._started, self._complete, self._head = self._started, True, True, None
        if begun:
            body = self._route.error_events(error)
            await self._send({"type": "http.response.body", "body": body, "more_body": False})
            return
        self._status = error.status
        await send_error(with_request_id(self._send, self.live.timeline.request_id), error)

    async def _start(self, message: Message) -> None:
        self._status = message["status"]
        headers = MutableHeaders(raw=message["headers"])
        headers["x-request-id"] = self.live.timeline.request_id
        self._head = message
        if headers.get("content-type", "").startswith("text/event-stream"):
            self.live.timeline.info.streamed = True
            if self._route.content_of is not None:
                self._watch = StreamWatch(self._route.content_of)
            await self._send_head()

    async def _chunk(self, message: Message) -> None:
        body: bytes = message.get("body", b"")
        if self._started:
            await self._stream_chunk(message, body)
        else:
            await self._whole_answer(message, body)

    async def _pass_on(self, message: Message) -> None:
        # Complete from here on: what is on its way to the client can't be given up any more.
        self._complete = not message.get("more_body", False)
        await self._send_head()
        await self._send(message)

    async def _whole_answer(self, message: Message, body: bytes) -> None:
        if self._status == HTTPStatus.INTERNAL_SERVER_ERROR and self._health.state is EngineState.DEAD:
            # vLLM tells its engine's death as a plain 500, which a client would not try again.
            error = engine_dead()
            self._say_outcome(Outcome.FAILED, error.status, error.reason)
            await self._answer_with(error)
            return
        if self._status == HTTPStatus.OK and self.live.names:
            await self.live.wait_for_facts(FACTS_GRACE_SECONDS)
            self.live.timeline.info.finish_reasons = tuple(finish_reasons(body))
            self._add_headers()
        if not self._ended.is_set():
            await self._pass_on(message)

    async def _stream_chunk(self, message: Message, body: bytes) -> None:
        first = self._watch is not None and self._watch.look(body)
        if self._route.usage_chunk and is_usage_chunk(body):
            await self.live.wait_for_facts(FACTS_GRACE_SECONDS)
            message = {**message, "body": with_field(body, "prism", response_object(self.live))}
        if self._ended.is_set():
            return
        await self._pass_on(message)
        if first and self._watch is not None:
            self._first_content_sent(self._watch.first_choice or 0)

    def _first_content_sent(self, choice: int) -> None:
        names = self.live.names
        name = names[choice] if choice < len(names) else None
        held_back = self.live.tokens.get(name, (0, 0))[0] if name is not None else 0
        self.live.timeline.first_content_sent(time.monotonic(), name, held_back)

    async def _send_head(self) -> None:
        if self._head is not None:
            head, self._head, self._started = self._head, None, True
            await self._send(head)

    def _add_headers(self) -> None:
        if self._head is not None:
            headers = MutableHeaders(raw=self._head["headers"])
            for name, value in response_headers(self.live).items():
                headers[name] = value

    # The end

    def finish(self) -> None:
        """Says how it ended, if nothing has said so yet."""
        if self._timer is not None:
            self._timer.cancel()
        timeline, now = self.live.timeline, time.monotonic()
        if self._watch is not None and self._watch.finish_reasons:
            timeline.info.finish_reasons = tuple(self._watch.finish_reasons)
        if self.live.tokens:
            timeline.info.output_tokens = sum(before + last for before, last in self.live.tokens.values())
        self._outcome(timeline, now, self._status or 0)

    def _outcome(self, timeline: RequestTimeline, now: float, status: int) -> None:
        if self._disconnected and not self._complete:
            timeline.cancelled(now)
        elif status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            timeline.failed(now, status, _reason(status))
        elif self._watch is not None and self._watch.failed:
            timeline.failed(now, status, "engine_dead" if self._health.state is EngineState.DEAD else "stream_error")
        elif status >= HTTPStatus.BAD_REQUEST:
            timeline.refused(now, status, _reason(status))
        elif self._disconnected or not self._complete:
            timeline.cancelled(now)
        else:
            timeline.finished(now, status)

    def _say_outcome(self, outcome: Outcome, status: int, reason: str) -> None:
        timeline, now = self.live.timeline, time.monotonic()
        if outcome is Outcome.REFUSED:
            timeline.refused(now, status, reason)
        else:
            timeline.failed(now, status, reason)


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


def _too_late() -> RequestRefused:
    text = "The deadline passed before a first token; raise prism.deadline_seconds or try again later."
    return RequestRefused(text, status=HTTPStatus.GATEWAY_TIMEOUT, reason="deadline")


def _stalled() -> RequestRefused:
    text = f"Nothing more of the request's body came for {UPLOAD_SECONDS:g} s; send it again."
    return RequestRefused(text, status=HTTPStatus.REQUEST_TIMEOUT, reason="upload_stalled")


def _broken() -> RequestRefused:
    text = "The service failed at this request; try again, and tell its operator the x-request-id if it fails again."
    return RequestRefused(text, status=HTTPStatus.INTERNAL_SERVER_ERROR, reason="internal_error")


def _reason(status: int) -> str:
    reasons = {
        400: "invalid_request",
        401: "unauthorized",
        404: "unknown_model",
        413: "too_large",
        429: "queue_full",
        504: "deadline",
    }
    return reasons.get(status, str(status))


async def read_whole(receive: Receive) -> tuple[bytes, list[Message]]:
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


def with_request_id(send: Send, request_id: str) -> Send:
    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(raw=message["headers"])["x-request-id"] = request_id
        await send(message)

    return wrapped


async def send_error(send: Send, error: CallerError) -> None:
    headers = [(b"content-type", b"application/json")]
    if isinstance(error, RequestRefused) and error.retry_after_s is not None:
        headers.append((b"retry-after", str(error.retry_after_s).encode()))
    body = error_body(error)
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
