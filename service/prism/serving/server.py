"""`prism serve`: KServe's model server with vLLM's application inside.

KServe gives the port, its protocols, metrics and life cycle; vLLM's application answers every OpenAI route; PRISM
stands between them (`Front`). See docs/decisions.md for why it is put together this way.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from argparse import Namespace
from collections.abc import Coroutine, Sequence
from typing import Any, cast

import uvicorn
import uvloop
from kserve.model_server import ModelServer
from kserve.model_server import app as kserve_app
from kserve.protocol.rest.server import RESTServer, _RefreshingServer

from prism.engine.frontend.app import Frontend
from prism.engine.frontend.arguments import PrismArguments, parse_arguments
from prism.errors import DeploymentError, PrismError
from prism.serving.admin import admin_server
from prism.serving.front import Front
from prism.serving.going_down import ExitStatus, GoingDown
from prism.serving.kserve_flags import add_kserve_flags, hand_back
from prism.serving.model import PrismModel
from prism.serving.signals import LeavesSignals, on_stop_signals, reap_orphans
from prism.telemetry.log import event, start_log
from prism.telemetry.provider import start_telemetry

_logger = logging.getLogger(__name__)

SERVICE_NAME = "prism"

_CLOSING_SECONDS = 2
"""How long the HTTP server, once it is drained, waits for requests that are no inference."""


class PrismServer(ModelServer):
    """KServe's server, with PRISM's application in front of its own and a calmer end.

    Args:
        args: what was parsed, KServe's values among it.
        own: PRISM's own arguments.
    """

    def __init__(self, args: Namespace, own: PrismArguments, frontend: Frontend, prefix: str) -> None:
        super().__init__(
            http_port=args.port,
            grpc_port=args.grpc_port,
            workers=1,
            max_threads=args.max_threads,
            max_asyncio_workers=args.max_asyncio_workers,
            enable_grpc=args.enable_grpc,
            enable_docs_url=args.enable_docs_url,
            enable_latency_logging=args.enable_latency_logging,
            access_log_format=args.access_log_format,
            event_loop=args.event_loop,
            timeout_keep_alive=args.timeout_keep_alive,
            grace_period=_CLOSING_SECONDS,
            ssl_certfile=args.ssl_certfile,
            ssl_keyfile=args.ssl_keyfile,
        )
        self._args = args
        self._frontend = frontend
        self._prefix = prefix
        self._grace_s = own.grace_period_s
        self._admin = admin_server(frontend, own.admin_host, own.admin_port) if own.admin_port else None
        self.going_down = GoingDown(frontend, own.grace_period_s, own.drain_delay_s, self._end_in_time)

    def setup_event_loop(self) -> None:
        """Nothing yet: KServe calls this before the loop that will run exists."""

    def register_signal_handler(self) -> None:
        """Nothing: `_serve` hears the signals in its loop."""

    @property
    def _http(self) -> RESTServer:
        """KServe's HTTP server, which exists from `start` on."""
        return cast(RESTServer, self._rest_server)

    async def _serve(self) -> None:
        """Runs until one of the servers ends, then ends the others in order: no new requests, streams, engine."""
        super().setup_event_loop()  # type: ignore[no-untyped-call]
        on_stop_signals(self.going_down.ask)
        config = self._http.config
        apply_server_flags(config, self._args)
        config.app = Front(kserve_app, self._frontend, self._prefix)
        self._http._server = _HttpServer(config)
        running: list[asyncio.Future[None]] = [asyncio.ensure_future(one) for one in self._coroutines()]
        beside = [asyncio.ensure_future(one) for one in self._beside()]
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        if not self._frontend.started:
            running[0].cancel()  # the engine's: nobody waits for it any more
        self._close_servers()
        results = await asyncio.gather(*running, return_exceptions=True)
        for one in beside:
            one.cancel()
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    def _coroutines(self) -> Sequence[Coroutine[Any, Any, None]]:
        engine, rest, *others = self.servers
        servers = [engine, self._until_last_answer(rest), *others]
        return servers if self._admin is None else [*servers, self._admin.serve()]

    def _beside(self) -> Sequence[Coroutine[Any, Any, None]]:
        """What goes on as long as the servers do."""
        drain = self._drain()
        return [drain, reap_orphans()] if os.getpid() == 1 else [drain]

    async def _until_last_answer(self, rest: Coroutine[Any, Any, None]) -> None:
        """The HTTP server, whose end ends the engine."""
        try:
            await rest
        finally:
            for model in self.registered_models.get_models().values():
                model.stop_engine()  # type: ignore[no-untyped-call]

    async def _drain(self) -> None:
        await self.going_down.until_drained()
        self._close_servers()

    def _end_in_time(self) -> None:
        """The process's end is due when the grace period is over, whatever hangs."""

        def end() -> None:
            _logger.error("Not done when the grace period was over: ending.", extra=event("grace_over"))
            self._frontend.kill_engine()
            os._exit(self.going_down.exit_status or ExitStatus.CUT_OFF)

        last_resort = threading.Timer(self._grace_s, end)
        last_resort.daemon = True
        last_resort.start()

    def _close_servers(self) -> None:
        self._http._server.should_exit = True
        if self._admin is not None:
            self._admin.should_exit = True


