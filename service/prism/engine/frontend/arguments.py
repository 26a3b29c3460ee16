"""The command line of `prism serve`: vLLM's own parser, with KServe's flags and PRISM's few beside it.

vLLM's parser stays in charge (dashes and underscores, `--json.key value`, `--config FILE`), so every flag of the
installed vLLM is accepted as it is. A flag given twice counts as given last.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from vllm.entrypoints.openai.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser

from prism.engine.frontend.compatibility import refuse_unsupported
from prism.errors import UnsupportedArgument
from prism.telemetry.log import LogFormat

DEFAULT_PORT = 8080
DEFAULT_ADMIN_PORT = 8090
DEFAULT_DRAIN_DELAY_S = 5.0
DEFAULT_RECORD_MB = 512
MOUNTED_MODEL = Path("/mnt/models")
POD_NAME_VARIABLE = "POD_NAME"

AddFlags = Callable[[ArgumentParser], None]


@dataclass(frozen=True)
class PrismArguments:
    """PRISM's own arguments.

    Attributes:
        config_path: the settings document to watch, or None for the defaults.
        pod_name: how this pod finds itself among a candidate's pods.
        admin_port: port of the admin interface; 0 disables it.
        admin_host: address that the admin interface listens on.
        step_timeout_s: a step of the engine that takes longer counts as hung.
        grace_period_s: from a request to stop to the process's end.
        drain_delay_s: how long after a request to stop new requests are still taken.
        log_format: how PRISM's own log lines are written.
        record_path: file for a recording of the traffic; None for none.
        record_max_bytes: of that file and the one before it together.
    """

    config_path: str | None
    pod_name: str | None
    admin_port: int
    admin_host: str
    step_timeout_s: float
    grace_period_s: int
    drain_delay_s: float
    log_format: LogFormat
    record_path: Path | None = None
    record_max_bytes: int = DEFAULT_RECORD_MB << 20


class _Parser(FlexibleArgumentParser):
    """vLLM's parser that raises its complaint in place of printing some hundred flags and exiting."""

    def error(self, message: str) -> NoReturn:
        raise UnsupportedArgument(f"{message}; `prism serve --help=all` lists what there is.")


def _parser() -> FlexibleArgumentParser:
    parser: FlexibleArgumentParser = _Parser(  # type: ignore[no-untyped-call]
        prog="prism serve", usage="prism serve [model] [options]", description="Serve a model through PRISM."
    )
    return parser


def make_parser(add_flags: AddFlags | None = None) -> FlexibleArgumentParser:
    """vLLM's parser with PRISM's flags, and those that `add_flags` adds."""
    parser = make_arg_parser(_parser())
    group = parser.add_argument_group("PRISM", "PRISM's own arguments.")  # type: ignore[no-untyped-call]
    group.add_argument("--prism-config", metavar="PATH", help="Settings document to watch; without it, the defaults.")
    group.add_argument("--admin-port", type=int, default=DEFAULT_ADMIN_PORT, help="Admin port; 0 disables it.")
    group.add_argument("--admin-host", default="0.0.0.0", help="Address that the admin port listens on.")
    group.add_argument("--step-timeout", type=float, default=300.0, help="Seconds after which a step counts as hung.")
    group.add_argument("--grace-period", type=int, default=30, help="Seconds from SIGTERM to the process's end.")
    group.add_argument(
        "--drain-delay",
        type=float,
        help=f"Seconds after SIGTERM in which new requests are still taken, while others learn that this replica is "
        f"not ready. Default: {DEFAULT_DRAIN_DELAY_S:g}, but at most half of the grace period.",
    )
    group.add_argument(
        "--log-format", choices=[form.value for form in LogFormat], default="text", help="Of PRISM's own log lines."
    )
    group.add_argument(
        "--record",
        metavar="PATH",
        help="Record the traffic for `prism replay`: arrivals, lengths and keyed digests, no text and no tokens.",
    )
    group.add_argument(
        "--record-max-mb", type=int, default=DEFAULT_RECORD_MB, help="Size at which the oldest half is given up."
    )
    if add_flags is not None:
        add_flags(parser)
    parser.set_defaults(port=DEFAULT_PORT, model=None, enable_prompt_tokens_details=True)
    return parser


def parse_arguments(
    argv: Sequence[str], add_flags: AddFlags | None = None, mounted_model: Path = MOUNTED_MODEL
) -> tuple[Namespace, PrismArguments]:
    """Read the command line.

    Returns:
        vLLM's namespace, ready for its own functions (KServe's values are in it too), and PRISM's own arguments.

    Raises:
        UnsupportedArgument: an unknown flag, a bad value, or something that PRISM cannot honour.
    """
    parser = make_parser(add_flags)
    try:
        args = parser.parse_args(list(argv))
    except (ValueError, TypeError, KeyError) as error:
        raise UnsupportedArgument(str(error)) from error
    _choose_model(args, mounted_model)
    refuse_unsupported(args)
    try:
        validate_parsed_serve_args(args)
    except (ValueError, TypeError, KeyError) as error:
        raise UnsupportedArgument(str(error)) from error
    # PRISM's own entry sets this header on every answer, errors included.
    args.enable_request_id_headers = False
    return args, _own_arguments(args)


def _choose_model(args: Namespace, mounted_model: Path) -> None:
    args.model = args.model_tag or args.model
    if args.model is None:
        # vLLM's own default stands where nothing is mounted.
        default = make_arg_parser(_parser()).get_default("model")
        args.model = str(mounted_model) if mounted_model.is_dir() else default
    name = getattr(args, "model_name", None)
    if name:
        others = [other for other in args.served_model_name or [] if other != name]
        args.served_model_name = [name, *others]


def _own_arguments(args: Namespace) -> PrismArguments:
    for port in (args.port, args.admin_port):
        if not 0 <= port < 65536:
            raise UnsupportedArgument(f"{port} is not a port: choose one from 1 to 65535.")
    if args.admin_port and args.admin_port == args.port:
        raise UnsupportedArgument(f"--admin-port and --port are both {args.port}: choose two ports.")
    return PrismArguments(
        config_path=args.prism_config,
        pod_name=os.environ.get(POD_NAME_VARIABLE) or os.environ.get("HOSTNAME"),
        admin_port=args.admin_port,
        admin_host=args.admin_host,
        step_timeout_s=_above_zero(args.step_timeout, "--step-timeout"),
        grace_period_s=int(_above_zero(args.grace_period, "--grace-period")),
        drain_delay_s=_drain_delay(args),
        log_format=LogFormat(args.log_format),
        record_path=_record_path(args),
        record_max_bytes=int(_above_zero(args.record_max_mb, "--record-max-mb", "MB")) << 20,
    )


def _above_zero(value: float, flag: str, unit: str = "seconds") -> float:
    if not value > 0:
        raise UnsupportedArgument(f"{flag} {value:g} must be above 0 {unit}.")
    return value


def _record_path(args: Namespace) -> Path | None:
    if args.record is None:
        return None
    path = Path(args.record)
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK | os.X_OK):
        raise UnsupportedArgument(f"--record {path}: name a file in a folder that this process can write to.")
    return path


def _drain_delay(args: Namespace) -> float:
    if args.drain_delay is None:
        return min(DEFAULT_DRAIN_DELAY_S, float(args.grace_period) / 2)
    delay = float(args.drain_delay)
    if not 0 <= delay < args.grace_period:
        raise UnsupportedArgument(
            f"--drain-delay {delay:g} must be at least 0 and below --grace-period ({args.grace_period} s)."
        )
    return delay
