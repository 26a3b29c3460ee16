"""What a run's records say, in few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prism.bench.estimates import percentile
from prism.bench.simulator import RequestRecord, SimulationResult


@dataclass(frozen=True, slots=True)
class Summary:
    """Numbers of one cell, over all its seeds.

    Attributes:
        requests, unfinished: of the workload; unfinished ones have an infinite TTFT and stay in the percentiles.
        hit_percent: prompt tokens from cache of all prompt tokens, at first admission.
        ttft_mean_s, ttft_p50_s, ttft_p90_s, ttft_p99_s: None without the samples for it.
        wait_p99_s: from arrival to admission.
        pass_mean_ms, pass_max_ms: thread CPU time of `schedule()`.
        update_mean_ms: thread CPU time of `update_from_output()`.
        preemptions: resumed requests.
        cpu_s: what simulating took.
    """

    requests: int
    unfinished: int
    hit_percent: float
    ttft_mean_s: float | None
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    ttft_p99_s: float | None
    wait_p99_s: float | None
    pass_mean_ms: float
    pass_p999_ms: float
    pass_max_ms: float
    update_mean_ms: float
    preemptions: int
    cpu_s: float


def summarize(results: Sequence[SimulationResult], after_s: float = 0.0) -> Summary:
    """One summary of several runs; requests that arrived before `after_s` are left out as warm-up."""
    records = [one for result in results for one in result.records if one.arrived_s >= after_s]
    ttft = [one.ttft_s for one in records]
    passes = np.asarray([one.schedule_s for result in results for one in result.passes] or [0.0]) * 1e3
    updates = [one for result in results for one in result.update_s] or [0.0]
    return Summary(
        requests=len(records),
        unfinished=sum(one.finished_s is None for one in records),
        hit_percent=hit_percent(records),
        ttft_mean_s=float(np.mean(ttft)) if ttft else 0.0,
        ttft_p50_s=percentile(ttft, 50),
        ttft_p90_s=percentile(ttft, 90),
        ttft_p99_s=percentile(ttft, 99),
        wait_p99_s=percentile([_wait_s(one) for one in records], 99),
        pass_mean_ms=float(passes.mean()),
        pass_p999_ms=float(np.quantile(passes, 0.999)),
        pass_max_ms=float(passes.max()),
        update_mean_ms=float(np.mean(updates)) * 1e3,
        preemptions=sum(result.preemptions for result in results),
        cpu_s=sum(result.cpu_s for result in results),
    )


def hit_percent(records: Sequence[RequestRecord]) -> float:
    """Of those that got a first token."""
    served = [one for one in records if one.first_token_s is not None]
    prompt = sum(one.prompt_tokens for one in served)
    return 100.0 * sum(one.cached_tokens for one in served) / prompt if prompt else 0.0


def _wait_s(record: RequestRecord) -> float:
    return float("inf") if record.admitted_s is None else record.admitted_s - record.arrived_s
