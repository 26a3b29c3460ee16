"""The two decisions together: who is admitted next, and what is given up, on one ledger and one tree.

`Decisions` is the whole of PRISM's policy for one engine. It is given what happens (a request arrives, is admitted,
gives its blocks back) and answers what to do. It knows no engine: prompts come as token counts and block hashes, and
time as a number.

    arrive ─► begin_pass ─► head ─► arrangement ─► take ─► admitted ─► … ─► settle ─► leave
                                                     └─► (not admitted: stepped over by the engine)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prism.config.schema import Order, PrismSpec, Reorder
from prism.config.schema import Scheduler as SchedulerSpec
from prism.core.admission import (
    NO_LANE,
    ByArrival,
    ByBucket,
    ByHeadStart,
    ByLongestPrefix,
    Head,
    HotOrder,
    KvRoom,
    Waiting,
    WaitingRoom,
    without_bounds,
)
from prism.core.demand import DemandLedger, Weights
from prism.core.fairness import ByFairShare
from prism.core.lanes import ColdLane
from prism.core.namespace import salt_of
from prism.core.order import AsWritten, ByUtility, Document, DocumentOrder, TreeWalk, cached_blocks
from prism.core.retention import DemandAware
from prism.core.reuse import CachedPrefix, SegmentMemory, SegmentReuse, judge
from prism.core.segments import PromptPlan, Segment, SegmentKind
from prism.core.tree import Anchor, AnchorPoint, DemandAwareRadixTree, Retention

Hashes = Sequence[bytes]


class Prompt:
    """What is known of one unfinished request.

    Attributes:
        plan: its segments, in the order in which it is or will be computed.
        hashes: the engine's own list of its full blocks' hashes; it grows while tokens are generated.
        waiting: its place in the queue.
        lane: the lane it was taken through; `none` before.
        passes: passes that had been made when it arrived.
        reads_cache: whether it may use what is cached.
        order: the order its movable runs were put in; empty while they stand as the caller wrote them.
    """

    __slots__ = (
        "documents",
        "fixed",
        "fixed_tokens",
        "hashes",
        "lane",
        "order",
        "passes",
        "plan",
        "reads_cache",
        "waiting",
    )

    def __init__(
        self, plan: PromptPlan, hashes: Hashes, waiting: Waiting, passes: int, reads_cache: bool = True
    ) -> None:
        self.plan = plan
        self.reads_cache = reads_cache
        self.hashes = hashes
        self.waiting = waiting
        self.lane = NO_LANE
        self.order: tuple[int, ...] = ()
        self.passes = passes
        self.documents: tuple[Document, ...] = ()
        self.fixed: tuple[bytes, ...] | None = ()
        self.fixed_tokens = waiting.prompt_tokens
        if plan.can_reorder:
            first = plan.movable_segments[0]
            moved = [plan.segments[index] for index in plan.movable_segments]
            self.documents = tuple(Document(segment.identity, segment.group) for segment in moved)
            # Behind a private segment the tree leads nobody on.
            known = len(_shared(plan.segments)) >= first
            self.fixed = tuple(segment.identity for segment in plan.segments[:first]) if known else None
            self.fixed_tokens = plan.movable[0][0]

    @property
    def plain(self) -> bool:
        return not self.plan.segments


@dataclass(frozen=True, slots=True)
class Policies:
    """Objects that decide in place of those that the settings name; where one is None, the settings decide.

    What is measured against PRISM is played this way, in the same engine and over the same tree.
    """

    hot_order: Callable[[Decisions], HotOrder] | None = None
    """Makes the order for one priority. It stands alone, without a cold lane."""
    documents: DocumentOrder | None = None
    retention: Retention | None = None


@dataclass(frozen=True, slots=True)
class Admitting:
    """An admission as it was decided, before anything is told of it; for `Decisions.told`.

    Attributes:
        cached_tokens: prompt tokens found cached.
        all_cached: whether the block of the last token was, too.
        passed, was_passed: see `Admission`.
    """

    prompt: Prompt
    cached_tokens: int
    all_cached: bool
    passed: int
    was_passed: bool


@dataclass(frozen=True, slots=True)
class Admission:
    """What was decided about a request when it was admitted.

    Attributes:
        lane: `hot`, `cold` or `none`.
        bucket: hex digest of its signature; empty without one.
        passed: admissions in a row that had passed it as the oldest.
        was_passed: whether a younger request was ever admitted before it.
        segments_hit, segments: reusable segments wholly cached, reusable segments.
        cached_by_kind, tokens_by_kind: prompt tokens by segment kind, `plain` for those of no segment.
        reuse: why each segment hit or missed.
    """

    lane: str
    bucket: str
    passed: int
    was_passed: bool
    segments_hit: int
    segments: int
    cached_by_kind: dict[str, int]
    tokens_by_kind: dict[str, int]
    reuse: tuple[SegmentReuse, ...] = ()


class Decisions:
    """All policy of one engine.

    Args:
        block_tokens: tokens of one hashed block.
        spec: the settings to begin with.
        seconds_per_token: what a prefilled token costs now; asked for as needed.
        kv_room: the KV cache as it is now; asked for as needed.
    """

    def __init__(
        self,
        block_tokens: int,
        spec: PrismSpec,
        seconds_per_token: Callable[[], float],
        kv_room: Callable[[], KvRoom] = without_bounds,
    ) -> None:
        self.block_tokens = block_tokens
        self.spec = spec
        self.passes = 0
        self._policies = Policies()
        self._seconds_per_token = seconds_per_token
        self._kv_room = kv_room
        self.ledger = DemandLedger(spec.scheduler.window.arrivals)
        self.tree = DemandAwareRadixTree(self.ledger, DemandAware(_weights(spec.scheduler)))
        self._documents = _document_order(spec.scheduler)
        self.room = WaitingRoom(self._new_order, _cold_lane(spec.scheduler))
        self._prompts: dict[str, Prompt] = {}
        self._segments = SegmentMemory()
        self._numbers = 0

    # ---- settings --------------------------------------------------------------------------------------------

    def adopt(self, spec: PrismSpec) -> None:
        """Obey other settings from now on, all of them; call it between passes."""
        self.spec = spec
        scheduler = spec.scheduler
        self.ledger.resize(scheduler.window.arrivals)
        self.tree.resize(scheduler.window.arrivals)
        self.tree.retain_by(self._policies.retention or DemandAware(_weights(scheduler)))
        self._documents = self._policies.documents or _document_order(scheduler)
        for prompt in self._prompts.values():
            prompt.waiting.signature = self._signature(prompt)
        self.room.adopt(self._new_order, _cold_lane(scheduler))

    def play(self, policies: Policies) -> None:
        """Decide by these from now on, whatever settings are adopted later; call it between passes."""
        self._policies = policies
        self.adopt(self.spec)

    def _new_order(self) -> HotOrder:
        if self._policies.hot_order is not None:
            return self._policies.hot_order(self)
        if self.has_lanes and self.spec.scheduler.fairness.enabled:
            return ByFairShare(self._order_of_one)
        return self._order_of_one()

    def _order_of_one(self) -> HotOrder:
        scheduler = self.spec.scheduler
        match scheduler.order:
            case Order.FCFS:
                return ByArrival()
            case Order.LPM:
                return ByLongestPrefix(self._cached_of, scheduler.longest_prefix_match.fall_back_at)
            case Order.PAPER:
                return ByBucket(self.ledger, _weights(scheduler))
        return ByHeadStart(self._cached_of, self._seconds_per_token, self._kv_room)

    # ---- a request's way -------------------------------------------------------------------------------------

    def arrive(
        self,
        request: str,
        plan: PromptPlan,
        prompt_tokens: int,
        hashes: Hashes,
        priority: int,
        now: float,
        *,
        queued: bool = True,
        reads_cache: bool = True,
    ) -> None:
        """A request begins to wait.

        Args:
            hashes: the engine's list; it is kept and read again later, not copied.
            queued: whether it waits here; False where the engine keeps it in a queue of its own.
            reads_cache: whether it may use what is cached; False where all of its prompt must be computed.

        Raises:
            ValueError: it is here already.
        """
        groups = tuple(segment.group for segment in _shared(plan.segments))
        tenant = salt_of(plan.namespace)
        waiting = Waiting(request, self._numbers, priority, now, prompt_tokens, groups=groups, tenant=tenant)
        self._numbers += 1
        self.ledger.arrive(request, groups)
        prompt = self._prompts[request] = Prompt(plan, hashes, waiting, self.passes, reads_cache)
        waiting.signature = self._signature(prompt)
        waiting.cached_at_arrival = self._cached_of(waiting)
        self.tree.expect(request, hashes[: prompt.fixed_tokens // self.block_tokens], self.ledger.slot(request))
        if queued:
            self.room.add(waiting)

    def begin_pass(self, now: float) -> None:
        self.passes += 1
        self.tree.given_up.begin_pass(now)
        self.room.begin_pass()

    def head(self, now: float) -> Head | None:
        """Whom to admit next; the same until it is taken or leaves, or a new pass begins."""
        return self.room.head(now)

    def arrangement(self, request: str, ahead: list[int] | None = None) -> list[int] | None:
        """The order in which the movable runs of this prompt should stand; None if as they are.

        Args:
            ahead: what was answered a little before. It is the answer again if it still leads as far as any.
        """
        prompt = self._prompts[request]
        if not prompt.plan.can_reorder:
            return None
        if ahead is not None and self._documents.still_stands(ahead, self._head(prompt), prompt.documents):
            return ahead
        order = self._arrange(prompt)
        return None if order == sorted(order) else order

    def rearranged(self, request: str, permuted: PromptPlan, order: Sequence[int]) -> None:
        """The engine has rewritten the prompt in this order (see `permute_plan`). It is not asked for again."""
        prompt = self._prompts[request]
        prompt.plan = permuted
        prompt.order = tuple(order)

    def take(self, request: str) -> Waiting | None:
        """The engine has taken a request out of the queue; `admitted` says if it runs. None if it does not wait."""
        lane = self.room.lane_of(request)
        waiting = self.room.remove(request)
        if waiting is not None and not waiting.active:
            self._prompts[request].lane = lane
        return waiting

    def admitted(self, request: str, cached_tokens: int, now: float) -> Admitting | None:
        """A taken request runs, with this many prompt tokens found cached.

        Returns:
            What `told` needs, for its first admission; None for a resumption and for requests unknown here.
        """
        prompt = self._prompts.get(request)
        if prompt is None:
            return None
        first = not prompt.waiting.active
        self.ledger.admit(request)
        self.tree.unexpect(request)
        # What is asked of the tree is asked before it is used, since then all of the prompt counts as cached.
        all_cached = first and self._is_all_cached(prompt, cached_tokens)
        self._use(prompt, again=not first)
        if not first:
            return None
        waiting = prompt.waiting
        was_passed = self.room.was_passed(waiting)
        passed = self.room.admitted(waiting, prompt.lane, now, max(0, waiting.prompt_tokens - cached_tokens))
        waiting.active = True
        return Admitting(prompt, cached_tokens, all_cached, passed, was_passed)

    def told(self, admitted: Admitting) -> Admission:
        """What was decided about an admitted request, worked out; once for each, in the order they were admitted."""
        return _admission(admitted, self._judge(admitted))

    def resume(self, request: str) -> bool:
        """A running request was preempted and waits again, first. False for requests unknown here."""
        prompt = self._prompts.get(request)
        if prompt is None:
            return False
        self.room.resume(prompt.waiting)
        return True

    def wait_again(self, request: str) -> None:
        """A request that was taken and not admitted takes its place in the queue again.

        Raises:
            KeyError: it is not here.
        """
        waiting = self._prompts[request].waiting
        if waiting.active:
            self.room.resume(waiting)
        else:
            self.room.add(waiting)

    def settle(self, request: str, cached_blocks: int, own_blocks: int | None = None) -> None:
        """A request gives its blocks back; the first `cached_blocks` of its chain hold KV.

        Args:
            own_blocks: how many of them are its own, if not all. What it brings nothing of becomes known by nothing: it
                may stand in blocks that are given up already.
        """
        prompt = self._prompts.get(request)
        if prompt is None or not prompt.waiting.active:
            return
        if own_blocks is not None and own_blocks < cached_blocks:
            cached_blocks = min(cached_blocks, max(own_blocks, self.tree.match(prompt.hashes)))
        self.tree.settle(prompt.hashes, cached_blocks)

    def leave(self, request: str) -> None:
        """It is finished, failed or given up. Unknown requests are ignored."""
        if self._prompts.pop(request, None) is None:
            return
        self.room.remove(request)
        self.tree.unexpect(request)
        self.ledger.leave(request)

    @property
    def has_lanes(self) -> bool:
        """Whether requests are admitted through lanes; under orders of arrival and of prefix length they are not."""
        return self._policies.hot_order is None and self.spec.scheduler.order in (Order.PRISM, Order.PAPER)

    def knows(self, request: str) -> bool:
        return request in self._prompts

    def prompt(self, request: str) -> Prompt | None:
        return self._prompts.get(request)

    def cached_tokens(self, waiting: Waiting) -> int:
        """Prompt tokens that a waiting request would find cached now. No side effects."""
        return self._cached_of(waiting)

    # ---- inside ----------------------------------------------------------------------------------------------

    def _is_all_cached(self, prompt: Prompt, cached_tokens: int) -> bool:
        """Whether the block of the last token is cached as well, which is computed all the same."""
        size, tokens, hashes = self.block_tokens, prompt.waiting.prompt_tokens, prompt.hashes
        last = tokens // size - 1
        left = cached_tokens == last * size == tokens - size and last < len(hashes)
        return left and self.tree.node_of(hashes[last]) is not None

    def _judge(self, admitted: Admitting) -> tuple[SegmentReuse, ...]:
        """Why its segments hit or miss."""
        prompt, size = admitted.prompt, self.block_tokens
        tokens, hashes = prompt.waiting.prompt_tokens, prompt.hashes
        full = min(tokens // size, len(hashes)) * size
        cached = min(admitted.cached_tokens, tokens)
        prefix = CachedPrefix(tokens, full, cached, size, hashes, admitted.all_cached)
        return judge(prompt.plan, self._segments.admit(prompt.plan), prefix, self.tree.given_up)

    def _use(self, prompt: Prompt, again: bool) -> None:
        # An engine that caches no prefixes hashes none of the prompt's blocks.
        full = min(prompt.waiting.prompt_tokens // self.block_tokens, len(prompt.hashes))
        points = [point for point in self._points(prompt.plan) if point.blocks <= full]
        tail = points[-1].blocks if points else 0
        self.tree.use(prompt.plan.namespace, prompt.hashes[:full], points, prompt.plain, tail, again)

    def _points(self, plan: PromptPlan) -> list[AnchorPoint]:
        # Runs lose their mark when they are permuted, so documents count as movable by what the caller declared.
        movable = set(plan.movable_segments) | set(plan.moved_segments)
        return [
            AnchorPoint(
                segment.identity, segment.group, segment.kind, segment.end // self.block_tokens, index in movable
            )
            for index, segment in enumerate(_shared(plan.segments))
        ]

    def _cached_of(self, waiting: Waiting) -> int:
        prompt = self._prompts[waiting.request]
        if not prompt.reads_cache:
            return 0
        if not prompt.plan.can_reorder:
            return self.tree.match(prompt.hashes) * self.block_tokens
        head = self._head(prompt)
        if head is None:
            fixed = prompt.hashes[: prompt.fixed_tokens // self.block_tokens]
            return self.tree.match(fixed) * self.block_tokens
        return cached_blocks(head, prompt.documents, self._arrange(prompt)) * self.block_tokens

    def _head(self, prompt: Prompt) -> Anchor | None:
        """Where the tree stands before the documents of a prompt, if it knows a way there."""
        return self.tree.head(prompt.plan.namespace, prompt.fixed) if prompt.fixed is not None else None

    def _arrange(self, prompt: Prompt) -> list[int]:
        return self._documents.arrange(self._head(prompt), prompt.documents, self.ledger)

    def _signature(self, prompt: Prompt) -> tuple[bytes, ...]:
        """The leading high-priority segments in the paper's order: what its buckets are made by."""
        scheduler = self.spec.scheduler
        if scheduler.order is not Order.PAPER:
            return ()
        groups = self._ordered_groups(prompt)
        weights, least = _weights(scheduler), scheduler.buckets.min_utility
        high = [group for group in groups if sum(weights.of(self.ledger.demand(group))) >= least]
        return tuple(high[: scheduler.buckets.signature_length])

    def _ordered_groups(self, prompt: Prompt) -> list[bytes]:
        if prompt.plan.can_reorder:
            return [prompt.documents[index].group for index in self._arrange(prompt)]
        return [s.group for s in _shared(prompt.plan.segments) if s.kind is SegmentKind.DOCUMENT]


