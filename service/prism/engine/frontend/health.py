"""What is known of the engine's state, for probes and for refusing requests that nothing would answer.

Death comes from vLLM, which knows at once when a process is gone. A hung engine shows in its heartbeats, which a thread
of its own sends every second whatever the step does:

    state     ready  live  what it means
    starting  no     yes   no first token yet
    ready     yes    yes
    silent    no     yes   no heartbeat for 15 s; a late one makes it ready again
    hung      no     no    no heartbeat for 60 s, or one step has taken longer than the step timeout
    dead      no     no    a process of the engine is gone
    stopping  no     yes   asked to stop

Silence is what this process has heard nothing in, not what a clock says: while its own event loop was held up, or the
whole pod was frozen, heartbeats were waiting to be read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from prism.errors import RequestRefused

NOT_READY_AFTER_SECONDS = 15.0
"""Silence after which an engine is not ready."""

NOT_LIVE_AFTER_SECONDS = 60.0
"""Silence after which an engine counts as hung."""

LONGEST_LISTENED_SECONDS = 5.0
"""Of a longer time between two looks, only this much was spent listening."""


class EngineState(StrEnum):
    """From start to end; each name is what the readiness probe answers."""

    STARTING = "starting"
    READY = "ready"
    SILENT = "silent"
    HUNG = "hung"
    STOPPING = "stopping"
    DEAD = "dead"


@dataclass(slots=True)
class Pulse:
    """One engine's life signs: seconds of silence, and how long its step had been running when it was last heard."""

    silent_s: float = 0.0
    step_s: float = 0.0


class EngineHealth:
    """Whether requests can be answered.

    Args:
        step_timeout_s: a step that takes longer counts as hung.
        clock: monotonic seconds.

    Attributes:
        pulses: the life signs of each engine, by its rank.
    """

    def __init__(self, step_timeout_s: float = 300.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.pulses: dict[int, Pulse] = {}
        self._step_timeout_s = step_timeout_s
        self._clock = clock
        self._listened_at = clock()
        self._is_dead: Callable[[], bool] = lambda: False
        self._died = self._started = self._stopping = self._closed = False

    def watch(self, is_dead: Callable[[], bool], engines: Iterable[int] = ()) -> None:
        """From now on ask this whenever the state is asked for, and expect heartbeats of these engines."""
        self._is_dead = is_dead
        self._listen()
        for engine in engines:
            self.pulses[engine] = Pulse()

    def unwatch(self) -> None:
        """The engines are about to be ended on purpose: their death and silence mean nothing any more."""
        self._is_dead = lambda: False
        self.pulses.clear()

    @property
    def state(self) -> EngineState:
        if self._died or (self._started and self._is_dead()):
            self._died = True
            return EngineState.DEAD
        silence = self.silence_s
        if silence >= NOT_LIVE_AFTER_SECONDS or self.longest_step_s > self._step_timeout_s:
            return EngineState.HUNG
        if self._stopping:
            return EngineState.STOPPING
        if not self._started:
            return EngineState.STARTING
        return EngineState.SILENT if silence >= NOT_READY_AFTER_SECONDS else EngineState.READY

    @property
    def ready(self) -> bool:
        """A first token was produced, and nothing has gone wrong since."""
        return self.state is EngineState.READY

    @property
    def live(self) -> bool:
        """Whether a restart would not help: anything but a dead or a hung engine."""
        return self.state not in (EngineState.DEAD, EngineState.HUNG)

    @property
    def silence_s(self) -> float:
        """The longest silence of an engine, in seconds."""
        self._listen()
        return max((pulse.silent_s for pulse in self.pulses.values()), default=0.0)

    @property
    def longest_step_s(self) -> float:
        """The longest step under way, in seconds, as far as heartbeats have told."""
        return max((pulse.step_s for pulse in self.pulses.values()), default=0.0)

    def first_token_produced(self) -> None:
        self._started = True

    def stopping(self) -> None:
        """Not ready any more; new requests are still taken."""
        self._stopping = True

    @property
    def is_stopping(self) -> bool:
        """Whether the process is on its way down."""
        return self._stopping

    def close(self) -> None:
        """New requests are refused from now on."""
        self._closed = True

    def died(self) -> None:
        self._died = True

    def beat(self, engine: int, step_seconds: float) -> None:
        """A heartbeat has just been read; it counts from the first token on."""
        self._listen()
        if engine in self.pulses:
            self.pulses[engine] = Pulse(step_s=step_seconds)

    def refusal(self) -> RequestRefused | None:
        """Why a request that arrives now is not taken; None if it is."""
        if self._closed:
            return draining()
        return _REFUSALS.get(self.state, lambda: None)()

    def _listen(self) -> None:
        now = self._clock()
        listened = min(now - self._listened_at, LONGEST_LISTENED_SECONDS)
        self._listened_at = now
        for pulse in self.pulses.values():
            pulse.silent_s += listened


def loading() -> RequestRefused:
    """No first token yet."""
    return RequestRefused("The model is still loading; try again.", status=503, reason="loading", retry_after_s=5)


def draining() -> RequestRefused:
    """Asked to stop, and the time in which it still took requests is over."""
    text = "This replica is shutting down; try again, another one will answer."
    return RequestRefused(text, status=503, reason="draining", retry_after_s=1)


def engine_dead() -> RequestRefused:
    """A process of the engine is gone."""
    text = "The engine has died; this replica will be restarted, try again."
    return RequestRefused(text, status=503, reason="engine_dead", retry_after_s=5)


def engine_hung() -> RequestRefused:
    """The engine makes no progress, or says nothing any more."""
    text = "The engine does not respond; this replica may be restarted, try again."
    return RequestRefused(text, status=503, reason="engine_hung", retry_after_s=5)


_REFUSALS: dict[EngineState, Callable[[], RequestRefused | None]] = {
    EngineState.STARTING: loading,
    EngineState.SILENT: engine_hung,
    EngineState.HUNG: engine_hung,
    EngineState.DEAD: engine_dead,
}


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
