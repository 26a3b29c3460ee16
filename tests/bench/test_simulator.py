"""The simulator over vLLM's own scheduler."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from prism.bench.arrivals import poisson_times
from prism.bench.cost_model import QWEN3_4B, CostModel
from prism.bench.simulator import PassCharge, PassSample, Simulation, SimulationResult
from prism.bench.workloads import Arrival, Corpus, FollowUp, RagShape, Workload, rag
from prism.engine.enginecore.harness import ModelFreeEngine
from prism.engine.enginecore.synthetic import EngineLimits, SyntheticRequest

COST = CostModel(QWEN3_4B)
CORPUS = Corpus.drawn(0, documents=50, shortest=40, longest=90, system_tokens=32)
LIMITS = EngineLimits(kv_blocks=400, max_running=16, step_tokens=1024, model_tokens=2048)


def simulate(workload: Workload, limits: EngineLimits = LIMITS) -> SimulationResult:
    return Simulation(ModelFreeEngine(limits=limits), workload, COST).run()


def small_rag(seed: int = 1) -> Workload:
    return rag(CORPUS, RagShape(output_tokens=(3, 12)), poisson_times(random.Random(seed), 20, 3), seed)


def one_request(output_tokens: int, prompt_tokens: int = 100) -> Workload:
    return Workload((Arrival(1.0, SyntheticRequest("a", list(range(prompt_tokens)), output_tokens)),))


def test_every_request_runs_to_its_end() -> None:
    result = simulate(small_rag())
    assert len(result.records) > 20
    assert all(record.finished_s is not None for record in result.records)


def test_times_of_a_request_are_ordered() -> None:
    for record in simulate(small_rag()).records:
        assert record.admitted_s is not None
        assert record.first_token_s is not None
        assert record.finished_s is not None
        assert record.arrived_s <= record.admitted_s < record.first_token_s <= record.finished_s


def test_equal_seeds_give_equal_results() -> None:
    first, second = simulate(small_rag()), simulate(small_rag())
    assert first.records == second.records


def test_a_request_alone_waits_for_its_own_prefill_only() -> None:
    [record] = simulate(one_request(1)).records
    compute = COST.prefill_seconds(100)
    weights = 8.04e9 / 1.632e12
    assert record.ttft_s == pytest.approx(weights + compute * 0.02 + 0.003, rel=0.05)
    assert record.admitted_s == 1.0


def test_each_output_token_takes_a_step() -> None:
    [one], [ten] = simulate(one_request(1)).records, simulate(one_request(10)).records
    assert one.finished_s is not None
    assert ten.finished_s is not None
    step = 8.04e9 / 1.632e12 + 0.003
    assert ten.finished_s - one.finished_s == pytest.approx(9 * step, rel=0.01)


def test_a_repeated_prompt_is_cached_but_for_its_last_block() -> None:
    tokens = list(range(160))
    arrivals = tuple(Arrival(float(at), SyntheticRequest(f"r{at}", tokens, 2)) for at in (0, 1))
    first, second = simulate(Workload(arrivals)).records
    assert (first.cached_tokens, second.cached_tokens) == (0, 144)


def test_a_follow_up_comes_after_the_answer_and_the_think_time() -> None:
    first, second = (SyntheticRequest(name, list(range(50)), 3) for name in ("a", "b"))
    turns = simulate(Workload((Arrival(0.0, first),), {"a": FollowUp(2.5, second)}))
    assert turns.records[0].finished_s is not None
    assert turns.records[1].arrived_s == pytest.approx(turns.records[0].finished_s + 2.5)


def test_synchronous_scheduling_completes_too() -> None:
    limits = EngineLimits(kv_blocks=400, max_running=16, step_tokens=1024, model_tokens=2048, asynchronous=False)
    engine = ModelFreeEngine("vllm.v1.core.sched.scheduler.Scheduler", limits)
    result = Simulation(engine, small_rag(), COST).run()
    assert all(record.finished_s is not None for record in result.records)


def test_a_preempted_request_still_ends() -> None:
    limits = EngineLimits(kv_blocks=60, max_running=16, step_tokens=1024, model_tokens=2048)
    result = simulate(rag(CORPUS, RagShape(output_tokens=(60, 80)), poisson_times(random.Random(1), 20, 2), 1), limits)
    assert result.preemptions > 0
    assert all(record.finished_s is not None for record in result.records)


def test_a_prompt_beyond_the_cache_is_reported() -> None:
    limits = EngineLimits(kv_blocks=10, max_running=16, step_tokens=1024, model_tokens=2048)
    with pytest.raises(RuntimeError, match="never be admitted"):
        simulate(one_request(2, prompt_tokens=1000), limits)


def test_a_charge_is_fitted_to_stock_passes() -> None:
    passes = [PassSample(0.001 + 1e-5 * n + 2e-4 * k, n, k, 0) for n in range(5) for k in range(3)]
    charge = PassCharge.fit(passes)
    assert charge.base_s == pytest.approx(0.001)
    assert charge.per_scheduled_s == pytest.approx(1e-5)
    assert charge.per_admitted_s == pytest.approx(2e-4)


def test_a_charged_scheduler_pays_for_its_passes() -> None:
    def run(charge: PassCharge | None) -> float:
        engine = ModelFreeEngine(limits=LIMITS)
        return Simulation(engine, one_request(20), COST, charge).run().virtual_s

    # Nothing is free here, so that every pass is an excess.
    assert run(PassCharge(-1.0, 0.0, 0.0)) > run(None) + 20


def test_a_scheduler_reads_the_virtual_clock() -> None:
    engine = ModelFreeEngine("prism.engine.enginecore.scheduler.PrismAsyncScheduler", LIMITS)
    simulation = Simulation(engine, one_request(3), COST)
    clock: Callable[[], float] = engine.scheduler.prism_clock  # type: ignore[attr-defined]
    simulation.run()
    assert clock() == simulation.now
