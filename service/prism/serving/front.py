"""Which paths KServe answers, which PRISM does, and that everything else is vLLM's.

vLLM's application is mounted whole, so a route that the next vLLM brings is served without a line here. KServe keeps
its own protocol's paths; the two probes are answered with the engine's state in place of KServe's constants.
"""

from __future__ import annotations

import re
import time

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prism.engine.frontend.app import Frontend
from prism.engine.frontend.health import EngineState

_KSERVE = re.compile(
    r"^(?:/|/metrics/?|/docs|/openapi\.json"
    r"|/v1/models/[^/:]+(?:/[^/:]+)*(?::predict|:explain)?"
    r"|/v2(?:/(?:health|models|repository)(?:/.*)?)?)$"
)
"""KServe's protocols v1 and v2. `/v1/models` alone is OpenAI's list; `/v2/rerank` and `/v2/embed` are vLLM's."""

_LOADING = re.compile(r"^/v2/repository/models/.+/(?:load|unload)$")


class Front:
    """The outermost ASGI application of the serving port.

    Args:
        kserve: KServe's own application.
        frontend: PRISM's.
        prefix: KServe's prefix for OpenAI routes.
    """

    def __init__(self, kserve: ASGIApp, frontend: Frontend, prefix: str = "/openai") -> None:
        self._kserve = kserve
        self._frontend = frontend
        self._model_route = re.compile(rf"^{re.escape(prefix)}/v1/models/(?P<name>.+)$") if prefix else None
        self._started_at = int(time.time())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await (self._kserve if scope["type"] == "lifespan" else self._frontend.asgi)(scope, receive, send)
            return
        await (await self._choose(scope))(scope, receive, self._last_of_its_connection(send))

    async def _choose(self, scope: Scope) -> ASGIApp:
        path: str = scope["path"]
        if path in ("/v2/health/live", "/v2/health/ready"):
            return self._probe(path)
        if _LOADING.match(path):
            return _not_loaded_here()
        if _KSERVE.match(path):
            return self._kserve
        named = self._model_route.match(path) if self._model_route else None
        if named and scope["method"] == "GET":
            return await self._model(named["name"], Request(scope))
        return self._frontend.asgi

    def _last_of_its_connection(self, send: Send) -> Send:
        """On the way down no connection is kept: a client's next request is to reach another replica."""

        async def wrapped(message: Message) -> None:
            if message["type"] == "http.response.start" and self._frontend.health.is_stopping:
                MutableHeaders(raw=message["headers"])["connection"] = "close"
            await send(message)

        return wrapped

    def _probe(self, path: str) -> Response:
        health = self._frontend.health
        live = path.endswith("/live")
        good = health.live if live else health.ready
        body = {"live": good} if live else {"ready": good, "state": health.state.value}
        return JSONResponse(body, status_code=200 if good else 503)

    async def _model(self, name: str, request: Request) -> Response:
        """One model in OpenAI's form: vLLM lists models but has no route for one."""
        if not self._frontend.may_ask(request.headers.get("authorization", "")):
            return JSONResponse({"error": "Unauthorized"}, status_code=401)
        for model in await self._frontend.models():
            if model["id"] == name:
                return JSONResponse(model)
        loading = self._frontend.health.state is EngineState.STARTING
        status, kind = (503, "ServiceUnavailableError") if loading else (404, "NotFoundError")
        message = "The model is still loading; try again." if loading else f"The model `{name}` does not exist."
        error = {"message": message, "type": kind, "param": "model", "code": status}
        return JSONResponse({"error": error}, status_code=status)


def _not_loaded_here() -> Response:
    """KServe's repository API would end the engine under its requests, for whoever reaches this port."""
    message = "A model is loaded and unloaded by applying and deleting its InferenceService, not by this route."
    return JSONResponse({"error": message}, status_code=405, headers={"allow": ""})
