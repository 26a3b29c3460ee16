"""From the request to stop to the last answer.

    SIGTERM ──drain delay──> closed ──last answer, or grace used up──> servers, engine, spans ──> exit
    not ready, still takes   new requests get 503, streams go on

A second SIGTERM skips to the end: what is left ends with an error object.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from enum import IntEnum

from prism.engine.frontend.app import Frontend
from prism.engine.frontend.health import EngineState, draining
from prism.telemetry.log import event
from prism.telemetry.provider import SHUTDOWN_SECONDS

_logger = logging.getLogger(__name__)

_RESERVE_SECONDS = 5.0
"""Of the grace period, what is kept for ending the engine and flushing spans (a quarter of it, if that is less)."""

_LAST_WORDS_SECONDS = 1.0
"""How long clients are given to take the error object that ends their stream."""

_LOOK_SECONDS = 0.05


class ExitStatus(IntEnum):
    """How `prism serve` ends.

    Attributes:
        DONE: asked to stop, and every request that was taken was answered.
        FAILED: it did not start, or failed in a way that it has no name for.
        BAD_ARGUMENTS: arguments that cannot be honoured.
        ENGINE_LOST: the engine died or hung.
        CUT_OFF: asked to stop, and requests were ended before they were answered.
    """

    DONE = 0
    FAILED = 1
    BAD_ARGUMENTS = 2
    ENGINE_LOST = 3
    CUT_OFF = 4


class GoingDown:
    """Takes the serving process from the first request to stop to the point where its servers may close.

    Args:
        frontend: what is to be drained.
        grace_s: from the request to stop to the process's end.
        delay_s: how long new requests are still taken.
        on_asked: called once, when it begins.
    """

    def __init__(
        self, frontend: Frontend, grace_s: float, delay_s: float, on_asked: Callable[[], None] = lambda: None
    ) -> None:
        self._frontend = frontend
        self._grace_s = grace_s
        self._delay_s = delay_s
        self._on_asked = on_asked
        self._began: float | None = None
        self._asked = asyncio.Event()
        self._hurried = False
        self._cut = 0
        self._lost = False

    @property
    def exit_status(self) -> ExitStatus:
        if self._lost:
            return ExitStatus.ENGINE_LOST
        return ExitStatus.CUT_OFF if self._cut else ExitStatus.DONE

    @property
    def flush_s(self) -> float:
        """How long the spans that are left may take to get out."""
        if self._began is None:
            return SHUTDOWN_SECONDS
        left = self._began + self._grace_s - time.monotonic()
        return min(SHUTDOWN_SECONDS, max(0.2, left - 1.0))

    def ask(self) -> None:
        """Asked to stop; asked once more, to hurry."""
        if self._began is not None:
            if not self._hurried:
                _logger.warning("Asked to stop again: what is left is ended now.", extra=event("drain_hurried"))
            self._hurried = True
            return
        # At once, not when the drain gets its turn: who asks twice in a row is told both in this order.
        self._began = time.monotonic()
        self._frontend.health.stopping()
        self._say_begin()
        self._on_asked()
        self._asked.set()

    async def until_drained(self) -> None:
        """Returns when the servers may close: nobody is being answered any more."""
        await self._until_asked()
        began = self._began or time.monotonic()
        health, desk = self._frontend.health, self._frontend.desk
        if self._frontend.started:
            await self._until(began + self._delay_s, lambda: False)
            health.close()
            reserve = min(_RESERVE_SECONDS, self._grace_s / 4)
            await self._until(began + self._grace_s - reserve, lambda: not desk.open_count)
        health.close()
        self._lost = health.state in (EngineState.DEAD, EngineState.HUNG)
        self._cut = desk.end_all(draining())
        await self._last_words()
        words = event("drain_ends", cut=self._cut, seconds=round(time.monotonic() - began, 1))
        _logger.info("Every request that was taken has been answered or ended.", extra=words)

    async def _until_asked(self) -> None:
        while not self._asked.is_set():
            if self._frontend.watch.lost:
                _logger.error("The engine is not coming back: ending.", extra=event("engine_lost"))
                self.ask()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), 1.0)

    async def _until(self, limit: float, done: Callable[[], bool]) -> None:
        """Until `done`, or the time is up, or nobody should wait any longer."""
        health = self._frontend.health
        while time.monotonic() < limit and not (done() or self._hurried) and health.live:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)

    async def _last_words(self) -> None:
        limit = time.monotonic() + _LAST_WORDS_SECONDS
        while self._frontend.desk.open_count and time.monotonic() < limit:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)

    def _say_begin(self) -> None:
        words = event(
            "drain_begins",
            requests=self._frontend.desk.open_count,
            delay_s=self._delay_s,
            grace_s=self._grace_s,
        )
        _logger.info("Asked to stop: not ready from now on; what was taken is answered.", extra=words)
