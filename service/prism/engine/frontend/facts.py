"""The receiving end of the channel on which EngineCore sends facts.

A PULL socket on a local address. It is bound before the engine starts, so nothing is lost in between; its queue is
bounded, and a sender that finds it full throws away and counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import zmq
import zmq.asyncio

from prism.engine.frontend.desk import RequestDesk, RequestFact
from prism.engine.frontend.health import EngineHealth
from prism.engine.frontend.settings import EngineSettings
from prism.engine.wire import (
    Admitted,
    Fact,
    FactBatch,
    Gauges,
    Heartbeat,
    SettingsAdopted,
    SettingsRefused,
    decode_batch,
)
from prism.errors import DeploymentError
from prism.telemetry.metrics import Metrics

_logger = logging.getLogger(__name__)

QUEUED_BATCHES = 10_000
WARM_UP: Final = "prism-first-token"
"""Name of the request that warms the engine up; it is nobody's, so it counts in no metric."""

_LONGEST_ADDRESS = 100  # a Unix socket's path holds 107 bytes
_SWEEP_SECONDS = 1.0


def facts_address(port: int) -> str:
    """A local address for this server's facts, in a folder that only this user can enter.

    It depends on nothing but the port: it is part of vLLM's configuration, whose hash names the compile cache, and a
    random one would make every start a cold one.

    Raises:
        DeploymentError: the folder belongs to someone else.
    """
    folder = Path(tempfile.gettempdir()) / f"prism-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
        raise DeploymentError(f"{folder} must be a folder that only this user can enter; remove it or set TMPDIR.")
    path = folder / f"facts-{port}.ipc"
    if len(str(path)) > _LONGEST_ADDRESS:
        raise DeploymentError(f"{folder} is too long a path for a local socket; set TMPDIR to a shorter one.")
    return f"ipc://{path}"


class FactCounts:
    """What the channel lost: batches by gaps in their numbers, facts by the sender's own count, unreadable batches."""

    def __init__(self) -> None:
        self.lost_batches = 0
        self.unreadable_batches = 0
        self.dropped_by_engine: dict[int, int] = {}
        self._next: dict[int, int] = {}

    def note(self, batch: FactBatch) -> bool:
        """Count one batch; False if something before it was lost."""
        expected = self._next.get(batch.engine, batch.sequence)
        # A sender that starts again counts from 0.
        gap = max(0, batch.sequence - expected) if batch.sequence else 0
        self._next[batch.engine] = batch.sequence + 1
        newly_dropped = batch.dropped - self.dropped_by_engine.get(batch.engine, 0)
        self.dropped_by_engine[batch.engine] = batch.dropped
        self.lost_batches += gap
        return gap == 0 and newly_dropped <= 0


class FactDispatch:
    """Brings each fact to whoever keeps that kind.

    Args:
        on_settings: called when an engine has adopted settings.
    """

    def __init__(
        self,
        desk: RequestDesk,
        settings: EngineSettings,
        health: EngineHealth,
        metrics: Metrics,
        on_settings: Callable[[], None] = lambda: None,
    ) -> None:
        self.counts = FactCounts()
        self._desk = desk
        self._settings = settings
        self._health = health
        self._metrics = metrics
        self._on_settings = on_settings

    def take(self, batch: FactBatch) -> None:
        if not self.counts.note(batch):
            self._desk.facts_lost()
        for fact in batch.facts:
            self._one(batch.engine, fact)

    def _one(self, engine: int, fact: Fact) -> None:
        match fact:
            case Heartbeat(step_seconds=step_seconds):
                self._health.beat(engine, step_seconds)
            case Gauges():
                self._metrics.engine_reported(engine, fact)
            case SettingsAdopted():
                self._settings.adopted(engine, fact)
                self._on_settings()
            case SettingsRefused():
                self._settings.refused(engine, fact)
                self._metrics.settings_refused(engine, fact.reason)
            case _:
                self._request_fact(fact)

    def _request_fact(self, fact: RequestFact) -> None:
        if isinstance(fact, Admitted) and not fact.request.startswith(WARM_UP):
            self._metrics.request_admitted(fact.cached_by_kind, fact.tokens_by_kind)
        self._desk.fact(fact)

    def sweep(self) -> None:
        """What is done every second or so, whether facts come or not."""
        self._desk.sweep()
        for timeline in self._desk.under_way():
            self._metrics.request_goes_on(timeline)
        self._metrics.sample()

    def lost(self) -> dict[str, int]:
        """What was lost so far, by the values of `prism.telemetry.metrics.LOSSES`."""
        return {
            "channel_full": sum(self.counts.dropped_by_engine.values()),
            "gap": self.counts.lost_batches,
            "unreadable": self.counts.unreadable_batches,
            "unclaimed": self._desk.unclaimed_dropped,
        }


class FactReceiver:
    """Receives batches until it is closed.

    Args:
        address: ZeroMQ address to bind.
    """

    def __init__(self, address: str, dispatch: FactDispatch) -> None:
        self.address = address
        self._dispatch = dispatch
        self._context: zmq.asyncio.Context | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Bind, and begin to receive; needs a running event loop."""
        self._context = zmq.asyncio.Context()
        socket = self._context.socket(zmq.PULL)
        socket.set(zmq.RCVHWM, QUEUED_BATCHES)
        socket.set(zmq.LINGER, 0)
        socket.bind(self.address)
        self._tasks = [asyncio.create_task(self._receive(socket)), asyncio.create_task(self._sweep())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._context is not None:
            self._context.destroy(linger=0)
        await asyncio.to_thread(Path(self.address.removeprefix("ipc://")).unlink, missing_ok=True)

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            self._take(await socket.recv())

    def _take(self, message: bytes) -> None:
        try:
            self._dispatch.take(decode_batch(message))
        except msgspec.MsgspecError as error:
            self._dispatch.counts.unreadable_batches += 1
            _logger.warning("A message on the facts channel is not one of this version: %s", error)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self._dispatch.sweep()
