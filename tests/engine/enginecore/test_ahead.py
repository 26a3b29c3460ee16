"""What is worked out while the device runs a step is used where it still holds, and leaves nothing wrong behind."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.engine.enginecore.rig import BLOCK, SMALL, Rig, RigFactory, Stream, play, rag, tight, tokens_of
from vllm.v1.core.sched.output import SchedulerOutput

from prism.core.tree import DemandAwareRadixTree
from prism.engine.enginecore.block_order import BlockOrder
from prism.engine.enginecore.prompts import PromptRewriter
from prism.engine.enginecore.scheduler import PrismAsyncScheduler, PrismScheduler
from prism.engine.internals import ASYNC_SCHEDULER

FULL = tight(24)


class NeverAsked(PrismAsyncScheduler):
    """Under an engine loop that never asks for a grammar's bits, as vLLM's may."""

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> Any:
        return None


@pytest.fixture(params=[ASYNC_SCHEDULER, NeverAsked, PrismScheduler], ids=["asked", "never asked", "synchronous"])
def scheduler_class(request: pytest.FixtureRequest) -> Any:
    return request.param


def limits_of(scheduler_class: Any) -> Any:
    return tight(40, asynchronous=False) if scheduler_class is PrismScheduler else tight(40)


@pytest.mark.parametrize("seed", range(12))
def test_a_rough_stream_is_served_whole_however_the_engine_loop_asks(
    rig: RigFactory, scheduler_class: Any, seed: int
) -> None:
    one = rig(scheduler_class, limits_of(scheduler_class))
    play(one, Stream(seed, requests=40, plans=True))
    assert not any(one.leftovers().values())


def serve_many(one: Rig, count: int = 30) -> None:
    """Prompts that share their beginnings, so many that the cache is full and each admission gives blocks up."""
    for number in range(count):
        one.add(f"r{number}", [*tokens_of(number % 3, 3 * BLOCK), *tokens_of(("own", number), 2 * BLOCK)], 20)
    one.run()


def test_most_of_what_is_given_up_is_chosen_before_the_pass(rig: RigFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    one, inside, taken = rig(limits=FULL), False, Counter[bool]()
    take, schedule = DemandAwareRadixTree.take, PrismAsyncScheduler.schedule

    def counted(tree: DemandAwareRadixTree, count: int) -> list[tuple[int, int]]:
        out = take(tree, count)
        taken[inside] += len(out)
        return out

    def scheduled(scheduler: PrismAsyncScheduler, throttle: bool = False) -> SchedulerOutput:
        nonlocal inside
        inside = True
        try:
            return schedule(scheduler, throttle)
        finally:
            inside = False

    monkeypatch.setattr(DemandAwareRadixTree, "take", counted)
    monkeypatch.setattr(PrismAsyncScheduler, "schedule", scheduled)
    serve_many(one)
    assert taken[False] > taken.total() / 3


def test_a_block_that_was_chosen_is_still_found_until_it_is_used(rig: RigFactory) -> None:
    one, prompt = rig(limits=FULL), tokens_of("prompt", 4 * BLOCK)
    serve_many(one)
    one.serve("first", prompt)
    choose_everything(one.prism._blocks)
    assert one.prism.decisions.tree.free_blocks == 0
    assert one.cached_tokens_of(prompt) == 4 * BLOCK
    assert one.serve("again", [*prompt, 1]) == 4 * BLOCK
    assert not any(one.leftovers().values())


def choose_everything(blocks: BlockOrder) -> None:
    blocks._given_up = 10_000
    blocks.choose_ahead()


def test_what_was_chosen_goes_first_and_each_block_once(rig: RigFactory) -> None:
    one = rig(limits=FULL)
    serve_many(one)
    blocks, pool = one.prism._blocks, one.scheduler.kv_cache_manager.block_pool
    blocks.choose_ahead()
    named = [block.block_id for block in blocks.get_all_free_blocks()]
    assert blocks._chosen
    assert named == [pool.get_new_blocks(1)[0].block_id for _ in named]
    assert sorted(named) == list(range(1, 25))


def test_an_emptied_cache_has_chosen_nothing(rig: RigFactory) -> None:
    one = rig(limits=FULL)
    serve_many(one)
    choose_everything(one.prism._blocks)
    assert one.scheduler.reset_prefix_cache()
    assert not one.prism._blocks._chosen
    assert len(one.prism._blocks.get_all_free_blocks()) == one.free_blocks == 24


DOCUMENTS = rag([tokens_of(name, 50) for name in "abc"], tokens_of("question", 20))
OTHER_WAY = [2, 0, 1]


def test_a_rewriting_that_was_prepared_is_the_same(rig: RigFactory) -> None:
    one = rig()
    assert rewritten(one, prepare=OTHER_WAY) == rewritten(one, prepare=None)


def test_a_rewriting_that_was_prepared_in_another_order_is_not_taken(rig: RigFactory) -> None:
    one = rig()
    assert rewritten(one, prepare=[1, 0, 2]) == rewritten(one, prepare=None)


def test_of_requests_that_leave_nothing_prepared_is_kept(rig: RigFactory) -> None:
    one = rig(limits=SMALL)
    play(one, Stream(5, requests=60, plans=True))
    assert not one.prism._rewriter._prepared


def rewritten(one: Rig, prepare: list[int] | None) -> tuple[list[int], list[int], list[bytes]]:
    """A request's tokens, as handed out and as kept, and its hashes after it was rewritten."""
    assert DOCUMENTS.plan is not None
    rewriter: PromptRewriter = one.prism._rewriter
    request = one.make("request", DOCUMENTS.tokens)
    if prepare is not None:
        rewriter.prepare(request, DOCUMENTS.plan, prepare)
        assert request.prompt_token_ids == DOCUMENTS.tokens
    rewriter.rewrite(request, DOCUMENTS.plan, OTHER_WAY)
    return list(request.prompt_token_ids or ()), list(request.all_token_ids), [bytes(h) for h in request.block_hashes]
