"""The virtual clock: a workload, an engine without a model and a cost model, played against each other.

The order of events is that of vLLM's engine loop. A pass runs on the processor, its step on the device, one step at a
time; with asynchronous scheduling the pass for the next step runs while the device is busy.

    processor   pass 1 | pass 2 |        | done 1, pass 3 |     | done 2, …
    device             | step 1 ---------| step 2 --------------| step 3

The time a pass takes on the processor is part of the cost model's constant per step, so only what a scheduler takes
*beyond stock vLLM* is put on the clock, if a `Charge` is given: in the pass, before the device gets its step, and
beside the step, before its result is looked at.
"""

from __future__ import annotations

import gc
import heapq
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from prism.bench.cost_model import CostModel
from prism.bench.workloads import Workload
from prism.engine.enginecore.harness import ModelFreeEngine, Step
from prism.engine.enginecore.synthetic import StepResult, SyntheticRequest


class Front(Protocol):
    """What stands before the engine and sees every request first."""

    def arrive(self, request: SyntheticRequest) -> SyntheticRequest:
        """What goes on to the engine in its place, under the same name."""
        ...

    def first_token(self, request: str, cached_tokens: int) -> None:
        """Its prompt was computed; so many of its tokens came from the cache."""
        ...


_EMPTY_PASSES_UNTIL_STUCK = 8
"""One or two empty passes in a row are ordinary: the last tokens are in flight, or a request preempted itself."""


@dataclass(slots=True)
class RequestRecord:
    """One request's fate. Times are seconds of the virtual clock; None until they happen."""

    name: str
    arrived_s: float
    prompt_tokens: int
    admitted_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    cached_tokens: int = 0

    @property
    def ttft_s(self) -> float:
        """Seconds from arrival to first token; infinite for a request that has none."""
        return float("inf") if self.first_token_s is None else self.first_token_s - self.arrived_s


@dataclass(frozen=True, slots=True)
class PassSample:
    """One pass: thread CPU seconds of `schedule()`, and what it handled."""

    schedule_s: float
    scheduled: int
    admitted: int
    waiting: int


@dataclass(slots=True)
class SimulationResult:
    """What a run gave.

    Attributes:
        records: all requests, in order of arrival.
        passes: all passes.
        update_s: thread CPU seconds of each `update_from_output()`.
        virtual_s: virtual time at the end.
        busy_s: virtual time that the device was busy.
        preemptions: resumed requests.
        cpu_s: thread CPU seconds of the whole run.
    """

    records: list[RequestRecord] = field(default_factory=list)
    passes: list[PassSample] = field(default_factory=list)
    update_s: list[float] = field(default_factory=list)
    virtual_s: float = 0.0
    busy_s: float = 0.0
    preemptions: int = 0
    cpu_s: float = 0.0


class Charge(Protocol):
    """What a scheduler takes of the processor beyond stock vLLM, in seconds of the virtual clock."""

    def excess_s(self, step: Step) -> float:
        """In the pass: the device waits for it."""
        ...

    def beside_s(self, step: Step) -> float:
        """While the device has its step: nobody waits for it, unless the step is shorter."""
        ...


@dataclass(frozen=True, slots=True)
class SteadyCharge:
    """A measured mean, the same for every run: results then do not depend on the machine they are made on."""

    per_pass_s: float
    per_admitted_s: float
    beside_per_pass_s: float
    beside_per_admitted_s: float

    def excess_s(self, step: Step) -> float:
        return self.per_pass_s + self.per_admitted_s * len(step.admitted)

    def beside_s(self, step: Step) -> float:
        return self.beside_per_pass_s + self.beside_per_admitted_s * len(step.admitted)


@dataclass(frozen=True, slots=True)
class PassCharge:
    """What stock vLLM's pass takes, as `base + scheduled x a request + admitted x an admission`, in seconds.

    A scheduler is charged what its pass took beyond that.
    """

    base_s: float
    per_scheduled_s: float
    per_admitted_s: float

    @classmethod
    def fit(cls, passes: Sequence[PassSample]) -> PassCharge:
        """Least squares over the passes of a stock run.

        Raises:
            ValueError: fewer than three passes.
        """
        if len(passes) < 3:
            raise ValueError("a charge is fitted to three passes or more")
        rows = [(1.0, float(one.scheduled), float(one.admitted)) for one in passes]
        return cls(*_least_squares(rows, [one.schedule_s for one in passes]))

    def excess_s(self, step: Step) -> float:
        stock = self.base_s + self.per_scheduled_s * step.work.requests + self.per_admitted_s * len(step.admitted)
        return max(0.0, step.pass_seconds - stock)

    def beside_s(self, step: Step) -> float:
        return step.beside_seconds


