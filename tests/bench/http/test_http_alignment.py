"""ContextPilot's alignment on the way to a server."""

from __future__ import annotations

import json
from typing import Any

import httpx

from prism.bench.http.alignment import aligned
from prism.bench.http.load import Session, Turn
from prism.bench.http.report import Results, as_json
from prism.bench.http.run import Plan, run
from prism.bench.http.servers import Server
from prism.bench.http.workloads import Rag


def _asked(name: str, *parts: str, **fields: Any) -> Session:
    content = [{"type": "text", "text": part} for part in parts]
    messages = [{"role": "system", "content": "Answer."}, {"role": "user", "content": content}]
    return Session(0.0, (Turn(name, {"messages": messages, "prism": {"reorder": True}, **fields}),))


def _parts(session: Session) -> list[str]:
    return [part["text"] for part in session.turns[0].body["messages"][-1]["content"]]


def test_passages_take_an_order_that_was_sent_before() -> None:
    load = [_asked("1", "a", "b", "c", "first?"), _asked("2", "c", "d", "b", "a", "second?")]
    first, second = aligned(load)
    assert first == load[0]
    assert _parts(second) == ["a", "b", "c", "d", "second?"]
    assert second.turns[0].body["messages"][0] == load[1].turns[0].body["messages"][0]
    assert _parts(load[1]) == ["c", "d", "b", "a", "second?"], "the load itself is left as it was"


def test_what_may_not_move_or_stands_twice_passes_as_it_is() -> None:
    fixed = _asked("2", "b", "a", "?", prism={})
    plain = Session(0.0, (Turn("3", {"prompt": "b a"}),))
    twice = _asked("4", "b", "b", "?")
    text = Session(0.0, (Turn("5", {"messages": [{"role": "user", "content": "b a"}], "prism": {"reorder": True}}),))
    load = [_asked("1", "a", "b", "?"), fixed, plain, twice, text]
    assert aligned(load) == load


def test_an_order_is_not_remembered_from_load_to_load() -> None:
    later = [_asked("2", "b", "a", "?")]
    aligned([_asked("1", "a", "b", "?")])
    assert aligned(later) == later


async def test_the_same_server_can_be_asked_with_it_and_without(fake_server: Any) -> None:
    async with fake_server(slots=9) as server, httpx.AsyncClient(trust_env=False, timeout=60) as client:
        arms = (Server("stock", server.url), Server("contextpilot", server.url, front=aligned))
        plan = Plan(arms, Rag("m", 4, passages=5, longest=80, articles=2), (40.0,), 0.5)
        cells = [cell async for cell in run(plan, client)]
    described = json.loads(json.dumps(as_json(Results(plan, cells))["plan"]["arms"]))
    assert [arm["front"] for arm in described] == [None, "aligned"]
    own, through = ([sorted(_of(body)) for body in asked] for asked in _halves(server.asked[2:]))
    assert [cell.server for cell in cells] == ["stock", "contextpilot"]
    assert own == through, "the same passages"
    assert [_of(body) for body in _halves(server.asked[2:])[0]] != [_of(body) for body in _halves(server.asked[2:])[1]]


def _of(body: dict[str, Any]) -> list[str]:
    return [part["text"] for part in body["messages"][-1]["content"]]


def _halves(asked: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    half = len(asked) // 2
    return asked[:half], asked[half:]
