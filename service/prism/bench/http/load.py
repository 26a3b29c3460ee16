"""Requests sent on schedule, and what came of each, as its client saw it.

A request is due at a moment of the schedule, whatever became of those before it, and its time to first token begins at
that moment: what it waits in this process, for a connection or behind a slow server, is part of it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from prism.bench.http.pacing import open_loop

PARTS = ("admission_wait", "prefill", "first_token")
CHAT_ROUTE = "/v1/chat/completions"

_CONTENT = ("content", "reasoning", "reasoning_content", "tool_calls")
_DATA = "data:"
_LONGEST_ERROR = 300


@dataclass(frozen=True, slots=True)
class Turn:
    """One request.

    Attributes:
        name: unique in a load; the same request has the same name under every arm.
        body: JSON, streamed and with usage asked for.
        route: path below the server's address.
        think_s: seconds from the end of the turn before it; of no use in a session's first turn.
    """

    name: str
    body: Mapping[str, Any]
    route: str = CHAT_ROUTE
    think_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Session:
    """Turns, each after the one before; the first is due `at_s` seconds after the load began."""

    at_s: float
    turns: tuple[Turn, ...]


@dataclass(slots=True)
class Reply:
    """One request, as its client saw it. Moments are seconds since the load began.

    Attributes:
        due: when it had to be sent.
        name: of its `Turn`.
        sent: when it was.
        ttft_s: from `due` until the first chunk with content, reasoning, a tool call or a log-probability; None if none
            came.
        ended: when it ended, one way or the other; None while it is under way.
        prompt_tokens, output_tokens: as the server counts them.
        cached_tokens: of the prompt, from the cache; None where the server does not say.
        lane: PRISM's `hot`, `cold` or `none`; empty from other servers.
        reordered: PRISM moved its documents.
        parts: seconds of each of `PARTS`, as PRISM says.
        text: the answer.
        error: why there is no whole answer.
    """

    due: float
    name: str = ""
    sent: float | None = None
    ttft_s: float | None = None
    ended: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    output_tokens: int = 0
    lane: str = ""
    reordered: bool = False
    parts: dict[str, float] = field(default_factory=dict)
    text: str = ""
    error: str = ""

    @property
    def done(self) -> bool:
        return self.ended is not None

    def take(self, chunk: Mapping[str, Any], now: float) -> None:
        """Note what one chunk of the stream says; `now` in seconds of the load."""
        for choice in chunk.get("choices") or ():
            if self.ttft_s is None and _has_content(choice):
                self.ttft_s = now - self.due
            self.text += (choice.get("delta") or {}).get("content") or choice.get("text") or ""
        self._take_usage(chunk.get("usage") or {})
        facts = chunk.get("prism")
        if facts:
            self.lane, self.reordered = facts["lane"], facts["reordered"]
            self.parts = {part: facts["ttft"][part] for part in PARTS} if facts.get("ttft") else {}
        if chunk.get("error"):
            self.error = _message(chunk["error"])

    def _take_usage(self, usage: Mapping[str, Any]) -> None:
        if not usage:
            return
        self.prompt_tokens = usage.get("prompt_tokens") or 0
        self.output_tokens = usage.get("completion_tokens") or 0
        self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


class Load:
    """A load under way against one server.

    Args:
        client: shared by all requests; its own time-outs should be longer than `limit_s`.
        url: address of the server, without a path.
        limit_s: seconds after which a request is given up and counted as failed.

    Attributes:
        replies: one for each request that was due so far.
    """

    def __init__(self, client: httpx.AsyncClient, url: str, limit_s: float = 600.0) -> None:
        self._client = client
        self._url = url
        self._limit_s = limit_s
        self._began = time.monotonic()
        self.replies: list[Reply] = []

    @property
    def now(self) -> float:
        """Seconds since the load began."""
        return time.monotonic() - self._began

    async def run_open(self, sessions: Sequence[Session]) -> None:
        """Send each session when it is due, in ascending order of `at_s`, and wait for the last answer."""
        self._began = time.monotonic()
        await open_loop(
            [session.at_s for session in sessions], lambda place: self._play(sessions[place], sessions[place].at_s)
        )

    async def run_closed(self, sessions: Sequence[Session], together: int, until_s: float = float("inf")) -> None:
        """Keep `together` sessions under way until all were played, or none begins any more after `until_s` seconds.

        A request is due when the place it takes became free.
        """
        self._began = time.monotonic()
        left = iter(sessions)

        async def one_after_another() -> None:
            free_at = 0.0
            while free_at < until_s and (session := next(left, None)) is not None:
                free_at = await self._play(session, free_at)

        async with asyncio.TaskGroup() as places:
            for _ in range(together):
                places.create_task(one_after_another())

    async def _play(self, session: Session, due: float) -> float:
        """All turns of a session; returns when the last one ended."""
        ended = due
        for number, turn in enumerate(session.turns):
            if number:
                due = ended + turn.think_s
                await asyncio.sleep(max(0.0, due - self.now))
            reply = Reply(due, turn.name)
            self.replies.append(reply)
            await self._ask(turn, reply)
            ended = reply.ended or due
        return ended

    async def _ask(self, turn: Turn, reply: Reply) -> None:
        reply.sent = self.now
        try:
            async with asyncio.timeout(self._limit_s):
                await self._stream(turn, reply)
        except TimeoutError:
            reply.error = f"given up: no end of the answer within {self._limit_s:g} s"
        except httpx.HTTPError as error:
            reply.error = f"{type(error).__name__}: {error}"
        except (ValueError, KeyError, TypeError) as error:
            reply.error = f"not a stream of OpenAI's form: {type(error).__name__}: {error}"
        except asyncio.CancelledError:
            reply.error = "given up: the benchmark was stopped"
            raise
        finally:
            reply.ended = self.now

    async def _stream(self, turn: Turn, reply: Reply) -> None:
        whole = False
        async with self._client.stream("POST", self._url + turn.route, json=turn.body) as answer:
            if answer.status_code != 200:
                reply.error = _refusal(answer.status_code, await answer.aread())
                return
            async for line in answer.aiter_lines():
                if not line.startswith(_DATA):
                    continue
                data = line[len(_DATA) :].strip()
                whole = whole or data == "[DONE]"
                if data.startswith("{"):
                    reply.take(json.loads(data), self.now)
        if not whole and not reply.error:
            reply.error = "the stream ended before its end"


def _has_content(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return bool(choice.get("text") or choice.get("logprobs") or any(delta.get(name) for name in _CONTENT))


def _message(error: object) -> str:
    return str(error.get("message", error) if isinstance(error, Mapping) else error)[:_LONGEST_ERROR]


def _refusal(status: int, body: bytes) -> str:
    """Status and message of an answer that is no stream."""
    try:
        said = json.loads(body)
    except ValueError:
        said = body.decode(errors="replace")
    error = said.get("error", said) if isinstance(said, Mapping) else said
    return f"HTTP {status}: {_message(error)}"
