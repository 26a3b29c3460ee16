"""Requests and when they come.

A workload is a list of open-loop arrivals and, for sessions, what follows when a request is finished. It is made from
a seed alone: the same arguments give the same tokens and times.

    rag         a shared system prompt, `k` documents in random order, a private question
    plain       prompts that share nothing
    agents      recorded sessions, each turn with the whole conversation so far (`prism.bench.agents`)
"""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from prism.core.segments import PromptPlan, Segment, SegmentKind, segment_identity
from prism.engine.enginecore.synthetic import SyntheticRequest

VOCABULARY = 151_643
"""Ordinary tokens of Qwen3's tokenizer; ids below it."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """`request` comes at `at_s` seconds."""

    at_s: float
    request: SyntheticRequest


@dataclass(frozen=True, slots=True)
class FollowUp:
    """`request` comes `after_s` seconds after the request before it has finished."""

    after_s: float
    request: SyntheticRequest


@dataclass(frozen=True, slots=True)
class Workload:
    """Arrivals in ascending order, and by a request's name what follows it."""

    arrivals: tuple[Arrival, ...]
    follow_ups: Mapping[str, FollowUp] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.arrivals) + len(self.follow_ups)

    def tokens(self) -> int:
        """Prompt and answer tokens of all requests."""
        requests = [one.request for one in self.arrivals] + [one.request for one in self.follow_ups.values()]
        return sum(len(request.tokens) + request.output_tokens for request in requests)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents as tokens, and a system prompt; identities are those of the empty namespace."""

    system: tuple[int, ...]
    documents: tuple[tuple[int, ...], ...]

    @classmethod
    def drawn(
        cls, seed: int, documents: int = 1000, shortest: int = 100, longest: int = 600, system_tokens: int = 200
    ) -> Corpus:
        """Documents of random tokens, their lengths uniform from `shortest` to `longest`."""
        rng = random.Random(f"corpus {seed}")
        system = tuple(random_tokens(rng, system_tokens))
        return cls(system, tuple(tuple(random_tokens(rng, rng.randint(shortest, longest))) for _ in range(documents)))


@dataclass(frozen=True, slots=True)
class RagShape:
    """What a retrieval request looks like.

    Attributes:
        per_request: documents of a request, all different.
        alpha: exponent of Zipf's law over the documents; 0 is uniform.
        question_tokens, output_tokens: bounds, both included, of uniform draws.
        movable: whether the documents are declared unordered.
        sorted_by_popularity: whether they come most popular first instead of in random order.
    """

    per_request: int = 5
    alpha: float = 1.0
    question_tokens: tuple[int, int] = (20, 60)
    output_tokens: tuple[int, int] = (60, 140)
    movable: bool = True
    sorted_by_popularity: bool = False


class ZipfLaw:
    """Draws from `range(size)`, index `i` with weight `1 / (i + 1) ** alpha`."""

    def __init__(self, size: int, alpha: float) -> None:
        self._cumulative = list(accumulate((rank + 1) ** -alpha for rank in range(size)))

    def draw(self, rng: random.Random) -> int:
        return bisect(self._cumulative, rng.random() * self._cumulative[-1], hi=len(self._cumulative) - 1)

    def draw_distinct(self, rng: random.Random, count: int) -> list[int]:
        """`count` different indices in the order in which they were drawn."""
        drawn: dict[int, None] = {}
        while len(drawn) < count:
            drawn[self.draw(rng)] = None
        return list(drawn)


def poisson_times(rng: random.Random, per_second: float, seconds: float) -> list[float]:
    """Ascending arrival times from 0 to `seconds`."""
    times: list[float] = []
    at = rng.expovariate(per_second)
    while at < seconds:
        times.append(at)
        at += rng.expovariate(per_second)
    return times


def random_tokens(rng: random.Random, count: int) -> list[int]:
    """`count` token ids, uniform."""
    return [int(rng.random() * VOCABULARY) for _ in range(count)]


def rag(corpus: Corpus, shape: RagShape, per_second: float, seconds: float, seed: int, namespace: str = "") -> Workload:
    """Retrieval requests by a Poisson process.

    Which document has which rank in the popularity law is drawn by `seed`. A `namespace` other than the empty one is
    the tenant's salt: see `SyntheticRequest.cache_salt`.
    """
    rng = random.Random(f"rag {seed}")
    ranked = list(range(len(corpus.documents)))
    rng.shuffle(ranked)
    law = ZipfLaw(len(ranked), shape.alpha)
    builder = RagPrompts(corpus, namespace, shape.movable)
    arrivals = []
    for number, at in enumerate(poisson_times(rng, per_second, seconds)):
        places = law.draw_distinct(rng, shape.per_request)
        if shape.sorted_by_popularity:
            places.sort()
        else:
            rng.shuffle(places)
        question = random_tokens(rng, rng.randint(*shape.question_tokens))
        output = rng.randint(*shape.output_tokens)
        name = f"rag{seed}-{number}"
        arrivals.append(Arrival(at, builder.build(name, [ranked[place] for place in places], question, output)))
    return Workload(tuple(arrivals))


class RagPrompts:
    """Builds a retrieval request: system prompt, documents, question, with its plan."""

    def __init__(self, corpus: Corpus, namespace: str = "", movable: bool = True) -> None:
        self._corpus = corpus
        self._namespace = namespace
        self._movable = movable
        self._system = segment_identity(corpus.system, namespace)
        self._identities = [segment_identity(document, namespace) for document in corpus.documents]

    def build(self, name: str, documents: Sequence[int], question: Sequence[int], output: int) -> SyntheticRequest:
        """A request with these documents, indices into the corpus, in this order."""
        tokens = list(self._corpus.system)
        segments = []
        if tokens:
            segments.append(Segment(SegmentKind.SYSTEM, 0, len(tokens), self._system, self._system))
        first = len(segments)
        for index in documents:
            start = len(tokens)
            tokens.extend(self._corpus.documents[index])
            identity = self._identities[index]
            segments.append(Segment(SegmentKind.DOCUMENT, start, len(tokens), identity, identity))
        runs = tuple((segment.start, segment.end) for segment in segments[first:]) if self._movable else ()
        segments.append(self._private(len(tokens), question))
        tokens.extend(question)
        plan = PromptPlan(self._namespace, tuple(segments), runs, tuple(range(first, first + len(runs))))
        return SyntheticRequest(name, tokens, output, plan, self._namespace or None)

    def _private(self, start: int, question: Sequence[int]) -> Segment:
        identity = segment_identity(question, self._namespace)
        return Segment(SegmentKind.PRIVATE, start, start + len(question), identity, identity)


def plain(
    per_second: float,
    seconds: float,
    seed: int,
    prompt_tokens: tuple[int, int] = (500, 3000),
    output_tokens: tuple[int, int] = (60, 140),
) -> Workload:
    """Prompts of random tokens, with no segments: nothing to share."""
    rng = random.Random(f"plain {seed}")
    arrivals = []
    for number, at in enumerate(poisson_times(rng, per_second, seconds)):
        tokens = random_tokens(rng, rng.randint(*prompt_tokens))
        output = rng.randint(*output_tokens)
        request = SyntheticRequest(f"plain{seed}-{number}", tokens, output, PromptPlan(""))
        arrivals.append(Arrival(at, request))
    return Workload(tuple(arrivals))


def mixed(*workloads: Workload) -> Workload:
    """All of them at once. Names must differ."""
    arrivals = sorted((one for work in workloads for one in work.arrivals), key=lambda one: one.at_s)
    follow_ups: dict[str, FollowUp] = {}
    for work in workloads:
        follow_ups.update(work.follow_ups)
    return Workload(tuple(arrivals), follow_ups)


def without_segments(workload: Workload) -> Workload:
    """The same prompts from clients that mark nothing."""

    def bare(request: SyntheticRequest) -> SyntheticRequest:
        namespace = request.plan.namespace if request.plan else ""
        return replace(request, plan=PromptPlan(namespace))

    return Workload(
        tuple(Arrival(one.at_s, bare(one.request)) for one in workload.arrivals),
        {name: FollowUp(one.after_s, bare(one.request)) for name, one in workload.follow_ups.items()},
    )
