"""Cells: cold, interleaved, paired, with the start-up outside the window."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from prism.bench.http.load import Session, Turn
from prism.bench.http.run import Cell, Cold, Plan, paired, run
from prism.bench.http.servers import Server, parse_server
from prism.errors import DeploymentError


@dataclass(frozen=True)
class _Evenly:
    """One request every `1 / rate` seconds."""

    def draw(self, rate: float, seconds: float, seed: int) -> list[Session]:
        def session(number: int) -> Session:
            body = {"messages": [{"role": "user", "content": f"question {number} of seed {seed}"}]}
            return Session(number / rate, (Turn(str(number), body),))

        return [session(number) for number in range(round(rate * seconds))]


def _plan(*urls: str, **fields: Any) -> Plan:
    names = "abc"
    servers = tuple(Server(name, url) for name, url in zip(names, urls, strict=False))
    return replace(Plan(servers, _Evenly(), (20.0,), 0.5), **fields)


async def _run(plan: Plan) -> list[Cell]:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        return [cell async for cell in run(plan, client)]


def _texts(asked: list[dict[str, Any]]) -> list[str]:
    return [body["messages"][0]["content"] for body in asked]


async def test_which_arm_goes_first_alternates(fake_server: Any) -> None:
    async with fake_server(slots=9) as one, fake_server(slots=9) as other:
        cells = await _run(_plan(one.url, other.url, repeats=3))
    assert [(cell.server, cell.repeat) for cell in cells] == [
        ("a", 0),
        ("b", 0),
        ("b", 1),
        ("a", 1),
        ("a", 2),
        ("b", 2),
    ]


async def test_arms_get_the_same_requests_and_repeats_others(fake_server: Any) -> None:
    async with fake_server(slots=9) as one, fake_server(slots=9) as other:
        await _run(_plan(one.url, other.url, repeats=2))
    assert sorted(_texts(one.asked)[1:]) == sorted(_texts(other.asked)[1:])
    assert len(set(_texts(one.asked))) == 21


async def test_the_cache_is_emptied_before_each_cell(fake_server: Any) -> None:
    async with fake_server(slots=9) as fake:
        cells = await _run(_plan(fake.url, repeats=2))
    assert {cell.cold for cell in cells} == {Cold.RESET}
    assert fake.log == ["reset", "ask", *(["reset"] + ["ask"] * 10) * 2]


async def test_without_a_reset_no_prompt_begins_as_one_of_another_cell(fake_server: Any) -> None:
    async with fake_server(slots=9, resettable=False) as fake:
        cells = await _run(_plan(fake.url, repeats=2))
    begins = [text.splitlines()[0] for text in _texts(fake.asked)]
    assert {cell.cold for cell in cells} == {Cold.MARKER}
    assert [len(set(begins[:1])), len(set(begins[1:11])), len(set(begins[11:])), len(set(begins))] == [1, 1, 1, 3]


async def test_one_arm_without_a_reset_makes_all_begin_alike(fake_server: Any) -> None:
    async with fake_server(slots=9, resettable=False) as one, fake_server(slots=9) as other:
        cells = await _run(_plan(one.url, other.url))
    assert {cell.cold for cell in cells} == {Cold.MARKER}


async def test_a_reset_that_was_asked_for_and_is_not_there_is_said(fake_server: Any) -> None:
    async with fake_server(resettable=False) as fake:
        with pytest.raises(DeploymentError, match="VLLM_SERVER_DEV_MODE=1, or use --cold marker"):
            await _run(_plan(fake.url, cold=Cold.RESET))


async def test_figures_are_of_the_window_after_the_warm_up(fake_server: Any) -> None:
    async with fake_server(slots=9) as fake:
        (cell,) = await _run(_plan(fake.url, warm_up_s=0.24))
    assert len(cell.replies) == 10
    assert [reply.name for reply in cell.window] == ["5", "6", "7", "8", "9"]


async def test_the_burst_of_a_closed_loop_stays_outside_its_window(fake_server: Any) -> None:
    async with fake_server(slots=4, seconds=0.05) as fake:
        (cell,) = await _run(_plan(fake.url, together=16, seconds=2.0, warm_up_s=1.0))
    burst = [reply for reply in cell.replies if reply.due == 0.0]
    assert len(burst) == 16
    assert not set(map(id, burst)) & set(map(id, cell.window))
    assert max(reply.ttft_s or 0.0 for reply in cell.window) == pytest.approx(0.2, abs=0.12)


async def test_a_server_that_fails_at_once_ends_the_benchmark_with_its_reason(fake_server: Any) -> None:
    async with fake_server(failing=1) as fake:
        with pytest.raises(DeploymentError, match="arm a fails the first request: HTTP 500: no such luck"):
            await _run(_plan(fake.url))


async def test_pairs_are_the_same_request_in_the_same_repeat(fake_server: Any) -> None:
    async with fake_server(slots=9) as one, fake_server(slots=9) as other:
        cells = await _run(_plan(one.url, other.url, repeats=2, warm_up_s=0.24))
    ours, theirs = ([cell for cell in cells if cell.server == name] for name in "ab")
    pairs = paired(ours, theirs)
    assert len(pairs) == 10
    assert all(mine.name == other_one.name for mine, other_one in pairs)


@pytest.mark.parametrize("text", ["prism", "prism=host:8080", "=http://host", "prism=http://host,host:8090"])
def test_an_arm_that_is_none_is_said_with_an_example(text: str) -> None:
    with pytest.raises(DeploymentError, match="write NAME=URL"):
        parse_server(text)


def test_an_arm_is_a_name_and_its_addresses() -> None:
    assert parse_server("p=http://h:1/v1,http://h:2/") == Server("p", "http://h:1", "http://h:2")
