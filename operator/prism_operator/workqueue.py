"""What is to be looked at next: each key at most once, never two workers on one, failures later and later.

The queue holds keys, not changes. Whoever takes a key looks at how things are then, so ten changes that come while a
key waits are one look, and a change that comes while it is being looked at is one look more.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_BACK_OFF_SECONDS = 0.2
LONGEST_BACK_OFF_SECONDS = 120.0


class WorkQueue(Generic[K]):
    """A de-duplicating queue of keys with delays. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._ready: deque[K] = deque()
        self._waiting: set[K] = set()
        self._taken: set[K] = set()
        self._again: set[K] = set()
        self._later: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        self._order = itertools.count()
        self._failures: dict[K, int] = {}
        self._closed = False

    def add(self, key: K) -> None:
        """Puts the key at the end, unless it waits already; if a worker has it, it is looked at once more after."""
        with self._changed:
            self._add(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Adds the key when the time has passed; of several delays the earliest counts."""
        with self._changed:
            due = self._clock() + seconds
            if due >= self._due.get(key, float("inf")):
                return
            self._due[key] = due
            heapq.heappush(self._later, (due, next(self._order), key))
            self._changed.notify()

    def get(self, timeout_s: float | None = None) -> K | None:
        """The next key, which is then the caller's until `done`; None if the time passed or the queue is closed."""
        deadline = None if timeout_s is None else self._clock() + timeout_s
        with self._changed:
            while not self._closed:
                pause = self._move_due()
                if self._ready:
                    key = self._ready.popleft()
                    self._waiting.discard(key)
                    self._taken.add(key)
                    return key
                left = None if deadline is None else deadline - self._clock()
                if left is not None and left <= 0:
                    return None
                self._changed.wait(min((one for one in (pause, left) if one is not None), default=None))
            return None

    def done(self, key: K) -> None:
        """The look is over and went well."""
        with self._changed:
            self._failures.pop(key, None)
            self._give_back(key)

    def failed(self, key: K) -> float:
        """The look is over and must be repeated; returns the seconds until then, which double with each failure."""
        with self._changed:
            failures = self._failures.get(key, 0)
            self._failures[key] = failures + 1
            self._give_back(key)
        seconds: float = min(FIRST_BACK_OFF_SECONDS * 2.0 ** min(failures, 16), LONGEST_BACK_OFF_SECONDS)
        self.add_after(key, seconds)
        return seconds

    def close(self) -> None:
        """Lets every waiting `get` return None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __len__(self) -> int:
        with self._changed:
            return len(self._ready)

    def _add(self, key: K) -> None:
        if key in self._taken:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.append(key)
            self._changed.notify()

    def _give_back(self, key: K) -> None:
        self._taken.discard(key)
        if key in self._again:
            self._again.discard(key)
            self._add(key)

    def _move_due(self) -> float | None:
        """Adds what is due; returns the seconds until the next one, None without any."""
        while self._later:
            due, _, key = self._later[0]
            if self._due.get(key) == due:
                if due > self._clock():
                    return due - self._clock()
                del self._due[key]
                self._add(key)
            heapq.heappop(self._later)
        return None
