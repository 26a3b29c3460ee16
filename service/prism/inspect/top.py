"""`prism top`: a running predictor, live."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from prism.errors import UnansweredQuestion
from prism.inspect.admin_port import AdminPort
from prism.telemetry.top import CacheView, LatencyView, QueueView, SettingsView, TopView, TrafficView
from prism.telemetry.window import Quantiles


def show_top(address: str, *, once: bool, as_json: bool, every_s: float, console: Console | None = None) -> None:
    """Show the state of the predictor whose admin port this is, once or until interrupted.

    Raises:
        UnansweredQuestion: it does not answer.
    """
    console = Console() if console is None else console
    admin = AdminPort(address)
    view = admin.ask(TopView, "top")
    if as_json or once:
        _show_once(view, console, as_json)
        return
    with Live(render_top(view), console=console, auto_refresh=False, screen=console.is_terminal) as live:
        while True:
            time.sleep(every_s)
            live.update(_now(admin, view), refresh=True)


def _now(admin: AdminPort, last: TopView) -> RenderableType:
    """The state now; a predictor that stops answering for a while leaves its last state, and the reason, on screen."""
    try:
        return render_top(admin.ask(TopView, "top"))
    except UnansweredQuestion as error:
        return Group(Text(str(error), "bold red"), Text("The last state it told:", "bright_black"), render_top(last))


def _show_once(view: TopView, console: Console, as_json: bool) -> None:
    if as_json:
        console.out(msgspec.json.encode(view).decode(), highlight=False)
    else:
        console.print(render_top(view))


def render_top(view: TopView) -> RenderableType:
    """The state as tables to print with rich."""
    return Group(
        _headline(view),
        _queue(view.queue, view.traffic),
        _latency(view.latency),
        _cache(view.cache),
        _settings(view.settings),
    )


def _headline(view: TopView) -> Text:
    style = "bold green" if view.engine == "ready" else "bold red"
    window = f"  rates and percentiles of the last {view.window_seconds:.0f} s"
    return Text.assemble((view.model_name, "bold"), "  engine ", (view.engine, style), (window, "bright_black"))


def _queue(queue: QueueView, traffic: TrafficView) -> Table:
    table = _table("requests", "now", "a second", "")
    lanes = ", ".join(f"{lane} {count}" for lane, count in queue.waiting.items() if count)
    oldest = f"oldest {queue.oldest_wait_seconds:.1f} s, overtaken {queue.cold_lane_overtakes} times in a row"
    table.add_row("waiting", str(sum(queue.waiting.values())), "", f"{lanes}; {oldest}" if lanes else "")
    table.add_row("running", str(queue.running), "", "")
    table.add_row("open", str(queue.open), "", "arrived and not yet counted as ended")
    table.add_row("arrived", "", _rate(traffic.arrived), "")
    table.add_row("finished", "", _rate(traffic.finished), "")
    table.add_row("refused", "", _rate(traffic.refused), _listed(traffic.refused_by_reason))
    table.add_row("cancelled", "", _rate(traffic.cancelled), "")
    table.add_row("failed", "", _rate(traffic.failed), "")
    return table


def _latency(latency: LatencyView) -> Table:
    table = _table("milliseconds", "P50", "P99", "of")
    rows = {"TTFT": latency.ttft, **{f"  {name}": part for name, part in latency.parts.items()}}
    for name, quantiles in {**rows, "scheduler pass": latency.scheduler_pass}.items():
        table.add_row(name, _milliseconds(quantiles.p50), _milliseconds(quantiles.p99), _count(quantiles))
    return table


def _cache(cache: CacheView) -> Table:
    table = _table("KV cache", "", "", "")
    table.add_row("blocks free", str(cache.free_blocks), f"of {cache.total_blocks}", "")
    by_kind = {kind: rate for kind, rate in cache.hit_rate_by_kind.items() if rate is not None}
    shown = ", ".join(f"{kind} {rate:.0%}" for kind, rate in by_kind.items())
    table.add_row("hit rate", "–" if cache.hit_rate is None else f"{cache.hit_rate:.1%}", "", shown)
    given_up = sum(cache.evictions.values())
    table.add_row("given up", _rate(given_up), "blocks/s", _listed(cache.evictions))
    return table


def _settings(settings: SettingsView) -> Text:
    text = f"settings: generation {settings.generation} of {settings.source} ({settings.role}), {settings.digest}"
    shown = Text(text, "bright_black")
    if settings.refusal is not None:
        shown.append(f"\nthe document as it is now is refused: {settings.refusal}", "bold red")
    return shown


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index in (1, 2) else "left", no_wrap=index < 3)
    return table


def _rate(value: float) -> str:
    return f"{value:.1f}" if value else "0"


def _listed(rates: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {rate:.1f}" for name, rate in rates.items() if rate)


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:.1f}"


def _count(quantiles: Quantiles) -> str:
    return str(quantiles.count)
