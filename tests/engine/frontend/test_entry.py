"""The ASGI entry around an application, without an engine: what it adds, notes, and refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Send

from prism.config.schema import Limits
from prism.engine.frontend import exchange
from prism.engine.frontend.desk import CURRENT, LiveRequest, RequestDesk
from prism.engine.frontend.entry import Entry
from prism.engine.frontend.health import EngineHealth, draining, engine_hung
from prism.engine.frontend.intake import Intake
from prism.engine.wire import Admitted, Ended, PrefillDone

CHAT = "/openai/v1/chat/completions"
Handler = Callable[[Request], Awaitable[Response]]


def event(**fields: Any) -> str:
    return "data: " + json.dumps(fields, separators=(",", ":")) + "\n\n"


class Served:
    """An entry in front of one handler, and what it made of the requests."""

    def __init__(self, handler: Handler) -> None:
        self.ended: list[LiveRequest] = []
        self.health = EngineHealth()
        self.health.first_token_produced()
        self.desk = RequestDesk(self.ended.append)
        paths = ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/tokenize", "/score")
        routes = [Route(path, handler, methods=["POST"]) for path in paths]
        self.entry = Entry(Starlette(routes=routes), self.desk, self.health)

    async def post(self, path: str = CHAT, body: Any = None, **options: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self.entry)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post(path, json={} if body is None else body, **options)

    def engine_answers(self, name: str = "r") -> None:
        """What the engine and its facts do for the running request."""
        live = CURRENT.get()
        assert live is not None
        self.desk.link(name, live)
        now = live.timeline.arrived_at
        self.desk.fact(Admitted(name, now, "cold", "", "none", 0, 16, 20, 0, 0, {}, {}, [], 0, 0))
        self.desk.fact(PrefillDone(name, now))
        self.desk.fact(Ended(name, now, "stop"))
        live.received(name, 1, now)


async def plain(_: Request) -> Response:
    return JSONResponse({"choices": [{"finish_reason": "stop"}]})


async def test_the_path_below_the_prefix_is_the_inner_one() -> None:
    served = Served(plain)
    assert (await served.post(CHAT)).status_code == (await served.post(CHAT[7:])).status_code == 200
    assert [live.timeline.info.route for live in served.ended] == [CHAT, CHAT[7:]]


async def test_an_answer_without_facts_has_no_prism_headers() -> None:
    answer = await Served(plain).post()
    assert not [name for name in answer.headers if name.startswith("x-prism")]


async def test_an_unstreamed_answer_has_the_facts_as_headers() -> None:
    async def handler(request: Request) -> Response:
        served.engine_answers()
        return await plain(request)

    served = Served(handler)
    headers = (await served.post()).headers
    assert (headers["x-prism-lane"], headers["x-prism-cached-tokens"]) == ("cold", "16")
    assert served.ended[0].timeline.info.finish_reasons == ("stop",)


async def test_a_stream_ends_ttft_when_its_first_content_was_sent() -> None:
    async def chunks() -> AsyncIterator[str]:
        served.engine_answers()
        yield event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
        before.append(CURRENT.get().timeline.ttft_end)  # type: ignore[union-attr]
        yield event(choices=[{"index": 0, "delta": {"content": "a"}}])
        yield event(choices=[], usage={"prompt_tokens": 1})

    async def handler(_: Request) -> Response:
        return StreamingResponse(chunks(), media_type="text/event-stream")

    before: list[object] = []
    served = Served(handler)
    text = (await served.post()).text
    assert before == [None]
    assert served.ended[0].timeline.ttft_end == "first_chunk_sent"
    assert '"prism":{"lane":"cold"' in text


@pytest.mark.parametrize(
    ("status", "outcome", "reason"),
    [
        (200, "finished", None),
        (400, "refused", "invalid_request"),
        (404, "refused", "unknown_model"),
        (500, "failed", "500"),
    ],
)
async def test_the_outcome_follows_the_status(status: int, outcome: str, reason: str | None) -> None:
    async def handler(_: Request) -> Response:
        return JSONResponse({}, status_code=status)

    served = Served(handler)
    await served.post()
    timeline = served.ended[0].timeline
    assert (timeline.outcome, timeline.status, timeline.reason) == (outcome, status, reason)


async def test_a_stream_that_reports_an_error_has_failed() -> None:
    async def chunks() -> AsyncIterator[str]:
        yield event(error={"message": "engine"})

    async def handler(_: Request) -> Response:
        return StreamingResponse(chunks(), media_type="text/event-stream")

    served = Served(handler)
    await served.post()
    assert served.ended[0].timeline.outcome == "failed"


async def test_a_failed_handler_leaves_a_trace_too() -> None:
    async def handler(_: Request) -> Response:
        raise RuntimeError("broken")

    served = Served(handler)
    with pytest.raises(RuntimeError):
        await served.post()
    assert served.ended[0].timeline.outcome == "failed"


async def test_a_deadline_ends_a_request_that_has_sent_nothing() -> None:
    async def handler(request: Request) -> Response:
        CURRENT.get().set_deadline(0.01)  # type: ignore[union-attr]
        body, gone = await request.receive(), await request.receive()
        assert (body["type"], gone["type"]) == ("http.request", "http.disconnect")
        return JSONResponse(None)

    served = Served(handler)
    answer = await served.post()
    assert (answer.status_code, answer.json()["error"]["type"]) == (504, "DeadlineExceededError")
    assert (served.ended[0].timeline.outcome, served.ended[0].timeline.reason) == ("refused", "deadline")


async def test_a_deadline_after_the_first_content_does_nothing() -> None:
    async def chunks() -> AsyncIterator[str]:
        CURRENT.get().set_deadline(0.02)  # type: ignore[union-attr]
        yield event(choices=[{"index": 0, "delta": {"content": "a"}}])
        await asyncio.sleep(0.06)
        yield event(choices=[{"index": 0, "delta": {"content": "b"}}])

    async def handler(_: Request) -> Response:
        return StreamingResponse(chunks(), media_type="text/event-stream")

    served = Served(handler)
    text = (await served.post()).text
    assert ("error" in text, text.count("content")) == (False, 2)
    assert served.ended[0].timeline.outcome == "finished"


async def test_without_an_engine_a_request_is_refused_and_told_to_come_back() -> None:
    served = Served(plain)
    served.health = served.entry._health = EngineHealth()
    answer = await served.post()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["error"]["type"] == "ServiceUnavailableError"


async def test_an_engine_that_dies_under_way_is_a_503() -> None:
    async def handler(_: Request) -> Response:
        served.health.died()
        return JSONResponse({"error": {"code": 500}}, status_code=500)

    served = Served(handler)
    assert (await served.post()).status_code == 503


@pytest.mark.parametrize("path", ["/tokenize", "/score"])
async def test_a_prism_object_where_it_means_nothing_is_refused(path: str) -> None:
    answer = await Served(plain).post(path, {"prism": {}})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prism")


async def test_a_body_that_only_mentions_prism_passes() -> None:
    assert (await Served(plain).post("/tokenize", {"prompt": '"prism"'})).status_code == 200


async def test_the_body_reaches_the_application_whole() -> None:
    async def handler(request: Request) -> Response:
        return JSONResponse(await request.json())

    body = {"prompt": "x" * 300_000}
    assert (await Served(handler).post("/tokenize", body)).json() == body


async def test_a_full_queue_is_a_429_before_the_body_is_read() -> None:
    served = Served(plain)
    served.desk.intake = Intake(lambda: Limits(max_waiting_requests=1))
    served.desk.intake.arrived("another")
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("the body was read")

    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [], "query_string": b""}
    await served.entry(scope, receive, collect(sent))
    assert sent[0]["status"] == 429
    assert int(dict(sent[0]["headers"])[b"retry-after"]) >= 1
    assert outcome(served) == ("refused", 429, "queue_full")


async def test_a_refused_request_does_not_wait() -> None:
    served = Served(plain)
    served.desk.intake = Intake(lambda: Limits(max_waiting_requests=1))
    await served.post(CHAT, {"prism": {}}, headers={"content-type": "application/json"})
    await served.post("/score", {"prism": {}})
    assert served.desk.intake.requests == 0


async def test_an_unbegun_answer_that_is_given_up_is_an_error_of_its_own() -> None:
    async def handler(request: Request) -> Response:
        served.desk.end_all(draining())
        await request.receive()
        assert (await request.receive())["type"] == "http.disconnect"
        return JSONResponse(None)

    served = Served(handler)
    answer = await served.post()
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "ServiceUnavailableError")
    assert outcome(served) == ("failed", 503, "draining")


@pytest.mark.parametrize(
    ("path", "end"),
    [
        (CHAT, "data: [DONE]"),
        ("/v1/messages", '"overloaded_error"'),
        ("/v1/responses", '"code":"503"'),
    ],
)
async def test_a_begun_stream_that_is_given_up_ends_with_an_error_object(path: str, end: str) -> None:
    async def chunks(request: Request) -> AsyncIterator[str]:
        yield event(choices=[{"index": 0, "delta": {"content": "a"}}])
        served.desk.end_all(engine_hung())
        await request.receive()
        await request.receive()
        yield event(choices=[{"index": 0, "delta": {"content": "never seen"}}])

    async def handler(request: Request) -> Response:
        return StreamingResponse(chunks(request), media_type="text/event-stream")

    served = Served(handler)
    text = (await served.post(path)).text
    assert ("error" in text, end in text, "never seen" in text) == (True, True, False)
    assert outcome(served) == ("failed", 503, "engine_hung")


async def test_a_stream_that_breaks_ends_with_an_error_object() -> None:
    async def chunks() -> AsyncIterator[str]:
        yield event(choices=[{"index": 0, "delta": {"content": "a"}}])
        raise RuntimeError("broken")

    async def handler(_: Request) -> Response:
        return StreamingResponse(chunks(), media_type="text/event-stream")

    served = Served(handler)
    sent: list[Message] = []
    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [], "query_string": b""}
    with pytest.raises(RuntimeError, match="broken"):
        await served.entry(scope, whole_body, collect(sent))
    assert b'"code": 500' in sent[-1]["body"]
    assert sent[-1]["more_body"] is False


async def test_a_stream_that_breaks_because_the_engine_died_says_so_and_nothing_else() -> None:
    async def chunks() -> AsyncIterator[str]:
        yield event(choices=[{"index": 0, "delta": {"content": "a"}}])
        served.health.died()
        raise RuntimeError("EngineCore encountered an issue")

    async def handler(_: Request) -> Response:
        return StreamingResponse(chunks(), media_type="text/event-stream")

    served = Served(handler)
    assert '"code": 503' in (await served.post()).text
    assert outcome(served)[0::2] == ("failed", "engine_dead")


async def test_a_client_that_goes_away_in_its_upload_never_reaches_the_application() -> None:
    async def handler(_: Request) -> Response:
        raise AssertionError("the application was asked")

    served = Served(handler)
    sent: list[Message] = []
    torn: list[Message] = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    messages = iter(torn)

    async def receive() -> Message:
        return next(messages)

    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [], "query_string": b""}
    await served.entry(scope, receive, collect(sent))
    assert (served.ended[0].timeline.outcome, sent) == ("cancelled", [])


async def test_an_upload_that_never_ends_is_given_up() -> None:
    served = Served(plain)
    sent: list[Message] = []

    async def receive() -> Message:
        served.desk.end_all(draining())
        await asyncio.sleep(60)
        raise AssertionError("still waiting")

    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [], "query_string": b""}
    await served.entry(scope, receive, collect(sent))
    assert (sent[0]["status"], outcome(served)) == (503, ("failed", 503, "draining"))


async def test_an_upload_that_falls_silent_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "UPLOAD_SECONDS", 0.05)
    served = Served(plain)
    sent: list[Message] = []
    parts = [b"{", b'"model":', b'"m"']

    async def receive() -> Message:
        # Slow, longer in all than it may be silent, and then silent.
        await asyncio.sleep(0.02 if parts else 60)
        return {"type": "http.request", "body": parts.pop(0), "more_body": True}

    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [], "query_string": b""}
    await served.entry(scope, receive, collect(sent))
    assert parts == []
    assert (sent[0]["status"], outcome(served)) == (408, ("refused", 408, "upload_stalled"))
    assert served.desk.sizes()["open"] == 0


async def test_vllm_sees_the_trace_headers_that_it_is_to_hang_its_spans_below() -> None:
    async def handler(request: Request) -> Response:
        seen.append((request.headers.get("traceparent"), request.headers.get("tracestate"), request.headers["x-own"]))
        return await plain(request)

    seen: list[tuple[str | None, str | None, str]] = []
    served = Served(handler)
    callers = {"traceparent": "theirs", "tracestate": "a=b", "x-own": "kept"}
    await served.post(headers=callers)
    served.entry._on_arrival = lambda *_: {"traceparent": "ours"}
    await served.post(headers=callers)
    assert seen == [("theirs", "a=b", "kept"), ("ours", None, "kept")]


def outcome(served: Served) -> tuple[str | None, int | None, str | None]:
    timeline = served.ended[0].timeline
    return timeline.outcome, timeline.status, timeline.reason


def collect(sent: list[Message]) -> Send:
    async def send(message: Message) -> None:
        sent.append(message)

    return send


async def whole_body() -> Message:
    return {"type": "http.request", "body": b"{}", "more_body": False}


async def test_an_error_that_follows_from_giving_up_is_not_the_services_fault() -> None:
    async def handler(request: Request) -> Response:
        served.desk.end_all(draining())
        raise RuntimeError("the client has gone")

    served = Served(handler)
    assert (await served.post()).status_code == 503
    assert outcome(served) == ("failed", 503, "draining")


async def test_an_answer_given_up_while_it_waits_for_facts_is_told_once() -> None:
    async def handler(_: Request) -> Response:
        live = CURRENT.get()
        assert live is not None
        served.desk.link("r", live)
        asyncio.get_running_loop().call_later(0.01, served.desk.end_all, draining())
        return JSONResponse({"choices": [{"finish_reason": "stop"}]})

    served = Served(handler)
    assert (await served.post()).status_code == 503
    served.desk.close_all()
    assert outcome(served) == ("failed", 503, "draining")
