"""Who is admitted when, through vLLM's own `schedule()`."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
import torch
from tests.engine.enginecore.channel import Channel, Told
from tests.engine.enginecore.rig import (
    BLOCK,
    SMALL,
    STEP_SECONDS,
    Rig,
    RigFactory,
    Stream,
    changed,
    play,
    rag,
    spec_of,
    tight,
    tokens_of,
)
from vllm.config import LoRAConfig, VllmConfig
from vllm.lora.request import LoRARequest
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

from prism.engine.enginecore.scheduler import PrismAsyncScheduler, PrismScheduler
from prism.engine.enginecore.synthetic import EngineLimits
from prism.engine.internals import ASYNC_SCHEDULER
from prism.engine.wire import Admitted, Ended
from prism.errors import IncompatibleEngine

LANES = pytest.mark.parametrize("order", ["Prism", "Paper"])
ORDERS = pytest.mark.parametrize("order", ["Prism", "Paper", "FCFS", "LPM"])
ONE_AT_A_TIME = replace(SMALL, kv_blocks=2000, max_running=1)


# ---- no starvation ----


def hot_and_cold(rig: RigFactory, **cold_lane: float) -> tuple[Rig, float]:
    """A cold request at once, hot ones of one bucket every 50 ms for 12 s; when the cold one was first passed."""
    one = rig(limits=replace(ONE_AT_A_TIME, step_tokens=4096), spec=spec_of("Paper", coldLane=cold_lane))
    document = tokens_of("document", 512)
    hot(one, document, 0)
    one.move()
    hot(one, document, 1)
    one.add("cold", tokens_of("cold", 2048))
    for number in range(2, 240):
        hot(one, document, number)
        one.move()
    return one, one.admitted_at["hot-002"]


def hot(one: Rig, document: list[int], number: int) -> None:
    prompt = rag([document], tokens_of(number, 16), movable=False)
    one.add(f"hot-{number:03}", prompt.tokens, 2, plan=prompt.plan)


def test_an_overdue_request_is_passed_by_nobody(rig: RigFactory) -> None:  # B1
    one, passed_at = hot_and_cold(rig, quota=0.001, maxWaitSeconds=2)
    times = one.admitted_at
    between = [name for name, at in times.items() if passed_at + 2 < at < times["cold"]]
    assert between == []
    assert times["cold"] < passed_at + 2 + 6 * STEP_SECONDS


def test_hot_requests_are_served_before_and_after_an_overdue_one(rig: RigFactory) -> None:  # B1
    one, _ = hot_and_cold(rig, quota=0.001, maxWaitSeconds=2)
    place = one.admitted.index("cold")
    assert place > 5
    assert len(one.admitted) > place + 5


def test_requests_of_equal_score_are_served_as_they_came(rig: RigFactory) -> None:  # B1
    one, _ = hot_and_cold(rig, quota=0.001, maxWaitSeconds=2)
    served = [name for name in one.admitted if name != "cold"]
    assert served == sorted(served)


def test_without_a_quota_the_cold_one_waits_as_long_as_hot_ones_come(rig: RigFactory) -> None:
    one, _ = hot_and_cold(rig, quota=0, maxWaitSeconds=2)
    assert "cold" not in one.admitted


@pytest.mark.parametrize("quota", [1.0, 0.5, 0.25, 0.1])
def test_the_oldest_is_passed_by_no_more_in_a_row_than_the_quota_says(rig: RigFactory, quota: float) -> None:
    one, _ = hot_and_cold(rig, quota=quota, maxWaitSeconds=100)
    passed_by = one.admitted.index("cold") - len(["hot-000", "hot-001"])
    assert passed_by == round(1 / quota) - 1


# ---- a head that does not fit ----


def parked(one: Rig, blocks: int) -> None:
    """A streaming session that has answered its first input and waits for the next one holds so many blocks."""
    one.add_made(one.make("session", tokens_of("session", blocks * BLOCK - 4), 2, resumable=True))
    one.run()
    assert not one.scheduler.running
    assert one.free_blocks < one.scheduler.kv_cache_manager.block_pool.num_gpu_blocks - blocks


@ORDERS
def test_a_head_that_nothing_can_make_room_for_stops_nobody(rig: RigFactory, order: str) -> None:  # B3
    one = rig(limits=tight(20), spec=spec_of(order))
    parked(one, 6)
    one.add("large", tokens_of("large", 18 * BLOCK))
    one.add("small", tokens_of("small", BLOCK - 2))
    assert one.schedule().admitted == ["small"]


@ORDERS
def test_the_head_is_admitted_once_there_is_room(rig: RigFactory, order: str) -> None:  # B3
    one = rig(limits=tight(20), spec=spec_of(order))
    parked(one, 6)
    one.add("large", tokens_of("large", 18 * BLOCK))
    for number in range(3):
        one.add(f"small-{number}", tokens_of(number, BLOCK - 2))
    one.run_for(40)
    one.abort("session")
    one.run()
    assert sorted(one.finished[1:]) == ["large", "small-0", "small-1", "small-2"]


@ORDERS
def test_a_head_that_nothing_can_make_room_for_stops_nobody_beside_one_that_runs(rig: RigFactory, order: str) -> None:
    one = rig(limits=tight(40), spec=spec_of(order))
    parked(one, 6)
    one.add("running", tokens_of("running", 2 * BLOCK), 300)
    one.run_for(6)
    one.add("large", tokens_of("large", 38 * BLOCK))
    one.add("small", tokens_of("small", BLOCK - 2))
    one.run_for(6)
    assert "small" in one.admitted
    assert "running" not in one.finished


@ORDERS
def test_a_session_that_does_not_fit_behind_one_that_is_parked_stops_nobody(rig: RigFactory, order: str) -> None:
    one = rig(limits=tight(20), spec=spec_of(order))
    for name in ("a", "b"):
        one.add_made(one.make(name, tokens_of(name, 6 * BLOCK - 4), 2, resumable=True))
        one.run()
    one.add_made(one.make("b", tokens_of("b, again", 12 * BLOCK), 2, resumable=True))
    one.run_for(4)
    one.add("small", tokens_of("small", BLOCK - 2))
    one.run_for(20)
    assert "small" in one.admitted


def test_what_may_not_be_read_from_the_cache_is_no_head_start(rig: RigFactory) -> None:
    one = rig(limits=replace(SMALL, kv_blocks=400, max_running=1), spec=spec_of())
    warm = tokens_of("warm", 150 * BLOCK)
    one.serve("warm", warm)
    one.add("running", tokens_of("running", 40), 6)
    one.run_for(4)
    one.add("first", tokens_of("first", 40))
    one.add_made(one.make("computed", warm + tokens_of("more", 20), 3, params={"prompt_logprobs": 1}))
    one.run()
    assert one.admitted[-2:] == ["first", "computed"]


def test_a_prompt_that_is_admitted_for_its_first_chunk_is_not_passed(rig: RigFactory) -> None:
    def first_chunk_alone(config: VllmConfig) -> VllmConfig:
        config.scheduler_config.scheduler_reserve_full_isl = False
        return config

    one = rig(changed(PrismAsyncScheduler, vllm_config=first_chunk_alone), limits=tight(100))
    one.add("running", tokens_of("running", 40 * BLOCK), 100)
    one.run_for(6)
    one.add("great", tokens_of("great", 80 * BLOCK))
    one.add("little", tokens_of("little", BLOCK))
    one.run()
    assert one.admitted == ["running", "great", "little"]


def test_passing_one_that_never_fits_is_no_overtaking(rig: RigFactory) -> None:  # B3
    one = rig(limits=tight(20))
    parked(one, 6)
    one.add("large", tokens_of("large", 18 * BLOCK))
    for number in range(30):
        one.add(f"small-{number}", tokens_of(number, BLOCK - 2))
    one.run_for(200)
    assert one.prism.decisions.room.passed_in_a_row() == 0


def test_a_preempted_request_that_no_longer_fits_stops_nobody(rig: RigFactory) -> None:  # B3
    """It lost its blocks while its last token was in flight, so vLLM keeps it in a queue of its own."""
    one = rig(limits=tight(20))
    parked(one, 6)
    one.add("grows", tokens_of("grows", 13 * BLOCK - 4), 3 * BLOCK)
    one.move()
    while not one.request("grows").num_preemptions:
        one.move()
    one.run_for(4)
    one.add("small", tokens_of("small", BLOCK - 2))
    one.run_for(60)
    assert "small" in one.finished


# ---- preempted requests ----


@ORDERS
def test_a_preempted_request_resumes_before_one_with_a_better_score(rig: RigFactory, order: str) -> None:  # B4
    one = rig(limits=tight(14), spec=spec_of(order))
    warm = rag([tokens_of("document", 64)], tokens_of("own", 10))
    one.serve("warm", warm.tokens, plan=warm.plan)
    one.add("older", tokens_of("older", 70), 60)
    one.add("preempted", tokens_of("preempted", 70), 80)
    one.move()
    while not one.request("preempted").num_preemptions:
        one.move()
    for number in range(4):
        one.add(f"better-{number}", warm.tokens, 30, plan=warm.plan)
    one.run()
    resumed = next(i for i, decision in enumerate(one.log) if "preempted" in decision.resumed)
    assert all(not name.startswith("better") for decision in one.log[:resumed] for name in decision.admitted)


# ---- the class stock vLLM would use ----


def test_the_class_for_asynchronous_scheduling_is_built_on_vllms() -> None:  # B6
    assert issubclass(PrismAsyncScheduler, AsyncScheduler)
    assert not issubclass(PrismScheduler, AsyncScheduler)


@pytest.mark.parametrize(
    ("scheduler", "asynchronous", "other"),
    [(PrismAsyncScheduler, False, "PrismScheduler"), (PrismScheduler, True, "PrismAsyncScheduler")],
)
def test_a_class_for_other_arguments_stops_the_start(
    rig: RigFactory, scheduler: type, asynchronous: bool, other: str
) -> None:  # B6
    with pytest.raises(IncompatibleEngine, match=rf"use prism\.engine\.enginecore\.scheduler\.{other}\."):
        rig(scheduler, replace(SMALL, asynchronous=asynchronous))


@pytest.mark.parametrize("additional", [{}, {"other": 1}, None])
def test_it_runs_under_a_configuration_that_says_nothing_of_prism(rig: RigFactory, additional: Any) -> None:
    one = rig(ASYNC_SCHEDULER, SMALL, None, additional)
    play(one, Stream(1, requests=20))
    assert not any(one.leftovers().values())


def test_it_runs_without_prefix_caching(rig: RigFactory) -> None:
    def without(config: VllmConfig) -> VllmConfig:
        config.cache_config.enable_prefix_caching = False
        return config

    one = rig(changed(PrismAsyncScheduler, vllm_config=without), tight(28))
    one.engine._hash_blocks = lambda _: []
    play(one, Stream(1, requests=30, plans=True))
    assert not any(one.leftovers().values())


# ---- requests that wait for something else ----


def with_one_adapter(config: VllmConfig) -> VllmConfig:
    config.lora_config = LoRAConfig(max_lora_rank=8, max_loras=1)
    return config


def test_a_request_that_waits_for_an_adapters_slot_is_passed_and_served_once_it_is_free(
    told: Told, channel: Channel
) -> None:
    one = told(scheduler=changed(PrismAsyncScheduler, vllm_config=with_one_adapter))
    for name, number, output_tokens in (("a", 1, 20), ("b", 2, 5), ("base", 0, 5)):
        adapter = LoRARequest(name, number, "/nowhere") if number else None
        one.add_made(one.make(name, tokens_of(name, 40), output_tokens, lora_request=adapter))
    one.run()
    assert one.admitted == ["a", "base", "b"]
    assert admitted(channel, "b").why == "adapter"
    assert not any(one.leftovers().values())


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_one_that_vllm_stepped_over_and_that_no_longer_fits_does_not_stop_the_queue(
    rig: RigFactory, policy: str
) -> None:  # B3
    scheduler = changed(PrismAsyncScheduler, vllm_config=with_one_adapter)
    one = rig(scheduler, tight(14, policy=policy))
    grows = LoRARequest("b", 2, "/nowhere")
    one.add_made(one.make("grows", tokens_of("grows", 13 * BLOCK - 4), 3 * BLOCK, lora_request=grows))
    while not (one.scheduler.requests and one.request("grows").num_preemptions):
        one.move()
    # While this adapter's request runs there is no slot for the other adapter, which vLLM steps over.
    other = LoRARequest("a", 1, "/nowhere")
    one.add_made(one.make("other", tokens_of("other", BLOCK), 8, lora_request=other))
    one.run_for(60)
    one.add("late", tokens_of("late", BLOCK - 2))
    one.run_for(60)
    assert {"other", "late"} <= set(one.finished)


class Anything(StructuredOutputGrammar):
    """A grammar that takes every token."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        return tokens

    def rollback(self, num_tokens: int) -> None: ...

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None: ...

    def is_terminated(self) -> bool:
        return False

    def reset(self) -> None: ...


