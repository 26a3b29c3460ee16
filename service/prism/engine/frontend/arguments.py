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

DEFAULT_PORT = 8080
DEFAULT_ADMIN_PORT = 8090
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
        grace_period_s: how long running answers may go on after a request to stop.
    """

    config_path: str | None
    pod_name: str | None
    admin_port: int
    admin_host: str
    step_timeout_s: float
    grace_period_s: int


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
    group.add_argument("--grace-period", type=int, default=30, help="Seconds that answers may take after SIGTERM.")
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
        step_timeout_s=args.step_timeout,
        grace_period_s=args.grace_period,
    )
