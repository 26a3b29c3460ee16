"""The requests under way: which HTTP request each of the engine's internal ids belongs to.

A request is known here from its arrival until its last fact has come. Facts may be faster than the link between an
internal id and its request, so facts of unknown ids wait a while; what is never claimed is forgotten.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from prism.config.schema import Limits
from prism.engine.frontend.intake import Intake
from prism.engine.wire import Admitted, Ended, Fact, Preempted, PrefillChunk, PrefillDone, Queued, Resumed
from prism.errors import RequestRefused
from prism.telemetry.timeline import Admission, EngineRequest, Outcome, RequestTimeline

RequestFact = Queued | Admitted | PrefillChunk | PrefillDone | Preempted | Resumed | Ended

OnAdded = Callable[["LiveRequest", str, Sequence[int], str, bytes | None], None]
"""Told of a request that is handed to the engine: internal id, prompt, namespace, plan as encoded for EngineCore."""

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
        on_end: set by whoever talks to the client; gives the request up (`end`).
    """

    timeline: RequestTimeline
    deadline: float | None = None
    tokens: dict[str, tuple[int, int]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    on_deadline: Callable[[float], None] | None = None
    on_end: Callable[[RequestRefused, Outcome], None] | None = None

    def end(self, error: RequestRefused, outcome: Outcome) -> None:
        """Give the request up: its work stops, and its client is told why. Does nothing once it is answered."""
        if self.on_end is not None:
            self.on_end(error, outcome)

    def set_deadline(self, seconds: float) -> None:
        """The request must have sent a first chunk `seconds` after its arrival."""
        self.deadline = self.timeline.arrived_at + seconds
        if self.on_deadline is not None:
            self.on_deadline(self.deadline)

    def received(self, name: str, count: int, at: float) -> bool:
        """The engine's output with `count` more tokens of `name` arrived; True if they are its first."""
        before, last = self.tokens.get(name, (0, 0))
        first = before + last == 0 and count > 0
        if first:
            self.timeline.first_output(at, name)
        self.tokens[name] = (before + last, count)
        return first

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
        intake: counts those that wait; without it, one that refuses nobody.
    """

    def __init__(
        self,
        on_ended: Callable[[LiveRequest], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        intake: Intake | None = None,
    ) -> None:
        self.on_ended = on_ended
        self.on_added: OnAdded | None = None
        self.intake = intake or Intake(lambda: Limits(max_waiting_requests=0), clock)
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

    def sizes(self) -> dict[str, int]:
        """How many entries each table holds; all of them are near zero when nothing is under way."""
        return {
            "open": len(self._open),
            "closing": len(self._closing),
            "engine_requests": len(self._by_name),
            "unclaimed": len(self._unclaimed),
            "waiting": self.intake.requests,
            "waiting_tokens": self.intake.tokens,
        }

    def under_way(self) -> Iterator[RequestTimeline]:
        """Of the HTTP requests that have not ended."""
        return (live.timeline for live in self._open)

    def end_all(self, error: RequestRefused) -> int:
        """Give up every request under way; how many those are."""
        open_now = list(self._open)
        for live in open_now:
            live.end(error, Outcome.FAILED)
        return len(open_now)

    def opened(self, live: LiveRequest) -> None:
        self._open.add(live)

    def knows(self, live: LiveRequest) -> bool:
        """Whether its HTTP request is under way, or waits for its last facts."""
        return live in self._open or live in self._closing

    def link(self, name: str, live: LiveRequest, prompt_tokens: int = 0) -> EngineRequest:
        """From now on this internal id belongs to `live`; facts that came before are replayed.

        Raises:
            RequestRefused: with it, more would wait than may.
        """
        self.intake.handed_over(live, name, prompt_tokens)
        request = live.timeline.engine_added(self._clock(), name)
        if not self.knows(live):
            return request  # a background response that outlives its HTTP request: its trace has been told
        self._by_name[name] = live
        if name not in live.names:
            live.names.append(name)
        waiting = self._unclaimed.pop(name, None)
        for fact in waiting.facts if waiting else ():
            self._bring(live, request, fact)
        return request

    def fact(self, fact: RequestFact) -> None:
        """Bring one fact to the request that it is about."""
        live = self._by_name.get(fact.request)
        if live is None:
            self._keep_unclaimed(fact)
            return
        self._bring(live, live.timeline.engine_request(fact.request), fact)
        live.changed.set()
        if live in self._closing and _all_ended(live):
            self._finish(live)

    def received(self, name: str, count: int, at: float) -> None:
        """The engine's output with `count` more tokens of this internal id arrived."""
        live = self._by_name.get(name)
        if live is not None and live.received(name, count, at):
            self.intake.admitted(live, name)  # if that fact was lost

    def facts_lost(self) -> None:
        """The channel lost something: every request under way may lack a fact."""
        for live in (*self._open, *self._closing):
            live.timeline.facts_missing()

    def closed(self, live: LiveRequest) -> None:
        """The HTTP request has ended; its trace is finished when its last facts have come, or soon."""
        self._open.discard(live)
        self.intake.left(live)
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

    def _bring(self, live: LiveRequest, request: EngineRequest, fact: RequestFact) -> None:
        _apply(request, fact)
        if not isinstance(fact, Queued):
            self.intake.admitted(live, fact.request)

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
        reuse=fact.reuse,
    )
