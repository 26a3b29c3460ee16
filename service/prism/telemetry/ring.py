"""The last finished requests, kept in memory for whoever wants to look without a collector."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

from prism.telemetry.timeline import RequestTimeline


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """A request that has ended, and the id of its trace (32 hex digits), whether that was exported or not."""

    timeline: RequestTimeline
    trace_id: str


class SpanRing:
    """The last `capacity` finished requests. Safe to use from several threads.

    Raises:
        ValueError: the capacity is less than one.
    """

    def __init__(self, capacity: int = 512) -> None:
        if capacity < 1:
            raise ValueError("a ring holds at least one request")
        self.capacity = capacity
        self._requests: deque[FinishedRequest] = deque(maxlen=capacity)
        self._lock = threading.Lock()

    def add(self, request: FinishedRequest) -> None:
        with self._lock:
            self._requests.append(request)

    def last(self, count: int | None = None) -> tuple[FinishedRequest, ...]:
        """Up to `count` of the newest requests, oldest first; all of them without it."""
        with self._lock:
            kept = tuple(self._requests)
        return kept if count is None else kept[max(0, len(kept) - count) :]

    def find(self, request_id: str) -> FinishedRequest | None:
        """The newest request with this `x-request-id` or trace id; None if none is kept."""
        for request in reversed(self.last()):
            if request_id in (request.timeline.request_id, request.trace_id):
                return request
        return None

    def __len__(self) -> int:
        return len(self._requests)
