"""The way back: facts from EngineCore to the serving process, and the heartbeat.

Sending never waits. What the channel can't take is thrown away and counted; the reader sees the count in every batch
that gets through. Two threads send, the scheduler's and the heartbeat's, under one lock: a ZeroMQ socket may not be
used by two threads at once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable

import zmq

from prism.engine.wire import Fact, FactBatch, Heartbeat, encode_batch

_HIGH_WATER = 4096
"""Batches the channel holds before it is full."""

_LINGER_MS = 200
"""How long closing waits for the last batches to leave."""


class FactSender:
    """Sends facts of one engine to a ZeroMQ address, or nowhere.

    Args:
        address: of the serving process's PULL socket; None makes every call a no-op.
        engine: data-parallel rank of this engine.
    """

    def __init__(self, address: str | None, engine: int) -> None:
        self.engine = engine
        self.dropped = 0
        self._sequence = 0
        self._pending: list[Fact] = []
        self._lock = threading.Lock()
        self._context = zmq.Context() if address else None
        self._socket = _connect(self._context, address) if self._context and address else None

    def note(self, fact: Fact) -> None:
        """Keep a fact for the next `flush`. Only the scheduler's thread may call it."""
        if self._socket is not None:
            self._pending.append(fact)

    def flush(self) -> None:
        """Send what was noted, as one batch."""
        if self._pending:
            facts, self._pending = self._pending, []
            self.send(facts)

    def send(self, facts: list[Fact]) -> None:
        """Send facts at once; any thread may call it."""
        with self._lock:
            if self._socket is None:
                return
            batch = encode_batch(FactBatch(self.engine, self._sequence, self.dropped, facts))
            self._sequence += 1
            try:
                self._socket.send(batch, zmq.NOBLOCK)
            except zmq.ZMQError:
                # Full, or closed by a context that is going down: the facts are lost either way.
                self.dropped += len(facts)

    def close(self) -> None:
        self.flush()
        with self._lock:
            if self._context is not None:
                self._context.destroy(linger=_LINGER_MS)
                self._context = self._socket = None


def _connect(context: zmq.Context[zmq.Socket[bytes]], address: str) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.PUSH)
    socket.setsockopt(zmq.SNDHWM, _HIGH_WATER)
    socket.connect(address)
    return socket


def end_if_orphaned() -> None:
    """End this process if the one that started it is gone: nobody is left to answer, and nobody to ask it to end.

    Signals that ask are blocked in the engine's processes, so that one to a whole process group does not end them too
    soon; its workers end with it.
    """
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:
        os.kill(os.getpid(), signal.SIGKILL)


class HeartbeatThread(threading.Thread):
    """Says every second that this process lives and how long its step has been running.

    Args:
        sender: where to.
        step_began: when the step under way began, on `clock`; None when there is none.
    """

    def __init__(
        self,
        sender: FactSender,
        step_began: Callable[[], float | None],
        clock: Callable[[], float],
        every_seconds: float = 1.0,
    ) -> None:
        super().__init__(name="prism-heartbeat", daemon=True)
        self._sender = sender
        self._step_began = step_began
        self._clock = clock
        self._every_seconds = every_seconds
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.wait(self._every_seconds):
            end_if_orphaned()
            began, now = self._step_began(), self._clock()
            self._sender.send([Heartbeat(now, now - began if began is not None else 0.0)])

    def stop(self) -> None:
        self._stopping.set()
