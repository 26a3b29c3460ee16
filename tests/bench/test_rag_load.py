"""The shipped questions and the load that is drawn from them."""

from __future__ import annotations

from collections import Counter

import pytest

from prism.bench.passages import Question, excerpt, questions
from prism.bench.rag_load import chat_request, draw_load


@pytest.fixture(scope="module")
def asked() -> list[Question]:
    return questions(5)


def test_each_answer_stands_in_its_gold_passage(asked: list[Question]) -> None:
    assert all(answer in question.gold.text for question in asked for answer in question.answers)


def test_retrieval_mostly_finds_the_gold_passage(asked: list[Question]) -> None:
    found = sum(question.gold in question.retrieved for question in asked)
    assert found / len(asked) > 0.9


def test_long_passages_end_with_a_sentence() -> None:
    short = questions(5, longest=320)
    passages = {passage.text for question in short for passage in question.retrieved}
    assert len(short) > 300
    assert sum(len(passage) <= 320 for passage in passages) > 0.9 * len(passages)
    assert sum(passage.endswith((".", "!", "?", '"')) for passage in passages) > 0.9 * len(passages)


@pytest.mark.parametrize(
    ("longest", "left"), [(1, "One is 1.5."), (18, "One is 1.5. Two?"), (99, "One is 1.5. Two? Three!")]
)
def test_an_excerpt_is_whole_sentences_and_never_empty(longest: int, left: str) -> None:
    assert excerpt("One is 1.5. Two? Three!", longest) == left


def test_equal_seeds_draw_equal_loads(asked: list[Question]) -> None:
    assert draw_load(asked, 5, 20, seed=3) == draw_load(asked, 5, 20, seed=3)
    assert draw_load(asked, 5, 20, seed=3) != draw_load(asked, 5, 20, seed=4)


def test_arrivals_come_at_the_rate_and_in_time(asked: list[Question]) -> None:
    moments = [arrival.at for arrival in draw_load(asked, 10, 60)]
    assert moments == sorted(moments)
    assert moments[-1] < 60
    assert len(moments) == pytest.approx(600, rel=0.15)


def test_no_question_is_asked_twice(asked: list[Question]) -> None:
    load = draw_load(asked, 10, 600)
    assert len({id(arrival.question) for arrival in load}) == len(load) == len(asked)


def test_popularity_is_skewed_over_articles(asked: list[Question]) -> None:
    articles = Counter(arrival.question.article for arrival in draw_load(asked, 2, 60))
    assert articles.most_common(1)[0][1] > 3 * sum(articles.values()) / 48


def test_passages_are_parts_before_the_question(asked: list[Question]) -> None:
    body = chat_request(asked[0], "m", 8)
    user = body["messages"][1]  # type: ignore[index]
    assert [part["text"] for part in user["content"][:-1]] == [str(passage) for passage in asked[0].retrieved]
    assert user["content"][-1]["text"].endswith(asked[0].text)
