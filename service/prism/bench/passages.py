"""The real passages and questions that ship with the project: the English part of XQuAD (see `data/README.md`)."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class Passage:
    """A paragraph of a Wikipedia article."""

    title: str
    text: str

    def __str__(self) -> str:
        return f"{self.title}: {self.text}"


@dataclass(frozen=True, slots=True)
class Question:
    """A question and what a retriever found for it.

    Attributes:
        article: title of the article it is about.
        text: the question.
        answers: any of them is right; each stands word for word in `gold`.
        gold: the passage that holds the answer.
        retrieved: passages, best first by BM25; mostly with `gold` among them.
    """

    article: str
    text: str
    answers: tuple[str, ...]
    gold: Passage
    retrieved: tuple[Passage, ...]


def questions(count: int, longest: int = 10_000) -> list[Question]:
    """All questions with `count` passages each, and the answer still in `gold`.

    Args:
        count: passages a question; `retrieved` has exactly as many.
        longest: characters; a longer passage ends with the last sentence that ends before it.
    """
    passages = {
        line["id"]: Passage(line["title"], excerpt(line["text"], longest)) for line in _lines("passages.jsonl.gz")
    }
    found = []
    for line in _lines("questions.jsonl.gz"):
        answers, gold = tuple(line["answers"]), passages[line["gold"]]
        retrieved = tuple(passages[name] for name in line["retrieved"][:count])
        if len(retrieved) == count and all(answer in gold.text for answer in answers):
            found.append(Question(line["article"], line["question"], answers, gold, retrieved))
    return found


def excerpt(text: str, longest: int) -> str:
    """The leading sentences of a text, together at most `longest` characters; its first sentence in any case."""
    ends = [end.start() + 1 for end in re.finditer(r"[.!?](?=\s+[A-Z\"])", text)] + [len(text)]
    return text[: max((end for end in ends if end <= longest), default=ends[0])]


def _lines(name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(DATA / name, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)