def add_structured(one: Rig, name: str) -> Future[StructuredOutputGrammar]:
    """A request whose grammar is being compiled; the result is for the test to give."""
    compiled: Future[StructuredOutputGrammar] = Future()
    params = {"structured_outputs": StructuredOutputsParams(json={"type": "object"})}
    request = one.make(name, tokens_of(name, 40), 5, params=params)
    assert request.structured_output_request is not None
    request.structured_output_request.grammar = compiled
    # No backend compiles grammars here, so none fills their bits.
    one.scheduler.structured_output_manager.grammar_bitmask = lambda *_: None  # type: ignore[method-assign]
    one.add_made(request)
    return compiled


@LANES
def test_those_whose_grammars_came_late_pass_the_oldest_as_often_as_others_may(rig: RigFactory, order: str) -> None:
    one = rig(limits=tight(140, max_running=64), spec=spec_of(order))
    one.add("running", tokens_of("running", 100 * BLOCK), 300)
    one.run_for(10)
    compiled = [add_structured(one, f"early-{number}") for number in range(2)]
    one.run_for(1)
    one.add("old", tokens_of("old", 60 * BLOCK))
    compiled += [add_structured(one, f"late-{number:02}") for number in range(40)]
    one.run_for(4)
    for grammar in compiled:
        grammar.set_result(Anything())
    one.run()
    before = [name for name in one.admitted[: one.admitted.index("old")] if name.startswith("late")]
    assert len(before) <= 9
    assert {"early-0", "early-1"} <= set(one.admitted[: one.admitted.index("old")]), "those that came first, first"
    assert not any(one.leftovers().values())


