"""One trace in the terminal: the span tree with a bar for each span, on one time axis."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from prism.telemetry import names
from prism.telemetry.shape import AttributeValue, SpanNode, span_tree
from prism.telemetry.timeline import Interval, RequestTimeline

BAR_CELLS = 40

_STYLES = {
    names.ADMISSION_WAIT: "yellow",
    names.RENDER: "bright_black",
    names.PREFILL: "blue",
    names.FIRST_TOKEN: "magenta",
    names.DECODE: "green",
    names.PREEMPTED: "red",
}

_TELLING = {
    names.LANE: "lane",
    names.QUEUE_DEPTH: "queue",
    names.WAIT_REASON: "waited for",
    names.CACHED_TOKENS: "cached",
    names.COMPUTED_TOKENS: "computed",
    names.SEGMENTS_HIT: "segments hit",
    names.SEGMENTS: "of",
    names.WAS_REORDERED: "reordered",
    names.TTFT: "TTFT",
    names.OUTCOME: "",
    names.OUTCOME_REASON: "",
    names.INCOMPLETE: "incomplete",
}
"""Attributes that are shown, and what they are called there; the others are for the collector."""

_SHOWN = {
    names.ADMISSION_WAIT: (names.LANE, names.QUEUE_DEPTH, names.WAIT_REASON),
    names.PREFILL: (
        names.CACHED_TOKENS,
        names.COMPUTED_TOKENS,
        names.SEGMENTS_HIT,
        names.SEGMENTS,
        names.WAS_REORDERED,
    ),
}
_ALWAYS_SHOWN = (names.TTFT, names.OUTCOME, names.OUTCOME_REASON, names.INCOMPLETE)


def render_tree(trace: RequestTimeline | SpanNode) -> RenderableType:
    """A request that has ended, as a table to print with rich: name, milliseconds, bar, and what matters of it.

    Raises:
        ValueError: the request has not ended.
    """
    root = span_tree(trace) if isinstance(trace, RequestTimeline) else trace
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("span", no_wrap=True)
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("", width=BAR_CELLS, no_wrap=True)
    table.add_column("", overflow="fold")
    for guide, node in _walk(root, "", ""):
        label = Text(guide, "bright_black").append(node.name, _style(node))
        table.add_row(label, f"{node.interval.duration_us / 1000:.1f}", _bar(node, root.interval), _remarks(node))
    return table


def _walk(node: SpanNode, guide: str, indent: str) -> Iterator[tuple[str, SpanNode]]:
    yield guide, node
    for index, child in enumerate(node.children):
        last = index == len(node.children) - 1
        yield from _walk(child, indent + ("└ " if last else "├ "), indent + ("  " if last else "│ "))


def _bar(node: SpanNode, whole: Interval) -> Text:
    """The span's place on the axis of the whole trace; a span too short for a cell gets a thin mark."""
    scale = BAR_CELLS / max(1, whole.duration_us)
    first = min(round(node.interval.start_us * scale), BAR_CELLS - 1)
    cells = round(node.interval.end_us * scale) - first
    return Text(" " * first + ("━" * cells if cells > 0 else "╸"), _style(node))


def _style(node: SpanNode) -> str:
    return "bold red" if node.error is not None else _STYLES.get(node.name, "")


def _remarks(node: SpanNode) -> str:
    shown = (*_SHOWN.get(node.name, ()), *_ALWAYS_SHOWN)
    told = [(name, node.attributes[name]) for name in shown if name in node.attributes]
    return ", ".join(_remark(name, value) for name, value in told).replace(", of ", " of ")


def _remark(name: str, value: AttributeValue) -> str:
    label = _TELLING[name]
    if isinstance(value, bool):
        return label if value else f"not {label}"
    if name == names.TTFT:
        return f"{label} {float(str(value)) * 1000:.1f} ms"
    return f"{label} {value}".strip()
