"""vLLM's real scheduler with no model, stepped by hand: what the tests of this folder share."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from vllm.sampling_params import SamplingParams
from vllm.v1.core.kv_cache_utils import get_block_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from prism.config.schema import PrismSpec
from prism.core.segments import PromptPlan, Segment, SegmentKind, segment_identity
from prism.engine.enginecore.harness import ModelFreeEngine, Step, block_hasher
from prism.engine.enginecore.scheduler import DemandAwareScheduling
from prism.engine.enginecore.synthetic import EngineLimits, SyntheticRequest
from prism.engine.internals import ASYNC_SCHEDULER

BLOCK = 16
SMALL = EngineLimits(kv_blocks=64, block_tokens=BLOCK, max_running=8, step_tokens=512, model_tokens=4096)
STEP_SECONDS = 0.05
_ENOUGH_MOVES = 20_000

AS_STOCK = PrismSpec.model_validate({"scheduler": {"order": "FCFS"}, "retention": {"policy": "LRU"}})


def spec_of(order: str = "Prism", retention: str = "DemandAware", **scheduler: Any) -> PrismSpec:
    """Settings in the document's spelling."""
    return PrismSpec.model_validate(
        {"scheduler": {"order": order, **scheduler}, "retention": {"policy": retention}},
    )


@dataclass(frozen=True, slots=True)
class Decision:
    """What one move of the engine loop decided; a processed step has `finished` and `first_tokens` only."""

    admitted: tuple[str, ...] = ()
    resumed: tuple[str, ...] = ()
    tokens: int = 0
    free_blocks: int = -1
    blocks: tuple[tuple[str, tuple[int, ...]], ...] = ()
    finished: tuple[str, ...] = ()
    first_tokens: tuple[tuple[str, int], ...] = ()


