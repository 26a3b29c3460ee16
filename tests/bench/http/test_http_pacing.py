"""An open loop begins what is due, late or not, and tells of each."""

from __future__ import annotations

import asyncio
import time

import pytest

from prism.bench.http.pacing import open_loop


async def test_what_is_due_begins_though_nothing_before_it_has_ended() -> None:
    began: list[int] = []
    all_here = asyncio.Event()

    async def one(place: int) -> str:
        began.append(place)
        if len(began) == 3:
            all_here.set()
        await asyncio.wait_for(all_here.wait(), 10)
        return f"r{place}"

    start = time.monotonic()
    assert await open_loop([0.0, 0.01, 0.1], one) == ["r0", "r1", "r2"]
    assert began == [0, 1, 2]
    assert time.monotonic() - start >= 0.1


async def test_one_that_fails_ends_the_loop() -> None:
    async def one(place: int) -> None:
        if place == 1:
            raise ValueError("no")
        await asyncio.sleep(60)

    with pytest.raises(ExceptionGroup, match="unhandled errors"):
        await open_loop([0.0, 0.0], one)
