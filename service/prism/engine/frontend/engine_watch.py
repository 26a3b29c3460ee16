"""Looks at the engine's state all the time: says when it changes, and ends the requests that nothing will answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from prism.engine.frontend.desk import RequestDesk
from prism.engine.frontend.health import EngineHealth, EngineState, engine_dead, engine_hung
from prism.telemetry.log import event

_logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5

LOST_AFTER_SECONDS = 60.0
"""How long the process answers as not live before it ends by itself, where no liveness probe has it restarted."""

_DEAD_GRACE_SECONDS = 1.0
"""vLLM itself ends the requests of a dead engine; what it has not ended by then is ended here."""

_REFUSALS = {EngineState.DEAD: engine_dead, EngineState.HUNG: engine_hung}


class EngineWatch:
    """Told the time by `clock`; `look` is called every half second.

    Args:
        on_dead: called once when the engine has died.
    """

    def __init__(
        self,
        health: EngineHealth,
        desk: RequestDesk,
        on_dead: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._health = health
        self._desk = desk
        self._on_dead = on_dead
        self._clock = clock
        self._state = EngineState.READY
        self._since = clock()

    @property
    def lost(self) -> bool:
        """Whether the process has not been live for so long that it should end."""
        return self._state in _REFUSALS and self._clock() - self._since >= LOST_AFTER_SECONDS

    def look(self) -> None:
        state = self._health.state
        if state is not self._state:
            before, self._state, self._since = self._state, state, self._clock()
            self._changed(before, state)
        if state is EngineState.DEAD and self._clock() - self._since >= _DEAD_GRACE_SECONDS:
            self._desk.end_all(engine_dead())

    def _changed(self, before: EngineState, state: EngineState) -> None:
        under_way = self._desk.open_count
        match state:
            case EngineState.DEAD:
                self._desk.facts_lost()
                self._on_dead()
                words = event("engine_dead", requests=under_way)
                _logger.error("The engine has died: its requests fail, new ones get 503.", extra=words)
            case EngineState.HUNG:
                words = event("engine_hung", requests=under_way, **self._signs())
                _logger.error("The engine is hung: its requests fail, new ones get 503.", extra=words)
                self._desk.end_all(engine_hung())
            case EngineState.SILENT:
                words = event("engine_silent", requests=under_way, **self._signs())
                _logger.warning("The engine is silent: new requests get 503, those under way wait.", extra=words)
            case EngineState.READY:
                words = event("engine_recovered", was=before.value)
                _logger.info("The engine answers again.", extra=words)
            case _:
                pass  # whoever asked it to stop says so

    def _signs(self) -> dict[str, float]:
        return {"silent_s": round(self._health.silence_s, 1), "step_s": round(self._health.longest_step_s, 1)}
