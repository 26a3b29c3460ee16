"""ContextPilot's alignment on the way to any OpenAI server, as its proxy does it.

The passages of a request that may change places are put into an order that was sent before
(`prism.bench.baselines.contextpilot`). The server does not tell what it has given up, so nothing is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from prism.bench.baselines.contextpilot import ContextIndex
from prism.bench.http.load import Session, Turn


def aligned(load: Sequence[Session]) -> list[Session]:
    """The same load as it leaves the proxy, which has seen nothing before it.

    Only requests that declare the parts of their last message unordered (`{"prism": {"reorder": true}}`) are touched;
    the last part, the question, stays where it is. One that has a passage twice passes as it is.
    """
    index = ContextIndex()
    return [replace(one, turns=tuple(_through(index, turn) for turn in one.turns)) for one in load]


def _through(index: ContextIndex, turn: Turn) -> Turn:
    parts = _movable(turn.body)
    documents = [str(part.get("text")).encode() for part in parts]
    if len(parts) < 2 or len(set(documents)) < len(documents):
        return turn
    order = index.align(turn.name, documents).order
    *before, last = turn.body["messages"]
    content = [*(parts[place] for place in order), last["content"][-1]]
    return replace(turn, body={**turn.body, "messages": [*before, {**last, "content": content}]})


def _movable(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = body.get("messages") or [{}]
    content = messages[-1].get("content")
    declared = (body.get("prism") or {}).get("reorder") is True
    return content[:-1] if declared and isinstance(content, list) else []
