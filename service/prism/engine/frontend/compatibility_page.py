"""Writes the compatibility page: `python -m prism.engine.frontend.compatibility_page docs/compatibility.md`."""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import vllm
import vllm.entrypoints
from vllm.entrypoints.openai.api_server import build_app
from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from prism.engine.frontend.compatibility import compatibility_markdown

_SWITCHES = ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "VLLM_SERVER_DEV_MODE")


def vllm_flags() -> list[str]:
    """Every long flag of vLLM's server, the positive one of a pair."""
    parser = make_arg_parser(FlexibleArgumentParser())  # type: ignore[no-untyped-call]
    flags = {long[0] for action in parser._actions if (long := [o for o in action.option_strings if o[:2] == "--"])}
    return sorted(flags - {"--help"})


def vllm_routes() -> list[tuple[str, str]]:
    """Methods and path of every route that vLLM has, for any kind of model, plugin or environment variable."""
    parser = make_arg_parser(FlexibleArgumentParser())  # type: ignore[no-untyped-call]
    with _every_switch_on():
        app = build_app(parser.parse_args([]), ("generate",))
    routers = [getattr(module, "router", None) for module in _router_modules()]
    found = set(_routes(app.routes))
    for router in routers:
        found.update(_routes(router.routes if router is not None else ()))
    return sorted(found)


def compatibility_page() -> str:
    """The page, for the installed vLLM."""
    return compatibility_markdown(vllm_routes(), vllm_flags(), vllm.__version__)


@contextlib.contextmanager
def _every_switch_on() -> Iterator[None]:
    """vLLM adds some routes only where an environment variable says so."""
    switches = dict.fromkeys(_SWITCHES, "1")
    before = {name: os.environ.get(name) for name in switches}
    os.environ.update(switches)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _router_modules() -> Iterable[ModuleType]:
    """The modules that hold vLLM's routes; one that needs a package that is not installed has none to serve here."""
    for module in pkgutil.walk_packages(vllm.entrypoints.__path__, "vllm.entrypoints."):
        if module.name.endswith(".api_router"):
            with contextlib.suppress(ImportError):
                yield importlib.import_module(module.name)


def _routes(routes: Iterable[Any]) -> Iterable[tuple[str, str]]:
    for route in routes:
        path = getattr(route, "path", None)
        if path:
            methods = getattr(route, "methods", None)
            yield (", ".join(sorted(methods - {"HEAD"})) if methods else "any"), path


if __name__ == "__main__":
    # Into a file: vLLM's log goes to the standard output.
    Path(sys.argv[1]).write_text(compatibility_page())
