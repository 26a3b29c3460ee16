"""One finished request of the demo as the span tree that a collector would show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from prism.telemetry import names
from prism.telemetry.shape import AttributeValue, SpanNode
from prism.telemetry.timeline import Interval
from prism.telemetry.tree import render_tree

_SPANS = {
    "admission_wait": names.ADMISSION_WAIT,
    "prefill": names.PREFILL,
    "first_token": names.FIRST_TOKEN,
    "decode": names.DECODE,
}
_DECIDED = {
    "admission_wait": {"lane": names.LANE, "depth": names.QUEUE_DEPTH, "why": names.WAIT_REASON},
    "prefill": {
        "cached_tokens": names.CACHED_TOKENS,
        "segments_hit": names.SEGMENTS_HIT,
        "segments": names.SEGMENTS,
        "reordered": names.WAS_REORDERED,
    },
}
"""What the scheduler decided, by the span that carries it."""


def telling(requests: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The request that shows most: reordered and served from the cache if there is such a one, else the last.

    Raises:
        ValueError: there is none.
    """
    if not requests:
        raise ValueError("no finished request")
    return max(requests, key=_interest)


def _interest(request: Mapping[str, Any]) -> tuple[bool, bool, float]:
    admission = request["admission"] or {}
    return request["ttft_s"] is not None, bool(admission.get("reordered")), admission.get("cached_tokens", 0)


def trace(request: Mapping[str, Any]) -> RenderableType:
    """A request as the admin port tells it, drawn as a tree."""
    return render_tree(_root(request))


def _root(request: Mapping[str, Any]) -> SpanNode:
    parts, began_us = [], 0
    for part in request["parts"]:
        ended_us = began_us + round(part["seconds"] * 1e6)
        parts.append(
            SpanNode(
                _SPANS[part["name"]], Interval(began_us, ended_us), _attributes(part["name"], request["admission"])
            )
        )
        began_us = ended_us
    whole = Interval(0, began_us)
    chat = SpanNode(f"chat {request['model']}", whole, {}, children=tuple(parts))
    told: dict[str, AttributeValue] = {names.OUTCOME: str(request["outcome"])}
    if request["ttft_s"] is not None:
        told[names.TTFT] = request["ttft_s"]
    return SpanNode(f"POST {request['route']}", whole, told, children=(chat,))


def _attributes(part: str, admission: Mapping[str, Any] | None) -> dict[str, AttributeValue]:
    return {name: admission[key] for key, name in _DECIDED.get(part, {}).items()} if admission else {}
