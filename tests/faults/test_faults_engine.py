"""An engine that is slow, stopped, hung: what the probes say, and what becomes of its requests.

The worker stopped is a step that does not end while the engine's heart goes on beating; EngineCore stopped is silence.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.conftest import Client, until
from tests.realserver import Served, serving

pytestmark = [pytest.mark.faults, pytest.mark.engine, pytest.mark.timeout(700)]

STEP_TIMEOUT_SECONDS = 20


@pytest.fixture(scope="module")
def server(tiny_model_folder: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    flags = ["--step-timeout", str(STEP_TIMEOUT_SECONDS), "--grace-period", "20"]
    with serving(tiny_model_folder, repository, tmp_path_factory.mktemp("engine"), *flags) as running:
        engine, worker = running.engine_core, running.worker
        yield running
        for process in (worker, engine):
            if process.is_running():
                process.send_signal(signal.SIGCONT)


async def test_a_slow_step_below_the_timeout_stays_ready(client: Client, server: Served) -> None:
    stream = await client.stream(1900).begun()
    worker = server.worker
    worker.suspend()
    await asyncio.sleep(STEP_TIMEOUT_SECONDS - 6)
    probes = (server.probe("ready"), server.probe("live"))
    worker.resume()
    assert probes == (200, 200)
    before = len(stream.answer.lines)
    await until(lambda: len(stream.answer.lines) > before, 10)
    await stream.hang_up()


async def test_a_step_beyond_the_timeout_is_hung_and_its_requests_end(client: Client, server: Served) -> None:
    begun, worker = await client.stream(1900, "hung").begun(), server.worker
    worker.suspend()
    waiting = asyncio.create_task(client.ask(4))
    took = await until(lambda: server.probe("live") == 503, STEP_TIMEOUT_SECONDS + 10)
    ended, refused = await asyncio.wait_for(begun.end(), 5), await asyncio.wait_for(waiting, 5)
    worker.resume()
    assert took >= STEP_TIMEOUT_SECONDS - 3
    assert '"ServiceUnavailableError"' in ended.text
    assert refused.status == 503
    shown = server.shown("hung")
    assert (shown["outcome"], shown["reason"]) == ("failed", "engine_hung")


async def test_a_hung_engine_that_comes_back_is_ready_again(client: Client, server: Served) -> None:
    await until(lambda: server.ready() == 200, 10)
    assert (await client.ask(4)).status == 200
    await until(lambda: server.events()[-2:] == ["engine_hung", "engine_recovered"], 5)


async def test_a_stopped_engine_is_not_ready_within_fifteen_seconds(client: Client, server: Served) -> None:
    stream, engine = await client.stream(1900).begun(), server.engine_core
    engine.suspend()
    began = time.monotonic()
    took = await until(lambda: server.ready() == 503, 18)
    refused, live = await client.ask(4), server.probe("live")
    assert (10 < took <= 15.6, live) == (True, 200)
    assert (refused.status, '"ServiceUnavailableError"' in refused.text) == (503, True)
    engine.resume()
    await until(lambda: server.ready() == 200, 5)
    assert time.monotonic() - began < 30
    before = len(stream.answer.lines)
    await until(lambda: len(stream.answer.lines) > before, 10)
    await stream.hang_up()


async def test_a_stopped_engine_is_not_live_within_a_minute(client: Client, server: Served) -> None:
    stream, engine = await client.stream(1900).begun(), server.engine_core
    engine.suspend()
    took = await until(lambda: server.probe("live") == 503, 65)
    ended = await asyncio.wait_for(stream.end(), 5)
    assert 50 < took <= 61
    assert '"ServiceUnavailableError"' in ended.text


async def test_a_process_whose_engine_is_lost_ends_soon_when_asked_and_says_so(server: Served) -> None:
    began = time.monotonic()
    server.signal(signal.SIGTERM)
    status = await asyncio.to_thread(server.process.wait, 30)
    assert status == 3
    assert time.monotonic() - began < 15
    assert server.events().count("engine_hung") == 2
