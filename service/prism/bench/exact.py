"""PRISM against stock vLLM, token for token, on real requests and a real model.

PRISM answers first, many requests at a time, reordering passages and reusing prefixes as it likes; its admin port tells
the order that each prompt got. Then stock vLLM answers the same prompts in that order. Greedy decoding, in float32: in
bfloat16 stock vLLM itself answers differently with a cold and a warm cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

from prism.bench.demo_server import ServerFailed, free_port, running_server, server_environment
from prism.bench.passages import Question
from prism.bench.rag_load import chat_request
from prism.config.schema import PrismSpec

MODEL = "exact"
TOGETHER = 8
ENGINE_ARGUMENTS = (
    f"--served-model-name={MODEL}",
    "--dtype=float32",
    "--block-size=32",
    "--num-gpu-blocks-override=320",
    f"--max-num-seqs={TOGETHER}",
    "--max-num-batched-tokens=1024",
    "--max-model-len=2048",
    "--enforce-eager",
)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one engine answered.

    Attributes:
        question: with its passages in the order in which the engine read them.
        tokens: of the answer, as texts.
        reordered: PRISM read them in another order than was asked.
        cached_tokens: of the prompt.
    """

    question: Question
    tokens: tuple[str, ...]
    reordered: bool = False
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Pairs of answers to the same prompts: PRISM's, stock's."""

    pairs: Sequence[tuple[Answer, Answer]]

    @property
    def different(self) -> list[tuple[Answer, Answer]]:
        return [(prism, stock) for prism, stock in self.pairs if prism.tokens != stock.tokens]

    def __str__(self) -> str:
        reordered = sum(prism.reordered for prism, _ in self.pairs)
        cached = sum(prism.cached_tokens > 0 for prism, _ in self.pairs)
        tokens = sum(len(stock.tokens) for _, stock in self.pairs)
        equal = len(self.pairs) - len(self.different)
        return (
            f"{equal} of {len(self.pairs)} answers ({tokens} tokens) equal stock vLLM's, token for token; "
            f"{reordered} prompts were reordered, {cached} used cached prefixes"
        )


async def compare(model: Path, asked: Sequence[Question], folder: Path, *, max_tokens: int, say: Say) -> Comparison:
    """Both engines, one after the other.

    Args:
        model: folder of the model.
        asked: the questions; their passages are declared unordered.
        folder: for logs.
        max_tokens: of each answer.
        say: told what is under way.
    """
    port, admin_port = free_port(None, 0), free_port(None, 0)
    say("starting PRISM")
    async with running_server(model, ENGINE_ARGUMENTS, folder, port, admin_port) as prism:
        await prism.wait_until_ready(lambda _: None)
        await prism.adopt(PrismSpec())
        say(f"PRISM answers {len(asked)} requests, {TOGETHER} at a time")
        answers = await _ask_all(prism.client, prism.url, asked, max_tokens)
        told = {line["request_id"]: line for line in await prism.last_requests(len(asked))}
    read = [_as_read(answer, told[_name(index)]["admission"]) for index, answer in enumerate(answers)]
    say("starting stock vLLM")
    async with stock_server(model, ENGINE_ARGUMENTS, folder) as (client, url, _):
        say(f"stock vLLM answers the same {len(asked)} prompts")
        stock = await _ask_all(client, url, [answer.question for answer in read], max_tokens)
    return Comparison(list(zip(read, stock, strict=True)))


def _as_read(answer: Answer, admission: dict[str, Any]) -> Answer:
    """The answer with the passages in the order that PRISM used."""
    order = admission["order"] or range(len(answer.question.retrieved))
    passages = tuple(answer.question.retrieved[index] for index in order)
    return replace(
        answer,
        question=replace(answer.question, retrieved=passages),
        reordered=bool(admission["reordered"]),
        cached_tokens=admission["cached_tokens"],
    )


async def _ask_all(client: httpx.AsyncClient, url: str, asked: Sequence[Question], max_tokens: int) -> list[Answer]:
    """All answers, in the order of the questions."""
    answers: dict[int, Answer] = {}
    left = iter(enumerate(asked))

    async def one_after_another() -> None:
        for index, question in left:
            answers[index] = await _ask(client, url, question, max_tokens, _name(index))

    await asyncio.gather(*(one_after_another() for _ in range(TOGETHER)))
    return [answers[index] for index in range(len(asked))]


def _name(index: int) -> str:
    return f"exact-{index:04d}"


async def _ask(client: httpx.AsyncClient, url: str, question: Question, max_tokens: int, name: str) -> Answer:
    body = chat_request(question, MODEL, max_tokens) | {"stream": False, "logprobs": True}
    del body["stream_options"]
    response = await client.post(f"{url}/v1/chat/completions", json=body, headers={"x-request-id": name})
    response.raise_for_status()
    choice = response.json()["choices"][0]
    return Answer(question, tuple(token["token"] for token in choice["logprobs"]["content"]))


@contextlib.asynccontextmanager
async def stock_server(
    model: Path, arguments: Sequence[str], folder: Path, variables: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[tuple[httpx.AsyncClient, str, int]]:
    """vLLM's own server with these arguments and environment variables: a client, its address, its process group."""
    port = free_port(None, 0)
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", f"--model={model}", f"--port={port}"]
    with _process([*command, "--host=127.0.0.1", *arguments], folder / "stock.log", variables) as process:
        async with httpx.AsyncClient(timeout=600, trust_env=False) as client:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + 600
            while not await _healthy(client, url):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise ServerFailed(f"stock vLLM did not start; its log: {folder / 'stock.log'}")
                await asyncio.sleep(1)
            yield client, url, process.pid


async def _healthy(client: httpx.AsyncClient, url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return (await client.get(f"{url}/health")).status_code == 200
    return False


@contextlib.contextmanager
def _process(command: list[str], log_path: Path, variables: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**server_environment(), **variables},
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
