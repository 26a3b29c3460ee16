"""Requests sent on schedule, and what came of each: the client's side of the demo."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from prism.bench.passages import Question
from prism.bench.rag_load import Arrival, chat_request

PARTS = ("admission_wait", "prefill", "first_token")


@dataclass(slots=True)
class Reply:
    """One request, as its client saw it.

    Attributes:
        due: when it had to be sent, in seconds of the load.
        ttft_s: from `due` until the first chunk with content; None without one.
        done: it has ended, one way or the other.
        prompt_tokens, cached_tokens: of the prompt, and of it from the cache.
        lane: `hot`, `cold` or `none`.
        reordered: its passages changed places.
        parts: seconds of each of `PARTS`, as the server says.
        text: the answer.
        error: why there is none.
    """

    due: float
    ttft_s: float | None = None
    done: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    lane: str = ""
    reordered: bool = False
    parts: dict[str, float] = field(default_factory=dict)
    text: str = ""
    error: str = ""

    def take(self, chunk: dict[str, Any], now: float) -> None:
        """Note what one chunk of the stream says; `now` in seconds of the load."""
        for choice in chunk.get("choices", ()):
            content = choice["delta"].get("content")
            if content:
                self.text += content
                self.ttft_s = now - self.due if self.ttft_s is None else self.ttft_s
        usage = chunk.get("usage")
        if usage:
            self.prompt_tokens = usage["prompt_tokens"]
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        facts = chunk.get("prism")
        if facts:
            self.lane, self.reordered = facts["lane"], facts["reordered"]
            self.parts = {part: facts["ttft"][part] for part in PARTS} if facts.get("ttft") else {}
        if "error" in chunk:
            self.error = str(chunk["error"].get("message", chunk["error"]))


class OpenLoop:
    """A load under way: requests go out when they are due, whatever became of those before.

    Attributes:
        replies: one for each request that has been sent, in the order of their arrivals.
    """

    def __init__(self, client: httpx.AsyncClient, url: str, model: str, max_tokens: int) -> None:
        self._client = client
        self._url = f"{url}/v1/chat/completions"
        self._model = model
        self._max_tokens = max_tokens
        self._began = time.monotonic()
        self.replies: list[Reply] = []

    @property
    def now(self) -> float:
        """Seconds since the load began."""
        return time.monotonic() - self._began

    async def run(self, load: Sequence[Arrival]) -> None:
        """Send the whole load and wait for the last answer."""
        self._began = time.monotonic()
        async with asyncio.TaskGroup() as sent:
            for arrival in load:
                await asyncio.sleep(max(0.0, arrival.at - self.now))
                reply = Reply(due=arrival.at)
                self.replies.append(reply)
                sent.create_task(self._ask(arrival.question, reply))

    async def run_closed(self, questions: Sequence[Question], together: int) -> None:
        """Keep `together` requests under way until all questions are answered."""
        self._began = time.monotonic()
        left = iter(questions)

        async def one_after_another() -> None:
            for question in left:
                reply = Reply(due=self.now)
                self.replies.append(reply)
                await self._ask(question, reply)

        await asyncio.gather(*(one_after_another() for _ in range(together)))

    async def _ask(self, question: Question, reply: Reply) -> None:
        body = chat_request(question, self._model, self._max_tokens)
        try:
            async with self._client.stream("POST", self._url, json=body) as answer:
                if answer.status_code != 200:
                    reply.error = (await answer.aread()).decode(errors="replace")[:300]
                    return
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        reply.take(json.loads(line[6:]), self.now)
        except httpx.HTTPError as error:
            reply.error = f"{type(error).__name__}: {error}"
        finally:
            reply.done = True
