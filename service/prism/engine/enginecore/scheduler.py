"""vLLM's scheduler with PRISM's two decisions in it.

vLLM's `schedule()` stays as it is. PRISM stands at two of its seams: the waiting queue, which says who is next, and the
free-block queue, which says what is given up. Around them it only listens: to arrivals, passes, processed steps,
preemptions and ends, which it turns into calls of `Decisions` and into facts.

    schedule() ─► the device has its step ─► get_grammar_bitmask() ─► update_from_output()
                                              └ what the pass need not wait for: its facts, and what the next
                                                will ask (scores, orders of documents and their hashes, victims)

One mixin, two classes: on `AsyncScheduler` and on `Scheduler`. The launcher picks the one whose base stock vLLM would
use; under plain `vllm serve --scheduler-cls` the user does.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from itertools import islice
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import RequestQueue, SchedulingPolicy, create_request_queue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.request import Request, RequestStatus

from prism.config.schema import PrismSpec, RetentionPolicy
from prism.core.admission import KvRoom, Waiting, without_bounds
from prism.core.decisions import Admitting, Decisions, Policies
from prism.core.segments import PromptPlan
from prism.engine.enginecore.block_order import BlockOrder
from prism.engine.enginecore.options import options_of
from prism.engine.enginecore.pace import Pace
from prism.engine.enginecore.prompts import PromptRewriter, may_rewrite, plan_of
from prism.engine.enginecore.queue import PrismRequestQueue
from prism.engine.enginecore.sender import FactSender, HeartbeatThread
from prism.engine.enginecore.settings import SettingsSource
from prism.engine.internals import check_engine, check_scheduler
from prism.engine.wire import (
    Admitted,
    Ended,
    Gauges,
    Preempted,
    PrefillChunk,
    PrefillDone,
    Queued,
    Resumed,
)
from prism.errors import IncompatibleEngine

if TYPE_CHECKING:
    # What the mixin is mixed into; at run time it has no base of its own.
    _Base = Scheduler
else:
    _Base = object

logger = logging.getLogger(__name__)

_GAUGE_SECONDS = 0.5
_FADES = 0.9
"""The admissions that a pass made count this much less with each that makes fewer."""
_FEW_ADMISSIONS = 0.02
"""A pass: where hardly anybody is admitted, nothing is worked out ahead."""
_MOST_AHEAD = 8
_LOOKED_AT = 64
"""Of what vLLM had stepped over, where nothing runs."""


class _Untold(NamedTuple):
    """An admission whose fact is not written yet."""

    request: Request
    admitted: Admitting
    cached_tokens: int
    at: float
    why_waited: str
    waiting: int


class DemandAwareScheduling(_Base):
    """Order and retention by demand, for a class of vLLM's schedulers."""

    prism_clock: Callable[[], float]
    decisions: Decisions

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check_engine()
        super().__init__(*args, **kwargs)
        check_scheduler(self)
        options = options_of(self.vllm_config.additional_config)
        self._namespaced_salts = options.namespaced_salts
        self.prism_clock = time.monotonic
        self.pace = Pace()
        self._generation = 0
        self._why_not: str = "none"
        self._last_popped: Request | None = None
        self._stepped_over: dict[str, Request] = {}
        self._prefilling: dict[str, Request] = {}
        self._just_scheduled: dict[str, int] = {}
        self._finals: list[str] = []
        self._steps: deque[tuple[SchedulerOutput, list[str]]] = deque()
        self._unfinished_pass: tuple[SchedulerOutput, float, float] | None = None
        self._untold: list[_Untold] = []
        self._admissions = 0
        self._admissions_expected = 0.0
        self._step_began: float | None = None
        self._parked_blocks = 0
        self._gauges_at = 0.0
        self._pass_seconds: deque[float] = deque(maxlen=4096)
        self.sender = FactSender(options.facts_address, self.parallel_config.data_parallel_index)
        self.settings = SettingsSource(options, self.sender, time.monotonic, lambda: not self.requests)
        self._start_decisions()
        self._heartbeat = HeartbeatThread(self.sender, lambda: self._step_began, time.monotonic)
        if options.facts_address:
            self._heartbeat.start()
        self.sender.flush()

    def _start_decisions(self) -> None:
        self.decisions = Decisions(self.hash_block_size, PrismSpec(), self.pace.seconds_per_token, self._kv_room)
        # As stock vLLM's two queues do: one is a deque, the other a heap by priority and arrival.
        self.decisions.room.oldest_resumes_first = self.policy is SchedulingPolicy.PRIORITY
        self.waiting: RequestQueue = PrismRequestQueue(self, self.requests.__getitem__)
        self.skipped_waiting: RequestQueue = create_request_queue(self.policy)
        pool = self.kv_cache_manager.block_pool
        hash_function = get_hash_fn_by_name(self.cache_config.prefix_caching_hash_algo)
        self._rewriter = PromptRewriter(hash_function, self.hash_block_size)
        self._group, self._group_stride = self._attention_group()
        self._group_count = len(self.kv_cache_config.kv_cache_groups)
        self._blocks = BlockOrder(
            pool.free_block_queue.get_all_free_blocks(), self.decisions.tree, self.hash_block_size
        )
        pool.free_block_queue = cast(FreeKVCacheBlockQueue, self._blocks)
        self._adopt_settings()

    # ---- settings --------------------------------------------------------------------------------------------

    def adopt_settings(self, spec: PrismSpec) -> None:
        """Obey these settings from now on, all of them; between passes only."""
        self.decisions.adopt(spec)
        self._blocks.demand_aware = spec.retention.policy is RetentionPolicy.DEMAND_AWARE

    def play(self, policies: Callable[[Decisions], Policies]) -> None:
        """Let other policies decide from now on; between passes only."""
        chosen = policies(self.decisions)
        self.decisions.play(chosen)
        self._blocks.demand_aware = self._blocks.demand_aware or chosen.retention is not None

    def _adopt_settings(self) -> None:
        settings = self.settings.take()
        if settings is not None:
            self._generation = settings.generation
            self.adopt_settings(settings.spec)

    # ---- what vLLM calls -------------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        self._finish_pass()
        self._adopt_settings()
        super().add_request(request)
        self.sender.flush()

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        began = time.perf_counter()
        self._finish_pass()
        self._adopt_settings()
        now = self.now()
        self.decisions.begin_pass(now)
        self._parked_blocks = self._held_by_parked()
        hopeless = bool(self.waiting or self.skipped_waiting) and self._let_a_fitting_one_go_first()
        self._step_began = time.monotonic()
        self._pass_seconds.append(time.perf_counter() - began)
        held_back = [] if hopeless else self._hold_back_younger(now)
        output = super().schedule(throttle_prefills)
        for request in held_back:
            self.skipped_waiting.add_request(request)
        self._unfinished_pass = (output, now, self.now())
        return output

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> Any:
        # vLLM asks for it when the device has its step and before it waits for the result.
        grammar = super().get_grammar_bitmask(scheduler_output)
        if self._unfinished_pass is not None:
            self._finish_pass()
            self._look_ahead()
        return grammar

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> Any:
        self._finish_pass()
        # Read before vLLM frees what is finished.
        self._finals = [name for name in self._finals_of(scheduler_output) if not self._is_dropped(name)]
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        now = self.now()
        for request_id in self._finals:
            self._prefill_done(request_id, now)
        self._finals = []
        if not self._steps:
            self._step_began = None
        if not self.requests:
            self._gauges_at = 0.0
            self._report(now)
        self.sender.flush()
        return outputs

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        self._finish_pass()
        done = super().reset_prefix_cache(reset_running_requests, reset_connector)
        if not len(self.kv_cache_manager.block_pool.cached_block_hash_to_block):
            self._blocks.reset()
        self.sender.flush()
        return done

    def shutdown(self) -> None:
        self.settings.stop()
        self._heartbeat.stop()
        self.sender.close()
        super().shutdown()

    def _enqueue_waiting_request(self, request: Request) -> None:
        # Stock vLLM serves a request with a grammar before all others once the grammar is ready. Here it waits its
        # turn like any other, so a stream of them can't pass the oldest; under stock's order it does as in stock.
        if request.status is RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR and self._has_lanes:
            self.waiting.add_request(request)
            return
        super()._enqueue_waiting_request(request)
        if request.status is RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
            self._arrive(request, queued=False)
            self._stepped_over[request.request_id] = request

    def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:
        super()._preempt_request(request, timestamp, drop_stale_output)
        self.sender.note(Preempted(request.request_id, self.now()))

    def _free_request_blocks(self, request: Request) -> None:
        self._finish_pass()
        self._settle(request)
        super()._free_request_blocks(request)

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> Any:
        self._finish_pass()
        result = super()._free_request(request, delay_free_blocks)
        if request.request_id in self.requests:
            # Its blocks are freed later, when their KV has been sent: nothing is known of it any more then.
            self._settle(request)
        self._stepped_over.pop(request.request_id, None)
        if request.request_id in self._finals:
            # Its first token is its last.
            self._prefill_done(request.request_id, self.now())
        self._prefilling.pop(request.request_id, None)
        self.decisions.leave(request.request_id)
        self._rewriter.forget(request.request_id)
        reason = request.get_finished_reason()
        self.sender.note(Ended(request.request_id, self.now(), str(reason) if reason is not None else "unknown"))
        return result

    # ---- what the queue calls --------------------------------------------------------------------------------

    def now(self) -> float:
        return self.prism_clock()

    def enter(self, request: Request) -> None:
        if self.decisions.knows(request.request_id):
            # The next input of a streaming session: another prompt, another wait.
            self.decisions.leave(request.request_id)
        self._arrive(request, queued=True)

    def prepare_head(self, request: Request) -> None:
        rearrangement = self._rearrangement(request, take_prepared=True)
        if rearrangement is not None:
            permuted = self._rewriter.rewrite(request, *rearrangement)
            self.decisions.rearranged(request.request_id, permuted, rearrangement[1])

    def _rearrangement(self, request: Request, *, take_prepared: bool) -> tuple[PromptPlan, list[int]] | None:
        """The plan of a prompt that should be rewritten, and the order its runs should take."""
        prompt = self.decisions.prompt(request.request_id)
        if prompt is None or not prompt.plan.can_reorder:
            return None
        if self.connector is not None or not may_rewrite(request):
            return None
        ahead = self._rewriter.order_prepared(request.request_id, prompt.plan) if take_prepared else None
        order = self.decisions.arrangement(request.request_id, ahead)
        return (prompt.plan, order) if order is not None else None

    def popped(self, request: Request) -> None:
        self._last_popped = request

    # ---- inside ----------------------------------------------------------------------------------------------

    @property
    def _has_lanes(self) -> bool:
        return self.decisions.has_lanes

    def _arrive(self, request: Request, *, queued: bool) -> None:
        now = self.now()
        self.sender.note(Queued(request.request_id, now, len(self.waiting)))
        self.decisions.arrive(
            request.request_id,
            plan_of(request, self._namespaced_salts),
            request.num_prompt_tokens,
            request.block_hashes,
            request.priority if self.policy is SchedulingPolicy.PRIORITY else 0,
            now,
            queued=queued,
            reads_cache=not request.skip_reading_prefix_cache,
        )

    def settle_popped(self, at: float | None = None) -> None:
        """The request popped last: if it runs it was admitted (at this time, or now), else vLLM stepped over it."""
        request, self._last_popped = self._last_popped, None
        if request is None:
            return
        if request.status in (RequestStatus.RUNNING, RequestStatus.WAITING_FOR_REMOTE_KVS):
            self._admitted(request, self.now() if at is None else at)
        else:
            self._stepped_over[request.request_id] = request

    def _settle_stepped_over(self, scheduled: dict[str, int], at: float) -> None:
        """Requests that vLLM had stepped over and has now taken from its own queue."""
        for request_id in [r for r in scheduled if r in self._stepped_over]:
            self._admitted(self._stepped_over[request_id], at)
            del self._stepped_over[request_id]

    def _admitted(self, request: Request, now: float) -> None:
        cached = request.num_computed_tokens - self._just_scheduled.get(request.request_id, 0)
        resumed = request.num_preemptions > 0
        admitted = self.decisions.admitted(request.request_id, cached, now)
        self._admissions += 1
        if request.num_output_tokens == 0:
            self._prefilling[request.request_id] = request
        if resumed:
            self.sender.note(Resumed(request.request_id, now, cached))
        elif admitted is not None:
            why = self._why_waited(request, admitted)
            waiting = len(self.waiting) + len(self.skipped_waiting)
            self._untold.append(_Untold(request, admitted, cached, now, why, waiting))

    def _admitted_fact(self, untold: _Untold) -> Admitted:
        request, admitted, cached, now, why, waiting = untold
        prompt, admission = admitted.prompt, self.decisions.told(admitted)
        return Admitted(
            request.request_id,
            now,
            admission.lane,
            admission.bucket,
            why,
            waiting,
            cached,
            request.num_prompt_tokens,
            admission.segments_hit,
            admission.segments,
            admission.cached_by_kind,
            admission.tokens_by_kind,
            list(prompt.order),
            self._generation,
            admission.passed,
            admission.reuse,
        )

    def _why_waited(self, request: Request, admitted: Admitting) -> str:
        if self.decisions.passes - admitted.prompt.passes <= 1:
            return "none"
        if request.use_structured_output and request.request_id in self._stepped_over:
            return "grammar"
        if request.request_id in self._stepped_over:
            return "adapter" if request.lora_request is not None else "remote_kv"
        if admitted.prompt.waiting.made_way:
            return "memory"
        return "order" if admitted.was_passed else self._why_not

    def _finish_pass(self) -> None:
        """Do what belongs to the last pass and need not be done inside of it; before anything else happens."""
        if self._unfinished_pass is None:
            return
        (output, now, ended), self._unfinished_pass = self._unfinished_pass, None
        self._after_pass(output, now, ended)
        self._report(now)

    def _look_ahead(self) -> None:
        """Work out what the next pass will likely ask; it asks all the same, and takes the answer if it still holds."""
        self._admissions_expected = max(self._admissions, self._admissions_expected * _FADES)
        self._admissions = 0
        if self.waiting and self._admissions_expected > _FEW_ADMISSIONS:
            count = min(ceil(self._admissions_expected), _MOST_AHEAD)
            for waiting in self.decisions.room.look_ahead(count, self.now()):
                request = self.requests[waiting.request]
                rearrangement = self._rearrangement(request, take_prepared=False)
                if rearrangement is not None:
                    self._rewriter.prepare(request, *rearrangement)
        self._blocks.choose_ahead()

    def _after_pass(self, output: SchedulerOutput, now: float, ended: float) -> None:
        # From here on vLLM counts this step's tokens as computed.
        scheduled = self._just_scheduled = output.num_scheduled_tokens
        self.pace.passed(now, output.total_num_scheduled_tokens)
        self.settle_popped(ended)
        if self._stepped_over:
            self._settle_stepped_over(scheduled, ended)
        self._just_scheduled = {}
        for untold in self._untold:
            self.sender.note(self._admitted_fact(untold))
        self._untold.clear()
        if self.waiting:
            self._why_not = self._limit(output)
        finals = []
        for request_id in [r for r in self._prefilling if r in scheduled]:
            request = self._prefilling[request_id]
            start = request.num_computed_tokens - scheduled[request_id]
            if start >= request.num_prompt_tokens:
                # Its first token is still in flight and its second already scheduled.
                continue
            end = min(request.num_computed_tokens, request.num_prompt_tokens)
            self.sender.note(PrefillChunk(request_id, now, start, end))
            if end == request.num_prompt_tokens:
                finals.append(request_id)
        self._steps.append((output, finals))

    def _finals_of(self, output: SchedulerOutput) -> list[str]:
        """Requests whose last prompt token was in this step. Steps are processed in the order they were scheduled."""
        while self._steps:
            scheduled, finals = self._steps.popleft()
            if scheduled is output:
                return finals
        return []

    def _prefill_done(self, request_id: str, now: float) -> None:
        if self._prefilling.pop(request_id, None) is not None:
            self.sender.note(PrefillDone(request_id, now))

    def _is_dropped(self, request_id: str) -> bool:
        """vLLM will throw this step's token away, since a reset made the request run anew."""
        request = self.requests.get(request_id)
        return request is not None and request.drop_stale_output and request.num_stale_output_tokens > 0

    def _limit(self, output: SchedulerOutput) -> str:
        """What kept the head of the queue from being admitted in this pass."""
        if len(self.running) + self.num_waiting_for_streaming_input >= self.max_num_running_reqs:
            return "slots"
        if output.total_num_scheduled_tokens >= self.max_num_scheduled_tokens:
            return "budget"
        return "memory"

    def _let_a_fitting_one_go_first(self) -> bool:
        """A head that nothing will make room for must not stop those that fit; whether it is one."""
        if not self.running and not self._more_comes_back():
            self._take_back_what_does_not_fit()
            most = self.kv_cache_manager.block_pool.get_num_free_blocks()
        elif self._parked_blocks:
            most = self._attainable_blocks
        else:
            return False
        head = self.decisions.head(self.now())
        if head is None or self._needs_blocks(head.waiting) <= most:
            return False
        self.decisions.room.step_over_head(self._fits)
        return True

    def _more_comes_back(self) -> bool:
        """Blocks of requests that do not run will be free by themselves: of finished ones whose KV is still being sent
        (vLLM keeps them until then), and of those whose KV is being loaded.
        """
        if len(self.requests) > len(self.running) + len(self.waiting) + len(self.skipped_waiting):
            return True
        return any(one.status is RequestStatus.WAITING_FOR_REMOTE_KVS for one in self.skipped_waiting)

    def _take_back_what_does_not_fit(self) -> None:
        """vLLM serves what it had stepped over before the waiting queue, and stops there if it can't be allocated."""
        for request in list(islice(self.skipped_waiting, _LOOKED_AT)):
            if self._is_blocked_waiting_status(request.status):
                continue
            prompt = self.decisions.prompt(request.request_id)
            if prompt is None or self._fits(prompt.waiting):
                return
            self.skipped_waiting.remove_request(request)
            self._stepped_over.pop(request.request_id, None)
            self.decisions.wait_again(request.request_id)

    def _fits(self, waiting: Waiting) -> bool:
        return self._needs_blocks(waiting) <= self.kv_cache_manager.block_pool.get_num_free_blocks()

    def _hold_back_younger(self, now: float) -> list[Request]:
        """Of what vLLM had stepped over, those that this pass must not admit: more of them would pass the oldest that
        waits here than may. vLLM serves them before its waiting queue, as many as are ready.
        """
        if not self._stepped_over or self.policy is SchedulingPolicy.PRIORITY:
            return []  # By priority and arrival vLLM compares the two queues itself.
        oldest, left = self.decisions.room.passes_left(now)
        if len(self._stepped_over) <= left:
            return []
        numbers = {
            name: prompt.waiting.number for name in self._stepped_over if (prompt := self.decisions.prompt(name))
        }
        younger = [one for one in self.skipped_waiting if numbers.get(one.request_id, -1) > oldest]
        younger.sort(key=lambda one: numbers[one.request_id])
        held_back = younger[int(left) :]
        if held_back:
            self.skipped_waiting.remove_requests(held_back)
        return held_back

    def _needs_blocks(self, waiting: Waiting) -> int:
        """Free blocks that it takes to admit it, those that hold cached tokens of its own among them."""
        request, manager = self.requests[waiting.request], self.kv_cache_manager
        blocks, cached = manager.empty_kv_cache_blocks, request.num_computed_tokens
        if not cached:
            # Else it holds its blocks already: a session's next input.
            blocks, cached, _ = manager.get_computed_blocks(request)
        tokens = min(request.num_tokens, self.max_model_len)
        need: int = manager.coordinator.get_num_blocks_to_allocate(
            request_id=request.request_id,
            num_tokens=tokens,
            new_computed_blocks=blocks.blocks,
            num_encoder_tokens=0,
            total_computed_tokens=cached,
            num_local_computed_tokens=cached,
            num_tokens_main_model=tokens,
            apply_admission_cap=True,
        )
        return need

    def _kv_room(self) -> KvRoom:
        """In tokens. Without bounds where a prompt is admitted for its first chunk alone, or where groups of layers
        hold parts of it: there tokens say little of the blocks that it takes.
        """
        if self._group_count > 1 or not self.scheduler_reserve_full_isl:
            return without_bounds()
        manager, tokens = self.kv_cache_manager, self.hash_block_size * self._group_stride
        free = manager.block_pool.get_num_free_blocks() - manager.watermark_blocks
        return KvRoom(free * tokens, self._attainable_blocks * tokens)

    @property
    def _attainable_blocks(self) -> int:
        """What would be free if nothing ran."""
        pool = self.kv_cache_manager.block_pool
        return pool.num_gpu_blocks - self._parked_blocks

    def _held_by_parked(self) -> int:
        """Blocks of streaming sessions that have answered and wait for their next input: running on frees none."""
        if not self.num_waiting_for_streaming_input:
            return 0
        parked = [one for one in self.skipped_waiting if one.status is RequestStatus.WAITING_FOR_STREAMING_REQ]
        return sum(len(blocks) for one in parked for blocks in self.kv_cache_manager.get_blocks(one.request_id).blocks)

    def _settle(self, request: Request) -> None:
        if self.decisions.knows(request.request_id):
            own = request.num_computed_tokens // self.hash_block_size
            self.decisions.settle(request.request_id, self._cached_blocks(request), own)

    def _cached_blocks(self, request: Request) -> int:
        """How many leading blocks of its chain hold KV now. Prefixes go tail first, so halving finds the end."""
        pool, stride, groups = self.kv_cache_manager.block_pool, self._group_stride, [self._group]
        ends = request.block_hashes[stride - 1 :: stride]
        return stride * bisect_left(ends, True, key=lambda end: pool.get_cached_block(end, groups) is None)

    def _attention_group(self) -> tuple[int, int]:
        """The KV cache group that keeps whole prefixes, if there is one, and its block size in hashed blocks."""
        specs = [group.kv_cache_spec for group in self.kv_cache_config.kv_cache_groups]
        found = next((i for i, spec in enumerate(specs) if isinstance(spec, FullAttentionSpec)), 0)
        block_tokens = specs[found].block_size if specs else self.hash_block_size
        return found, max(1, block_tokens // self.hash_block_size)

    def _report(self, now: float) -> None:
        if now - self._gauges_at >= _GAUGE_SECONDS:
            self._gauges_at = now
            self.sender.note(self._gauges(now))
            self._pass_seconds.clear()
        self.sender.flush()

    def _gauges(self, now: float) -> Gauges:
        room, pool = self.decisions.room, self.kv_cache_manager.block_pool
        oldest = room.oldest()
        overdue = room.overdue(now)
        waiting = len(room) + len(self.skipped_waiting)
        evictions, self._blocks.evictions = dict(self._blocks.evictions), type(self._blocks.evictions)()
        return Gauges(
            now,
            {"hot": waiting - overdue, "cold": overdue} if self._has_lanes else {"none": waiting},
            now - oldest.arrived_at if oldest is not None else 0.0,
            room.passed_in_a_row(),
            evictions,
            list(self._pass_seconds),
            len(self.running),
            pool.get_num_free_blocks(),
            pool.num_gpu_blocks,
        )


class PrismAsyncScheduler(DemandAwareScheduling, AsyncScheduler):
    """For asynchronous scheduling, vLLM's default where it is possible."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self.scheduler_config.async_scheduling:
            raise IncompatibleEngine(
                "PrismAsyncScheduler needs asynchronous scheduling, which these arguments turn off: "
                "use prism.engine.enginecore.scheduler.PrismScheduler."
            )


class PrismScheduler(DemandAwareScheduling, Scheduler):
    """For synchronous scheduling."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.scheduler_config.async_scheduling:
            raise IncompatibleEngine(
                "PrismScheduler is for synchronous scheduling, and these arguments turn asynchronous scheduling on: "
                "use prism.engine.enginecore.scheduler.PrismAsyncScheduler."
            )