class _HttpServer(LeavesSignals, _RefreshingServer):
    """KServe's own HTTP server, which closes after requests were drained and has nothing to wait for itself."""


def apply_server_flags(config: uvicorn.Config, args: Namespace) -> None:
    """Give vLLM's flags about its HTTP server to KServe's, before it starts."""
    config.host = args.host or config.host
    config.uds = args.uds
    config.access_log = not args.disable_uvicorn_access_log
    if args.disable_access_log_for_endpoints:
        paths = {path.strip() for path in args.disable_access_log_for_endpoints.split(",")}
        logging.getLogger("uvicorn.access").addFilter(lambda record: _path_of(record) not in paths)
    config.log_level = args.uvicorn_log_level
    config.ssl_ca_certs = args.ssl_ca_certs
    config.ssl_cert_reqs = args.ssl_cert_reqs
    config.ssl_ciphers = args.ssl_ciphers or config.ssl_ciphers
    config.h11_max_incomplete_event_size = args.h11_max_incomplete_event_size


def _path_of(record: logging.LogRecord) -> str | None:
    """Of a line of uvicorn's access log: its arguments are client, method, path with query, version, status."""
    arguments = record.args
    return str(arguments[2]).partition("?")[0] if isinstance(arguments, tuple) and len(arguments) > 2 else None


def serve(argv: Sequence[str]) -> int:
    """Run the serving process.

    Args:
        argv: the command line after `prism serve`.

    Returns:
        The exit status (`ExitStatus`).
    """
    try:
        args, own = parse_arguments(argv, add_kserve_flags)
    except DeploymentError as error:
        return _say(error, ExitStatus.BAD_ARGUMENTS)
    hand_back(args)
    if args.event_loop != "asyncio":
        # KServe's server leaves the choice of the loop to uvicorn, which is too late to make it.
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    try:
        return _run(args, own)
    except PrismError as error:
        return _say(error, ExitStatus.FAILED)
    except (KeyboardInterrupt, SystemExit) as error:
        return error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else ExitStatus.FAILED
    except Exception as error:
        _logger.debug("Start or service failed", exc_info=True)
        return _say(error, ExitStatus.FAILED)


def _run(args: Namespace, own: PrismArguments) -> int:
    start_log(os.environ.get("VLLM_LOGGING_LEVEL", "INFO"), own.log_format)
    prefix = _prefix()
    telemetry = start_telemetry(SERVICE_NAME, {"prism.model": _model_name(args)})
    frontend = Frontend(args, own, telemetry, prefix)
    frontend.metrics.publish()
    server = PrismServer(args, own, frontend, prefix)
    _logger.info("Starting.", extra=event("starting", model=_model_name(args), port=args.port, pid=os.getpid()))
    server.start([PrismModel(_model_name(args), frontend, lambda: server.going_down.flush_s)])
    return server.going_down.exit_status


def _model_name(args: Namespace) -> str:
    names = args.served_model_name or [args.model]
    return names if isinstance(names, str) else names[0]


def _prefix() -> str:
    prefix = os.environ.get("KSERVE_OPENAI_ROUTE_PREFIX", "/openai").strip("/")
    return f"/{prefix}" if prefix else ""


def _say(error: BaseException, status: int) -> int:
    text = str(error) or type(error).__name__
    sys.stderr.write(f"prism serve: {text}\n")
    return status
