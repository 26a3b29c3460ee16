"""What is asked, and when.

A workload draws sessions for a rate, a length and a seed; equal arguments give equal sessions, so every arm gets the
same ones.
"""

from __future__ import annotations

import gzip
import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from prism.bench.arrivals import poisson_times
from prism.bench.http.load import CHAT_ROUTE, Session, Turn
from prism.bench.passages import DATA, questions
from prism.bench.rag_load import chat_body, draw_load, sessions
from prism.bench.zipf import ZipfLaw
from prism.errors import CallerError, InvalidRequest

COMPLETIONS_ROUTE = "/v1/completions"
_ROUTES = (CHAT_ROUTE, COMPLETIONS_ROUTE)


class Workload(Protocol):
    """What a benchmark asks."""

    def draw(self, rate: float, seconds: float, seed: int) -> list[Session]:
        """Sessions in ascending order, `rate` of them a second in the mean, for `seconds` seconds."""
        ...


@dataclass(frozen=True, slots=True)
class Rag:
    """Real questions with retrieved passages; popularity is skewed over articles (`prism.bench.rag_load`).

    Attributes:
        passages: of each question.
        longest: characters of a passage.
        articles: how many articles are asked about; None for all.
        reorder: declare the passages unordered, in PRISM's `prism` object.
    """

    model: str
    max_tokens: int
    passages: int = 5
    longest: int = 10_000
    articles: int | None = None
    reorder: bool = True

    def draw(self, rate: float, seconds: float, seed: int) -> list[Session]:
        asked = questions(self.passages, self.longest)
        load = draw_load(asked, rate, seconds, articles=self.articles, seed=seed)
        return sessions(load, self.model, self.max_tokens, reorder=self.reorder)


@dataclass(frozen=True, slots=True)
class Documents:
    """Made-up documents, drawn by Zipf's law: many requests share some of few documents, in orders of their own.

    They are the same in every load; which are asked for most depends on the seed.

    Attributes:
        documents: how many there are.
        words: of a document, fewest and most; a word is a number of three digits, about four tokens.
        per_request: different documents of each request.
        alpha: exponent of Zipf's law.
    """

    model: str
    max_tokens: int
    documents: int = 100
    words: tuple[int, int] = (16, 48)
    per_request: int = 5
    alpha: float = 1.0

    def draw(self, rate: float, seconds: float, seed: int) -> list[Session]:
        made = random.Random("documents")
        texts = [f"Document {number}: {_numbers(made, made.randint(*self.words))}" for number in range(self.documents)]
        rng = random.Random(f"documents {seed}")
        rng.shuffle(texts)
        law = ZipfLaw(self.documents, self.alpha)
        moments = poisson_times(rng, rate, seconds)
        return [Session(at, (self._turn(number, texts, law, rng),)) for number, at in enumerate(moments)]

    def _turn(self, number: int, texts: Sequence[str], law: ZipfLaw, rng: random.Random) -> Turn:
        drawn = [texts[rank] for rank in law.draw_distinct(rng, self.per_request)]
        return Turn(f"documents-{number}", chat_body(drawn, _numbers(rng, 4), self.model, self.max_tokens))


def _numbers(rng: random.Random, count: int) -> str:
    return " ".join(str(rng.randint(100, 999)) for _ in range(count))


@dataclass(frozen=True, slots=True)
class Agents:
    """Recorded conversations of support agents: each turn holds the recorded ones before it (see `data/README.md`).

    Each conversation is held once before one is held again. Where no pause was recorded one is drawn from the others.
    """

    model: str

    def draw(self, rate: float, seconds: float, seed: int) -> list[Session]:
        rng = random.Random(f"agents {seed}")
        recorded = _recorded_agents()
        thinks = [one["think_s"] for talk in recorded["sessions"] for one in talk["requests"] if "think_s" in one]
        order = _endless(recorded["sessions"], rng)
        return [
            Session(at, tuple(self._turns(recorded, next(order), number, rng, thinks)))
            for number, at in enumerate(poisson_times(rng, rate, seconds))
        ]

    def _turns(
        self, recorded: Mapping[str, Any], talk: Mapping[str, Any], number: int, rng: random.Random, thinks: list[float]
    ) -> Iterator[Turn]:
        system = {"role": "system", "content": recorded["systems"][talk["system"]]}
        for place, request in enumerate(talk["requests"]):
            body = {
                "model": self.model,
                "messages": [system, *talk["messages"][: request["i"]]],
                "tools": recorded["tools"][talk["tools"]],
                "max_tokens": request["output_tokens"],
                "temperature": 0,
            }
            think = request.get("think_s", rng.choice(thinks))
            yield Turn(f"agents-{number}-{place}", streamed(body), think_s=think)


