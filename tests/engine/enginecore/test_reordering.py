"""EngineCore puts documents whose order is free into the order that hits most, once, at first admission."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engine.enginecore.rig import (
    BLOCK,
    SMALL,
    Rag,
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
from vllm.config import KVTransferConfig, VllmConfig
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

from prism.config.schema import Reorder
from prism.core.segments import PromptPlan, SegmentKind
from prism.engine.enginecore.harness import Step
from prism.engine.enginecore.prompts import may_rewrite, plan_of
from prism.engine.enginecore.scheduler import PrismAsyncScheduler
from prism.engine.wire import EXTRA_ARGS_KEY, encode_plan

SYSTEM = tokens_of("system", 40)
A, B, C = (tokens_of(name, size) for name, size in (("a", 50), ("b", 70), ("c", 33)))
FIRST, SECOND = tokens_of("first", 21), tokens_of("second", 25)

RESIDENT = rag([A, B, C], FIRST, system=SYSTEM, movable=False)
ASKED = rag([C, A, B], SECOND, system=SYSTEM)
USED = rag([A, B, C], SECOND, system=SYSTEM)


def handed_to_workers(step: Step) -> list[int]:
    tokens = step.output.scheduled_new_reqs[0].prompt_token_ids
    assert tokens is not None
    return list(tokens)


def ask(one: Rig, prompt: Rag, name: str = "asked", output_tokens: int = 1) -> list[int]:
    """Serves a prompt to its end; what the workers got to see of it."""
    one.add(name, prompt.tokens, output_tokens, plan=prompt.plan)
    handed = handed_to_workers(one.schedule())
    one.run()
    return handed


@pytest.fixture
def warm(rig: RigFactory) -> Rig:
    """An engine that holds the system part and A, B, C in this order."""
    one = rig()
    one.serve("resident", RESIDENT.tokens, plan=RESIDENT.plan)
    return one


def test_workers_get_the_documents_in_the_resident_order(warm: Rig) -> None:
    assert ask(warm, ASKED) == USED.tokens


def test_the_hits_of_a_reordered_prompt_are_real(warm: Rig) -> None:
    ask(warm, ASKED)
    assert warm.cached["asked"] == len(SYSTEM + A + B + C) // BLOCK * BLOCK


def test_a_reordered_prompt_has_the_block_hashes_of_stocks_for_that_order(warm: Rig) -> None:
    warm.add("asked", ASKED.tokens, 40, plan=ASKED.plan)
    warm.schedule()
    assert warm.request("asked").block_hashes == warm.make("stock", USED.tokens).block_hashes


def test_generated_tokens_go_on_from_the_order_that_was_used(warm: Rig) -> None:
    warm.add("asked", ASKED.tokens, 60, plan=ASKED.plan)
    while warm.scheduler.requests and warm.request("asked").num_output_tokens < 50:
        warm.move()
    request = warm.request("asked")
    grown = [*USED.tokens, *request.output_token_ids]
    assert list(request.all_token_ids) == grown
    assert request.block_hashes == warm.make("stock", grown).block_hashes


def test_both_copies_of_the_prompt_change_and_the_callers_does_not(warm: Rig) -> None:
    callers = list(ASKED.tokens)
    warm.add_made(warm.make("asked", callers, 9, params={"extra_args": {EXTRA_ARGS_KEY: encode_plan(ASKED.plan)}}))
    warm.schedule()
    request = warm.request("asked")
    assert request.prompt_token_ids == list(request.all_token_ids) == USED.tokens
    assert callers == ASKED.tokens


def test_documents_that_nobody_declared_unordered_stay(warm: Rig) -> None:
    fixed = rag([C, A, B], SECOND, system=SYSTEM, movable=False)
    assert ask(warm, fixed) == fixed.tokens


@pytest.mark.parametrize("kind", [kind for kind in SegmentKind if kind is not SegmentKind.DOCUMENT])
def test_segments_of_other_kinds_stay_whatever_is_resident(warm: Rig, kind: SegmentKind) -> None:
    segments = tuple(replace(segment, kind=kind) for segment in ASKED.plan.segments)
    other = Rag(ASKED.tokens, replace(ASKED.plan, segments=segments, movable=(), movable_segments=()))
    assert ask(warm, other) == other.tokens


@pytest.mark.parametrize("settings", [spec_of(reorder=Reorder.NEVER), spec_of("FCFS"), spec_of("LPM")])
def test_the_callers_order_stands_under_never_and_under_baselines(rig: RigFactory, settings: Any) -> None:
    one = rig(spec=settings)
    one.serve("resident", RESIDENT.tokens, plan=RESIDENT.plan)
    assert ask(one, ASKED) == ASKED.tokens


def test_under_paper_the_document_that_most_want_stands_first(rig: RigFactory) -> None:
    one = rig(spec=spec_of("Paper"), limits=replace(SMALL, max_running=1))
    one.add("long", tokens_of("long", 20), 30)
    one.schedule()
    for number, documents in enumerate([[C, A, B], [A, B], [B]]):
        prompt = rag(documents, SECOND, system=SYSTEM)
        one.add(f"w{number}", prompt.tokens, plan=prompt.plan)
    while "w0" not in one.admitted:
        one.move()
    assert one.request("w0").prompt_token_ids == rag([B, A, C], SECOND, system=SYSTEM).tokens


def test_a_repeated_document_may_stand_twice(warm: Rig) -> None:
    twice = rag([B, A, A], SECOND, system=SYSTEM)
    handed = ask(warm, twice)
    assert sorted(handed) == sorted(twice.tokens)
    assert handed == rag([A, B, A], SECOND, system=SYSTEM).tokens


# ---- never ----


@pytest.mark.parametrize(
    "special",
    [
        {"params": {"prompt_logprobs": 1}},
        {"resumable": True},
        {"mm_features": [MultiModalFeatureSpec(None, "image", "x", PlaceholderRange(offset=0, length=1))]},
    ],
    ids=["prompt log-probabilities", "resumable", "multimodal"],
)
def test_a_prompt_whose_places_matter_elsewhere_is_never_reordered(warm: Rig, special: dict[str, Any]) -> None:
    special = {
        **special,
        "params": {**special.get("params", {}), "extra_args": {EXTRA_ARGS_KEY: encode_plan(ASKED.plan)}},
    }
    request = warm.make("asked", ASKED.tokens, 3, **special)
    assert plan_of(request).can_reorder
    warm.prism.enter(request)
    warm.scheduler.requests["asked"] = request
    warm.prism.decisions.begin_pass(warm.now)
    assert warm.scheduler.waiting.peek_request().prompt_token_ids == ASKED.tokens


def test_a_request_that_was_preempted_may_not_be_rewritten(rig: RigFactory) -> None:
    request = rig().make("one", ASKED.tokens)
    assert may_rewrite(request)
    request.num_preemptions = 1
    assert not may_rewrite(request)


def test_a_resumed_request_keeps_the_order_of_its_first_admission(rig: RigFactory) -> None:
    """Resident when it comes first is B, A; when it comes back, three others wait for A alone."""
    one = rig(limits=replace(SMALL, max_running=1))
    resident, asked = rag([B, A], FIRST, system=SYSTEM, movable=False), rag([B, A], SECOND, system=SYSTEM)
    one.serve("resident", resident.tokens, plan=resident.plan)
    one.add("asked", asked.tokens, 30, plan=asked.plan)
    one.schedule()
    for number in range(3):
        prompt = rag([A], tokens_of(number, 20), system=SYSTEM)
        one.add(f"w{number}", prompt.tokens, plan=prompt.plan)
    one.scheduler.reset_prefix_cache(reset_running_requests=True)
    while not one.log[-1].resumed:
        one.move()
    assert one.request("asked").prompt_token_ids == asked.tokens


def test_tokens_of_a_request_never_change_once_it_was_admitted(rig: RigFactory) -> None:
    one = rig(limits=tight(28))
    seen: dict[str, list[int]] = {}

    def look(_: object) -> None:
        for request in one.scheduler.running:
            prompt = request.prompt_token_ids or []
            assert seen.setdefault(request.request_id, prompt) is prompt
            assert list(request.all_token_ids[: len(prompt)]) == prompt

    play(one, Stream(11, plans=True, reset_share=0.05), look)
    assert sum(len(decision.resumed) for decision in one.log) > 3


def test_with_a_kv_connector_nothing_is_reordered(rig: RigFactory, tmp_path: Path) -> None:
    def with_connector(config: VllmConfig) -> VllmConfig:
        config.kv_transfer_config = KVTransferConfig(
            kv_connector="ExampleConnector",
            kv_role="kv_both",
            kv_connector_extra_config={"shared_storage_path": str(tmp_path)},
        )
        config.scheduler_config.disable_hybrid_kv_cache_manager = True
        return config

    one = rig(changed(PrismAsyncScheduler, vllm_config=with_connector))
    assert one.scheduler.connector is not None
    one.serve("resident", RESIDENT.tokens, plan=RESIDENT.plan)
    assert ask(one, ASKED) == ASKED.tokens


# ---- plans that are none ----


@pytest.mark.parametrize("data", [b"", b"\x93\x01\x02\x03", "text", 7, ["a"], encode_plan(RESIDENT.plan)[:-3]])
def test_what_a_client_writes_in_the_plans_place_is_ignored(rig: RigFactory, data: Any) -> None:
    request = rig().make("one", A, params={"extra_args": {EXTRA_ARGS_KEY: data}})
    assert plan_of(request) == PromptPlan("")


def test_a_plan_for_a_longer_prompt_is_ignored(rig: RigFactory) -> None:
    request = rig().make("one", A, params={"extra_args": {EXTRA_ARGS_KEY: encode_plan(ASKED.plan)}})
    assert not plan_of(request).segments
