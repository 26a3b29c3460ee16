"""Clients for servers that are about to be harmed, and collectors that take nothing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.realserver import MODEL, Served

from prism.bench import collectors
from prism.bench.demo_server import write_settings
from prism.config.schema import PrismSpec

CHAT = "/openai/v1/chat/completions"

# A machine that others share may stop one process for seconds while another goes on, and one with many cores computes a
# thousand steps a second. So an answer that must still be under way when something happens is one that takes far longer
# than that, its tokens come many to a line, lest their reader be what is busy, and a limit that is no promise is wide.
LONG = 60_000  # tokens: a minute at least
_CONTEXT = 65_536  # tokens, prompt and answer
ROOM = (
    *("--max-model-len", str(_CONTEXT), "--hf-overrides", json.dumps({"max_position_embeddings": _CONTEXT})),
    *("--num-gpu-blocks-override", str(8 * _CONTEXT // 32)),  # for eight of them at once, in blocks of 32 tokens
    *("--stream-interval", "20"),
)
PATIENCE = 60.0  # seconds


@dataclass
class Answer:
    """What a client got: status 0 if the connection was refused or cut."""

    status: int = 0
    text: str = ""
    retry_after: str | None = None
    connection: str = ""
    lines: list[str] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.status == 200 and "data: [DONE]" in self.text


class Client:
    """Asks one server, as many times at once as it likes."""

    def __init__(self, served: Served) -> None:
        self.served = served
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self.http = httpx.AsyncClient(base_url=served.url, timeout=180, limits=limits)

    def body(self, tokens: int, **fields: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": f"hello {time.monotonic_ns()}"}]
        return {"model": MODEL, "messages": messages, "max_tokens": tokens, "ignore_eos": True, **fields}

    async def ask(self, tokens: int = 4, name: str | None = None, **fields: Any) -> Answer:
        """One answer, read to its end."""
        own = {"x-request-id": name} if name else {}
        try:
            got = await self.http.post(CHAT, json=self.body(tokens, **fields), headers=own)
        except httpx.HTTPError:
            return Answer()
        headers = got.headers
        return Answer(got.status_code, got.text, headers.get("retry-after"), headers.get("connection", ""))

    def stream(self, tokens: int, name: str | None = None) -> Stream:
        return Stream(self, tokens, name)


class Stream:
    """A streamed answer that is read in the background."""

    def __init__(self, client: Client, tokens: int, name: str | None) -> None:
        self.answer = Answer()
        self._begun = asyncio.Event()
        self._task = asyncio.ensure_future(self._read(client, tokens, name))

    async def _read(self, client: Client, tokens: int, name: str | None) -> Answer:
        headers = {"x-request-id": name} if name else {}
        body = client.body(tokens, stream=True)
        try:
            async with client.http.stream("POST", CHAT, json=body, headers=headers) as got:
                self.answer.status = got.status_code
                async for line in got.aiter_lines():
                    self.answer.lines.append(line)
                    if '"content":"' in line:
                        self._begun.set()
        except httpx.HTTPError:
            self.answer.lines.append("(cut)")
        self._begun.set()
        self.answer.text = "\n".join(self.answer.lines)
        return self.answer

    async def begun(self) -> Stream:
        """Waits for its first content."""
        await self._begun.wait()
        return self

    async def end(self) -> Answer:
        return await self._task

    async def hang_up(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


@pytest.fixture
async def client(server: Served) -> AsyncIterator[Client]:
    """A client of this file's server."""
    asks = Client(server)
    yield asks
    await asks.http.aclose()


@pytest.fixture(scope="session")
def black_hole() -> Iterator[str]:
    """The address of a collector that never answers."""
    with collectors.black_hole() as address:
        yield address


Adopt = Callable[[Served, Path, PrismSpec], Awaitable[None]]


@pytest.fixture(scope="session")
def adopt() -> Adopt:
    """Writes settings and waits until the engine obeys them."""
    generation = [100]

    async def write(served: Served, path: Path, spec: PrismSpec) -> None:
        generation[0] += 1
        write_settings(path, spec, generation[0])
        async with asyncio.timeout(PATIENCE), httpx.AsyncClient() as http:
            while (await http.get(f"{served.admin}/settings")).json()["generation"] != generation[0]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    return write


async def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> float:
    """Waits for a condition; how long it took. Fails when the time is up."""
    began = time.monotonic()
    while not await asyncio.to_thread(condition):
        if time.monotonic() - began > seconds:
            raise AssertionError(f"not within {seconds:g} s")
        await asyncio.sleep(0.02)
    return time.monotonic() - began


async def least(measure: Callable[[], Awaitable[float]], limit: float, tries: int = 3) -> float:
    """The least of that many measurements at most; the first one within the limit ends them.

    A promise that is always broken is broken each time; a machine that stood still for a moment is so once.
    """
    taken = [await measure()]
    while taken[-1] > limit and len(taken) < tries:
        taken.append(await measure())
    return min(taken)
