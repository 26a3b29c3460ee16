"""The command line. Each command imports what it needs when it runs, so that `prism --help` is instant."""

from __future__ import annotations

from collections.abc import Callable

import typer

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


def _hand_over(command: Callable[..., None], context: typer.Context) -> None:
    """Run a command whose arguments are known only when its module is imported."""
    alone = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    alone.command()(command)
    alone(context.args, prog_name=f"prism {context.info_name}")


def main() -> None:
    """Entry point of the `prism` command."""
    app()


if __name__ == "__main__":
    main()
