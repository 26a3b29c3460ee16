"""What of vLLM's routes and flags PRISM serves, and what it refuses at start, in one table.

The page `docs/compatibility.md` is printed from here, and a test compares it with vLLM's own route list and argument
parser, so that a flag or a route that the next vLLM brings is looked at before it is served.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from prism.engine.internals import ASYNC_SCHEDULER, SCHEDULER
from prism.errors import UnsupportedArgument

SCHEDULERS = (ASYNC_SCHEDULER, SCHEDULER)
"""The scheduler classes that `--scheduler-cls` may name: on `AsyncScheduler` and on `Scheduler`."""

_ONE_SERVER = "PRISM builds a trace from all parts of a request, so one API server process serves each pod"
_ONE_HOST = "PRISM's engines answer to one API server process over a local channel, so they run on one host"


@dataclass(frozen=True)
class Refusal:
    """A flag that stops the start when `given` holds for the parsed arguments.

    Attributes:
        flag: as vLLM's or KServe's parser spells it, with dashes.
        values: which values are refused, for people.
        reason: why, and what to do.
        given: tells from the parsed arguments whether it is.
    """

    flag: str
    values: str
    reason: str
    given: Callable[[Namespace], bool]


def _truthy(name: str) -> Callable[[Namespace], bool]:
    return lambda args: bool(getattr(args, name))


def _is_set(name: str) -> Callable[[Namespace], bool]:
    return lambda args: getattr(args, name) is not None


def _other_hosts(args: Namespace) -> bool:
    local = args.data_parallel_size_local
    return local is not None and local != args.data_parallel_size


def _foreign_scheduler(args: Namespace) -> bool:
    chosen = args.scheduler_cls
    return chosen is not None and (not isinstance(chosen, str) or chosen not in SCHEDULERS)


REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "--api-server-count",
        "above 1",
        f"{_ONE_SERVER}; raise the replicas of the InferenceService instead",
        lambda args: args.api_server_count not in (None, 1),
    ),
    Refusal(
        "--workers",
        "above 1",
        f"{_ONE_SERVER}; raise the replicas of the InferenceService instead",
        lambda args: getattr(args, "workers", None) not in (None, 1),  # absent without KServe's flags
    ),
    Refusal(
        "--headless",
        "any",
        "a headless engine has no API server; for tensor or pipeline parallelism run `vllm serve --headless` there",
        _truthy("headless"),
    ),
    Refusal("--grpc", "any", "PRISM serves HTTP; run `vllm serve --grpc` for vLLM's gRPC server", _truthy("grpc")),
    Refusal("--data-parallel-size-local", "other than --data-parallel-size", _ONE_HOST, _other_hosts),
    Refusal("--data-parallel-rank", "any", _ONE_HOST, _is_set("data_parallel_rank")),
    Refusal("--data-parallel-start-rank", "any", _ONE_HOST, _is_set("data_parallel_start_rank")),
    Refusal("--data-parallel-address", "any", _ONE_HOST, _is_set("data_parallel_address")),
    Refusal("--data-parallel-backend", "ray", _ONE_HOST, lambda args: args.data_parallel_backend == "ray"),
    Refusal("--data-parallel-external-lb", "any", _ONE_HOST, _truthy("data_parallel_external_lb")),
    Refusal("--data-parallel-hybrid-lb", "any", _ONE_HOST, _truthy("data_parallel_hybrid_lb")),
    Refusal(
        "--data-parallel-multi-port-external-lb", "any", _ONE_SERVER, _truthy("data_parallel_multi_port_external_lb")
    ),
    Refusal(
        "--scheduler-cls",
        "other than PRISM's own",
        "PRISM is a scheduler; choose stock order with `order: FCFS` and `policy: LRU` in the settings, "
        "or run `vllm serve` for another scheduler",
        _foreign_scheduler,
    ),
)

CHANGED: dict[str, str] = {
    "--port": "the HTTP port, as KServe's `--http-port`; 8080 unless given",
    "--model": "`/mnt/models` unless given, where that folder exists",
    "--served-model-name": "`--model_name` stands before the names given here",
    "--scheduler-cls": "PRISM's class for these arguments unless given",
    "--enable-prompt-tokens-details": "on unless `--no-enable-prompt-tokens-details` is given",
    "--enable-request-id-headers": "always on: every answer carries `x-request-id`",
    "--additional-config": "its key `prism` is PRISM's own and may not be given",
    "--uvicorn-log-level": "sets the level of KServe's server",
    "--log-config-file": "read by vLLM's logger; KServe's server has `--log_config_file` of the same name",
    "--shutdown-timeout": "read, but requests are drained within `--grace-period` before the engine ends at all",
    "--enable-ssl-refresh": "always on: KServe's server reloads changed certificates",
}
"""vLLM flags that are accepted but mean something more, or have another default, here."""

WITH_SEGMENTS: tuple[str, ...] = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
)
"""Routes whose prompts become segments and whose body may hold the `prism` object."""

PLAIN_PROMPTS: tuple[str, ...] = (
    "/inference/v1/generate",
    "/v1/chat/completions/batch",
    "/v1/completions/derender",
)
"""Routes that generate without segments: the tree's own branch points serve them."""

