"""One HTTP request's life as times and values: no SDK, no clock, no I/O.

Events come in as `time.monotonic()` seconds (one clock for all processes of a machine), late, out of order or not at
all: EngineCore's facts travel on a channel that may lose them. So events are only stored, and every answer is worked
out from what has come. Answers are whole microseconds since arrival: sums of parts are exact, the figures in a
response equal those in its trace, and a viewer that keeps microseconds (Jaeger) rounds no child out of its parent.

    arrival ──admission_wait──> admitted ──prefill──> prefilled ──first_token──> end of TTFT ──decode──> end

The serving process sees arrival, end of TTFT and end itself; they are authoritative. The two marks between them are
EngineCore's: they are clamped into what the serving process saw, and where one was lost the part before it runs on to
the next known mark and says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from prism.core.reuse import SegmentReuse

MAX_CHUNKS = 64
"""Prefill chunks kept one by one; those after it are joined to the last. Spans hold a bounded number of events."""

MAX_PAUSES = 32
"""Preemptions kept with their times; those after it are only counted."""


class PartName(StrEnum):
    """The contiguous parts of a request, in order; the first three are its TTFT."""

    ADMISSION_WAIT = "admission_wait"
    PREFILL = "prefill"
    FIRST_TOKEN = "first_token"
    DECODE = "decode"


PART_NAMES = tuple(PartName)


class Outcome(StrEnum):
    """How a request ended."""

    FINISHED = "finished"
    FAILED = "failed"
    REFUSED = "refused"
    CANCELLED = "cancelled"


class TtftEnd(StrEnum):
    """What ended the time to first token."""

    FIRST_CHUNK_SENT = "first_chunk_sent"
    FIRST_TOKEN_RECEIVED = "first_token_received"


@dataclass(frozen=True, slots=True)
class Interval:
    """From `start_us` to `end_us`, microseconds since the request arrived; never negative."""

    start_us: int
    end_us: int

    @property
    def duration_us(self) -> int:
        return self.end_us - self.start_us

    @property
    def seconds(self) -> float:
        return self.duration_us / 1e6


@dataclass(frozen=True, slots=True)
class Part(Interval):
    """One part of a request.

    Attributes:
        name: which.
        outcome: how the request ended, if it ended in this part; else None.
        lost: the fact that should have ended this part never came, so it runs on to the next mark that is known.
        preempted: waits after a preemption, as far as they fell into this part.
    """

    name: PartName
    outcome: Outcome | None
    lost: bool
    preempted: tuple[Interval, ...]


@dataclass(frozen=True, slots=True)
class Ttft:
    """The time to first token, split; its parts in microseconds, and in seconds by their plain names."""

    admission_wait_us: int
    prefill_us: int
    first_token_us: int

    @property
    def admission_wait(self) -> float:
        return self.admission_wait_us / 1e6

    @property
    def prefill(self) -> float:
        return self.prefill_us / 1e6

    @property
    def first_token(self) -> float:
        return self.first_token_us / 1e6

    @property
    def total_us(self) -> int:
        return self.admission_wait_us + self.prefill_us + self.first_token_us

    @property
    def total(self) -> float:
        return self.total_us / 1e6


@dataclass(frozen=True, slots=True)
class Admission:
    """What the scheduler said when it first admitted a request.

    Attributes:
        lane: `hot`, `cold` or `none`.
        bucket: short digest of the ordered high-priority segments; empty without any.
        why: what the request waited for last.
        depth: requests still waiting afterwards.
        cached_tokens, prompt_tokens: prefix-cache hit, whole prompt.
        segments_hit, segments: reusable segments wholly served from cache, reusable segments.
        order: permutation of the movable runs that was used; empty if the caller's order stands.
        generation: settings generation of the pass.
        overtaken: admissions that passed this request while it was its priority's oldest.
        cached_by_kind, tokens_by_kind: prompt tokens by segment kind.
        reuse: why each segment hit or missed.
    """

    lane: str
    bucket: str
    why: str
    depth: int
    cached_tokens: int
    prompt_tokens: int
    segments_hit: int
    segments: int
    order: tuple[int, ...]
    generation: int
    overtaken: int = 0
    cached_by_kind: dict[str, int] = field(default_factory=dict)
    tokens_by_kind: dict[str, int] = field(default_factory=dict)
    reuse: tuple[SegmentReuse, ...] = ()

    @property
    def computed_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens

    @property
    def reordered(self) -> bool:
        return self.order != tuple(range(len(self.order)))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prompt tokens `start` to `end` were scheduled `at` (monotonic seconds)."""

    at: float
    start: int
    end: int


