"""The serving process's end of the facts channel."""

from __future__ import annotations

import time
from collections.abc import Callable

import zmq
from tests.engine.enginecore.rig import Rig

from prism.engine.wire import Fact, FactBatch, decode_batch


class Channel:
    """The serving process's end."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.bind(address)
        self.batches: list[FactBatch] = []

    def read(self, quiet_ms: int = 250) -> list[Fact]:
        """All facts that have come so far, once nothing more comes."""
        # The first one may have to wait for a busy machine to make the connection.
        while self._socket.poll(quiet_ms if self.batches else max(quiet_ms, 3000)):
            self.batches.append(decode_batch(self._socket.recv()))
        return [fact for batch in self.batches for fact in batch.facts]

    def wait_for(self, wanted: Callable[[Fact], bool], seconds: float = 20.0) -> list[Fact]:
        """The facts that are wanted, once there is one."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found = [fact for fact in self.read(20) if wanted(fact)]
            if found:
                return found
        raise AssertionError(f"not told within {seconds} s")

    def of(self, request: str) -> list[Fact]:
        return [fact for fact in self.read() if getattr(fact, "request", None) == request]

    def close(self) -> None:
        self._context.destroy(linger=0)


Told = Callable[..., Rig]
"""Makes rigs that send their facts to the channel: `told(limits, spec, **options)`."""
