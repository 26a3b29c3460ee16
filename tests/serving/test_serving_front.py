"""Who answers a path: KServe its own protocol, PRISM the probes, vLLM the rest, whatever the prefix."""

from __future__ import annotations

from typing import Any, cast

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from prism.engine.frontend.app import Frontend
from prism.engine.frontend.health import EngineHealth
from prism.serving.front import Front


class Answering:
    """What `Front` sees of a frontend: its health, its models, and an application that names itself."""

    def __init__(self) -> None:
        self.health = EngineHealth()
        self.health.first_token_produced()

    def may_ask(self, authorization: str) -> bool:
        return authorization in ("", "Bearer good")

    async def models(self) -> list[dict[str, Any]]:
        return [{"id": "tiny", "object": "model"}]

    async def asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("vllm")(scope, receive, send)


async def kserve(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("kserve")(scope, receive, send)


async def get(
    path: str, prefix: str, frontend: Answering | None = None, method: str = "GET", **headers: str
) -> httpx.Response:
    front = Front(kserve, cast(Frontend, frontend or Answering()), prefix)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(front), base_url="http://test") as client:
        return await client.request(method, path, headers=headers)


@pytest.mark.parametrize("prefix", ["", "/openai"])
@pytest.mark.parametrize(
    ("path", "answered_by"),
    [
        ("/v1/models", "vllm"),
        ("/v1/chat/completions", "vllm"),
        ("/openai/v1/models", "vllm"),
        ("/v1/models/tiny", "kserve"),
        ("/v1/models/tiny:predict", "kserve"),
        ("/v2/models/tiny/ready", "kserve"),
        ("/metrics", "kserve"),
        ("/", "kserve"),
        ("/v2/rerank", "vllm"),
    ],
)
async def test_no_route_shadows_another_with_or_without_a_prefix(path: str, answered_by: str, prefix: str) -> None:
    assert (await get(path, prefix)).text == answered_by


async def test_one_model_is_shown_in_openais_form_below_the_prefix() -> None:
    assert (await get("/openai/v1/models/tiny", "/openai")).json()["id"] == "tiny"


@pytest.mark.parametrize("prefix", ["", "/openai"])
async def test_the_probes_are_prisms(prefix: str) -> None:
    frontend = Answering()
    frontend.health.died()
    answers = [await get(f"/v2/health/{probe}", prefix, frontend) for probe in ("ready", "live")]
    assert [answer.status_code for answer in answers] == [503, 503]
    assert answers[0].json() == {"ready": False, "state": "dead"}


async def test_one_model_is_shown_to_those_only_who_may_see_the_list() -> None:
    answer = await get("/openai/v1/models/tiny", "/openai", authorization="Bearer bad")
    assert (answer.status_code, answer.json()) == (401, {"error": "Unauthorized"})
    assert (await get("/openai/v1/models/tiny", "/openai", authorization="Bearer good")).status_code == 200


@pytest.mark.parametrize("what", ["load", "unload"])
async def test_nobody_on_the_serving_port_can_end_the_engine(what: str) -> None:
    answer = await get(f"/v2/repository/models/tiny/{what}", "/openai", method="POST")
    assert answer.status_code == 405
    assert "InferenceService" in answer.json()["error"]
    assert (await get("/v2/repository/index", "/openai", method="POST")).text == "kserve"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v2/models/tiny/ready", "/v2/health/live"])
async def test_on_the_way_down_no_connection_is_kept(path: str) -> None:
    frontend = Answering()
    assert "connection" not in (await get(path, "/openai", frontend)).headers
    frontend.health.stopping()
    assert (await get(path, "/openai", frontend)).headers["connection"] == "close"
