"""vLLM's engine and vLLM's own HTTP application, built with PRISM's scheduler, renderer and entry."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import secrets
import time
from argparse import Namespace
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.datastructures import Headers, State
from starlette.types import ASGIApp
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.openai.api_server import build_app, init_app_state, validate_api_server_args
from vllm.inputs.engine import tokens_input
from vllm.reasoning import ReasoningParserManager
from vllm.sampling_params import SamplingParams
from vllm.tool_parsers import ToolParserManager
from vllm.usage.usage_lib import UsageContext
from vllm.utils.system_utils import kill_process_tree
from vllm.v1.executor import Executor

from prism.engine.frontend.arguments import PrismArguments
from prism.engine.frontend.async_llm import PrismAsyncLLM
from prism.engine.frontend.desk import CURRENT, LiveRequest, RequestDesk
from prism.engine.frontend.engine_watch import LOOK_SECONDS, EngineWatch
from prism.engine.frontend.entry import Entry
from prism.engine.frontend.exchange import send_error
from prism.engine.frontend.facts import WARM_UP, FactDispatch, FactReceiver, facts_address
from prism.engine.frontend.health import DeathNotice, EngineHealth, loading
from prism.engine.frontend.intake import Intake
from prism.engine.frontend.mistakes import refuse_stumbles
from prism.engine.frontend.recorder import Recorder, recording_header
from prism.engine.frontend.renderer import PrismRenderer
from prism.engine.frontend.settings import EngineSettings
from prism.engine.frontend.starting import in_thread
from prism.engine.internals import ASYNC_SCHEDULER, SCHEDULER, check_frontend
from prism.engine.wire import CONFIG_KEY, EngineCoreOptions
from prism.errors import DeploymentError, RequestRefused
from prism.telemetry.log import event
from prism.telemetry.losses import LossLog
from prism.telemetry.metrics import Metrics
from prism.telemetry.provider import SHUTDOWN_SECONDS, Telemetry
from prism.telemetry.spans import RequestTrace
from prism.telemetry.timeline import Outcome, RequestTimeline

_logger = logging.getLogger(__name__)


def engine_config(args: Namespace, own: PrismArguments, address: str) -> VllmConfig:
    """vLLM's configuration for these arguments, with PRISM's scheduler in it.

    vLLM decides first whether it would schedule asynchronously; then the class on that base is named, so that PRISM
    is never slower for the wrong base.

    Args:
        address: where EngineCore sends its facts.
    """
    engine_args = AsyncEngineArgs.from_cli_args(args)
    config: VllmConfig = engine_args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    scheduler = config.scheduler_config
    fitting = ASYNC_SCHEDULER if scheduler.async_scheduling else SCHEDULER
    if scheduler.scheduler_cls not in (None, fitting):
        raise DeploymentError(f"--scheduler-cls: with these arguments vLLM needs {fitting}; leave the flag out.")
    scheduler.scheduler_cls = fitting
    # Without settings to watch the pod's name stays out: it would be part of the key of vLLM's compile cache.
    pod_name = own.pod_name if own.config_path else None
    options = EngineCoreOptions(address, own.config_path, pod_name, namespaced_salts=True)
    additional = config.additional_config
    if not isinstance(additional, dict):
        raise DeploymentError("--additional-config must be a JSON object.")
    config.additional_config = {**additional, CONFIG_KEY: msgspec.to_builtins(options)}
    return config


class Frontend:
    """The serving process: everything between KServe's server and EngineCore.

    `asgi` answers from the start, with 503 until a first token was produced.

    Args:
        args: vLLM's namespace (`parse_arguments`).
        own: PRISM's own arguments.
        telemetry: where traces go.
        prefix: path below which the routes stand too.
    """

    def __init__(self, args: Namespace, own: PrismArguments, telemetry: Telemetry, prefix: str = "/openai") -> None:
        self.health = EngineHealth(own.step_timeout_s)
        self.settings = EngineSettings()
        self.telemetry = telemetry
        self.desk = RequestDesk(self._request_ended, intake=Intake(lambda: self.settings.in_force.spec.limits))
        self.watch = EngineWatch(self.health, self.desk, self._engine_died)
        self._losses = LossLog(telemetry.counts.snapshot)
        self.metrics = Metrics(served_models(args)[0])
        self.dispatch = FactDispatch(self.desk, self.settings, self.health, self.metrics, self._settings_changed)
        self.metrics.count_spans(telemetry.counts.snapshot)
        self.metrics.count_lost_facts(self.dispatch.lost)
        self.engine: PrismAsyncLLM | None = None
        self._args = args
        self._own = own
        self._receiver = FactReceiver(facts_address(args.port), self.dispatch)
        self._traces: dict[LiveRequest, RequestTrace] = {}
        self._recorder: Recorder | None = None
        self._app: FastAPI | None = None
        self._running = AsyncExitStack()
        self._looking: asyncio.Task[None] | None = None
        self.asgi: ASGIApp = Entry(self._vllm_app, self.desk, self.health, self._request_arrived, prefix)

    @property
    def started(self) -> bool:
        """Whether `start` is done."""
        return self._app is not None

    async def start(self) -> None:
        """Start the engine and build vLLM's application; returns when a first token was produced.

        Raises:
            DeploymentError: the engine does not start.
        """
        began = time.monotonic()
        check_frontend()
        _load_parsers(self._args)
        self._receiver.start()
        self._running.push_async_callback(self._receiver.close)
        engine = self.engine = await in_thread(self._make_engine)
        self._running.callback(self._stop_engine)
        self._record(engine.vllm_config)
        app = await self._build_app(engine)
        await self._running.enter_async_context(app.router.lifespan_context(app))
        built = time.monotonic()
        await self._first_token(engine)
        self._app = app
        self.health.first_token_produced()
        self.health.watch(lambda: engine.errored, range(engine.vllm_config.parallel_config.data_parallel_size))
        self._looking = asyncio.create_task(self._look())
        words = event("ready", start_s=round(built - began, 1), first_token_s=round(time.monotonic() - built, 1))
        _logger.info("Ready: a first token was produced.", extra=words)

    async def close(self, flush_s: float = SHUTDOWN_SECONDS) -> None:
        """Stop the engine, flush the traces.

        Args:
            flush_s: how long to wait for a collector that does not answer.
        """
        self.health.stopping()
        self.health.unwatch()
        if self._looking is not None:
            self._looking.cancel()
        self.desk.close_all()
        self._end_half_started()
        await self._running.aclose()
        if self._recorder is not None:
            await asyncio.to_thread(self._recorder.close)
        await asyncio.to_thread(self.telemetry.shutdown, flush_s)

    def sizes(self) -> dict[str, int]:
        """How many entries the tables of this process hold: near zero when nothing is under way."""
        engine = self.engine
        return {
            **self.desk.sizes(),
            "traces": len(self._traces),
            "vllm_requests": len(engine.output_processor.request_states) if engine is not None else 0,
        }

    def kill_engine(self) -> None:
        """End all processes of the engine at once; the last resort."""
        for child in multiprocessing.active_children():
            if child.pid is not None:
                kill_process_tree(child.pid)

    def may_ask(self, authorization: str) -> bool:
        """Whether a request with this header passes `--api-key` (or `VLLM_API_KEY`), for routes that vLLM has not."""
        keys = [key for key in self._args.api_key or [os.environ.get("VLLM_API_KEY")] if key]
        kind, _, given = authorization.partition(" ")
        known = [secrets.compare_digest(given.encode(), key.encode()) for key in keys]
        return not keys or (kind.lower() == "bearer" and any(known))

    async def models(self) -> list[dict[str, Any]]:
        """The models served now, adapters included, as OpenAI's model objects."""
        if self._app is None:
            return []
        listed = await self._app.state.openai_serving_models.show_available_models()
        return [model.model_dump(mode="json") for model in listed.data]

    def find_request(self, wanted: str) -> tuple[RequestTimeline, str] | None:
        """The newest request with this `x-request-id` or trace id, and its trace id; under way, or among the last."""
        for live, trace in reversed(self._traces.items()):
            if wanted in (live.timeline.request_id, trace.trace_id):
                return live.timeline, trace.trace_id
        ended = self.telemetry.ring.find(wanted)
        return None if ended is None else (ended.timeline, ended.trace_id)

    async def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; False if blocks are in use, or there is no engine yet."""
        return self.engine is not None and await self.engine.reset_prefix_cache()

    async def create(self, handler: str, method: str, request: Any, raw_request: Any) -> Any:
        """Call one of vLLM's handlers in this process, by its name in the application's state.

        Raises:
            RequestRefused: the model is still loading.
        """
        if self._app is None:
            raise loading()
        return await getattr(getattr(self._app.state, handler), method)(request, raw_request)

    def _make_engine(self) -> PrismAsyncLLM:
        config = engine_config(self._args, self._own, self._receiver.address)
        return PrismAsyncLLM(
            config,
            Executor.get_class(config),
            log_stats=not self._args.disable_log_stats,
            usage_context=UsageContext.OPENAI_API_SERVER,
            log_requests=self._args.enable_log_requests,
            aggregate_engine_logging=self._args.aggregate_engine_logging,
            desk=self.desk,
        )

    def _record(self, config: VllmConfig) -> None:
        if self._own.record_path is not None:
            self._recorder = Recorder(self._own.record_path, self._own.record_max_bytes, recording_header(config))
            self.desk.on_added = self._recorder.added

    def _stop_engine(self) -> None:
        if self.engine is not None:
            # Requests were drained before, and its processes do not hear SIGTERM: they are killed.
            self.engine.shutdown(timeout=0)

    def _end_half_started(self) -> None:
        """An engine that is told to stop while it loads: its process would else be waited for at exit."""
        if self.engine is None:
            self.kill_engine()

    async def _build_app(self, engine: PrismAsyncLLM) -> FastAPI:
        await engine.reset_mm_cache()
        tasks = await engine.get_supported_tasks()
        app = build_app(self._args, tasks, engine.model_config)
        await init_app_state(engine, app.state, self._args, tasks)
        app.state.server = DeathNotice(self.health)
        refuse_stumbles(app)
        renderer = PrismRenderer.from_stock(app.state.online_renderer, self.settings.rendering, self._rendered)
        await asyncio.to_thread(renderer.prepare)
        install_renderer(app.state, renderer)
        return app

    async def _first_token(self, engine: PrismAsyncLLM) -> None:
        """Have one token generated: the first one compiles and warms up, and ready must mean answering."""
        if "generate" not in await engine.get_supported_tasks():
            return
        # Several tokens and random sampling: what most requests do is what must be warm.
        params = SamplingParams(max_tokens=2, temperature=1.0, top_p=0.9, top_k=8, ignore_eos=True, detokenize=False)
        async for _ in engine.generate(tokens_input([1] * 8), params, WARM_UP):
            pass

    async def _look(self) -> None:
        while True:
            self.watch.look()
            self.desk.intake.look()
            self._losses.look()
            await asyncio.sleep(LOOK_SECONDS)

    def _engine_died(self) -> None:
        self.metrics.engines_gone()

    def _rendered(self, prompt_tokens: list[int], copies: int) -> None:
        """The running request's prompts are tokenised; what would be too much is refused before the engine sees it."""
        live = CURRENT.get()
        if live is None:
            return
        try:
            self.desk.intake.rendered(live, prompt_tokens, copies)
        except RequestRefused as refusal:
            live.end(refusal, Outcome.REFUSED)
            raise

    async def _vllm_app(self, scope: Any, receive: Any, send: Any) -> None:
        if self._app is None:
            await send_error(send, loading())
            return
        await self._app(scope, receive, send)

    # Traces and metrics

    def _request_arrived(self, live: LiveRequest, headers: Headers) -> Mapping[str, str]:
        self.metrics.request_arrived()
        trace = self._traces[live] = self.telemetry.tracer.begin(
            live.timeline, traceparent=headers.get("traceparent"), tracestate=headers.get("tracestate")
        )
        # Unasked, vLLM would warn that its own tracing is off.
        return trace.headers() if self._args.otlp_traces_endpoint else {}

    def _request_ended(self, live: LiveRequest) -> None:
        self.metrics.request_ended(live.timeline)
        if self._recorder is not None:
            self._recorder.ended(live)
        trace = self._traces.pop(live, None)
        if trace is not None:
            trace.finish(live.timeline)

    def _settings_changed(self) -> None:
        self.metrics.settings_in_force(self.settings.in_force.generation)
        self.telemetry.set_sampling_ratio(self.settings.in_force.spec.tracing.sampling_ratio)


def served_models(args: Namespace) -> list[str]:
    """Names of the base model, the main one first; adapters that are loaded later come on top."""
    names = args.served_model_name or [args.model]
    return [names] if isinstance(names, str) else list(names)


def install_renderer(state: State, renderer: PrismRenderer) -> None:
    """Put PRISM's renderer where vLLM's handlers hold the stock one."""
    stock = state.online_renderer
    for holder in list(state._state.values()):
        if getattr(holder, "online_renderer", None) is stock:
            holder.online_renderer = renderer
    state.online_renderer = renderer


def _load_parsers(args: Namespace) -> None:
    if args.tool_parser_plugin:
        ToolParserManager.import_tool_parser(args.tool_parser_plugin)
    if args.reasoning_parser_plugin:
        ReasoningParserManager.import_reasoning_parser(args.reasoning_parser_plugin)
    try:
        validate_api_server_args(args)  # type: ignore[no-untyped-call]
    except KeyError as error:
        raise DeploymentError(str(error.args[0])) from error