def test_those_held_back_run_where_the_oldest_never_fits(rig: RigFactory) -> None:
    one = rig(limits=tight(20), spec=spec_of(coldLane={"quota": 1.0}))
    parked(one, 6)
    one.add("large", tokens_of("large", 18 * BLOCK))
    compiled = add_structured(one, "late")
    one.run_for(2)
    compiled.set_result(Anything())
    one.run_for(10)
    assert "late" in one.admitted


@ORDERS
def test_a_request_whose_grammar_compiles_is_passed_and_served_once_it_is_there(
    told: Told, channel: Channel, order: str
) -> None:
    one = told(tight(100), spec_of(order))
    compiled = add_structured(one, "structured")
    one.add("plain", tokens_of("plain", 40), 5)
    one.run_for(40)
    compiled.set_result(Anything())
    one.run()
    assert one.finished == ["plain", "structured"]
    assert admitted(channel, "structured").why == "grammar"
    assert not any(one.leftovers().values())


@ORDERS
def test_a_request_whose_grammar_is_wrong_ends_and_leaves_nothing(told: Told, channel: Channel, order: str) -> None:
    one = told(tight(100), spec_of(order))
    compiled = add_structured(one, "structured")
    one.add("plain", tokens_of("plain", 40), 5)
    one.run_for(40)
    compiled.set_exception(ValueError("no such grammar"))
    one.run()
    assert [fact.reason for fact in channel.of("structured") if isinstance(fact, Ended)] == ["error"]
    assert not any(one.leftovers().values())


