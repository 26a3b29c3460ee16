"""What is compared with what: the studies of `make results`, each a set of cells and the question it answers.

Loads go from half of the strongest baseline's knee to beyond it; knees were found by runs of this very simulator.
Seeds are 1, 2, 3, …; arms of one seed see the same workload.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from prism.bench.arms import BASELINES
from prism.bench.cells import Cell
from prism.bench.scenarios import SCENARIOS

MODELS = ("qwen3-4b", "llama2-13b")

P99_BOUND_S: Mapping[str, float] = {"qwen3-4b": 1.0, "llama2-13b": 3.0}
"""A load is sustained while P99 TTFT stays below this."""

SECONDS: Mapping[str, float] = {"qwen3-4b": 150.0, "llama2-13b": 450.0}
"""Virtual seconds a run, so that each has the requests for a P99; the first sixth is warm-up."""

LOADS_PER_S: Mapping[tuple[str, str], tuple[float, ...]] = {
    ("rag", "qwen3-4b"): (4.75, 6.65, 7.6, 8.5, 9.5, 10.0),
    ("rag", "llama2-13b"): (1.15, 1.6, 1.84, 2.05, 2.3, 2.6),
    ("rag-skewed", "qwen3-4b"): (5.5, 7.7, 8.8, 9.9, 11.0, 12.0),
    ("rag-skewed", "llama2-13b"): (1.3, 1.8, 2.1, 2.35, 2.6, 2.9),
}
"""From half of the strongest baseline's knee to beyond it."""

KNEE_PER_S: Mapping[tuple[str, str], float] = {panel: loads[-2] for panel, loads in LOADS_PER_S.items()}
"""About the highest load that the strongest baseline sustains: the last but one of the grid."""

_SESSION_SECONDS = 60.0
"""For agents: a session brings a dozen requests, and goes on long after the last one has begun."""


@dataclass(frozen=True, slots=True)
class Panel:
    """Arms on one scenario and model over loads.

    Attributes:
        baselines: those of `arms` among which the strongest is sought; the others are PRISM's, ablations, and bounds.
    """

    scenario: str
    model: str
    loads_per_s: tuple[float, ...]
    arms: tuple[str, ...]
    baselines: tuple[str, ...] = BASELINES
    kv_share: float = 1.0
    seconds: float | None = None
    """Virtual seconds a run where they are not the model's."""

    def cell(self, arm: str, load: float, seed: int) -> Cell:
        seconds = self.seconds or SECONDS[self.model]
        return Cell(self.scenario, self.model, load, arm, seed, seconds, seconds / 6, self.kv_share)

    def cells(self, seeds: Sequence[int]) -> Iterator[Cell]:
        """Seed by seed, so that a part of a grid says something about all of it."""
        for seed in seeds:
            for load in self.loads_per_s:
                for arm in self.arms:
                    yield self.cell(arm, load, seed)

    @property
    def title(self) -> str:
        share = self.kv_share * SCENARIOS[self.scenario].kv_share
        cache = "" if share == 1.0 else f", KV cache at {share:.0%}"
        longer = self.seconds is not None and self.seconds > SECONDS[self.model]
        length = f", {(self.seconds or 0.0) / 60:.0f} minutes a run" if longer else ""
        return f"{self.scenario}, {self.model}{cache}{length}"


@dataclass(frozen=True, slots=True)
class Study:
    """Panels that answer one question.

    Attributes:
        runs: of each cell, with seeds from 1 on.
    """

    name: str
    title: str
    about: str
    panels: tuple[Panel, ...]
    runs: int = 5

    def seeds(self, runs: int | None = None) -> range:
        """Those of its runs, or of another number of them."""
        return range(1, (runs or self.runs) + 1)

    def cells(self, seeds: Sequence[int]) -> Iterator[Cell]:
        for panel in self.panels:
            yield from panel.cells(seeds)


def _knee_loads(scenario: str, model: str, shares: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(KNEE_PER_S[scenario, model] * share, 2) for share in shares)


def _own_loads(scenario: str, model: str) -> tuple[float, ...]:
    return SCENARIOS[scenario].loads_per_s[model]


