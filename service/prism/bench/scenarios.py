"""Named workloads, each with the loads at which it says something.

Answer lengths are not known from the published measurements. They are chosen per model so that stock vLLM's knee on
`rag` falls where it was measured before: about 8.5 requests/s for Qwen3-4B, 2.4 for Llama-2-13B.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from prism.bench import workloads
from prism.bench.agents import agents
from prism.bench.arrivals import POISSON, TRACES, arrival_times
from prism.bench.real_data import PASSAGE_SETS, passages, questions, recording
from prism.bench.workloads import Corpus, RagShape, Workload

OUTPUT_TOKENS: Mapping[str, tuple[int, int]] = {"qwen3-4b": (105, 215), "llama2-13b": (60, 140)}
"""Bounds of a uniform draw."""

_ANY_OUTPUT = (60, 140)
_APART = 1000
"""Between the seeds of parts of one kind that are mixed."""


class Build(Protocol):
    """What makes a workload: a frozen dataclass, whose fields with its name say all about it."""

    def __call__(self, place: Place, per_second: float, seconds: float, seed: int) -> Workload:
        """Requests of `seconds` at this rate."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where it is going to run.

    Attributes:
        kv_tokens: what the KV cache holds.
        output_tokens: bounds, both included, of the lengths of made-up answers.
    """

    kv_tokens: int
    output_tokens: tuple[int, int] = _ANY_OUTPUT


@dataclass(frozen=True, slots=True)
class Rag:
    """Retrieval over documents drawn by Zipf's law; see `RagShape`."""

    alpha: float = 1.0
    documents: int = 1000
    per_request: tuple[int, int] = (5, 5)
    movable: bool = True
    order: Literal["shuffled", "popular"] = "shuffled"
    arrivals: str = POISSON
    passages: str = ""
    """A set of real passages in place of made-up documents."""
    tenants: int = 1
    drift_s: float = 0.0
    crowd: tuple[float, float, float] | None = None
    marked: bool = True

    def __call__(self, place: Place, per_second: float, seconds: float, seed: int) -> Workload:
        shape = RagShape(
            per_request=self.per_request,
            alpha=self.alpha,
            output_tokens=place.output_tokens,
            movable=self.movable,
            order=self.order,
            drift_s=self.drift_s,
            crowd=self.crowd,
        )
        times = arrival_times(self.arrivals, per_second, seconds, seed)
        salts = [f"tenant-{number}" for number in range(self.tenants)] if self.tenants > 1 else [""]
        workload = workloads.rag(self._corpus(seed), shape, times, seed, salts)
        return workload if self.marked else workloads.without_segments(workload)

    def _corpus(self, seed: int) -> Corpus:
        if not self.passages:
            return Corpus.drawn(seed, self.documents)
        return Corpus(Corpus.drawn(seed, 0).system, passages(self.passages))


@dataclass(frozen=True, slots=True)
class Retrieved:
    """Real questions with their best passages, as the retriever ranked them."""

    passages: str
    count: int = 5
    arrivals: str = POISSON

    def __call__(self, place: Place, per_second: float, seconds: float, seed: int) -> Workload:
        times = arrival_times(self.arrivals, per_second, seconds, seed)
        found, asked = passages(self.passages), questions(self.passages)
        system = Corpus.drawn(seed, 0).system
        return workloads.retrieved(found, asked, self.count, times, seed, place.output_tokens, system)


@dataclass(frozen=True, slots=True)
class Plain:
    """Prompts that share nothing and mark nothing."""

    arrivals: str = POISSON

    def __call__(self, place: Place, per_second: float, seconds: float, seed: int) -> Workload:
        times = arrival_times(self.arrivals, per_second, seconds, seed)
        return workloads.plain(times, seed, output_tokens=place.output_tokens)


@dataclass(frozen=True, slots=True)
class Long:
    """Prompts longer than half the KV cache, sharing nothing, bounded by what a model reads."""

    longest: int = 32_000

    def __call__(self, place: Place, per_second: float, seconds: float, seed: int) -> Workload:
        bounds = (min(self.longest, int(0.52 * place.kv_tokens)), min(self.longest, int(0.6 * place.kv_tokens)))
        times = arrival_times(POISSON, per_second, seconds, seed + 1)
        return workloads.plain(times, seed + 1, prompt_tokens=bounds, output_tokens=place.output_tokens)


@dataclass(frozen=True, slots=True)
class Agents:
    """Recorded agent sessions; the rate is that at which sessions begin."""

    arrivals: str = POISSON

    def __call__(self, place: Place, per_second: float, seconds: float, seed: int) -> Workload:
        return agents(recording(), arrival_times(self.arrivals, per_second, seconds, seed), seed)


