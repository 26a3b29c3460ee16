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
from tests.faults.conftest import LONG, PATIENCE, ROOM, Client, least, until
from tests.realserver import Served, serving

pytestmark = [pytest.mark.faults, pytest.mark.engine, pytest.mark.timeout(700)]

STEP_TIMEOUT_SECONDS = 30


@pytest.fixture(scope="module")
def server(tiny_model_folder: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    flags = [*ROOM, "--step-timeout", str(STEP_TIMEOUT_SECONDS), "--grace-period", "60"]
    with serving(tiny_model_folder, repository, tmp_path_factory.mktemp("engine"), *flags) as running:
        engine, worker = running.engine_core, running.worker
        yield running
        for process in (worker, engine):
            if process.is_running():
                process.send_signal(signal.SIGCONT)


async def test_a_slow_step_below_the_timeout_stays_ready(client: Client, server: Served) -> None:
    stream = await client.stream(LONG).begun()
    worker = server.worker
    worker.suspend()
    await asyncio.sleep(STEP_TIMEOUT_SECONDS / 2 + 2)  # longer than an engine may be silent
    probes = (server.probe("ready"), server.probe("live"))
    worker.resume()
    assert probes == (200, 200)
    before = len(stream.answer.lines)
    await until(lambda: len(stream.answer.lines) > before)
    await stream.hang_up()


async def test_a_step_beyond_the_timeout_is_hung_and_its_requests_end(client: Client, server: Served) -> None:
    begun, worker = await client.stream(LONG, "hung").begun(), server.worker
    worker.suspend()
    waiting = asyncio.create_task(client.ask(4))
    took = await until(lambda: server.probe("live") == 503, STEP_TIMEOUT_SECONDS + 20)
    ended, refused = await asyncio.wait_for(begun.end(), PATIENCE), await asyncio.wait_for(waiting, PATIENCE)
    worker.resume()
    assert took >= STEP_TIMEOUT_SECONDS - 3
    assert '"ServiceUnavailableError"' in ended.text
    assert refused.status == 503
    shown = server.shown("hung")
    assert (shown["outcome"], shown["reason"]) == ("failed", "engine_hung")


async def test_a_hung_engine_that_comes_back_is_ready_again(client: Client, server: Served) -> None:
    await until(lambda: server.ready() == 200)
    assert (await client.ask(4)).status == 200
    await until(lambda: server.events()[-2:] == ["engine_hung", "engine_recovered"])


async def test_a_stopped_engine_is_not_ready_within_fifteen_seconds(client: Client, server: Served) -> None:
    async def seconds() -> float:
        stream, engine = await client.stream(LONG).begun(), server.engine_core
        engine.suspend()
        took = await until(lambda: server.ready() == 503)
        refused, live = await client.ask(4), server.probe("live")
        engine.resume()
        assert (refused.status, '"ServiceUnavailableError"' in refused.text, live) == (503, True, 200)
        await until(lambda: server.ready() == 200)
        before = len(stream.answer.lines)
        await until(lambda: len(stream.answer.lines) > before)
        await stream.hang_up()
        return took

    assert 10 < await least(seconds, 15.6) <= 15.6


async def test_a_stopped_engine_is_not_live_within_a_minute(client: Client, server: Served) -> None:
    async def seconds() -> float:
        server.engine_core.resume()  # stopped in a try before this one
        await until(lambda: server.ready() == 200)
        stream, engine = await client.stream(LONG).begun(), server.engine_core
        engine.suspend()
        took = await until(lambda: server.probe("live") == 503, 90)
        ended = await asyncio.wait_for(stream.end(), PATIENCE)
        assert '"ServiceUnavailableError"' in ended.text
        return took

    assert 50 < await least(seconds, 61, tries=2) <= 61


async def test_a_process_whose_engine_is_lost_ends_soon_when_asked_and_says_so(server: Served) -> None:
    began = time.monotonic()
    server.signal(signal.SIGTERM)
    status = await asyncio.to_thread(server.process.wait, 2 * PATIENCE)
    assert status == 3
    assert time.monotonic() - began < 30  # and not its grace period
    assert server.events().count("engine_hung") >= 2
