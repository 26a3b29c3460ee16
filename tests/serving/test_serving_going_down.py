"""From the request to stop to the last answer, around the real desk and health, without an engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

import pytest

from prism.engine.frontend.app import Frontend
from prism.engine.frontend.desk import LiveRequest, RequestDesk
from prism.engine.frontend.engine_watch import LOST_AFTER_SECONDS, EngineWatch
from prism.engine.frontend.health import EngineHealth
from prism.serving.going_down import ExitStatus, GoingDown
from prism.telemetry.timeline import Outcome, RequestTimeline


class Drained:
    """What `GoingDown` sees of a frontend."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.started = True
        self.health = EngineHealth()
        self.health.first_token_produced()
        self.desk = RequestDesk()
        self.watch = EngineWatch(self.health, self.desk, clock=clock)

    def request(self) -> LiveRequest:
        """A request under way, which ends when it is given up."""
        now = time.monotonic()
        live = LiveRequest(RequestTimeline("id", arrived_at=now, arrived_wall_ns=0))

        def end(error: object, outcome: Outcome) -> None:
            live.timeline.failed(time.monotonic(), 503, str(outcome))
            self.desk.closed(live)

        live.on_end = end
        self.desk.opened(live)
        return live

    def kill_engine(self) -> None:
        raise AssertionError("not in time")


async def drain(frontend: Drained, grace: float = 60.0, delay: float = 0.0, hurry: bool = False) -> GoingDown:
    going = GoingDown(cast(Frontend, frontend), grace, delay)
    draining = asyncio.create_task(going.until_drained())
    going.ask()
    if hurry:
        await asyncio.sleep(0.1)
        going.ask()
    await asyncio.wait_for(draining, 10)
    return going


async def test_an_idle_server_waits_for_its_delay_and_no_longer() -> None:
    began = time.monotonic()
    going = await drain(Drained(), delay=0.3)
    assert going.exit_status is ExitStatus.DONE
    assert 0.3 <= time.monotonic() - began < 1.0


async def test_it_waits_for_the_last_answer() -> None:
    frontend = Drained()
    live = frontend.request()
    asyncio.get_running_loop().call_later(0.4, frontend.desk.closed, live)
    assert (await drain(frontend)).exit_status is ExitStatus.DONE
    assert live.timeline.outcome is None


async def test_the_end_of_the_grace_period_cuts_off_what_is_left() -> None:
    frontend, began = Drained(), time.monotonic()
    live = frontend.request()
    going = await drain(frontend, grace=1.0)
    assert (going.exit_status, live.timeline.outcome) == (ExitStatus.CUT_OFF, Outcome.FAILED)
    assert time.monotonic() - began < 1.0


async def test_a_second_signal_cuts_off_at_once() -> None:
    frontend, began = Drained(), time.monotonic()
    frontend.request()
    going = await drain(frontend, delay=30.0, hurry=True)
    assert going.exit_status is ExitStatus.CUT_OFF
    assert time.monotonic() - began < 1.0


async def test_nobody_waits_for_a_dead_engine() -> None:
    frontend, began = Drained(), time.monotonic()
    frontend.health.died()
    frontend.request()
    going = await drain(frontend, delay=30.0)
    assert going.exit_status is ExitStatus.ENGINE_LOST
    assert time.monotonic() - began < 1.0


async def test_a_process_that_is_long_not_live_ends_by_itself() -> None:
    now = [0.0]
    frontend = Drained(lambda: now[0])
    frontend.health.died()
    frontend.watch.look()
    now[0] = LOST_AFTER_SECONDS
    going = GoingDown(cast(Frontend, frontend), 60.0, 30.0)
    await asyncio.wait_for(going.until_drained(), 5)
    assert going.exit_status is ExitStatus.ENGINE_LOST


async def test_a_server_that_has_not_started_does_not_wait() -> None:
    frontend = Drained()
    frontend.started = False
    assert (await drain(frontend, delay=30.0)).exit_status is ExitStatus.DONE


@pytest.mark.parametrize(("grace", "most"), [(60.0, 5.0), (4.0, 3.0), (1.0, 0.2)])
async def test_spans_get_what_is_left_of_the_grace(grace: float, most: float) -> None:
    going = GoingDown(cast(Frontend, Drained()), grace, 0.0)
    going.ask()
    assert going.flush_s == pytest.approx(most, abs=0.1)