class Rig:
    """One engine without a model, a clock that a pass moves on, and a record of what happened."""

    def __init__(
        self,
        scheduler_class: str | type[Scheduler] = ASYNC_SCHEDULER,
        limits: EngineLimits = SMALL,
        spec: PrismSpec | None = None,
        additional_config: dict[str, Any] | None = None,
    ) -> None:
        self.engine = ModelFreeEngine(scheduler_class, limits, additional_config)
        self.now = 1000.0
        self.engine.use_clock(lambda: self.now)
        if spec is not None:
            self.engine.use_settings(spec)
        self.log: list[Decision] = []
        self.admitted: list[str] = []
        self.admitted_at: dict[str, float] = {}
        self.finished: list[str] = []
        self.prompts: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self._hash_blocks = block_hasher(limits.block_tokens)

    @property
    def prism(self) -> DemandAwareScheduling:
        scheduler = self.engine.scheduler
        assert isinstance(scheduler, DemandAwareScheduling)
        return scheduler

    @property
    def scheduler(self) -> Scheduler:
        return self.engine.scheduler

    # ---- requests ----

    def add(
        self,
        name: str,
        tokens: Sequence[int],
        output_tokens: int = 1,
        *,
        plan: PromptPlan | None = None,
        salt: str | None = None,
        priority: int = 0,
    ) -> None:
        self.send(SyntheticRequest(name, list(tokens), output_tokens, plan, salt, priority))

    def send(self, request: SyntheticRequest) -> None:
        self.prompts[request.name] = request.tokens
        self.engine.add(request, self.now)

    def make(self, name: str, tokens: Sequence[int], output_tokens: int = 1, **special: Any) -> Request:
        """vLLM's own request; `params` are fields of its sampling parameters, others of the request."""
        params = special.pop("params", {})
        return Request(
            request_id=name,
            prompt_token_ids=list(tokens),
            sampling_params=SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True, **params),
            pooling_params=None,
            arrival_time=self.now,
            block_hasher=self._hash_blocks,
            **special,
        )

    def add_made(self, request: Request) -> None:
        self.engine._answers.setdefault(request.request_id, 0)
        self.scheduler.add_request(request)

    def abort(self, name: str) -> None:
        self.engine.abort(name)

    def request(self, name: str) -> Request:
        request: Request = self.scheduler.requests[name]
        return request

    # ---- the engine loop ----

    def move(self) -> Step | None:
        """One move of vLLM's loop: a pass, or the oldest step processed. None if it was no pass."""
        self.now += STEP_SECONDS
        if self.engine.can_schedule:
            return self.schedule()
        if self.engine.in_flight:
            self.complete()
        return None

    def schedule(self) -> Step:
        step = self.engine.schedule()
        self.admitted += step.admitted
        self.admitted_at |= dict.fromkeys(step.admitted, self.now)
        blocks = tuple((new.req_id, tuple(new.block_ids[0])) for new in step.output.scheduled_new_reqs)
        self.log.append(Decision(tuple(step.admitted), tuple(step.resumed), step.work.tokens, step.free_blocks, blocks))
        return step

    def complete(self) -> None:
        result = self.engine.complete()
        # A session goes on with its next input after it has finished one.
        self.engine._answers |= {name: 0 for name in result.finished if name in self.scheduler.requests}
        first = tuple((one.name, one.cached_tokens) for one in result.first_tokens)
        self.cached.update(first)
        self.finished += result.finished
        self.log.append(Decision(finished=tuple(result.finished), first_tokens=first))

    def run(self, moves: int = _ENOUGH_MOVES) -> None:
        """Until nothing is left, and the last freed requests are told to the workers."""
        for _ in range(moves):
            if not (self.engine.can_schedule or self.engine.in_flight):
                return
            self.move()
        raise AssertionError(f"{self.engine.unfinished} requests are still unfinished after {moves} moves")

    def run_for(self, moves: int) -> None:
        """At most so many moves; fewer when nothing is left to do."""
        for _ in range(moves):
            if self.engine.can_schedule or self.engine.in_flight:
                self.move()

    def serve(self, name: str, tokens: Sequence[int], output_tokens: int = 1, **more: Any) -> int:
        """One request from arrival to end; its cached tokens."""
        self.add(name, tokens, output_tokens, **more)
        self.run()
        return self.cached[name]

    # ---- state ----

    @property
    def free_blocks(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def cached_tokens_of(self, tokens: Sequence[int], **special: Any) -> int:
        """Prompt tokens that vLLM would find cached, by its own lookup."""
        request = self.make("probe", [*tokens, 0], **special)
        _, cached, _ = self.scheduler.kv_cache_manager.get_computed_blocks(request)
        return int(cached)

    def cached_hashes(self) -> set[bytes]:
        """The hashes that vLLM would find a block for."""
        found = self.scheduler.kv_cache_manager.block_pool.cached_block_hash_to_block._cache
        return {bytes(get_block_hash(key)) for key in found}

    def leftovers(self) -> dict[str, int]:
        """What is still held for requests; all zero when none is left."""
        decisions, pool = self.prism.decisions, self.scheduler.kv_cache_manager.block_pool
        tree, blocks = decisions.tree, self.prism._blocks
        indexed, cached = set(tree._index), self.cached_hashes()
        # What is chosen ahead is found until it is used, and the tree has given it up.
        chosen = {bytes(get_block_hash(block.block_hash)) for block, _ in blocks._chosen.values() if block.block_hash}
        return {
            "requests": len(self.scheduler.requests),
            "prompts": len(decisions._prompts),
            "waiting": len(decisions.room) + len(self.scheduler.skipped_waiting),
            "resumed": sum(map(len, decisions.room._resumed.values())),
            "expected": len(tree._expected),
            "ledger": len(decisions.ledger),
            "queued nodes": sum(node.queued != 0 for node in set(tree._index.values())),
            "stepped over": len(self.prism._stepped_over),
            "prefilling": len(self.prism._prefilling),
            "steps": len(self.prism._steps),
            "used blocks": pool.num_gpu_blocks - 1 - self.free_blocks,
            "blocks unknown to the tree": abs(tree.free_blocks - len(blocks._hashed)),
            "prefixes the tree is wrong about": len((indexed - cached) | (cached - indexed - chosen)),
        }


# ---- prompts ----


def tokens_of(seed: object, count: int) -> list[int]:
    """`count` random token ids, the same for the same seed."""
    chance = random.Random(str(seed))
    return [chance.randrange(1, 100_000) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Rag:
    """A prompt of a system part, documents and a question, with its plan."""

    tokens: list[int]
    plan: PromptPlan


def rag(
    documents: Sequence[Sequence[int]],
    question: Sequence[int],
    *,
    system: Sequence[int] = (),
    movable: bool = True,
    namespace: str = "",
) -> Rag:
    """The prompt with its documents in this order; `movable` declares their order free."""
    parts = [(SegmentKind.SYSTEM, system)] if system else []
    parts += [(SegmentKind.DOCUMENT, document) for document in documents]
    parts.append((SegmentKind.PRIVATE, question))
    tokens: list[int] = []
    segments = []
    for kind, part in parts:
        identity = segment_identity(part, namespace)
        segments.append(Segment(kind, len(tokens), len(tokens) + len(part), identity, identity))
        tokens += part
    places = [i for i, segment in enumerate(segments) if segment.kind is SegmentKind.DOCUMENT and movable]
    runs = tuple((segments[i].start, segments[i].end) for i in places)
    return Rag(tokens, PromptPlan(namespace, tuple(segments), runs, tuple(places)))


def tight(kv_blocks: int, **other: Any) -> EngineLimits:
    """`SMALL` with another pool: the null block comes on top of `kv_blocks` usable ones."""
    return replace(SMALL, kv_blocks=kv_blocks + 1, **other)


def changed(scheduler: type[Scheduler], **change: Callable[[Any], Any]) -> type[Scheduler]:
    """A class whose instances are given other keywords than the harness gives: each is what its function returns."""

    def make(**given: Any) -> Scheduler:
        given |= {name: function(given.get(name)) for name, function in change.items()}
        return scheduler(**given)

    return cast("type[Scheduler]", make)


RigFactory = Callable[..., Rig]


# ---- random streams ----


@dataclass(frozen=True, slots=True)
class Stream:
    """A random stream of requests over few documents, and what happens between them.

    Attributes:
        abort_share: chance of an abort, of any request at any moment, per move.
        reset_share: chance of a reset of the prefix cache per move, every second one with running requests.
    """

    seed: int
    requests: int = 60
    documents: int = 12
    longest_document: int = 100
    longest_answer: int = 60
    salts: tuple[str | None, ...] = (None,)
    priorities: int = 1
    plans: bool = False
    abort_share: float = 0.03
    reset_share: float = 0.0

    def make(self) -> list[SyntheticRequest]:
        chance = random.Random(self.seed)
        documents = [
            tokens_of((self.seed, n), chance.randrange(8, self.longest_document)) for n in range(self.documents)
        ]
        return [self._one(chance, documents, number) for number in range(self.requests)]

    def _one(self, chance: random.Random, documents: list[list[int]], number: int) -> SyntheticRequest:
        chosen = [
            documents[min(int(chance.paretovariate(1)) - 1, self.documents - 1)] for _ in range(chance.randrange(4))
        ]
        salt = chance.choice(self.salts)
        prompt = rag(
            chosen,
            tokens_of(chance.random(), chance.randrange(1, 40)),
            system=tokens_of("system", 20) if chance.random() < 0.7 else (),
            movable=chance.random() < 0.7,
            namespace=salt or "",
        )
        plan = prompt.plan if self.plans and chance.random() < 0.8 else None
        answer = chance.randrange(1, self.longest_answer)
        priority = chance.randrange(self.priorities)
        return SyntheticRequest(f"r{number:04}", prompt.tokens, answer, plan, salt, priority)


def play(rig: Rig, stream: Stream, between: Callable[[random.Random], None] = lambda _: None) -> None:
    """Sends a stream, with its aborts and resets, and runs until nothing is left. `between` is called before moves."""
    chance = random.Random(stream.seed + 1)
    coming = stream.make()
    coming.reverse()
    while coming or rig.engine.can_schedule or rig.engine.in_flight:
        between(chance)
        while coming and chance.random() < 0.35:
            rig.send(coming.pop())
        if chance.random() < stream.abort_share:
            rig.abort(f"r{chance.randrange(stream.requests):04}")
        if chance.random() < stream.reset_share:
            rig.scheduler.reset_prefix_cache(reset_running_requests=chance.random() < 0.5)
        rig.move()
