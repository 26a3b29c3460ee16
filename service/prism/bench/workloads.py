"""Requests and when they come.

A workload is a list of open-loop arrivals and, for sessions, what follows when a request is finished. It is made from
a seed alone: the same arguments give the same tokens and times.

    rag         a shared system prompt, `k` documents, a private question; popularity may drift and crowd
    retrieved   real questions with the passages that a retriever found, best first
    plain       prompts that share nothing
    agents      recorded sessions, each turn with the whole conversation so far (`prism.bench.agents`)

They come by a Poisson process or as in recorded traffic (`prism.bench.arrivals`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from prism.bench.zipf import ZipfLaw
from prism.core.segments import PromptPlan, Segment, SegmentKind, fixed_plan, segment_identity
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
    """Arrivals in ascending order, and by a request's name what follows it.

    Attributes:
        rare: names of the requests that contain nothing popular (see `RagShape.rare_from`).
    """

    arrivals: tuple[Arrival, ...]
    follow_ups: Mapping[str, FollowUp] = field(default_factory=dict)
    rare: frozenset[str] = frozenset()

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
        per_request: bounds, both included, of the number of documents of a request, all different.
        alpha: exponent of Zipf's law over the documents; 0 is uniform.
        question_tokens, output_tokens: bounds, both included, of uniform draws.
        movable: whether the documents are declared unordered.
        order: `shuffled`, or `popular`: most popular first, as a retriever that ranks by popularity would have them.
        drift_s: seconds after which every document has passed its popularity on to another; 0 keeps it.
        crowd: a flash crowd: from when until when (shares of the run) which share of requests asks for documents
            among ten; None for none.
        rare_from: a request is rare if all its documents have this rank or a later one, the first being 0.
    """

    per_request: tuple[int, int] = (5, 5)
    alpha: float = 1.0
    question_tokens: tuple[int, int] = (20, 60)
    output_tokens: tuple[int, int] = (60, 140)
    movable: bool = True
    order: Literal["shuffled", "popular"] = "shuffled"
    drift_s: float = 0.0
    crowd: tuple[float, float, float] | None = None
    rare_from: int = 30


@dataclass(frozen=True, slots=True)
class Question:
    """A question as tokens, and the passages found for it, best first, as indices."""

    tokens: tuple[int, ...]
    passages: tuple[int, ...]


def random_tokens(rng: random.Random, count: int) -> list[int]:
    """`count` token ids, uniform."""
    return [int(rng.random() * VOCABULARY) for _ in range(count)]


def rag(
    corpus: Corpus, shape: RagShape, times: Sequence[float], seed: int, namespaces: Sequence[str] = ("",)
) -> Workload:
    """Retrieval requests at the given times.

    Which document has which rank in the popularity law is drawn by `seed`. Each namespace is a tenant's salt, see
    `SyntheticRequest.cache_salt`; tenants come by Zipf's law with exponent 1, and ask for the same documents.
    """
    rng = random.Random(f"rag {seed}")
    popularity = Popularity(len(corpus.documents), shape, times[-1] if times else 0.0, rng)
    tenants = ZipfLaw(len(namespaces), 1.0)
    builders = [RagPrompts(corpus, namespace, shape.movable) for namespace in namespaces]
    arrivals = []
    rare = []
    for number, at in enumerate(times):
        places = popularity.draw(rng, at)
        question = random_tokens(rng, rng.randint(*shape.question_tokens))
        output = rng.randint(*shape.output_tokens)
        builder = builders[tenants.draw(rng) if len(builders) > 1 else 0]
        name = f"rag{seed}-{number}"
        documents = [popularity.document(place, at) for place in places]
        arrivals.append(Arrival(at, builder.build(name, documents, question, output)))
        if min(places) >= shape.rare_from:
            rare.append(name)
    return Workload(tuple(arrivals), rare=frozenset(rare))


