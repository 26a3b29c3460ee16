"""The overload measurement's own parts: what counts as goodput, when requests come, what the table says."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import cast

from prism.bench.overload import MULTIPLES, Asker, Cell, Reply, at_rate, goodput, report


class _Instant:
    """Answers at once, the third one with a refusal."""

    def __init__(self) -> None:
        self.asked = 0

    async def ask(self, began: float) -> Reply:
        self.asked += 1
        return Reply(asyncio.get_running_loop().time() - began, 429 if self.asked == 3 else 200)


def test_goodput_is_what_was_finished_inside_the_window() -> None:
    replies = [Reply(4.9, 200), Reply(5.0, 200), Reply(9.9, 200), Reply(10.0, 200), Reply(7.0, 429)]
    assert goodput(replies, 5.0, 10.0) == 2 / 5


async def test_requests_come_at_the_rate_and_each_one_is_told_of() -> None:
    instant = _Instant()
    replies = await at_rate(cast(Asker, instant), 400.0, 0.5, seed=3)
    assert 150 <= len(replies) == instant.asked <= 250
    assert Counter(reply.status for reply in replies)[429] == 1


def test_the_table_compares_with_the_best_multiple_and_counts_every_end() -> None:
    cells = [Cell(multiple, 10.0 - multiple, Counter({200: 6, 429: 3, 503: 1})) for multiple in MULTIPLES]
    table = report(cells)
    shares = list(table.columns[2].cells)
    assert (shares[0], shares[-1]) == ("100.0%", "77.8%")
    assert list(table.columns[3].cells) == ["30.0%"] * len(MULTIPLES)
    assert list(table.columns[4].cells) == ["1"] * len(MULTIPLES)
