"""What is said and done when the engine's state changes."""

from __future__ import annotations

import logging
import time

import pytest

from prism.engine.frontend.desk import LiveRequest, RequestDesk
from prism.engine.frontend.engine_watch import LOST_AFTER_SECONDS, EngineWatch
from prism.engine.frontend.health import EngineHealth
from prism.errors import RequestRefused
from prism.telemetry.log import words_of
from prism.telemetry.timeline import Outcome, RequestTimeline


class Scene:
    """One engine, one request under way, and a clock for all."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        logging.getLogger("prism").propagate = True
        caplog.set_level("INFO", "prism")
        self.now, self.caplog = 0.0, caplog
        self.died: list[float] = []
        self.health = EngineHealth(clock=lambda: self.now)
        self.health.first_token_produced()
        self.health.watch(lambda: False, [0])
        self.desk = RequestDesk()
        self.watch = EngineWatch(self.health, self.desk, lambda: self.died.append(self.now), lambda: self.now)
        self.ended: list[str] = []
        live = LiveRequest(RequestTimeline("id", arrived_at=time.monotonic(), arrived_wall_ns=0))
        live.on_end = self._end
        self.desk.opened(live)

    def _end(self, error: RequestRefused, outcome: Outcome) -> None:
        self.ended.append(error.reason)

    def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            self.watch.look()

    @property
    def events(self) -> list[object]:
        return [words_of(record)["event"] for record in self.caplog.records]


@pytest.fixture
def scene(caplog: pytest.LogCaptureFixture) -> Scene:
    return Scene(caplog)


def test_silence_is_told_and_ends_nothing(scene: Scene) -> None:
    scene.pass_time(20)
    assert (scene.events, scene.ended) == (["engine_silent"], [])


def test_a_hung_engine_ends_its_requests(scene: Scene) -> None:
    scene.pass_time(61)
    assert (scene.events, scene.ended) == (["engine_silent", "engine_hung"], ["engine_hung"])


def test_a_recovery_is_told(scene: Scene) -> None:
    scene.pass_time(20)
    scene.health.beat(0, 0.0)
    scene.pass_time(1)
    assert scene.events == ["engine_silent", "engine_recovered"]


def test_a_dead_engine_ends_what_vllm_has_not(scene: Scene) -> None:
    scene.health.died()
    scene.pass_time(0.5)
    assert scene.ended == []
    scene.pass_time(1.5)
    assert (scene.events, set(scene.ended), len(scene.died)) == (["engine_dead"], {"engine_dead"}, 1)


def test_it_is_lost_when_it_has_not_been_live_for_long(scene: Scene) -> None:
    scene.health.died()
    scene.pass_time(LOST_AFTER_SECONDS - 1)
    assert not scene.watch.lost
    scene.pass_time(2)
    assert scene.watch.lost
