"""A skewed open-loop load of real questions: some articles are asked about much more than others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prism.bench.http.load import Session, Turn
from prism.bench.passages import Question

SYSTEM_PROMPT = "You answer questions from the passages that you are given. Answer with a few words."


@dataclass(frozen=True, slots=True)
class Arrival:
    """A question that is asked `at` seconds after the load began, whatever became of those before it."""

    at: float
    question: Question


def draw_load(
    questions: Sequence[Question],
    rate: float,
    seconds: float,
    *,
    articles: int | None = None,
    skew: float = 1.0,
    seed: int = 0,
) -> list[Arrival]:
    """Poisson arrivals, as many as the rate makes in the mean; each question at most once.

    Popularity is over articles (`1 / rank ** skew`, the article with the most questions first), never over whole
    questions: exact repeats would be cached in any order of passages.

    Args:
        questions: to draw from; the load ends early when they run out.
        rate: requests per second.
        seconds: how long requests arrive.
        articles: how many articles are asked about, those with the most questions; None for all. A load of few requests
            over many articles would hardly meet one twice.
        skew: exponent of the Zipf law.
        seed: equal seeds give equal loads.
    """
    random = np.random.default_rng(seed)
    order = _by_popularity(questions, articles, skew, random)
    # A Poisson process of which the number of events is known: their moments are uniform.
    moments = np.sort(random.uniform(0, seconds, round(rate * seconds)))
    return [Arrival(float(at), question) for at, question in zip(moments, order, strict=False)]


def _by_popularity(
    questions: Sequence[Question], articles: int | None, skew: float, random: np.random.Generator
) -> list[Question]:
    """The questions in the order in which they are asked."""
    by_article: dict[str, list[Question]] = defaultdict(list)
    for index in random.permutation(len(questions)):
        by_article[questions[index].article].append(questions[index])
    left = sorted(by_article.values(), key=len, reverse=True)[:articles]
    weights = np.arange(1, len(left) + 1, dtype=float) ** -skew
    order = []
    for _ in range(sum(map(len, left))):
        chosen = int(random.choice(len(left), p=weights / weights.sum()))
        order.append(left[chosen].pop())
        if not left[chosen]:
            weights[chosen] = 0.0
    return order


def sessions(load: Sequence[Arrival], model: str, max_tokens: int, *, reorder: bool = True) -> list[Session]:
    """The load as requests, each a session of its own."""
    return [
        asked_once(arrival.question, model, max_tokens, at_s=arrival.at, name=f"rag-{number}", reorder=reorder)
        for number, arrival in enumerate(load)
    ]


def asked_once(
    question: Question, model: str, max_tokens: int, *, at_s: float = 0.0, name: str = "rag", reorder: bool = True
) -> Session:
    """One question as a session of one turn."""
    body = chat_request(question, model, max_tokens)
    if not reorder:
        del body["prism"]
    return Session(at_s, (Turn(name, body),))


def chat_request(question: Question, model: str, max_tokens: int) -> dict[str, object]:
    """The body of a chat request: passages as text parts that may change places, the question as the last part."""
    return chat_body(list(map(str, question.retrieved)), question.text, model, max_tokens)


def chat_body(passages: Sequence[str], question: str, model: str, max_tokens: int) -> dict[str, object]:
    """The same of any texts."""
    parts = [*passages, f"Question: {question}"]
    return {
        "model": model,
        "messages": [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": [{"type": "text", "text": part} for part in parts]},
        ],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "prism": {"reorder": True},
    }
