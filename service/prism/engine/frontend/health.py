"""What is known of the engine's state, for probes and for refusing requests that nothing would answer.

Heartbeats come from EngineCore's facts; death from vLLM, which knows at once when the process is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class EngineState(StrEnum):
    """From start to end; each name is what the readiness probe answers."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    DEAD = "dead"


@dataclass
class Beat:
    """The last heartbeat of one engine: its time in monotonic seconds, and how long its step had been running."""

    at: float
    step_seconds: float


class EngineHealth:
    """Whether requests can be answered.

    Attributes:
        beats: the last heartbeat of each engine, by its rank.
    """

    def __init__(self) -> None:
        self.beats: dict[int, Beat] = {}
        self._state = EngineState.STARTING
        self._is_dead: Callable[[], bool] = lambda: False

    def watch(self, is_dead: Callable[[], bool]) -> None:
        """From now on ask this whenever the state is asked for: death is known at once."""
        self._is_dead = is_dead

    @property
    def state(self) -> EngineState:
        if self._state is EngineState.READY and self._is_dead():
            self._state = EngineState.DEAD
        return self._state

    @property
    def ready(self) -> bool:
        """A first token was produced, and nothing has gone wrong since."""
        return self.state is EngineState.READY

    @property
    def live(self) -> bool:
        """Whether a restart would not help: anything but a dead engine."""
        return self.state is not EngineState.DEAD

    def first_token_produced(self) -> None:
        if self._state is EngineState.STARTING:
            self._state = EngineState.READY

    def stopping(self) -> None:
        if self._state is not EngineState.DEAD:
            self._state = EngineState.STOPPING

    def died(self) -> None:
        self._state = EngineState.DEAD

    def beat(self, engine: int, at: float, step_seconds: float) -> None:
        self.beats[engine] = Beat(at, step_seconds)


class DeathNotice:
    """What vLLM's handlers take for their HTTP server: they ask it to exit when they find the engine dead.

    PRISM keeps answering (503, with the reason) and lets the liveness probe have the pod restarted.
    """

    def __init__(self, health: EngineHealth) -> None:
        self._health = health

    @property
    def should_exit(self) -> bool:
        return self._health.state is EngineState.DEAD

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        if value:
            self._health.died()
