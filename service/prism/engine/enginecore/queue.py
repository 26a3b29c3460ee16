"""vLLM's waiting queue, in PRISM's order.

vLLM peeks, looks the prefix up, allocates, and pops only if that succeeded. So the head is chosen once, stays until it
is popped or the pass ends, and a pop is not yet an admission: what vLLM steps over (an adapter slot, a grammar, a
remote KV) is popped too and waits in vLLM's own `skipped_waiting`, to be served first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from prism.core.decisions import Decisions


class QueueOwner(Protocol):
    """What the queue asks its scheduler for."""

    decisions: Decisions

    def now(self) -> float: ...

    def enter(self, request: Request) -> None:
        """A request begins to wait."""
        ...

    def settle_popped(self) -> None:
        """Find out whether the request popped last runs: the next choice depends on it."""
        ...

    def prepare_head(self, request: Request) -> None:
        """A request is about to be admitted: its prompt takes its final order."""
        ...

    def popped(self, request: Request) -> None:
        """A request was taken out; whether it runs shows at the next peek or at the end of the pass."""
        ...


class PrismRequestQueue(RequestQueue):
    """A `RequestQueue` over the waiting room of `Decisions`."""

    def __init__(self, owner: QueueOwner, find: Callable[[str], Request]) -> None:
        self._owner = owner
        self._find = find

    def add_request(self, request: Request) -> None:
        self._owner.enter(request)

    def prepend_request(self, request: Request) -> None:
        """How a preempted request returns: before all others of its priority."""
        if not self._owner.decisions.resume(request.request_id):
            self._owner.enter(request)

    def prepend_requests(self, requests: RequestQueue) -> None:
        for request in requests:
            self.prepend_request(request)

    def peek_request(self) -> Request:
        """The head. It stays the same until it is popped, is removed, or the next pass begins.

        Raises:
            IndexError: the queue is empty.
        """
        request = self._head("peek")
        self._owner.prepare_head(request)
        return request

    def pop_request(self) -> Request:
        """Take the head out.

        Raises:
            IndexError: the queue is empty.
        """
        request = self._head("pop")
        self._owner.decisions.take(request.request_id)
        self._owner.popped(request)
        return request

    def remove_request(self, request: Request) -> None:
        self._owner.decisions.room.remove(request.request_id)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.remove_request(request)

    def __bool__(self) -> bool:
        return len(self._owner.decisions.room) > 0

    def __len__(self) -> int:
        return len(self._owner.decisions.room)

    def __iter__(self) -> Iterator[Request]:
        for waiting in self._owner.decisions.room:
            yield self._find(waiting.request)

    def _head(self, verb: str) -> Request:
        # Whether the last one popped runs decides whose turn it is now.
        self._owner.settle_popped()
        head = self._owner.decisions.head(self._owner.now())
        if head is None:
            raise IndexError(f"{verb} from an empty queue")
        return self._find(head.waiting.request)
