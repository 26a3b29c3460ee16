"""Requests on schedule: what is timed, and that none gets lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from prism.bench.demo_server import free_port
from prism.bench.http.load import Load, Reply, Session, Turn

FACTS = {"lane": "hot", "reordered": True, "ttft": {"admission_wait": 0.1, "prefill": 0.2, "first_token": 0.01}}


def _at(*moments: float) -> list[Session]:
    return [Session(at, (Turn(str(number), {"n": number}),)) for number, at in enumerate(moments)]


async def _open(url: str, sessions: Sequence[Session], connections: int | None = None, limit_s: float = 60) -> Load:
    limits = httpx.Limits(max_connections=connections)
    async with httpx.AsyncClient(trust_env=False, timeout=60, limits=limits) as client:
        load = Load(client, url, limit_s)
        await load.run_open(sessions)
    return load


def test_first_content_ends_the_time_to_first_token() -> None:
    reply = Reply(due=1.0)
    reply.take({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, 1.5)
    reply.take({"choices": [{"delta": {"content": "Pa"}}]}, 2.0)
    reply.take({"choices": [{"delta": {"content": "ris"}}]}, 3.0)
    assert (reply.ttft_s, reply.text) == (1.0, "Paris")


@pytest.mark.parametrize(
    "choice",
    [
        {"delta": {"reasoning": "Well"}},
        {"delta": {"reasoning_content": "Well"}},
        {"delta": {"tool_calls": [{"index": 0}]}},
        {"delta": {"content": ""}, "logprobs": {"content": [{"token": "a"}]}},
        {"text": "Well"},
    ],
)
def test_whatever_a_model_says_first_counts(choice: dict[str, Any]) -> None:
    reply = Reply(due=0.0)
    reply.take({"choices": [choice]}, 0.7)
    assert reply.ttft_s == 0.7


def test_usage_chunk_tells_cached_tokens_and_parts() -> None:
    reply = Reply(due=0.0)
    usage = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 64}}
    reply.take({"choices": [], "usage": usage, "prism": FACTS}, 1.0)
    assert (reply.prompt_tokens, reply.cached_tokens, reply.output_tokens) == (100, 64, 7)
    assert (reply.lane, reply.reordered, reply.parts) == ("hot", True, FACTS["ttft"])


def test_a_server_that_says_nothing_of_its_cache_is_not_one_without_hits() -> None:
    reply = Reply(due=0.0)
    reply.take({"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 7}}, 1.0)
    assert reply.cached_tokens is None


async def test_waiting_behind_one_slot_counts_from_the_schedule(fake_server: Any) -> None:
    async with fake_server(slots=1, seconds=0.4) as fake:
        load = await _open(fake.url, _at(*(0.2 * n for n in range(10))))
    ttft = [reply.ttft_s or 0.0 for reply in load.replies]
    assert sum(ttft) / 10 == pytest.approx(1.3, abs=0.15)
    assert max(ttft) == pytest.approx(2.2, abs=0.25)


async def test_waiting_for_a_connection_counts_too(fake_server: Any) -> None:
    async with fake_server(slots=9, seconds=0.2) as fake:
        load = await _open(fake.url, _at(0.0, 0.0, 0.0, 0.0), connections=1)
    assert max(reply.ttft_s or 0.0 for reply in load.replies) == pytest.approx(0.8, abs=0.15)


async def test_failures_are_kept_with_their_reason(fake_server: Any) -> None:
    async with fake_server(slots=9, failing=3) as fake:
        load = await _open(fake.url, _at(*(0.02 * n for n in range(9))))
    assert [reply.error for reply in load.replies if reply.error] == ["HTTP 500: no such luck"] * 3
    assert all(reply.done and bool(reply.error) != (reply.ttft_s is not None) for reply in load.replies)


async def test_a_stream_that_breaks_off_is_a_failure(fake_server: Any) -> None:
    async with fake_server(chunks=({"choices": [{"delta": {"content": "ye"}}]},)) as fake:
        load = await _open(fake.url, _at(0.0))
    assert load.replies[0].error == "the stream ended before its end"


async def test_an_error_inside_a_stream_is_a_failure(fake_server: Any) -> None:
    async with fake_server(chunks=({"error": {"message": "engine is gone"}}, "[DONE]")) as fake:
        load = await _open(fake.url, _at(0.0))
    assert load.replies[0].error == "engine is gone"


async def test_an_answer_that_never_ends_is_given_up(fake_server: Any) -> None:
    async with fake_server(seconds=5) as fake:
        load = await _open(fake.url, _at(0.0), limit_s=0.2)
    assert load.replies[0].error.startswith("given up: no end")
    assert load.replies[0].done


async def test_a_dead_server_is_an_error_of_each_request() -> None:
    load = await _open(f"http://127.0.0.1:{free_port(None, 0)}", _at(0.0, 0.01))
    assert ["ConnectError" in reply.error for reply in load.replies] == [True, True]


async def test_a_turn_is_due_when_its_user_has_thought(fake_server: Any) -> None:
    turns = (Turn("a", {}), Turn("b", {}, think_s=0.3))
    async with fake_server(seconds=0.2) as fake:
        load = await _open(fake.url, [Session(0.1, turns)])
    first, second = load.replies
    assert second.due == pytest.approx((first.ended or 0.0) + 0.3, abs=0.02)
    assert second.ttft_s == pytest.approx(0.2, abs=0.1)


async def test_a_closed_loop_keeps_its_places_taken(fake_server: Any) -> None:
    async with fake_server(slots=4, seconds=0.1) as fake, httpx.AsyncClient(trust_env=False) as client:
        load = Load(client, fake.url)
        await load.run_closed(_at(*[0.0] * 12), together=4)
        took = load.now
    assert len(load.replies) == 12
    assert took == pytest.approx(0.3, abs=0.15)


async def test_a_closed_loop_begins_nothing_after_its_time(fake_server: Any) -> None:
    async with fake_server(slots=4, seconds=0.1) as fake, httpx.AsyncClient(trust_env=False) as client:
        load = Load(client, fake.url)
        await load.run_closed(_at(*[0.0] * 1000), together=2, until_s=0.35)
    assert 4 <= len(load.replies) <= 8
    assert all(reply.done for reply in load.replies)