@LANES
def test_a_grammar_that_is_ready_gives_no_place_before_older_requests(rig: RigFactory, order: str) -> None:
    one = rig(limits=ONE_AT_A_TIME, spec=spec_of(order))
    one.add("running", tokens_of("running", 40), 20)
    one.move()
    one.add("older", tokens_of("older", 40))
    add_structured(one, "structured").set_result(Anything())
    one.run()
    assert one.finished == ["running", "older", "structured"]


def admitted(channel: Channel, name: str) -> Admitted:
    (found,) = [fact for fact in channel.of(name) if isinstance(fact, Admitted)]
    return found


def test_a_streaming_session_takes_its_inputs_and_leaves_nothing(rig: RigFactory) -> None:
    one = rig()
    for number in range(3):
        one.add_made(one.make("session", tokens_of(number, 50), 6, resumable=True))
        one.run()
        assert one.finished == ["session"] * (number + 1)
    one.add_made(one.make("session", [1], 1))
    one.run()
    assert not any(one.leftovers().values())


def test_inputs_that_come_while_a_session_runs_are_taken_in_turn(rig: RigFactory) -> None:
    one = rig()
    for number in range(3):
        one.add_made(one.make("session", tokens_of(number, 50), 6, resumable=True))
    one.add_made(one.make("session", [1], 1))
    one.run()
    assert one.finished == ["session"] * 3
    assert not any(one.leftovers().values())


