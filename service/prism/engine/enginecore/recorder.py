"""A scheduler of vLLM's that writes down what each step was and how long it took, to fit a cost model to.

    LLM(model, scheduler_cls="prism.engine.enginecore.recorder.StepRecorder", async_scheduling=False,
        additional_config={"prism_steps": "/tmp/steps.jsonl"})

Steps must not overlap, so it is built on the synchronous scheduler: a step lasts from the end of `schedule()` to the
beginning of `update_from_output()`, the model's own work and nothing of the scheduler's.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from prism.engine.enginecore.harness import step_work
from prism.errors import UnsupportedArgument

STEPS_KEY = "prism_steps"


class StepRecorder(Scheduler):
    """Stock vLLM's decisions; a line of JSON for each step that computed something."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = self.vllm_config.additional_config
        path = config.get(STEPS_KEY) if isinstance(config, dict) else None
        if not path:
            raise UnsupportedArgument(f"StepRecorder writes to a file: name it in additional_config, {STEPS_KEY!r}.")
        if self.scheduler_config.async_scheduling:
            raise UnsupportedArgument("StepRecorder needs steps that do not overlap: turn async_scheduling off.")
        self._lines = Path(path).open("a", encoding="utf-8")  # noqa: SIM115 - as long as the scheduler lives
        self._began = 0.0

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        output = super().schedule(throttle_prefills)
        self._began = time.perf_counter()
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: Any) -> Any:
        took = time.perf_counter() - self._began
        work = step_work(scheduler_output)
        if work.tokens:
            self._lines.write(json.dumps({**asdict(work), "seconds": took}) + "\n")
            self._lines.flush()
        return super().update_from_output(scheduler_output, model_runner_output)

    def shutdown(self) -> None:
        self._lines.close()
        super().shutdown()
