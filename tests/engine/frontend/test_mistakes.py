"""What vLLM's code stumbles over is the caller's mistake, what PRISM's own code or the engine does is not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import FunctionType
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from prism.engine.frontend.desk import CURRENT, LiveRequest
from prism.engine.frontend.mistakes import STUMBLES, RefusedRequest, refuse_stumbles, unreadable
from prism.telemetry.timeline import RequestInfo, RequestTimeline


def stumble() -> None:
    raise KeyError("role")


def as_if_in(module: str, function: Callable[[], None]) -> Callable[[], None]:
    """The same function, as code of another module."""
    assert isinstance(function, FunctionType)
    return FunctionType(function.__code__, {"__name__": module, "__builtins__": __builtins__})


def raised_by(function: Callable[[], Any]) -> Exception:
    with pytest.raises(STUMBLES) as caught:
        function()
    return caught.value


async def answer(
    stumbles: Callable[[], None], live: LiveRequest | None = None, *, built: bool = True
) -> httpx.Response:
    app = FastAPI()
    app.add_middleware(CORSMiddleware)
    if built:
        app.middleware_stack = app.build_middleware_stack()
    refuse_stumbles(app)

    @app.post("/")
    async def route() -> None:
        stumbles()

    token = CURRENT.set(live)
    try:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.post("/")
    finally:
        CURRENT.reset(token)


def live_request(*names: str) -> LiveRequest:
    return LiveRequest(RequestTimeline("r", arrived_at=0.0, arrived_wall_ns=0, info=RequestInfo()), names=list(names))


@pytest.mark.parametrize("live", [None, live_request()], ids=["no inference", "not in the engine yet"])
async def test_a_stumble_before_the_engine_is_a_400_in_the_apis_form(live: LiveRequest | None) -> None:
    got = await answer(stumble, live)
    error = got.json()["error"]
    assert (got.status_code, error["type"], error["code"]) == (400, "BadRequestError", 400)
    assert "'role' is missing" in error["message"]


async def test_an_application_that_was_not_built_yet_does_so_too() -> None:
    assert (await answer(stumble, built=False)).status_code == 400


async def test_once_the_engine_has_it_a_stumble_is_the_servers() -> None:
    assert (await answer(stumble, live_request("internal"))).status_code == 500


async def test_prisms_own_stumble_is_not_blamed_on_the_caller() -> None:
    assert (await answer(as_if_in("prism.engine.anything", stumble))).status_code == 500


@pytest.mark.parametrize("kind", [AttributeError, IndexError, KeyError, AssertionError, RecursionError])
def test_every_kind_of_stumble_becomes_a_refusal_with_words(kind: type[Exception]) -> None:
    def raises() -> None:
        raise kind

    refusal = unreadable(raised_by(raises))
    assert isinstance(refusal, RefusedRequest)
    assert str(refusal).startswith("The request could not be read: ")


def test_each_place_is_told_once_and_without_what_was_sent(caplog: pytest.LogCaptureFixture) -> None:
    def raises() -> None:
        raise AttributeError("secret words of a prompt")

    with caplog.at_level(logging.INFO, logger="prism"):
        for _ in range(3):
            unreadable(raised_by(as_if_in("vllm.somewhere", raises)))
    (record,) = [one for one in caplog.records if "stumbles" in one.getMessage()]
    assert record.__dict__["prism_event"]["at"].startswith("vllm.somewhere:")
    assert "secret" not in str(record.__dict__)
