"""The long comparison with stock vLLM: 200 real requests, a real model. Run by `make test-exact`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from prism.bench.exact import Answer, Comparison, compare
from prism.bench.models import smollm2
from prism.bench.passages import Question, questions
from prism.bench.rag_load import draw_load


@pytest.fixture(scope="module")
def question() -> Question:
    return questions(5)[0]


def test_an_answer_that_differs_in_one_token_is_reported(question: Question) -> None:
    same, other = Answer(question, ("Pa", "ris")), Answer(question, ("Pa", "rs"))
    comparison = Comparison([(same, same), (same, other)])
    assert comparison.different == [(same, other)]
    assert str(comparison).startswith("1 of 2 answers")


@pytest.mark.exact
async def test_200_real_answers_equal_stock_vllm(tmp_path: Path) -> None:
    def say(text: str) -> None:
        sys.stderr.write(f"{text}\n")

    asked = [arrival.question for arrival in draw_load(questions(5, longest=320), 1, 10_000)][:200]
    comparison = await compare(smollm2(lambda *_: None), asked, tmp_path, max_tokens=32, say=say)
    say(str(comparison))
    assert comparison.different == []