@dataclass(slots=True)
class Pause:
    """A preempted request's wait, in monotonic seconds; `resumed_at` is None while it lasts or if the fact was lost."""

    preempted_at: float
    resumed_at: float | None = None
    cached_tokens: int = 0


class EngineRequest:
    """What became of one of the engine's requests; its methods mirror EngineCore's facts.

    An HTTP request has one, or several with `n > 1` or several prompts. Of two facts of one kind the first counts
    (what happens again after a preemption is no second admission).
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.added_at: float | None = None
        self.queued_at: float | None = None
        self.queue_depth: int | None = None
        self.admission: Admission | None = None
        self.chunks: list[Chunk] = []
        self.prefilled_at: float | None = None
        self.pauses: list[Pause] = []
        self.preemptions = 0
        self.first_output_at: float | None = None
        self.ended_at: float | None = None
        self.end_reason: str | None = None
        self.lost = False
        self.sent_by_others: frozenset[bytes] = frozenset()
        """Short identities of its segments that another tenant had sent before."""
        self._admitted_at: float | None = None

    def queued(self, at: float, depth: int) -> None:
        if self.queued_at is None:
            self.queued_at, self.queue_depth = at, depth

    def admitted(self, at: float, admission: Admission) -> None:
        if self.admission is None:
            self._admitted_at, self.admission = at, admission

    def chunk(self, at: float, start: int, end: int) -> None:
        if len(self.chunks) < MAX_CHUNKS:
            self.chunks.append(Chunk(at, start, end))
        else:
            last = self.chunks[-1]
            self.chunks[-1] = Chunk(last.at, last.start, max(last.end, end))

    def prefilled(self, at: float) -> None:
        if self.prefilled_at is None:
            self.prefilled_at = at

    def preempted(self, at: float) -> None:
        self.preemptions += 1
        if self.preemptions <= MAX_PAUSES:
            self.pauses.append(Pause(at))

    def resumed(self, at: float, cached_tokens: int) -> None:
        if self.preemptions > MAX_PAUSES:
            return
        if not self.pauses or self.pauses[-1].resumed_at is not None:
            self.lost = True  # its `preempted` never came
            return
        self.pauses[-1].resumed_at, self.pauses[-1].cached_tokens = at, cached_tokens

    def first_output(self, at: float) -> None:
        """The serving process received this request's first token."""
        if self.first_output_at is None:
            self.first_output_at = at

    def ended(self, at: float, reason: str) -> None:
        if self.ended_at is None:
            self.ended_at, self.end_reason = at, reason

    @property
    def admitted_at(self) -> float | None:
        """When it was first scheduled, in monotonic seconds; its first chunk says so too if that fact was lost."""
        if self._admitted_at is None and self.chunks:
            return self.chunks[0].at
        return self._admitted_at

    @property
    def facts_lost(self) -> bool:
        """Whether what came shows that something else should have come."""
        return self.lost or (self.admission is None and self.admitted_at is not None)

    def pause_end(self, pause: Pause) -> float | None:
        """When a pause ended, in monotonic seconds: at its resumption, or by the next sign that it must have."""
        if pause.resumed_at is not None:
            return pause.resumed_at
        signs = [chunk.at for chunk in self.chunks] + [other.preempted_at for other in self.pauses]
        signs += [at for at in (self.prefilled_at, self.ended_at) if at is not None]
        return min((at for at in signs if at > pause.preempted_at), default=None)


@dataclass(slots=True)
class RequestInfo:
    """What was asked and answered, as far as it is known; never a word of the prompt.

    Attributes:
        route: the route's template, of which there are few; None for a path that no route serves.
        operation: `gen_ai.operation.name`; None for a route that does no inference.
        model: a served model's name; None while it is unknown or where the client named one that is not served.
        reorder_refused: why a declared reorder was not done; None if it was or was not asked for.
        render_generation: settings generation that rendering used.
    """

    method: str = "POST"
    path: str = "/"
    route: str | None = None
    scheme: str = "http"
    server_address: str | None = None
    server_port: int | None = None
    operation: str | None = None
    model: str | None = None
    streamed: bool = False
    choices: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    response_id: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    finish_reasons: tuple[str, ...] = ()
    reorder_refused: str | None = None
    render_generation: int | None = None


