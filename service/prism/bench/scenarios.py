"""Named workloads, each with the loads at which it says something.

Answer lengths are not known from the published measurements. They are chosen per model so that stock vLLM's knee on
`rag` falls where it was measured before: about 8.5 requests/s for Qwen3-4B, 2.4 for Llama-2-13B.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prism.bench import workloads
from prism.bench.agents import agents
from prism.bench.real_data import PASSAGE_SETS, passages, recording
from prism.bench.workloads import Corpus, RagShape, Workload

OUTPUT_TOKENS: Mapping[str, tuple[int, int]] = {"qwen3-4b": (105, 215), "llama2-13b": (60, 140)}
"""Bounds of a uniform draw."""

Build = Callable[[str, float, float, int], Workload]
"""`(model, arrivals per second, seconds, seed)` to a workload."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload by name. `kv_share` is the share of the model's KV cache that it is meant for."""

    name: str
    workload: Build
    loads_per_s: Mapping[str, tuple[float, ...]]
    kv_share: float = 1.0


_RAG_LOADS = {"qwen3-4b": (8.5, 9.5, 10.0), "llama2-13b": (2.4, 2.7, 3.0)}


def _rag(alpha: float = 1.0, documents: int = 1000, movable: bool = True, popular_first: bool = False) -> Build:
    def build(model: str, per_second: float, seconds: float, seed: int) -> Workload:
        shape = RagShape(
            alpha=alpha,
            output_tokens=OUTPUT_TOKENS[model],
            movable=movable,
            sorted_by_popularity=popular_first,
        )
        return workloads.rag(Corpus.drawn(seed, documents), shape, per_second, seconds, seed)

    return build


def _plain(model: str, per_second: float, seconds: float, seed: int) -> Workload:
    return workloads.plain(per_second, seconds, seed, output_tokens=OUTPUT_TOKENS[model])


def _unmarked(model: str, per_second: float, seconds: float, seed: int) -> Workload:
    return workloads.without_segments(_rag()(model, per_second, seconds, seed))


def _mixed(model: str, per_second: float, seconds: float, seed: int) -> Workload:
    return workloads.mixed(_rag()(model, per_second / 2, seconds, seed), _plain(model, per_second / 2, seconds, seed))


def _passages(name: str) -> Build:
    def build(model: str, per_second: float, seconds: float, seed: int) -> Workload:
        corpus = Corpus(Corpus.drawn(seed, 0).system, passages(name))
        shape = RagShape(output_tokens=OUTPUT_TOKENS[model])
        return workloads.rag(corpus, shape, per_second, seconds, seed)

    return build


def _agents(model: str, per_second: float, seconds: float, seed: int) -> Workload:
    return agents(recording(), per_second, seconds, seed)


_PASSAGE_LOADS = {"qwen3-4b": (14.0, 18.0), "llama2-13b": (4.0, 5.0)}

SCENARIOS: dict[str, Scenario] = {
    one.name: one
    for one in (
        Scenario("rag", _rag(), _RAG_LOADS),
        Scenario("rag-skewed", _rag(alpha=1.15), {"qwen3-4b": (10.8,), "llama2-13b": (2.7,)}),
        Scenario("rag-uniform", _rag(alpha=0.0, documents=5000), {"qwen3-4b": (7.5,), "llama2-13b": (2.2,)}),
        Scenario("rag-quarter", _rag(), {"qwen3-4b": (8.4,), "llama2-13b": (1.5,)}, kv_share=0.25),
        Scenario("rag-fixed", _rag(movable=False), {"qwen3-4b": (7.0,), "llama2-13b": (1.5,)}, kv_share=0.25),
        Scenario("rag-sorted", _rag(popular_first=True), {"qwen3-4b": (7.0,), "llama2-13b": (1.5,)}, kv_share=0.25),
        Scenario("rag-unmarked", _unmarked, _RAG_LOADS),
        Scenario("plain", _plain, {"qwen3-4b": (6.0, 7.5), "llama2-13b": (1.6, 2.0)}),
        Scenario("mixed", _mixed, {"qwen3-4b": (7.5,), "llama2-13b": (2.1,)}),
        *(Scenario(f"passages-{name}", _passages(name), _PASSAGE_LOADS) for name in PASSAGE_SETS),
        Scenario("agents", _agents, {"qwen3-4b": (0.5, 1.0)}),
        Scenario("agents-tight", _agents, {"qwen3-4b": (0.8, 1.0)}, kv_share=0.15),
    )
}
