"""The command line. Each command imports what it needs when it runs, so that `prism --help` is instant."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from prism.errors import PrismError

_ADMIN = typer.Option(help="Admin port of a running predictor.", envvar="PRISM_ADMIN")
_DEFAULT_ADMIN = "http://localhost:8090"

app = typer.Typer(
    name="prism",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="PRISM: an inference service for KServe that decides admission order and KV retention together.",
)

_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.callback()
def prism() -> None:
    """PRISM: an inference service for KServe that decides admission order and KV retention together."""


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def serve(context: typer.Context) -> None:
    """Serve a model: all of vLLM's arguments, KServe's, and PRISM's few (`prism serve --help`)."""
    _end_when_asked()
    from prism.serving.server import serve as run  # noqa: PLC0415 - it imports vLLM

    raise typer.Exit(run(context.args))


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def demo(context: typer.Context) -> None:
    """A real small model under load, stock order against PRISM, live (`prism demo --help`)."""
    from prism.bench.demo import demo_command  # noqa: PLC0415 - it imports matplotlib

    _hand_over(demo_command, context)


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def bench(context: typer.Context) -> None:
    """Servers of OpenAI's API under load, side by side (`prism bench --help`)."""
    from prism.bench.http.command import bench_command  # noqa: PLC0415 - it imports scipy

    _hand_over(bench_command, context)


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def sim(context: typer.Context) -> None:
    """Schedulers compared on a simulated device, and its constants fitted to a real one (`prism sim --help`)."""
    from prism.bench.sim import app as simulator  # noqa: PLC0415 - it imports vLLM

    simulator(context.args, prog_name="prism sim")


@app.command(context_settings=_PASS_THROUGH, add_help_option=False)
def replay(context: typer.Context) -> None:
    """Recorded traffic under other policies, on a simulated device (`prism replay --help`)."""
    from prism.bench.replay import replay_command  # noqa: PLC0415 - it imports vLLM

    _hand_over(replay_command, context)


def _hand_over(command: Callable[..., None], context: typer.Context) -> None:
    """Run a command whose arguments are known only when its module is imported."""
    alone = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    alone.command()(command)
    alone(context.args, prog_name=f"prism {context.info_name}")


@app.command()
def top(
    admin: Annotated[str, _ADMIN] = _DEFAULT_ADMIN,
    once: Annotated[bool, typer.Option("--once", help="Show the state once and end.")] = False,
    json: Annotated[bool, typer.Option("--json", help="As JSON, once.")] = False,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
) -> None:
    """A running predictor, live: its queue, its times to first token, its cache and its settings."""
    from prism.inspect.top import show_top  # noqa: PLC0415 - rich and httpx take their time

    with _told_in_one_sentence("top"):
        show_top(admin, once=once, as_json=json, every_s=every)


@app.command()
def explain(
    request: Annotated[str, typer.Argument(metavar="REQUEST_ID|TRACE_ID", help="Its x-request-id, or its trace id.")],
    admin: Annotated[str, _ADMIN] = _DEFAULT_ADMIN,
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", help="Say, too, which segments another tenant had sent.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Why a request waited, and why each of its segments hit or missed the cache."""
    from prism.inspect.explain import show_explanation  # noqa: PLC0415 - httpx takes its time

    with _told_in_one_sentence("explain"):
        show_explanation(admin, request, all_tenants=all_tenants, as_json=json)


@contextmanager
def _told_in_one_sentence(command: str) -> Iterator[None]:
    try:
        yield
    except PrismError as error:
        sys.stderr.write(f"prism {command}: {error}\n")
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _end_when_asked() -> None:
    """Until the server hears signals itself, after a quarter of a minute of imports: there is nothing to lose yet.

    Process 1 of a container would ignore a signal that nobody handles.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))


def main() -> None:
    """Entry point of the `prism` command."""
    app()


if __name__ == "__main__":
    main()
