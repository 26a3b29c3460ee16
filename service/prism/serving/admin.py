"""The admin port: what an operator may ask a pod, on a port of its own that no Service exposes."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from prism.engine.frontend.app import Frontend
from prism.serving.shown import shown_request, shown_state
from prism.serving.signals import LeavesSignals
from prism.telemetry.explain import explain
from prism.telemetry.metrics import TEXT_FORMAT

MAX_SHOWN = 512


class AdminServer(LeavesSignals, uvicorn.Server):
    """A server of its own for the admin port."""


def admin_app(frontend: Frontend) -> Starlette:
    """The admin interface of one serving process."""

    async def settings(_: Request) -> JSONResponse:
        return JSONResponse(frontend.settings.as_json())

    async def metrics(_: Request) -> Response:
        return Response(frontend.metrics.text(), headers={"content-type": TEXT_FORMAT})

    async def top(_: Request) -> JSONResponse:
        return JSONResponse(msgspec.to_builtins(shown_state(frontend, time.monotonic())))

    async def explanation(request: Request) -> JSONResponse:
        wanted = request.path_params["id"]
        found = frontend.find_request(wanted)
        if found is None:
            kept = f"the last {frontend.telemetry.ring.capacity} that ended"
            return _error(404, f"No request {wanted} is under way or among {kept}.")
        across = request.query_params.get("all_tenants", "false")
        if across not in ("true", "false"):
            return _error(400, "all_tenants must be true or false.")
        told = explain(*found, time.monotonic(), all_tenants=across == "true")
        return JSONResponse(msgspec.to_builtins(told))

    async def requests(request: Request) -> JSONResponse:
        last = request.query_params.get("last", "20")
        if not last.isdigit():
            return _error(400, "last must be a number of requests.")
        finished = frontend.telemetry.ring.last(min(int(last), MAX_SHOWN))
        return JSONResponse({"requests": [shown_request(one) for one in finished]})

    async def sizes(_: Request) -> JSONResponse:
        process = {"asyncio_tasks": len(asyncio.all_tasks()), "threads": threading.active_count()}
        return JSONResponse({**frontend.sizes(), **process})

    async def reset_prefix_cache(_: Request) -> JSONResponse:
        done = await frontend.reset_prefix_cache()
        return JSONResponse({"reset": done}, status_code=200 if done else 409)

    return Starlette(
        routes=[
            Route("/prism/v1/settings", settings, methods=["GET"]),
            Route("/prism/v1/metrics", metrics, methods=["GET"]),
            Route("/prism/v1/top", top, methods=["GET"]),
            Route("/prism/v1/explain/{id:path}", explanation, methods=["GET"]),
            Route("/prism/v1/requests", requests, methods=["GET"]),
            Route("/prism/v1/sizes", sizes, methods=["GET"]),
            Route("/prism/v1/reset_prefix_cache", reset_prefix_cache, methods=["POST"]),
        ]
    )


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message}}, status_code=status)


def admin_server(frontend: Frontend, host: str, port: int) -> AdminServer:
    """A server for the admin interface, to be run in the serving process's event loop."""
    options: dict[str, Any] = {"host": host, "port": port, "log_config": None, "access_log": False, "lifespan": "off"}
    return AdminServer(uvicorn.Config(admin_app(frontend), **options))
