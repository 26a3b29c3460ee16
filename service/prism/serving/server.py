"""`prism serve`: KServe's model server with vLLM's application inside.

KServe gives the port, its protocols, metrics and life cycle; vLLM's application answers every OpenAI route; PRISM
stands between them (`Front`). See docs/decisions.md for why it is put together this way.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Coroutine, Sequence
from typing import Any, cast

import uvicorn
import uvloop
from kserve.model_server import ModelServer
from kserve.model_server import app as kserve_app
from kserve.protocol.rest.server import RESTServer

from prism.engine.frontend.app import Frontend
from prism.engine.frontend.arguments import PrismArguments, parse_arguments
from prism.errors import DeploymentError, PrismError
from prism.serving.admin import admin_server
from prism.serving.front import Front
from prism.serving.kserve_flags import add_kserve_flags, hand_back
from prism.serving.model import PrismModel
from prism.telemetry.provider import start_telemetry

_logger = logging.getLogger(__name__)

SERVICE_NAME = "prism"


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
            grace_period=own.grace_period_s,
            ssl_certfile=args.ssl_certfile,
            ssl_keyfile=args.ssl_keyfile,
        )
        self._args = args
        self._frontend = frontend
        self._prefix = prefix
        self._admin = admin_server(frontend, own.admin_host, own.admin_port) if own.admin_port else None
        self._stopping = False

    def setup_event_loop(self) -> None:
        """Nothing yet: KServe calls this before the loop that will run exists."""

    @property
    def _http(self) -> RESTServer:
        """KServe's HTTP server, which exists from `start` on."""
        return cast(RESTServer, self._rest_server)

    async def _serve(self) -> None:
        """Runs until one of the servers ends, then ends the others in order: no new requests, streams, engine."""
        super().setup_event_loop()  # type: ignore[no-untyped-call]
        config = self._http.config
        apply_server_flags(config, self._args)
        config.app = Front(kserve_app, self._frontend, self._prefix)
        running: list[asyncio.Future[None]] = [asyncio.ensure_future(one) for one in self._coroutines()]
        takeover = asyncio.ensure_future(self._take_signals())
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        takeover.cancel()
        if not self._frontend.started:
            running[0].cancel()  # the engine's: nobody waits for it any more
        self._begin_stop()
        for result in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    def _coroutines(self) -> Sequence[Coroutine[Any, Any, None]]:
        engine, rest, *others = self.servers
        servers = [engine, self._until_last_answer(rest), *others]
        return servers if self._admin is None else [*servers, self._admin.serve()]

    async def _until_last_answer(self, rest: Coroutine[Any, Any, None]) -> None:
        """The HTTP server, whose end ends the engine: streams go on while it waits for them."""
        try:
            await rest
        finally:
            for model in self.registered_models.get_models().values():
                model.stop_engine()  # type: ignore[no-untyped-call]

    async def _take_signals(self) -> None:
        """Replaces uvicorn's handlers once it has set them: it would raise the signal again when it is done."""
        while not self._http._server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.02)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._begin_stop)

    def _begin_stop(self) -> None:
        """Readiness first; then no new connections, and streams finish within the grace period."""
        if self._stopping:
            return
        self._stopping = True
        _logger.info("Stopping: no new requests are taken, those under way may finish.")
        self._frontend.health.stopping()
        self._http._server.should_exit = True
        if self._admin is not None:
            self._admin.should_exit = True


def apply_server_flags(config: uvicorn.Config, args: Namespace) -> None:
    """Give vLLM's flags about its HTTP server to KServe's, before it starts."""
    config.host = args.host or config.host
    config.uds = args.uds
    config.access_log = not args.disable_uvicorn_access_log
    config.log_level = args.uvicorn_log_level
    config.ssl_ca_certs = args.ssl_ca_certs
    config.ssl_cert_reqs = args.ssl_cert_reqs
    config.ssl_ciphers = args.ssl_ciphers or config.ssl_ciphers
    config.h11_max_incomplete_event_size = args.h11_max_incomplete_event_size


def serve(argv: Sequence[str]) -> int:
    """Run the serving process.

    Args:
        argv: the command line after `prism serve`.

    Returns:
        The exit status: 0 after a request to stop, 1 after a failed start or a failure, 2 for arguments that cannot be
        honoured.
    """
    try:
        args, own = parse_arguments(argv, add_kserve_flags)
    except DeploymentError as error:
        return _say(error, 2)
    hand_back(args)
    if args.event_loop != "asyncio":
        # KServe's server leaves the choice of the loop to uvicorn, which is too late to make it.
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    try:
        _run(args, own)
    except PrismError as error:
        return _say(error, 1)
    except (KeyboardInterrupt, SystemExit) as error:
        return error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
    except Exception as error:
        _logger.debug("Start or service failed", exc_info=True)
        return _say(error, 1)
    return 0


def _run(args: Namespace, own: PrismArguments) -> None:
    _log_to_stderr()
    prefix = _prefix()
    telemetry = start_telemetry(SERVICE_NAME, {"prism.model": _model_name(args)})
    frontend = Frontend(args, own, telemetry, prefix)
    frontend.metrics.publish()
    server = PrismServer(args, own, frontend, prefix)
    server.start([PrismModel(_model_name(args), frontend)])


def _log_to_stderr() -> None:
    """PRISM's own log lines, unless whoever embeds it has given them a handler."""
    logger = logging.getLogger("prism")
    if logger.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(asctime)s [prism] %(message)s", "%m-%d %H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(os.environ.get("VLLM_LOGGING_LEVEL", "INFO"))
    logger.propagate = False


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