KSERVE_KEEPS: dict[str, str] = {
    "/": "KServe's liveness answer",
    "/metrics": "KServe's handler on the same registry: vLLM's, KServe's and PRISM's metrics together",
    "/docs": "KServe's page with `--enable_docs_url`; vLLM's stands at `/openai/docs`",
    "/openapi.json": "KServe's schema; vLLM's stands at `/openai/openapi.json`",
}
"""Paths of vLLM's that KServe answers at the root; below the prefix `/openai` they are vLLM's."""


def refuse_unsupported(args: Namespace) -> None:
    """Raises `UnsupportedArgument` for the first argument that PRISM cannot honour."""
    for refusal in REFUSALS:
        if refusal.given(args):
            raise UnsupportedArgument(f"{refusal.flag} ({refusal.values}) is not supported: {refusal.reason}.")
    if "prism" in (args.additional_config or {}):
        raise UnsupportedArgument("--additional-config may not hold the key `prism`: the launcher writes it.")


def flag_status(flag: str) -> str:
    """How PRISM treats a vLLM flag, as the documentation says it."""
    refused = next((r for r in REFUSALS if r.flag == flag), None)
    changed = CHANGED.get(flag)
    if refused and changed:
        return f"served ({changed}); refused at start when {refused.values}: {refused.reason}"
    if refused:
        return f"refused at start when {refused.values}: {refused.reason}"
    return f"served: {changed}" if changed else "served unchanged"


def route_status(path: str) -> str:
    """How PRISM treats a vLLM route, as the documentation says it."""
    if path in WITH_SEGMENTS:
        return "served with segments"
    if path in KSERVE_KEEPS:
        return f"at the root: {KSERVE_KEEPS[path]}"
    return "served unchanged"


def compatibility_markdown(routes: Iterable[tuple[str, str]], flags: Sequence[str], version: str) -> str:
    """The compatibility page.

    Args:
        routes: `(methods, path)` of vLLM's application.
        flags: long option strings of vLLM's parser.
        version: vLLM's version.
    """
    lines = [
        "# What PRISM serves of vLLM",
        "",
        f"Generated from `prism.engine.frontend.compatibility` against vLLM {version}; `make test` compares it with",
        "vLLM's own route list and argument parser. Every route stands under `/openai` and at the root.",
        "",
        "## Routes",
        "",
        "| methods | route | here |",
        "| --- | --- | --- |",
        *(f"| {methods} | `{path}` | {route_status(path)} |" for methods, path in sorted(routes, key=lambda r: r[1])),
        "",
        "KServe's own routes stay where they are: `/v1/models/{name}`, `:predict`, `:explain`, `/v2/…`. PRISM answers",
        "`/v2/health/live` and `/v2/health/ready` with the engine's state, and `/openai/v1/models/{name}` in OpenAI's",
        "form.",
        "",
        "## Flags",
        "",
        "| flag | here |",
        "| --- | --- |",
        *(f"| `{flag}` | {flag_status(flag)} |" for flag in sorted(flags)),
        "",
        "KServe's `--workers` above 1 is refused too: " + _ONE_SERVER + ".",
        "",
    ]
    return "\n".join(lines)
