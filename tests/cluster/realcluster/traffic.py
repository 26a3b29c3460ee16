"""Requests as applications send them: the OpenAI client, streamed answers, a trace id of the caller's own."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import openai

DOCUMENTS = [
    f"Passage {number}. The {thing} of the observatory was {deed} in {1800 + 7 * number}, and the keepers wrote of it "
    f"that nobody who had seen it would speak lightly of {thing}s again; they counted {number * 3 + 2} visitors a day."
    for number, (thing, deed) in enumerate(
        (thing, deed)
        for thing in ("dome", "clock", "telescope", "library", "garden", "stair")
        for deed in ("built", "mended", "moved")
    )
]
"""Eighteen short passages that questions share."""


@dataclass(frozen=True)
class Answered:
    """One request that was answered: what a client can know of it."""

    trace_id: str
    text: str
    prism: dict[str, Any]
    """The `prism` object of the usage chunk."""


@dataclass
class Traffic:
    """A client of one predictor. Nothing is tried again: a request that fails has failed."""

    url: str
    model: str
    failures: list[str] = field(default_factory=list)
    answered: list[Answered] = field(default_factory=list)
    _client: openai.OpenAI = field(init=False)

    def __post_init__(self) -> None:
        http = openai.DefaultHttpxClient(trust_env=False, timeout=120)
        self._client = openai.OpenAI(
            base_url=f"{self.url}/openai/v1", api_key="unused", max_retries=0, http_client=http
        )

    def close(self) -> None:
        """Closes its connections."""
        self._client.close()

    def ask(self, messages: Sequence[Any], *, max_tokens: int = 6, **prism: Any) -> Answered:
        """One streamed chat request; the `prism` object of its body is given by keywords."""
        trace_id = secrets.token_hex(16)
        stream = self._client.chat.completions.create(
            model=self.model,
            messages=list(messages),
            max_tokens=max_tokens,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers={"traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-01"},
            extra_body={"prism": prism} if prism else None,
        )
        text, last = "", None
        for chunk in stream:
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
            last = chunk
        extra = (last.model_extra or {}).get("prism", {}) if last else {}
        answer = Answered(trace_id, text, extra)
        self.answered.append(answer)
        return answer

    @contextmanager
    def running(self, clients: int = 2, pause_s: float = 0.2) -> Iterator[None]:
        """Asks questions from several threads for as long as the block runs; `failures` has what went wrong."""
        stop = threading.Event()
        threads = [
            threading.Thread(target=self._ask_until, args=(stop, seed, pause_s), daemon=True) for seed in range(clients)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join(120)

    def _ask_until(self, stop: threading.Event, seed: int, pause_s: float) -> None:
        number = seed
        while not stop.is_set():
            number += 7
            try:
                self.ask(rag_question(number), max_tokens=4, reorder=True)
            except (openai.OpenAIError, httpx2.HTTPError) as error:  # the second where a begun stream breaks
                self.failures.append(f"{type(error).__name__}: {error}")
            stop.wait(pause_s)


def rag_question(number: int, passages: int = 3) -> list[dict[str, Any]]:
    """A question with passages found for it, each in a text part of its own, popular ones more often."""
    popular = [(number * step * step) % (4 + number % len(DOCUMENTS)) for step in range(1, passages + 3)]
    chosen = sorted(set(popular), key=lambda index: (index * 5 + number) % 7)[:passages]
    parts = [DOCUMENTS[index % len(DOCUMENTS)] for index in chosen]
    content = [{"type": "text", "text": part} for part in [*parts, f"Question {number}: when was it built?"]]
    system = "You answer from the passages, in one short sentence."
    return [{"role": "system", "content": system}, {"role": "user", "content": content}]


def agent_turns(turns: int) -> Iterator[list[dict[str, Any]]]:
    """One conversation with a tool, turn by turn: every turn begins with all of the one before it."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You look things up in the observatory's records and answer briefly."}
    ]
    for turn in range(turns):
        messages.append({"role": "user", "content": f"Step {turn}: look up record {turn * 11}."})
        yield list(messages)
        messages.append({"role": "assistant", "content": f"Record {turn * 11} says: {DOCUMENTS[turn]}"})
