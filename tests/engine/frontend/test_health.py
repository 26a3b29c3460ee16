"""What the probes may say, and when: silence is what this process has heard nothing in."""

from __future__ import annotations

import pytest

from prism.engine.frontend.health import EngineHealth, EngineState


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """Two engines that beat, and a process that looks every second."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.dead = False
        self.health = EngineHealth(step_timeout_s=300.0, clock=self.clock)
        self.health.first_token_produced()
        self.health.watch(lambda: self.dead, range(2))

    def pass_time(self, seconds: int, *, beating: tuple[int, ...] = ()) -> EngineState:
        state = self.health.state
        for _ in range(seconds):
            self.clock.now += 1.0
            for engine in beating:
                self.health.beat(engine, 0.0)
            state = self.health.state
        return state


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_before_the_first_token_it_is_live_and_not_ready() -> None:
    health = EngineHealth()
    assert (health.state, health.ready, health.live) == (EngineState.STARTING, False, True)


def test_heartbeats_keep_it_ready(watched: Watched) -> None:
    assert watched.pass_time(400, beating=(0, 1)) is EngineState.READY


@pytest.mark.parametrize(
    ("seconds", "ready", "live"), [(14, True, True), (15, False, True), (59, False, True), (60, False, False)]
)
def test_silence_makes_it_first_not_ready_then_not_live(
    watched: Watched, seconds: int, ready: bool, live: bool
) -> None:
    watched.pass_time(seconds)
    assert (watched.health.ready, watched.health.live) == (ready, live)


def test_one_silent_engine_of_two_counts(watched: Watched) -> None:
    assert watched.pass_time(20, beating=(1,)) is EngineState.SILENT


def test_a_late_heartbeat_makes_it_ready_again(watched: Watched) -> None:
    watched.pass_time(70)
    assert watched.pass_time(1, beating=(0, 1)) is EngineState.READY


def test_a_process_that_was_held_up_itself_has_not_listened(watched: Watched) -> None:
    watched.clock.now += 600.0
    assert watched.health.state is EngineState.READY


def test_a_slow_step_below_the_timeout_stays_ready(watched: Watched) -> None:
    watched.health.beat(0, 299.0)
    assert watched.health.state is EngineState.READY


def test_a_step_beyond_the_timeout_is_hung(watched: Watched) -> None:
    watched.health.beat(1, 301.0)
    assert (watched.health.state, watched.health.live) == (EngineState.HUNG, False)


def test_death_is_known_at_once_and_for_good(watched: Watched) -> None:
    watched.dead = True
    assert watched.health.state is EngineState.DEAD
    watched.dead = False
    assert (watched.health.ready, watched.health.live) == (False, False)


def test_a_stopping_process_still_tells_a_hung_engine(watched: Watched) -> None:
    watched.health.stopping()
    assert watched.pass_time(1, beating=(0, 1)) is EngineState.STOPPING
    assert watched.pass_time(60) is EngineState.HUNG


def test_engines_that_are_ended_on_purpose_are_not_dead(watched: Watched) -> None:
    watched.health.stopping()
    watched.health.unwatch()
    watched.dead = True
    assert watched.pass_time(100) is EngineState.STOPPING


def test_requests_are_taken_until_it_is_closed(watched: Watched) -> None:
    watched.health.stopping()
    assert watched.health.refusal() is None
    watched.health.close()
    refusal = watched.health.refusal()
    assert refusal is not None
    assert (refusal.status, refusal.reason) == (503, "draining")


@pytest.mark.parametrize(("silence", "reason"), [(0, None), (15, "engine_hung"), (60, "engine_hung")])
def test_a_silent_engine_gets_no_new_requests(watched: Watched, silence: int, reason: str | None) -> None:
    watched.pass_time(silence)
    refusal = watched.health.refusal()
    assert (refusal and refusal.reason) == reason