@dataclass(frozen=True, slots=True)
class Mixed:
    """Several at once; each gets its share of the rate."""

    parts: tuple[tuple[float, Build], ...]

    def __call__(self, place: Place, per_second: float, seconds: float, seed: int) -> Workload:
        kinds: Counter[str] = Counter()
        parts = []
        for share, build in self.parts:
            # Of one kind and one seed they would be the same requests at the same moments, under the same names.
            kind = type(build).__name__
            parts.append(build(place, per_second * share, seconds, seed + _APART * kinds[kind]))
            kinds[kind] += 1
        return workloads.mixed(*parts)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload by name. `kv_share` is the share of the model's KV cache that it is meant for."""

    name: str
    workload: Build
    loads_per_s: Mapping[str, tuple[float, ...]]
    kv_share: float = 1.0

    def definition(self) -> dict[str, Any]:
        """All that the workload depends on, as plain values."""
        return {"name": self.name, "workload": _described(self.workload)}


def _described(build: Any) -> dict[str, Any]:
    fields = asdict(build)
    if isinstance(build, Mixed):
        fields["parts"] = [[share, _described(part)] for share, part in build.parts]
    return {"kind": type(build).__name__, **fields}


_RAG_LOADS = {"qwen3-4b": (8.5, 9.5, 10.0), "llama2-13b": (2.05, 2.3, 2.6)}
_QUARTER_LOADS = {"qwen3-4b": (7.0,), "llama2-13b": (1.5,)}
_FIXED_LOADS = {"qwen3-4b": (7.0,), "llama2-13b": (1.0, 1.5)}
_PASSAGE_LOADS = {"qwen3-4b": (14.0, 18.0), "llama2-13b": (4.0, 5.0)}
_ALPHAS = (0.4, 0.6, 0.8, 1.2, 1.4)
_COUNTS = (3, 10, 20)

_LIST = (
    Scenario("rag", Rag(), _RAG_LOADS),
    Scenario("rag-skewed", Rag(alpha=1.15), {"qwen3-4b": (10.8,), "llama2-13b": (2.7,)}),
    *(Scenario(f"rag-alpha-{alpha:g}", Rag(alpha=alpha), _RAG_LOADS) for alpha in _ALPHAS),
    *(Scenario(f"rag-{count}-documents", Rag(per_request=(count, count)), _RAG_LOADS) for count in _COUNTS),
    Scenario("rag-3-to-20-documents", Rag(per_request=(3, 20)), {"qwen3-4b": (4.0,), "llama2-13b": (1.1,)}),
    Scenario("rag-uniform", Rag(alpha=0.0, documents=5000), {"qwen3-4b": (7.5,), "llama2-13b": (2.2,)}),
    Scenario("rag-quarter", Rag(), {"qwen3-4b": (8.4,), "llama2-13b": (1.5,)}, kv_share=0.25),
    Scenario("rag-eighth", Rag(), {"qwen3-4b": (7.0,), "llama2-13b": (0.8,)}, kv_share=0.12),
    Scenario("rag-fixed", Rag(movable=False), _FIXED_LOADS, kv_share=0.25),
    Scenario("rag-fixed-sorted", Rag(order="popular", movable=False), _FIXED_LOADS, kv_share=0.25),
    Scenario("rag-sorted", Rag(order="popular"), _QUARTER_LOADS, kv_share=0.25),
    Scenario("rag-unmarked", Rag(marked=False), _RAG_LOADS),
    Scenario("rag-tenants", Rag(tenants=8), _RAG_LOADS),
    Scenario("rag-drift", Rag(drift_s=3600.0), _RAG_LOADS),
    Scenario("rag-crowd", Rag(crowd=(0.4, 0.6, 0.5)), _RAG_LOADS),
    *(Scenario(f"rag-{trace.replace('_', '-')}", Rag(arrivals=trace), _RAG_LOADS) for trace in TRACES),
    Scenario("plain", Plain(), {"qwen3-4b": (6.0, 7.5), "llama2-13b": (1.6, 2.0)}),
    Scenario("mixed", Mixed(((0.5, Rag()), (0.5, Plain()))), {"qwen3-4b": (7.5,), "llama2-13b": (2.1,)}),
    Scenario("mixed-unmarked", Mixed(((0.5, Rag()), (0.5, Rag(marked=False)))), _RAG_LOADS),
    Scenario(
        "mixed-agents", Mixed(((0.92, Rag()), (0.08, Agents()))), {"qwen3-4b": (5.0, 6.0), "llama2-13b": (1.0, 1.5)}
    ),
    Scenario(
        "long", Mixed(((0.9, Rag()), (0.1, Long()))), {"qwen3-4b": (1.5, 2.5), "llama2-13b": (0.4, 0.7)}, kv_share=0.14
    ),
    *(Scenario(f"passages-{name}", Rag(passages=name), _PASSAGE_LOADS) for name in PASSAGE_SETS),
    *(Scenario(f"questions-{name}", Retrieved(name), _PASSAGE_LOADS) for name in PASSAGE_SETS),
    Scenario("agents", Agents(), {"qwen3-4b": (0.5, 1.0)}),
    Scenario("agents-tight", Agents(), {"qwen3-4b": (0.6, 0.8, 1.0)}, kv_share=0.15),
)

SCENARIOS: dict[str, Scenario] = {one.name: one for one in _LIST}