class Simulation:
    """One run. `now` is the virtual clock; a scheduler may read it by `ModelFreeEngine.use_clock`.

    Args:
        engine: a fresh one.
        workload: what comes.
        cost: what a step costs.
        charge: puts a scheduler's own excess on the clock; None leaves passes free.
        stop_after_s: virtual time after which the run is given up, its requests unfinished.
        front: sees each request before the engine does.
        remembered: gets each request as it was admitted, its documents in their final order; admission is its order.
        on_pass: called after each pass with the number of finished requests, for a progress bar.
    """

    def __init__(
        self,
        engine: ModelFreeEngine,
        workload: Workload,
        cost: CostModel,
        charge: Charge | None = None,
        stop_after_s: float = float("inf"),
        *,
        front: Front | None = None,
        remembered: dict[str, SyntheticRequest] | None = None,
        on_pass: Callable[[int], None] | None = None,
    ) -> None:
        self.now = 0.0
        self._engine = engine
        self._cost = cost
        self._charge = charge
        self._stop_after_s = stop_after_s
        self._front = front
        self._remembered = remembered
        self._sent: dict[str, SyntheticRequest] = {}
        self._on_pass = on_pass
        self._follow_ups = workload.follow_ups
        self._open = deque(workload.arrivals)
        self._later: list[tuple[float, int, SyntheticRequest]] = []
        self._device_free_s = 0.0
        self._step_ends: deque[float] = deque()
        self._records: dict[str, RequestRecord] = {}
        self._finished = 0
        self._empty_passes = 0
        self._result = SimulationResult()
        engine.use_clock(lambda: self.now)

    def run(self) -> SimulationResult:
        """Plays the workload to its end."""
        began = time.thread_time()
        with _quiet_collector():
            while self.now <= self._stop_after_s and self._advance():
                pass
        self._result.records = sorted(self._records.values(), key=lambda record: record.arrived_s)
        self._result.virtual_s = self.now
        self._result.cpu_s = time.thread_time() - began
        return self._result

    def _advance(self) -> bool:
        """One move of the engine loop; False when nothing is left."""
        self._take_arrivals()
        if self._engine.can_schedule:
            self._pass()
        elif self._engine.in_flight:
            self._complete()
        else:
            return self._skip_to_next_arrival()
        return True

    def _take_arrivals(self) -> None:
        while self._open and self._open[0].at_s <= self.now:
            arrival = self._open.popleft()
            self._add(arrival.request, arrival.at_s)
        while self._later and self._later[0][0] <= self.now:
            at, _, request = heapq.heappop(self._later)
            self._add(request, at)

    def _add(self, request: SyntheticRequest, at: float) -> None:
        self._records[request.name] = RequestRecord(request.name, at, len(request.tokens))
        if self._front is not None:
            request = self._front.arrive(request)
        if self._remembered is not None:
            self._sent[request.name] = request
        self._engine.add(request, at)

    def _skip_to_next_arrival(self) -> bool:
        upcoming = [self._open[0].at_s] if self._open else []
        if self._later:
            upcoming.append(self._later[0][0])
        if not upcoming:
            return False
        self.now = max(self.now, min(upcoming))
        return True

    def _pass(self) -> None:
        step = self._engine.schedule()
        for name in step.admitted:
            self._records[name].admitted_s = self.now
            if self._remembered is not None:
                self._remembered[name] = self._engine.final(name, self._sent.pop(name))
        self._result.preemptions += len(step.resumed)
        if self._charge is not None:
            self.now += self._charge.excess_s(step)
        cost = self._cost.step_seconds(step.work)
        start = max(self.now, self._device_free_s)
        self._device_free_s = start + cost
        if self._charge is not None:
            self.now += self._charge.beside_s(step)
        self._result.busy_s += cost
        self._step_ends.append(self._device_free_s)
        self._result.passes.append(PassSample(step.pass_seconds, step.work.requests, len(step.admitted), step.waiting))
        self._empty_passes = 0 if step.work.tokens else self._empty_passes + 1
        if self._empty_passes > _EMPTY_PASSES_UNTIL_STUCK:
            self._wait_for_arrival()

    def _wait_for_arrival(self) -> None:
        """Passes that schedule nothing would spin for ever: only an arrival can change anything."""
        while self._engine.in_flight:
            self._complete()
        self._empty_passes = 0
        if self._engine.unfinished and not self._skip_to_next_arrival():
            raise RuntimeError("requests wait that can never be admitted: is the KV cache smaller than a prompt?")

    def _complete(self) -> None:
        self.now = max(self.now, self._step_ends.popleft())
        result = self._engine.complete()
        self._result.update_s.append(result.update_seconds)
        self._take_result(result)
        if self._on_pass is not None:
            self._on_pass(self._finished)

    def _take_result(self, result: StepResult) -> None:
        for first in result.first_tokens:
            record = self._records[first.name]
            record.first_token_s = self.now
            record.cached_tokens = first.cached_tokens
            if self._front is not None:
                self._front.first_token(first.name, first.cached_tokens)
        for name in result.finished:
            self._records[name].finished_s = self.now
            self._finished += 1
            follow_up = self._follow_ups.get(name)
            if follow_up is not None:
                heapq.heappush(self._later, (self.now + follow_up.after_s, self._finished, follow_up.request))


@contextmanager
def _quiet_collector() -> Iterator[None]:
    """Cyclic garbage collection off, as vLLM's engine freezes its heap: a collection would be charged to a pass."""
    was_enabled = gc.isenabled()
    if not gc.get_freeze_count():
        # Once: what the libraries have made stays, and need not be looked through before every run.
        gc.collect()
        gc.freeze()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _least_squares(rows: Sequence[tuple[float, float, float]], values: Sequence[float]) -> tuple[float, float, float]:
    """Coefficients of three columns. Columns that say nothing get 0."""
    solution = np.linalg.lstsq(np.asarray(rows), np.asarray(values), rcond=None)[0]
    return float(solution[0]), float(solution[1]), float(solution[2])
