"""What the cache gives up and what it keeps, on vLLM's own block pool."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from tests.engine.enginecore.rig import (
    BLOCK,
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
from vllm.config import VllmConfig
from vllm.config.kv_events import KVEventsConfig
from vllm.distributed.kv_events import BlockRemoved, BlockStored, EventBatch, EventPublisher
from vllm.lora.request import LoRARequest
from vllm.v1.core.kv_cache_utils import BlockHash, maybe_convert_block_hash
from vllm.v1.metrics.stats import PrefixCacheStats

from prism.core.namespace import namespace
from prism.core.segments import segment_identity
from prism.engine.enginecore.prompts import namespace_of
from prism.engine.enginecore.scheduler import PrismAsyncScheduler

BOTH = pytest.mark.parametrize("retention", ["DemandAware", "LRU"])
P, Q = tokens_of("p", BLOCK + 1), tokens_of("q", BLOCK + 1)


# ---- whose blocks are whose ----


def test_a_reloaded_adapter_finds_nothing_of_its_older_version(rig: RigFactory) -> None:  # A2
    one, prompt = rig(), tokens_of("prompt", 200)
    assert one.serve("v1", prompt, salt=namespace(None, "a", 1)) == 0
    assert one.serve("v2", prompt, salt=namespace(None, "a", 2)) == 0
    assert one.serve("again", prompt, salt=namespace(None, "a", 2)) == 192


def test_versions_of_an_adapter_are_told_apart_without_a_plan_too(rig: RigFactory) -> None:  # A2
    one = rig()
    names = {
        namespace_of(one.make(str(number), P, lora_request=LoRARequest("a", number, "/nowhere"), cache_salt=salt))
        for number in (1, 2)
        for salt in (None, "s")
    }
    assert len(names) == 4


def test_a_tenants_prompt_is_cold_for_another_in_prisms_own_index(rig: RigFactory) -> None:  # A3
    one, prompt = rig(limits=replace(tight(400), max_running=1)), tokens_of("prompt", 2000)
    one.serve("s1", prompt, salt="S1")
    one.add("long", tokens_of("long", 20), 30)
    one.schedule()
    for name, salt in (("same", "S1"), ("other", "S2"), ("none", None)):
        one.add(name, prompt, salt=salt)
    warmth = {name: one.prism.decisions.prompt(name) for name in ("same", "other", "none")}
    assert {n: p.waiting.cached_at_arrival for n, p in warmth.items() if p} == {"same": 2000, "other": 0, "none": 0}


def test_an_empty_salt_and_none_are_one_namespace(rig: RigFactory) -> None:  # A3
    one, prompt = rig(), tokens_of("prompt", 200)
    one.serve("none", prompt)
    assert one.serve("empty", prompt, salt="") == 192
    assert namespace_of(one.make("x", P, cache_salt="")) == namespace_of(one.make("y", P)) == ""


def test_one_tenants_demand_protects_nothing_of_anothers(rig: RigFactory) -> None:  # A3, A7
    one = rig(limits=replace(tight(4), max_running=1))
    one.serve("p", P, salt="S1")
    one.serve("q", Q, salt="S1")
    one.add("running", tokens_of("running", 20), 20)
    one.schedule()
    one.add("waiting", P, salt="S2")
    one.run()
    assert one.cached["waiting"] == 0


# ---- what goes first ----


@BOTH
def test_the_tail_of_a_chain_goes_before_its_head(rig: RigFactory, retention: str) -> None:  # A4
    one, chain = rig(limits=tight(3), spec=spec_of(retention=retention)), tokens_of("chain", 3 * BLOCK)
    for number in range(200):
        one.serve(f"chain-{number}", chain)
        one.serve(f"short-{number}", tokens_of(number, 10))
        assert one.cached_tokens_of(chain) == 2 * BLOCK


def test_what_the_next_waiting_request_needs_is_kept(rig: RigFactory) -> None:  # A7
    one = rig(limits=replace(tight(4), max_running=1))
    give_up_one_block(one, waiting=[P])
    assert (one.cached_tokens_of(P), one.cached_tokens_of(Q)) == (BLOCK, 0)


def test_lru_gives_up_what_the_next_waiting_request_needs(rig: RigFactory) -> None:
    one = rig(limits=replace(tight(4), max_running=1), spec=spec_of(retention="LRU"))
    give_up_one_block(one, waiting=[P])
    assert (one.cached_tokens_of(P), one.cached_tokens_of(Q)) == (0, BLOCK)


def test_where_all_is_needed_the_least_recent_goes_and_nobody_is_refused(rig: RigFactory) -> None:  # A7
    one = rig(limits=replace(tight(4), max_running=1))
    give_up_one_block(one, waiting=[P, Q])
    assert (one.cached_tokens_of(P), one.cached_tokens_of(Q)) == (0, BLOCK)
    assert not any(decision.resumed for decision in one.log)


def give_up_one_block(one: Rig, waiting: list[list[int]]) -> None:
    """P and then Q are cached; a running request grows by one block more than is free without them."""
    one.serve("p", P)
    one.serve("q", Q)
    one.add("running", tokens_of("running", 20), 20)
    one.schedule()
    for number, prompt in enumerate(waiting):
        one.add(f"w{number}", prompt)
    while one.request("running").num_tokens < 2 * BLOCK + 2:
        one.move()


@pytest.mark.parametrize("planned", [False, True])
def test_a_burst_of_one_shot_prompts_leaves_the_shared_prefix(rig: RigFactory, planned: bool) -> None:  # A8
    one, system = rig(limits=tight(64)), tokens_of("system", 64)
    for number in range(90):
        burst = number >= 50
        own = tokens_of(number, 100 if burst else 20)
        prompt = rag([], own, system=() if burst else system)
        one.serve(f"r{number}", prompt.tokens, plan=prompt.plan if planned else None)
    assert one.cached_tokens_of(system) == 64


@BOTH
def test_a_partial_block_goes_before_a_cached_one(rig: RigFactory, retention: str) -> None:  # A12
    one, twenty = rig(limits=tight(2), spec=spec_of(retention=retention)), tokens_of("twenty", 20)
    one.serve("twenty", twenty)
    _, partial = one.log[0].blocks[0][1]
    one.serve("next", tokens_of("next", 5))
    assert [d.blocks for d in one.log if d.admitted == ("next",)] == [(("next", (partial,)),)]
    assert one.cached_tokens_of(twenty) == BLOCK


@BOTH
def test_a_block_that_was_given_up_and_reused_no_longer_answers_to_its_old_prefix(
    rig: RigFactory, retention: str
) -> None:  # A14
    one, old, new = rig(limits=tight(3), spec=spec_of(retention=retention)), tokens_of("o", 48), tokens_of("n", 48)
    one.serve("old", old)
    one.serve("new", new)
    assert one.cached_tokens_of(old) == 0
    assert one.prism.decisions.tree.match(one.make("probe", old).block_hashes) == 0
    assert one.serve("again", old) == 0


@BOTH
def test_all_free_blocks_are_named_each_once(rig: RigFactory, retention: str) -> None:
    one = rig(limits=tight(40), spec=spec_of(retention=retention))
    play(one, Stream(3, requests=25, plans=True, abort_share=0.0))
    queue = one.scheduler.kv_cache_manager.block_pool.free_block_queue
    named = [block.block_id for block in queue.get_all_free_blocks()]
    assert sorted(named) == list(range(1, 41))


def test_under_lru_the_free_blocks_are_named_in_the_order_in_which_they_go(rig: RigFactory) -> None:
    one = rig(limits=tight(40), spec=spec_of(retention="LRU"))
    play(one, Stream(3, requests=25, plans=True, abort_share=0.0))
    pool = one.scheduler.kv_cache_manager.block_pool
    named = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
    assert named == [pool.get_new_blocks(1)[0].block_id for _ in named]


# ---- what is counted and told ----


def test_recomputation_after_preemption_is_no_hit(rig: RigFactory) -> None:  # A10
    one = rig(limits=tight(24))
    manager = one.scheduler.kv_cache_manager
    manager.log_stats, manager.prefix_cache_stats = True, PrefixCacheStats()
    for number in range(12):
        one.add(f"r{number}", tokens_of(number, 50), 80)
    one.run()
    stats = manager.prefix_cache_stats
    assert sum(len(decision.resumed) for decision in one.log) > 3
    assert (stats.hits, stats.requests, sum(one.cached.values())) == (0, 12, 0)


def test_segments_have_the_same_identity_in_every_process() -> None:  # A13
    assert segment_identity([1, 2, 3], "").hex() == "35ce1b7dc4da8ce51a7591561b3595db"


def test_equal_requests_get_an_equal_order_under_other_block_hashes(rig: RigFactory) -> None:  # A13
    """Each engine draws its hashes' seed anew, as a restarted pod does."""
    logs = []
    for _ in range(2):
        one = rig(limits=tight(40))
        play(one, Stream(3, plans=True, abort_share=0.0))
        logs.append(one.log)
    assert logs[0] == logs[1]


class Told(EventPublisher):
    """What a consumer of KV events believes: how many blocks there are of each hash."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: Counter[object] = Counter()

    def publish(self, events: EventBatch) -> None:
        for event in events.events:
            if isinstance(event, BlockStored):
                self.blocks.update(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                self.blocks.subtract(event.block_hashes)
            else:
                self.blocks.clear()

    def shutdown(self) -> None:
        pass


@BOTH
def test_kv_events_tell_the_truth_about_reordered_and_evicted_blocks(rig: RigFactory, retention: str) -> None:
    def with_events(config: VllmConfig) -> VllmConfig:
        config.kv_events_config = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
        return config

    one = rig(changed(PrismAsyncScheduler, vllm_config=with_events), tight(30), spec_of(retention=retention))
    told = one.scheduler.kv_event_publisher = Told()
    play(one, Stream(4, plans=True, reset_share=0.02))
    there = {maybe_convert_block_hash(BlockHash(found)) for found in one.cached_hashes()}
    assert {block for block, count in told.blocks.items() if count} == there
