"""Before the first token: every route says that the model is still loading."""

from __future__ import annotations

import httpx
import pytest
from opentelemetry.sdk.resources import Resource

from prism.engine.frontend.app import Frontend
from prism.engine.frontend.arguments import parse_arguments
from prism.telemetry.provider import Telemetry


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/version", "/openai/v1/models"])
async def test_routes_without_inference_answer_503_too(path: str) -> None:
    args, own = parse_arguments(["--model", "m"])
    frontend = Frontend(args, own, Telemetry(Resource.get_empty(), []))
    transport = httpx.ASGITransport(frontend.asgi)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        answer = await client.get(path)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert "still loading" in answer.json()["error"]["message"]
