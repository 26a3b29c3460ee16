"""The real passages and questions that ship with the project: the English part of XQuAD (see `data/README.md`)."""

from __future__ import annotations

import gzip
import json
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
    """All questions for which `count` passages of at most `longest` characters were found, `gold` being that short too.

    Args:
        count: passages a question; `retrieved` has exactly as many.
        longest: passages above it are as good as not in the corpus.
    """
    passages = {
        line["id"]: Passage(line["title"], line["text"])
        for line in _lines("passages.jsonl.gz")
        if len(line["text"]) <= longest
    }
    found = []
    for line in _lines("questions.jsonl.gz"):
        retrieved = [passages[name] for name in line["retrieved"] if name in passages][:count]
        if len(retrieved) == count and line["gold"] in passages:
            answers, gold = tuple(line["answers"]), passages[line["gold"]]
            found.append(Question(line["article"], line["question"], answers, gold, tuple(retrieved)))
    return found


def _lines(name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(DATA / name, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)
