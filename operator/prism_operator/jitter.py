"""Chance, so that what began together does not go on together."""

from __future__ import annotations

import random

# Of its own: threads that draw from the process's shared generator would disturb whoever seeded that one.
_generator = random.Random()


def between(low: float, high: float) -> float:
    """A number drawn evenly from `low` to `high`."""
    return _generator.uniform(low, high)