class RequestTimeline:
    """One HTTP request from its arrival to its end.

    Args:
        request_id: the caller's `x-request-id`, or one made for it.
        arrived_at: arrival, in monotonic seconds.
        arrived_wall_ns: the same moment as nanoseconds of the Unix epoch.
        info: what is known of the request; the caller fills in the rest as it learns it.
    """

    def __init__(
        self, request_id: str, *, arrived_at: float, arrived_wall_ns: int, info: RequestInfo | None = None
    ) -> None:
        self.request_id = request_id
        self.arrived_at = arrived_at
        self.arrived_wall_ns = arrived_wall_ns
        self.info = info or RequestInfo()
        self.engine_requests: dict[str, EngineRequest] = {}
        self.outcome: Outcome | None = None
        self.status: int | None = None
        self.reason: str | None = None
        self.held_back_tokens = 0
        self._render_started_at: float | None = None
        self._render_ended_at: float | None = None
        self._first_sender: EngineRequest | None = None
        self._content_sent_at: float | None = None
        self._ended_at: float | None = None
        self._facts_missing = False

    # What happens in the serving process

    def rendering_started(self, at: float) -> None:
        if self._render_started_at is None:
            self._render_started_at = at

    def rendering_ended(self, at: float) -> None:
        """Rendering and tokenisation are done; of several prompts the last call counts."""
        self._render_ended_at = at

    def engine_added(self, at: float, name: str) -> EngineRequest:
        """A request was handed to the engine under this internal id; facts about it go to what is returned."""
        request = self.engine_request(name)
        if request.added_at is None:
            request.added_at = at
        return request

    def engine_request(self, name: str) -> EngineRequest:
        """The engine's request of this internal id; made if it is new, since a fact may be first to name it."""
        return self.engine_requests.setdefault(name, EngineRequest(name))

    def first_output(self, at: float, name: str) -> None:
        """The serving process received the first token of this engine request."""
        self.engine_request(name).first_output(at)

    def first_content_sent(self, at: float, name: str | None = None, held_back_tokens: int = 0) -> None:
        """The send of the first chunk with content returned.

        Args:
            at: when, in monotonic seconds.
            name: internal id of the engine request that the content came from, if known.
            held_back_tokens: tokens produced before it that a parser or a stop string withheld.
        """
        if self._content_sent_at is None:
            self._content_sent_at, self.held_back_tokens = at, held_back_tokens
            self._first_sender = None if name is None else self.engine_request(name)

    def finished(self, at: float, status: int = 200) -> None:
        self._end(Outcome.FINISHED, at, status, None)

    def failed(self, at: float, status: int, reason: str) -> None:
        self._end(Outcome.FAILED, at, status, reason)

    def refused(self, at: float, status: int, reason: str) -> None:
        self._end(Outcome.REFUSED, at, status, reason)

    def cancelled(self, at: float, reason: str = "client_disconnected", status: int | None = None) -> None:
        self._end(Outcome.CANCELLED, at, status, reason)

    def facts_missing(self) -> None:
        """The channel lost something, or the engine died, while this request was under way."""
        self._facts_missing = True

    def _end(self, outcome: Outcome, at: float, status: int | None, reason: str | None) -> None:
        if self.outcome is None:
            self.outcome, self._ended_at, self.status, self.reason = outcome, at, status, reason

    # What it amounts to

    @property
    def lead(self) -> EngineRequest | None:
        """The engine request whose token went out first; before any did, the one that is furthest on its way."""
        if self._first_sender is not None:
            return self._first_sender
        if len(self.engine_requests) == 1:
            return next(iter(self.engine_requests.values()))
        return min(self.engine_requests.values(), key=_progress, default=None)

    @property
    def others(self) -> tuple[EngineRequest, ...]:
        lead = self.lead
        return tuple(request for request in self.engine_requests.values() if request is not lead)

    @property
    def admission(self) -> Admission | None:
        return self.lead.admission if self.lead else None

    @property
    def ttft_end(self) -> TtftEnd | None:
        """What ended TTFT; None while it lasts, and for a stream that ended without content."""
        if self._content_sent_at is not None:
            return TtftEnd.FIRST_CHUNK_SENT
        if not self.info.streamed and self.lead is not None and self.lead.first_output_at is not None:
            return TtftEnd.FIRST_TOKEN_RECEIVED
        return None

    @property
    def ttft_us(self) -> int | None:
        """Arrival to end of TTFT; known even where the facts that split it were lost."""
        if self._content_sent_at is not None:
            return max(0, self.since_arrival_us(self._content_sent_at))
        if self.ttft_end is None or self.lead is None or self.lead.first_output_at is None:
            return None
        return max(0, self.since_arrival_us(self.lead.first_output_at))

    @property
    def end_us(self) -> int | None:
        """The request's lifetime; None while it lasts."""
        if self._ended_at is None:
            return None
        return max(0, self.since_arrival_us(self._ended_at), self.ttft_us or 0)

    @property
    def incomplete(self) -> bool:
        """Whether a fact is known to be missing."""
        lost = self._facts_missing or any(request.facts_lost for request in self.engine_requests.values())
        return lost or any(part.lost for part in self.parts())

    def since_arrival_us(self, at: float) -> int:
        """A monotonic time as microseconds since arrival; negative if before it."""
        return round((at - self.arrived_at) * 1e6)

    def clamped_us(self, at: float | None, bounds: Interval) -> int:
        """A monotonic time as microseconds since arrival, moved into `bounds`; None is their end."""
        if at is None:
            return bounds.end_us
        return min(max(self.since_arrival_us(at), bounds.start_us), bounds.end_us)

    def ttft(self) -> Ttft | None:
        """The time to first token, split; None while it lasts, or if it never ended, or if a fact is missing."""
        admitted, prefilled, end = self._marks()
        if admitted is None or prefilled is None or end is None:
            return None
        return Ttft(admitted, prefilled - admitted, end - prefilled)

    def parts(self) -> tuple[Part, ...]:
        """The parts the request reached: contiguous, from arrival to its end; none while it lasts."""
        end = self.end_us
        if end is None:
            return ()
        marks = (0, *self._marks(), end)
        known = [(index, mark) for index, mark in enumerate(marks) if mark is not None]
        return tuple(
            self._part(index, Interval(start, stop), until) for (index, start), (until, stop) in pairwise(known)
        )

    def rendering(self) -> Interval | None:
        """Rendering and tokenisation, inside the first part of a request that has ended."""
        parts = self.parts()
        if self._render_started_at is None or not parts:
            return None
        start = self.clamped_us(self._render_started_at, parts[0])
        return Interval(start, self.clamped_us(self._render_ended_at, Interval(start, parts[0].end_us)))

    def sequence(self, request: EngineRequest) -> Interval:
        """One engine request inside a request that has ended: from where it was handed over to its own end."""
        whole = Interval(0, self.end_us or 0)
        start = 0 if request.added_at is None else self.clamped_us(request.added_at, whole)
        return Interval(start, self.clamped_us(request.ended_at, Interval(start, whole.end_us)))

    def pauses_inside(self, request: EngineRequest, bounds: Interval) -> tuple[Interval, ...]:
        """This engine request's waits after preemption, as far as they fall into `bounds`."""
        cut = (
            Interval(self.clamped_us(pause.preempted_at, bounds), self.clamped_us(request.pause_end(pause), bounds))
            for pause in request.pauses
        )
        return tuple(interval for interval in cut if interval.duration_us > 0)

    def _marks(self) -> tuple[int | None, int | None, int | None]:
        """Admitted, prefilled, end of TTFT; None where not reached or not known."""
        lead, end = self.lead, self.ttft_us
        if lead is None:
            return None, None, end
        admitted = self._mark(lead.admitted_at, 0)
        return admitted, self._mark(lead.prefilled_at, admitted or 0), end

    def _mark(self, at: float | None, floor: int) -> int | None:
        """A time of EngineCore's, put where the serving process's own times allow it.

        What EngineCore did after the request had ended (the abort was still on its way) is no part of it any more;
        what it says it did after the first token went out is a disorder.
        """
        if at is None:
            return None
        mark = max(floor, self.since_arrival_us(at))
        if self.ttft_us is not None:
            return min(mark, self.ttft_us)
        return None if self.end_us is not None and mark > self.end_us else mark

    def _part(self, index: int, bounds: Interval, until: int) -> Part:
        last = until == len(PART_NAMES)
        return Part(
            bounds.start_us,
            bounds.end_us,
            PART_NAMES[index],
            self.outcome if last else None,
            until > index + 1 and (not last or self._went_further(index)),
            self.pauses_inside(self.lead, bounds) if self.lead else (),
        )

    def _went_further(self, index: int) -> bool:
        """Whether a request that seems to have ended in this part is known to have left it."""
        return index < 2 and self.lead is not None and self.lead.first_output_at is not None


def _progress(request: EngineRequest) -> tuple[float, float, float]:
    never = float("inf")
    times = (request.first_output_at, request.prefilled_at, request.admitted_at)
    first_output, prefilled, admitted = (never if at is None else at for at in times)
    return first_output, prefilled, admitted
