"""What PRISM's order of passages costs in answers: the orders are the scheduler's, the sums are right."""

from __future__ import annotations

import random

import pytest

from prism.bench.answer_quality import Judged, orders, report
from prism.bench.estimates import mean_of
from prism.bench.real_data import AnsweredQuestion


def tokenize(text: str) -> list[int]:
    """Forty tokens a word, so that a passage of a few words fills blocks."""
    return [random.Random(word).randrange(50_000) + step for word in text.split() for step in range(40)]


def test_questions_over_the_same_passages_come_to_read_them_in_one_order() -> None:
    rng = random.Random(3)
    passages = [f"passage {number}" for number in range(4)]
    asked = [AnsweredQuestion(f"question {n}", "passage", rng.sample(passages, 4)) for n in range(40)]
    chosen = orders(asked, tokenize)
    assert all(sorted(order) == [0, 1, 2, 3] for order in chosen)
    read = {tuple(question.passages[index] for index in order) for question, order in zip(asked, chosen, strict=True)}
    assert len(read) < len({tuple(question.passages) for question in asked}) / 3


def test_the_table_counts_what_was_reordered_and_shows_the_mean_difference() -> None:
    judged = [Judged("nq", "q", [1, 0], 2.0, 2.5), Judged("nq", "q", [0, 1], 3.0, 3.0)]
    judged += [Judged("xquad", "q", [1, 0], 1.0, 0.5), Judged("xquad", "q", [1, 0], 1.0, 1.0)]
    columns = [list(column.cells) for column in report(judged).columns]
    assert columns[0] == ["xquad", "nq", "all"]
    assert columns[2] == ["2", "1", "3"]
    assert [str(cell).split()[0] for cell in columns[5]] == ["-0.2500", "+0.2500", "+0.0000"]


def test_a_mean_has_an_interval_around_it() -> None:
    found = mean_of([0.0, 1.0, 2.0, 3.0, 4.0] * 20)
    assert found.value == 2.0
    assert 1.6 < found.low < 2.0 < found.high < 2.4
    with pytest.raises(ValueError, match="1 values are too few"):
        mean_of([1.0])
