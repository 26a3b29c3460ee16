"""A real engine in this process, played with batches of prompts while `StepRecorder` writes down its steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt

from prism.engine.enginecore.recorder import STEPS_KEY

Batches = Callable[[int, int], list[list[list[int]]]]
"""`(tokens of a step, tokens of the longest prompt)` to batches of prompts, each a list of token ids."""


def play_shapes(model: str, steps: Path, batches: Batches, answer_tokens: int) -> None:
    """Runs each batch once, after one that warms up; no prompt is found in the prefix cache.

    Args:
        model: as vLLM takes it.
        steps: file to which the steps are appended.
        batches: what to run.
        answer_tokens: generated for each prompt.
    """
    llm = LLM(
        model,
        enable_prefix_caching=False,
        async_scheduling=False,
        scheduler_cls="prism.engine.enginecore.recorder.StepRecorder",
        additional_config={STEPS_KEY: str(steps.resolve())},
    )
    config = llm.llm_engine.vllm_config
    vocabulary = config.model_config.get_vocab_size()
    params = SamplingParams(temperature=0.0, max_tokens=answer_tokens, ignore_eos=True)
    made = batches(config.scheduler_config.max_num_batched_tokens, config.model_config.max_model_len)
    for number, batch in enumerate([made[0], *made]):
        prompts = [TokensPrompt(prompt_token_ids=[token % vocabulary for token in prompt]) for prompt in batch]
        llm.generate(prompts, params, use_tqdm=False)
        if number == 0:
            # What compiling and first touches cost is no step's.
            steps.write_text("", encoding="utf-8")