@dataclass(frozen=True, slots=True)
class FromFile:
    """Your own requests, in the form of OpenAI's batch files: a JSON object a line with `url` and `body`.

    `at_s` in every line gives its moment in seconds; such a file is played as it was recorded, and a `rate` stretches
    or squeezes it to that many requests a second. Without it requests arrive by a Poisson process in the order of the
    file, each once.

    Attributes:
        model: replaces the model of every request.
    """

    path: Path
    model: str

    def draw(self, rate: float, seconds: float, seed: int) -> list[Session]:
        """Raises `InvalidRequest`, which names the line, if one is not such a request."""
        lines = list(_read(self.path))
        moments = self._moments(lines, rate, seconds, seed)
        return [
            Session(at, (Turn(_name(line, number), self._body(line), line["url"]),))
            for number, (at, line) in enumerate(zip(moments, lines, strict=False))
            if at < seconds
        ]

    def _moments(self, lines: Sequence[Mapping[str, Any]], rate: float, seconds: float, seed: int) -> list[float]:
        timed = sum("at_s" in line for line in lines)
        if not timed and not rate:
            raise InvalidRequest(f"{self.path}: its lines have no at_s, so the rate must be given")
        if not timed:
            return poisson_times(random.Random(f"file {seed}"), rate, seconds)
        if timed < len(lines):
            raise InvalidRequest(
                f"{self.path}: only {timed} of {len(lines)} lines have at_s: give it to all or to none"
            )
        moments = [float(line["at_s"]) for line in lines]
        if moments != sorted(moments):
            raise InvalidRequest(f"{self.path}: at_s must not go back from one line to the next")
        length = moments[-1] - moments[0]
        stretch = len(lines) / rate / length if rate and length else 1.0
        return [(at - moments[0]) * stretch for at in moments]

    def _body(self, line: Mapping[str, Any]) -> dict[str, Any]:
        return streamed({**line["body"], "model": self.model})


def streamed(body: Mapping[str, Any]) -> dict[str, Any]:
    """The request with a streamed answer and usage at its end."""
    return {**body, "stream": True, "stream_options": {"include_usage": True}}


def marked(load: Sequence[Session], marker: str) -> list[Session]:
    """The same load with a line in front of every prompt, so that none begins like one that was sent before.

    Raises:
        InvalidRequest: a prompt is no text.
    """
    return [
        replace(one, turns=tuple(replace(turn, body=_marked(turn.body, marker)) for turn in one.turns)) for one in load
    ]


def _marked(body: Mapping[str, Any], marker: str) -> dict[str, Any]:
    if isinstance(body.get("prompt"), str):
        return {**body, "prompt": f"{marker}\n{body['prompt']}"}
    first, *others = body.get("messages") or [{}]
    content = first.get("content")
    if isinstance(content, str):
        return {**body, "messages": [{**first, "content": f"{marker}\n{content}"}, *others]}
    if isinstance(content, list):
        parts = [{"type": "text", "text": marker}, *content]
        return {**body, "messages": [{**first, "content": parts}, *others]}
    raise InvalidRequest("a prompt that is no text cannot be marked: use --cold reset, with a server that has a reset")


def _read(path: Path) -> Iterator[dict[str, Any]]:
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not text.strip():
            continue
        try:
            yield _checked(json.loads(text))
        except (ValueError, CallerError) as error:
            raise InvalidRequest(f"{path}, line {number}: {error}") from None


def _checked(line: object) -> dict[str, Any]:
    if not isinstance(line, dict) or not isinstance(line.get("body"), dict):
        raise InvalidRequest('not a JSON object with a "body"')
    if line.setdefault("url", CHAT_ROUTE) not in _ROUTES:
        raise InvalidRequest(f'"url" must be one of {", ".join(_ROUTES)}')
    if not {"messages", "prompt"} & line["body"].keys():
        raise InvalidRequest('"body" has neither "messages" nor "prompt"')
    return line


def _name(line: Mapping[str, Any], number: int) -> str:
    return f"{number}-{line.get('custom_id', 'request')}"


@cache
def _recorded_agents() -> Mapping[str, Any]:
    recorded: Mapping[str, Any] = json.loads(gzip.decompress((DATA / "agents.json.gz").read_bytes()))
    return recorded


def _endless(talks: Sequence[Mapping[str, Any]], rng: random.Random) -> Iterator[Mapping[str, Any]]:
    for _ in itertools.count():
        yield from rng.sample(talks, len(talks))
