"""Cells are named by what they are, repeat exactly, and are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prism.bench.arms import ARMS
from prism.bench.cells import Cell, CellStore, Setting, charge_of, outcome, play
from prism.bench.cost_model import MODELS, CostModel
from prism.bench.grid import missing, run_cells
from prism.bench.results import same
from prism.bench.scenarios import SCENARIOS, Place, Rag
from prism.bench.simulator import SimulationResult

SMALL = Cell("rag", "llama2-13b", 4.0, "prism", 1, 6.0, 1.0)


def small(arm: str, kv_share: float = 0.2, seed: int = 1, **fields: object) -> SimulationResult:
    """A run in which a few hundred documents compete for a small cache, with short answers."""
    cost = CostModel(MODELS["qwen3-4b"])
    rag = Rag(documents=60, **fields)  # type: ignore[arg-type]
    workload = rag(Place(int(cost.kv_tokens * kv_share), (3, 8)), 12.0, 8.0, seed)
    return play(ARMS[arm], Setting(workload, cost, kv_share), charge_of(ARMS[arm]))


def fates(result: SimulationResult) -> list[tuple[str, float | None, float | None, int]]:
    return [(one.name, one.admitted_s, one.first_token_s, one.cached_tokens) for one in result.records]


def test_equal_cells_have_one_name_and_different_ones_another() -> None:
    assert SMALL.key == replace(SMALL).key
    others = [
        replace(SMALL, seed=2),
        replace(SMALL, load_per_s=4.5),
        replace(SMALL, arm="stock"),
        replace(SMALL, kv_share=0.5),
        replace(SMALL, scenario="rag-skewed"),
    ]
    assert len({SMALL.key, *(cell.key for cell in others)}) == len(others) + 1


def test_a_cell_run_twice_gives_the_same(tmp_path: Path) -> None:
    assert same(outcome(SMALL), outcome(SMALL))


def test_a_stored_outcome_is_the_one_that_was_run(tmp_path: Path) -> None:
    found = outcome(SMALL)
    CellStore(tmp_path).put(found)
    assert CellStore(tmp_path).get(SMALL) == found


def test_only_missing_cells_are_run(tmp_path: Path) -> None:
    store, ran = CellStore(tmp_path), []
    run_cells([SMALL], store, 1, lambda cell, _: ran.append(cell))
    other = replace(SMALL, arm="stock")
    assert ran == [SMALL]
    assert missing([SMALL, other, other], CellStore(tmp_path)) == [other]


@pytest.mark.parametrize("seed", range(3))
def test_fcfs_and_lru_decide_as_stock_vllm_from_end_to_end(seed: int) -> None:
    stock = small("stock", seed=seed)
    assert fates(small("fcfs", seed=seed)) == fates(stock)
    assert sum(one.cached_tokens for one in stock.records) > 0


@pytest.mark.parametrize("arm", sorted(set(ARMS) - {"sglang-token"}))
def test_every_arm_serves_every_request(arm: str) -> None:
    records = small(arm).records
    assert len(records) > 60
    assert all(one.finished_s is not None for one in records)


def test_clairvoyant_eviction_keeps_the_order_and_finds_more() -> None:
    ours, bound = small("prism", kv_share=0.05), small("prism-belady", kv_share=0.05)
    by_name = {one.name: one.cached_tokens for one in bound.records}
    assert sum(by_name.values()) >= sum(one.cached_tokens for one in ours.records)


def test_where_nothing_is_given_up_all_is_found_but_what_runs_has_no_more_room() -> None:
    kept, endless, stock = (small(arm, kv_share=0.05) for arm in ("stock-kept", "stock-endless", "stock"))
    found = [sum(one.cached_tokens for one in run.records) for run in (kept, endless, stock)]
    assert found[0] > found[2]
    assert found[0] == pytest.approx(found[1], rel=0.05)
    assert max(one.scheduled for one in kept.passes) < max(one.scheduled for one in endless.passes)


def test_finer_blocks_find_at_least_as_much() -> None:
    blocks, tokens = small("sglang"), small("sglang-token")
    assert sum(one.cached_tokens for one in tokens.records) >= sum(one.cached_tokens for one in blocks.records)


def test_contextpilot_finds_more_than_stock_where_documents_may_move_and_the_same_where_not() -> None:
    free, fixed = small("contextpilot"), small("contextpilot", movable=False)
    assert sum(one.cached_tokens for one in free.records) > sum(one.cached_tokens for one in small("stock").records)
    assert fates(fixed) == fates(small("stock", movable=False))


def test_every_scenario_says_what_it_is_in_plain_values() -> None:
    for scenario in SCENARIOS.values():
        assert scenario.definition()["workload"]["kind"]


def test_an_index_that_is_told_what_is_gone_differs_from_one_that_is_not() -> None:
    hooked, unhooked = small("contextpilot", kv_share=0.05), small("contextpilot-unhooked", kv_share=0.05)
    assert fates(hooked) != fates(unhooked)
