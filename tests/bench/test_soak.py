"""The soak's own parts: its collectors, its look at processes, its judgement."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace
from typing import cast

import httpx
import numpy as np
import pytest

from prism.bench.collectors import black_hole, willing
from prism.bench.soak import Process, Sample, Traffic, balanced, curve, growth_per_hour, processes


async def test_the_willing_collector_takes_every_batch() -> None:
    async with willing() as address, httpx.AsyncClient() as client:
        answers = [await client.post(f"{address}/v1/traces", content=b"x" * 100_000) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 200]


def test_the_black_hole_never_answers() -> None:
    with black_hole() as address, pytest.raises(httpx.ReadTimeout):
        httpx.post(address, content=b"x", timeout=0.2)


def test_descendants_are_found_with_their_memory() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    found = processes(os.getpid())
    child.communicate(b"\n")
    assert found[0].name == "server"
    assert len(found) >= 2
    assert all(process.resident_mb >= 0 and process.open_files > 0 for process in found)


def test_growth_is_that_of_the_second_half() -> None:
    samples = [Sample(60.0 * minute, (Process("server", 0.0, 1),), {}) for minute in range(60)]
    memory = np.array([50.0 * min(minute, 29) + max(0, minute - 29) for minute in range(60)])
    assert growth_per_hour(samples, memory) == pytest.approx(60.0, rel=0.05)


def test_the_curve_runs_from_the_first_look_to_the_last() -> None:
    samples = [Sample(float(number), (Process("server", 100.0 + number, 1),), {}) for number in range(38)]
    seconds, memory = (list(column.cells) for column in curve(samples).columns)
    assert (seconds[0], seconds[-1], memory[0], memory[-1]) == ("0", "37", "100", "137")
    assert len(seconds) == len(set(seconds)) == 11


@pytest.mark.parametrize(
    ("sizes", "finished", "status", "good"),
    [({"open": 0}, 9.0, "200", True), ({"open": 1}, 9.0, "200", False), ({"open": 0}, 8.0, "200", False),
     ({"open": 0}, 9.0, "500", False)],
)  # fmt: skip
def test_it_balances_only_if_all_ended_and_no_table_holds_anything(
    sizes: dict[str, int], finished: float, status: str, good: bool
) -> None:
    last = Sample(1.0, (), {**sizes, "asyncio_tasks": 12, "threads": 40})
    ends = {"arrived": 10.0, "finished": finished, "cancelled": 1.0}
    traffic = cast(Traffic, SimpleNamespace(statuses=Counter([status])))
    assert balanced(last, ends, traffic) is good