def _shared(segments: Sequence[Segment]) -> list[Segment]:
    """The reusable segments before the first private one: behind it no other request's prefix goes on."""
    out = []
    for segment in segments:
        if not segment.kind.reusable:
            break
        out.append(segment)
    return out


def _weights(scheduler: SchedulerSpec) -> Weights:
    weights = scheduler.weights
    return Weights(weights.active, weights.predicted, weights.queued, scheduler.lexicographic)


def _cold_lane(scheduler: SchedulerSpec) -> ColdLane:
    return ColdLane(scheduler.cold_lane.quota, scheduler.cold_lane.max_wait_seconds)


def _document_order(scheduler: SchedulerSpec) -> DocumentOrder:
    if scheduler.reorder is Reorder.NEVER:
        return AsWritten()
    match scheduler.order:
        case Order.PAPER:
            return ByUtility(_weights(scheduler))
        case Order.PRISM:
            return TreeWalk(_weights(scheduler))
        case _:
            return AsWritten()


def _admission(admitted: Admitting, reuse: tuple[SegmentReuse, ...]) -> Admission:
    prompt, cached_tokens = admitted.prompt, admitted.cached_tokens
    cached: dict[str, int] = {}
    tokens: dict[str, int] = {}
    left, hit, reusable = prompt.waiting.prompt_tokens, 0, 0
    left_cached = min(cached_tokens, left)
    for segment in prompt.plan.segments:
        size = segment.end - segment.start
        found = min(max(cached_tokens - segment.start, 0), size)
        tokens[segment.kind.value] = tokens.get(segment.kind.value, 0) + size
        cached[segment.kind.value] = cached.get(segment.kind.value, 0) + found
        left, left_cached = left - size, left_cached - found
        if segment.kind.reusable:
            reusable += 1
            hit += segment.end <= cached_tokens
    if left:
        tokens["plain"], cached["plain"] = left, left_cached
    bucket = _digest(prompt.waiting.signature)
    return Admission(prompt.lane, bucket, admitted.passed, admitted.was_passed, hit, reusable, cached, tokens, reuse)


def _digest(signature: tuple[bytes, ...]) -> str:
    """Short, and another one for another signature, for the same segments in another order too."""
    return hashlib.blake2b(b"".join(signature), digest_size=4).hexdigest() if signature else ""