# ---- kinds of caches ----


def test_a_model_with_a_sliding_window_is_served_and_leaves_nothing(rig: RigFactory) -> None:
    """Two groups of layers: full attention, and a window of 64 tokens."""

    def with_window(config: KVCacheConfig) -> KVCacheConfig:
        (full,) = config.kv_cache_groups
        window = SlidingWindowSpec(
            block_size=BLOCK, num_kv_heads=1, head_size=64, dtype=torch.float32, sliding_window=64
        )
        return replace(config, kv_cache_groups=[full, KVCacheGroupSpec(["window"], window)])

    one = rig(changed(PrismAsyncScheduler, kv_cache_config=with_window), tight(64))
    play(one, Stream(1, plans=True, reset_share=0.02))
    leftovers = one.leftovers() | {"prefixes the tree is wrong about": 0}
    assert not any(leftovers.values()), leftovers


# ---- long prompts and long queues ----


def test_a_short_prompt_gets_in_beside_a_long_one(rig: RigFactory) -> None:  # B9
    """vLLM's own bound on what one prompt may take of a step; the scheduler leaves it alone."""

    def bounded(config: VllmConfig) -> VllmConfig:
        config.scheduler_config.long_prefill_token_threshold = 6144
        return config

    limits = EngineLimits(kv_blocks=8000, step_tokens=8192, model_tokens=65_536)
    one = rig(changed(PrismAsyncScheduler, vllm_config=bounded), limits)
    one.add("long", tokens_of("long", 60_000))
    one.move()
    one.add("short", tokens_of("short", 50))
    one.run_for(3)
    computed = one.request("long").num_computed_tokens
    assert "short" in one.admitted
    one.run_for(2)
    assert 60_000 > one.request("long").num_computed_tokens > computed


class Calls:
    """Counts the calls of PRISM's own functions while it is entered."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Calls:
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _seen(self, frame: FrameType, event: str, _: object) -> None:
        self.count += event == "call" and "/prism/" in frame.f_code.co_filename


@pytest.mark.parametrize("order", ["Prism", "Paper"])
def test_the_work_of_a_pass_does_not_grow_with_the_queue(rig: RigFactory, order: str) -> None:  # B8
    # Below some two thousand the bounded windows are not yet full.
    few, many = (calls_per_pass(rig, order, waiting) for waiting in (2000, 6000))
    assert many < 1.2 * few + 20


def calls_per_pass(rig: RigFactory, order: str, waiting: int) -> float:
    """Calls of PRISM's functions in a pass that admits one, over many waiting requests of 8,000 tokens."""
    limits = EngineLimits(kv_blocks=400, block_tokens=512, max_running=9, step_tokens=8192)
    one = rig(ASYNC_SCHEDULER, limits, spec_of(order))
    documents = [tokens_of(("document", number), 7000) for number in range(40)]
    for number in range(waiting):
        prompt = rag([documents[number % 40]], [number] * 1000)
        one.add(f"r{number:05}", prompt.tokens, 3, plan=prompt.plan)
    one.run_for(20)
    counts = [counted(one.move) for _ in range(40)]
    assert len(one.admitted) > 10
    return statistics.median(sorted(counts)[20:])


def counted(move: Callable[[], object]) -> int:
    with Calls() as calls:
        move()
    return calls.count
