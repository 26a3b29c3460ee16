"""Run by `test_real_engine.py` in a process of its own: the same prompts through PRISM's scheduler and through stock's.

Two engines one after the other, float32, greedy. PRISM's has a small KV cache, so that requests wait, share, evict and
are preempted; it is the synchronous class, since that is what vLLM uses on a processor. Stock's caches no prefixes, so
each of its answers is computed from nothing.
"""

from __future__ import annotations

import gc
import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
from vllm import LLM, SamplingParams, TokensPrompt
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

from prism.core.segments import PromptPlan, Segment, SegmentKind, permute_runs, segment_identity
from prism.engine.internals import SCHEDULER
from prism.engine.wire import CONFIG_KEY, EXTRA_ARGS_KEY, Admitted, Fact, Preempted, decode_batch, encode_plan

_VOCABULARY = 16_000
_ANSWER = 24


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt, and its plan if its documents may move."""

    tokens: list[int]
    plan: PromptPlan | None = None

    @property
    def params(self) -> SamplingParams:
        extra = {EXTRA_ARGS_KEY: encode_plan(self.plan)} if self.plan else None
        return SamplingParams(temperature=0.0, max_tokens=_ANSWER, ignore_eos=True, extra_args=extra)

    def in_order(self, order: list[int]) -> list[int]:
        return permute_runs(self.tokens, self.plan.movable, order) if self.plan and order else self.tokens


def prompts() -> list[Asked]:
    """24 prompts over six documents: every third without a plan, the others with documents in random order."""
    chance = random.Random(7)
    system = _tokens(chance, 37)
    documents = [_tokens(chance, chance.randrange(20, 60)) for _ in range(6)]
    return [_asked(chance, system, documents, plain=number % 3 == 0) for number in range(24)]


def _asked(chance: random.Random, system: list[int], documents: list[list[int]], *, plain: bool) -> Asked:
    chosen, question = chance.sample(documents, 3), _tokens(chance, chance.randrange(5, 30))
    tokens: list[int] = []
    segments: list[Segment] = []
    for kind, part in [
        (SegmentKind.SYSTEM, system),
        *((SegmentKind.DOCUMENT, document) for document in chosen),
        (SegmentKind.PRIVATE, question),
    ]:
        identity = segment_identity(part, "")
        segments.append(Segment(kind, len(tokens), len(tokens) + len(part), identity, identity))
        tokens += part
    runs = tuple((segment.start, segment.end) for segment in segments[1:-1])
    return Asked(tokens, None if plain else PromptPlan("", tuple(segments), runs, (1, 2, 3)))


def _tokens(chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(1, _VOCABULARY) for _ in range(count)]


def answers(model: str, asked: list[tuple[list[int], SamplingParams]], **engine: Any) -> list[list[int]]:
    """What an engine made with these arguments generates, and no trace of the engine."""
    llm = LLM(
        model,
        dtype="float32",
        block_size=16,
        max_model_len=512,
        max_num_seqs=6,
        enforce_eager=True,
        disable_log_stats=True,
        **engine,
    )
    outputs = llm.generate([TokensPrompt(prompt_token_ids=t) for t, _ in asked], [p for _, p in asked], use_tqdm=False)
    llm.llm_engine.engine_core.shutdown()
    del llm
    gc.collect()
    cleanup_dist_env_and_memory()
    return [list(output.outputs[0].token_ids) for output in outputs]


def facts_of(socket: zmq.Socket[bytes]) -> list[Fact]:
    facts: list[Fact] = []
    while socket.poll(500):
        facts += decode_batch(socket.recv()).facts
    return facts


def main(model: str, folder: str) -> dict[str, Any]:
    asked, address = prompts(), f"ipc://{folder}/facts"
    context = zmq.Context()
    socket = context.socket(zmq.PULL)
    socket.bind(address)
    prism = answers(
        model,
        [(one.tokens, one.params) for one in asked],
        num_gpu_blocks_override=40,
        enable_prefix_caching=True,
        scheduler_cls=SCHEDULER,
        additional_config={CONFIG_KEY: {"facts_address": address}},
    )
    facts = facts_of(socket)
    context.destroy(linger=0)
    admitted = {int(fact.request.split("-")[0]): fact for fact in facts if isinstance(fact, Admitted)}
    used = [one.in_order(admitted[number].order) for number, one in enumerate(asked)]
    plain = SamplingParams(temperature=0.0, max_tokens=_ANSWER, ignore_eos=True)
    stock = answers(
        model, [(tokens, plain) for tokens in used], num_gpu_blocks_override=400, enable_prefix_caching=False
    )
    return {
        "different": [number for number, pair in enumerate(zip(prism, stock, strict=True)) if pair[0] != pair[1]],
        "distinct": len({tuple(answer) for answer in stock}),
        "reordered": sum(bool(fact.order) for fact in admitted.values()),
        "cached": sum(fact.cached_tokens for fact in admitted.values()),
        "preempted": sum(isinstance(fact, Preempted) for fact in facts),
    }


if __name__ == "__main__":
    result = main(sys.argv[1], sys.argv[2])
    Path(sys.argv[2], "result.json").write_text(json.dumps(result))