class Popularity:
    """Which documents are asked for, and when."""

    _CROWD = 10

    def __init__(self, documents: int, shape: RagShape, seconds: float, rng: random.Random) -> None:
        self._shape = shape
        self._seconds = seconds
        self._ranked = list(range(documents))
        rng.shuffle(self._ranked)
        self._law = ZipfLaw(documents, shape.alpha)
        self._in_crowd = ZipfLaw(self._CROWD, 0.0)

    def draw(self, rng: random.Random, at_s: float) -> list[int]:
        """Ranks of a request's documents in the order in which they come."""
        fewest, most = self._shape.per_request
        count = fewest if fewest == most else rng.randint(fewest, most)
        if self._crowds(at_s) and rng.random() < (self._shape.crowd or (0, 0, 0))[2]:
            # The crowd asks for what nobody asked for before: the last ranks.
            last = len(self._ranked) - 1
            places = [last - place for place in self._in_crowd.draw_distinct(rng, min(count, self._CROWD))]
        else:
            places = self._law.draw_distinct(rng, count)
        if self._shape.order == "popular":
            places.sort()
        else:
            rng.shuffle(places)
        return places

    def document(self, place: int, at_s: float) -> int:
        """The document that has this rank at this time."""
        moved = int(at_s / self._shape.drift_s * len(self._ranked)) if self._shape.drift_s else 0
        return self._ranked[(place + moved) % len(self._ranked)]

    def _crowds(self, at_s: float) -> bool:
        crowd = self._shape.crowd
        return crowd is not None and crowd[0] * self._seconds <= at_s < crowd[1] * self._seconds


def retrieved(
    passages: Sequence[tuple[int, ...]],
    questions: Sequence[Question],
    count: int,
    times: Sequence[float],
    seed: int,
    output_tokens: tuple[int, int],
    system: tuple[int, ...],
) -> Workload:
    """Real questions, in random order and each once until all were asked, with their best `count` passages."""
    rng = random.Random(f"retrieved {seed}")
    builder = RagPrompts(Corpus(system, tuple(passages)))
    order: list[int] = []
    arrivals = []
    for number, at in enumerate(times):
        if not order:
            order = rng.sample(range(len(questions)), len(questions))
        question = questions[order.pop()]
        name = f"question{seed}-{number}"
        request = builder.build(name, question.passages[:count], question.tokens, rng.randint(*output_tokens))
        arrivals.append(Arrival(at, request))
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
    times: Sequence[float],
    seed: int,
    prompt_tokens: tuple[int, int] = (500, 3000),
    output_tokens: tuple[int, int] = (60, 140),
) -> Workload:
    """Prompts of random tokens, with no segments: nothing to share."""
    rng = random.Random(f"plain {seed}")
    arrivals = []
    for number, at in enumerate(times):
        tokens = random_tokens(rng, rng.randint(*prompt_tokens))
        output = rng.randint(*output_tokens)
        request = SyntheticRequest(f"plain{seed}-{number}", tokens, output, PromptPlan(""))
        arrivals.append(Arrival(at, request))
    return Workload(tuple(arrivals))


def mixed(*workloads: Workload) -> Workload:
    """All of them at once.

    Raises:
        ValueError: two requests have one name.
    """
    names = Counter(one.request.name for work in workloads for one in work.arrivals)
    if shared := [name for name, count in names.items() if count > 1]:
        raise ValueError(f"two requests are called {shared[0]!r}: mix workloads of other seeds")
    arrivals = sorted((one for work in workloads for one in work.arrivals), key=lambda one: one.at_s)
    follow_ups: dict[str, FollowUp] = {}
    for work in workloads:
        follow_ups.update(work.follow_ups)
    return Workload(tuple(arrivals), follow_ups, frozenset().union(*(work.rare for work in workloads)))


def without_segments(workload: Workload) -> Workload:
    """The same prompts from clients that mark nothing."""

    def bare(request: SyntheticRequest) -> SyntheticRequest:
        namespace = request.plan.namespace if request.plan else ""
        return replace(request, plan=PromptPlan(namespace))

    return _each(workload, bare)


def as_written(workload: Workload) -> Workload:
    """The same requests, none of whose documents may move."""

    def fixed(request: SyntheticRequest) -> SyntheticRequest:
        return replace(request, plan=fixed_plan(request.plan)) if request.plan is not None else request

    return _each(workload, fixed)


def replaced(workload: Workload, requests: Mapping[str, SyntheticRequest]) -> Workload:
    """The same arrivals, with these requests in the place of those of their names."""
    return _each(workload, lambda request: requests.get(request.name, request))


def _each(workload: Workload, change: Callable[[SyntheticRequest], SyntheticRequest]) -> Workload:
    return Workload(
        tuple(Arrival(one.at_s, change(one.request)) for one in workload.arrivals),
        {name: FollowUp(one.after_s, change(one.request)) for name, one in workload.follow_ups.items()},
        workload.rare,
    )
