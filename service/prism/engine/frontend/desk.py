"""The requests under way: which HTTP request each of the engine's internal ids belongs to.

A request is known here from its arrival until its last fact has come. Facts may be faster than the link between an
internal id and its request, so facts of unknown ids wait a while; what is never claimed is forgotten.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field

from prism.engine.wire import Admitted, Ended, Fact, Preempted, PrefillChunk, PrefillDone, Queued, Resumed
from prism.telemetry.timeline import Admission, EngineRequest, RequestTimeline

RequestFact = Queued | Admitted | PrefillChunk | PrefillDone | Preempted | Resumed | Ended

UNCLAIMED_SECONDS = 30.0
"""How long facts of an id that nobody claimed are kept."""

MAX_UNCLAIMED = 4096
"""Ids whose facts are kept unclaimed; the oldest give way."""

LAST_FACTS_SECONDS = 2.0
"""How long the trace of a request that has ended waits for facts still on their way."""


@dataclass(slots=True, eq=False)
class LiveRequest:
    """One HTTP request under way.

    Attributes:
        timeline: what has happened to it.
        deadline: set when it is known; monotonic seconds by which a first chunk must have been sent.
        deadline_known: fires when `deadline` is set.
        tokens: tokens received from the engine so far, by internal id, before and in the last output.
        names: internal ids in the order they were added.
    """

    timeline: RequestTimeline
    deadline: float | None = None
    tokens: dict[str, tuple[int, int]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    on_deadline: Callable[[float], None] | None = None

    def set_deadline(self, seconds: float) -> None:
        """The request must have sent a first chunk `seconds` after its arrival."""
        self.deadline = self.timeline.arrived_at + seconds
        if self.on_deadline is not None:
            self.on_deadline(self.deadline)

    def received(self, name: str, count: int, at: float) -> None:
        """The engine's output with `count` more tokens of `name` arrived in this process."""
        before, last = self.tokens.get(name, (0, 0))
        if before + last == 0 and count:
            self.timeline.first_output(at, name)
        self.tokens[name] = (before + last, count)

    @property
    def first_pass_known(self) -> bool:
        """Whether the facts that a response reports have come, for the request that is furthest on its way."""
        lead = self.timeline.lead
        return lead is not None and lead.admission is not None and lead.prefilled_at is not None

    async def wait_for_facts(self, seconds: float) -> None:
        """Wait until `first_pass_known`, but no longer than `seconds`."""
        limit = time.monotonic() + seconds
        while not self.first_pass_known and (left := limit - time.monotonic()) > 0:
            self.changed.clear()
            try:
                await asyncio.wait_for(self.changed.wait(), left)
            except TimeoutError:
                return


CURRENT: ContextVar[LiveRequest | None] = ContextVar("prism_request", default=None)
"""The HTTP request that the running code works for."""


@dataclass(slots=True)
class _Unclaimed:
    since: float
    facts: list[RequestFact] = field(default_factory=list)