_RAG = ("rag", "rag-skewed")
_IN_ORDER = tuple(arm for arm in BASELINES if not arm.startswith("contextpilot"))
"""Where nothing may move, ContextPilot's proxy does nothing: it is stock vLLM."""
_RETENTIONS = (
    "prism",
    "prism-lru",
    "prism-lfu",
    "prism-lfu-window",
    "prism-gdsf",
    "prism-slru",
    "prism-fifo",
    "prism-ttl-250",
    "prism-ttl-1000",
    "prism-belady",
    "prism-endless",
)
_RUNS_FOR_P999 = 9
"""Together these have the five samples beyond it that a P99.9 takes."""
_WORST_CASES = (
    "rag-uniform",
    "plain",
    "long",
    "rag-sorted",
    "rag-tenants",
    "mixed",
    "mixed-unmarked",
    "rag-drift",
    "rag-crowd",
)

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Study(
            "load",
            "Time to first token against load",
            "Retrieval with documents declared unordered, drawn by Zipf's law with α = 1 and 1.15.",
            tuple(
                Panel(scenario, model, LOADS_PER_S[scenario, model], (*BASELINES, "paper", "prism", "prism-endless"))
                for scenario in _RAG
                for model in MODELS
            ),
        ),
        Study(
            "agents",
            "Agents, many sessions at once",
            "Recorded sessions that begin by a Poisson process; nothing of a prompt may move. One run in which many"
            " sessions meet decides over a P99 of all, so there are ten.",
            tuple(
                Panel(
                    scenario,
                    "qwen3-4b",
                    _own_loads(scenario, "qwen3-4b"),
                    (*_IN_ORDER, "paper", "prism", "stock-kept"),
                    _IN_ORDER,
                    seconds=_SESSION_SECONDS,
                )
                for scenario in ("agents-tight", "agents")
            ),
            runs=10,
        ),
        Study(
            "retention",
            "What is given up first",
            "One order, PRISM's; only retention differs. Belady's is a bound for that order, an endless cache for any.",
            tuple(
                Panel(scenario, model, _own_loads(scenario, model)[:1], _RETENTIONS, ("prism-lru",))
                for scenario in ("rag", "rag-quarter", "rag-eighth")
                for model in MODELS
            ),
        ),
        Study(
            "cold-lane",
            "The cold lane's quota",
            "The paper's scheme with less and more of it: hit rate against the tail of requests that share little. One"
            " in fifty is rare, so the runs in which stock vLLM still keeps up are ten times as long.",
            (
                *(
                    Panel(
                        "rag",
                        model,
                        _knee_loads("rag", model, (0.8,)),
                        ("stock", "paper-quota-0", "paper", "prism"),
                        ("stock",),
                        seconds=10 * SECONDS[model],
                    )
                    for model in MODELS
                ),
                *(
                    Panel(
                        "rag",
                        model,
                        _knee_loads("rag", model, (1.0, 1.3)),
                        ("stock", "paper-quota-0", "paper", "paper-quota-25", "paper-quota-50", "prism"),
                        ("stock",),
                    )
                    for model in MODELS
                ),
            ),
        ),
        Study(
            "popularity",
            "Skew of popularity",
            "Zipf's exponent from nearly uniform to very skewed, at 0.8 of the knee for α = 1.",
            tuple(
                Panel(scenario, model, _knee_loads("rag", model, (0.8,)), ("stock", "sglang", "contextpilot", "prism"))
                for scenario in (
                    "rag-alpha-0.4",
                    "rag-alpha-0.6",
                    "rag-alpha-0.8",
                    "rag",
                    "rag-alpha-1.2",
                    "rag-alpha-1.4",
                )
                for model in MODELS
            ),
        ),
        Study(
            "length",
            "Length of prompts",
            "3 to 20 documents a request; the load is scaled so that the documents a second stay the same.",
            tuple(
                Panel(
                    f"rag-{count}-documents",
                    model,
                    (round(KNEE_PER_S["rag", model] * 0.8 * 5 / count, 2),),
                    ("stock", "sglang", "contextpilot", "prism"),
                )
                for count in (3, 10, 20)
                for model in MODELS
            ),
        ),
        Study(
            "fixed",
            "Order fixed by the caller",
            "Nothing may move, and the KV cache is at a quarter: left are the order of admission, and retention.",
            tuple(
                Panel(scenario, model, _own_loads(scenario, model), ("stock", "sglang", "prism", "fcfs-belady"))
                for scenario in ("rag-fixed", "rag-fixed-sorted")
                for model in MODELS
            ),
        ),
        Study(
            "no-worse",
            "Where there is little or nothing to win",
            "PRISM must cost nothing there: at most 1.02 times the better of stock vLLM and SGLang's order.",
            (
                *(
                    Panel(scenario, model, _own_loads(scenario, model)[:1], ("stock", "sglang", "prism"))
                    for scenario in _WORST_CASES
                    for model in MODELS
                ),
                *(
                    Panel("rag", model, _knee_loads("rag", model, (1.3,)), ("stock", "sglang", "prism"))
                    for model in MODELS
                ),
                *(
                    Panel(
                        "rag",
                        model,
                        _knee_loads("rag", model, (0.2,)),
                        ("stock", "sglang", "prism"),
                        seconds=5 * SECONDS[model],
                    )
                    for model in MODELS
                ),
            ),
            runs=_RUNS_FOR_P999,
        ),
        Study(
            "traffic",
            "Recorded arrivals and real text",
            "Arrivals as in Azure's and Mooncake's traces; real passages and questions with what a retriever found.",
            tuple(
                Panel(
                    scenario,
                    "qwen3-4b",
                    _own_loads(scenario, "qwen3-4b")[:1],
                    ("stock", "sglang", "contextpilot", "prism"),
                )
                for scenario in SCENARIOS
                if scenario.startswith(("rag-azure", "rag-mooncake", "passages-", "questions-"))
            ),
        ),
    )
}
