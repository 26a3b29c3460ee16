"""Zipf's law of popularity, for made-up documents of a simulation and of a real load alike."""

from __future__ import annotations

import random
from bisect import bisect
from itertools import accumulate


class ZipfLaw:
    """Draws from `range(size)`, index `i` with weight `1 / (i + 1) ** alpha`."""

    def __init__(self, size: int, alpha: float) -> None:
        self._cumulative = list(accumulate((rank + 1) ** -alpha for rank in range(size)))

    def draw(self, rng: random.Random) -> int:
        return bisect(self._cumulative, rng.random() * self._cumulative[-1], hi=len(self._cumulative) - 1)

    def draw_distinct(self, rng: random.Random, count: int) -> list[int]:
        """`count` different indices in the order in which they were drawn."""
        drawn: dict[int, None] = {}
        while len(drawn) < count:
            drawn[self.draw(rng)] = None
        return list(drawn)