class RequestDesk:
    """Links internal ids to HTTP requests, and brings each fact to its request.

    Args:
        on_ended: called once for each request that has ended, when no more facts will be waited for.
        clock: monotonic seconds.
    """

    def __init__(
        self, on_ended: Callable[[LiveRequest], None] = lambda _: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.on_ended = on_ended
        self.unclaimed_dropped = 0
        self._clock = clock
        self._by_name: dict[str, LiveRequest] = {}
        self._unclaimed: dict[str, _Unclaimed] = {}
        self._open: set[LiveRequest] = set()
        self._closing: dict[LiveRequest, float] = {}

    @property
    def open_count(self) -> int:
        """HTTP requests that have not ended."""
        return len(self._open)

    def opened(self, live: LiveRequest) -> None:
        self._open.add(live)

    def link(self, name: str, live: LiveRequest) -> EngineRequest:
        """From now on this internal id belongs to `live`; facts that came before are replayed."""
        request = live.timeline.engine_added(self._clock(), name)
        self._by_name[name] = live
        if name not in live.names:
            live.names.append(name)
        waiting = self._unclaimed.pop(name, None)
        for fact in waiting.facts if waiting else ():
            _apply(request, fact)
        return request

    def owner(self, name: str) -> LiveRequest | None:
        return self._by_name.get(name)

    def fact(self, fact: RequestFact) -> None:
        """Bring one fact to the request that it is about."""
        live = self._by_name.get(fact.request)
        if live is None:
            self._keep_unclaimed(fact)
            return
        _apply(live.timeline.engine_request(fact.request), fact)
        live.changed.set()
        if live in self._closing and _all_ended(live):
            self._finish(live)

    def facts_lost(self) -> None:
        """The channel lost something: every request under way may lack a fact."""
        for live in (*self._open, *self._closing):
            live.timeline.facts_missing()

    def closed(self, live: LiveRequest) -> None:
        """The HTTP request has ended; its trace is finished when its last facts have come, or soon."""
        self._open.discard(live)
        if _all_ended(live):
            self._finish(live)
        else:
            self._closing[live] = self._clock() + LAST_FACTS_SECONDS

    def sweep(self) -> None:
        """Finish what has waited long enough; called every second or so."""
        now = self._clock()
        for live in [live for live, limit in self._closing.items() if limit <= now]:
            self._finish(live)
        for name in [n for n, kept in self._unclaimed.items() if kept.since + UNCLAIMED_SECONDS <= now]:
            del self._unclaimed[name]

    def close_all(self) -> None:
        """The process ends: finish every request that has ended, without waiting."""
        for live in list(self._closing):
            self._finish(live)

    def _finish(self, live: LiveRequest) -> None:
        self._closing.pop(live, None)
        for name in live.names:
            self._by_name.pop(name, None)
        self.on_ended(live)

    def _keep_unclaimed(self, fact: RequestFact) -> None:
        kept = self._unclaimed.get(fact.request)
        if kept is None:
            if len(self._unclaimed) >= MAX_UNCLAIMED:
                self._unclaimed.pop(next(iter(self._unclaimed)))
                self.unclaimed_dropped += 1
            kept = self._unclaimed[fact.request] = _Unclaimed(self._clock())
        kept.facts.append(fact)


def request_facts(facts: Iterable[Fact]) -> Iterable[RequestFact]:
    """Those facts that are about one request."""
    return (fact for fact in facts if isinstance(fact, RequestFact))


def _all_ended(live: LiveRequest) -> bool:
    return all(request.ended_at is not None for request in live.timeline.engine_requests.values())


def _apply(request: EngineRequest, fact: RequestFact) -> None:
    match fact:
        case Queued(at=at, depth=depth):
            request.queued(at, depth)
        case Admitted():
            request.admitted(fact.at, _admission(fact))
        case PrefillChunk(at=at, start=start, end=end):
            request.chunk(at, start, end)
        case PrefillDone(at=at):
            request.prefilled(at)
        case Preempted(at=at):
            request.preempted(at)
        case Resumed(at=at, cached_tokens=cached_tokens):
            request.resumed(at, cached_tokens)
        case Ended(at=at, reason=reason):
            request.ended(at, reason)


def _admission(fact: Admitted) -> Admission:
    return Admission(
        lane=fact.lane,
        bucket=fact.bucket,
        why=fact.why,
        depth=fact.depth,
        cached_tokens=fact.cached_tokens,
        prompt_tokens=fact.prompt_tokens,
        segments_hit=fact.segments_hit,
        segments=fact.segments,
        order=tuple(fact.order),
        generation=fact.generation,
        overtaken=fact.overtaken,
        cached_by_kind=fact.cached_by_kind,
        tokens_by_kind=fact.tokens_by_kind,
    )
        reuse=fact.reuse,
