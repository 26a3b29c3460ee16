"""What crosses between the serving process and EngineCore, both ways.

Forward, with each request: `PlanMessage`, in `sampling_params.extra_args[EXTRA_ARGS_KEY]`. Back: `FactBatch`es on one
bounded, non-blocking local channel (a ZeroMQ PUSH socket in EngineCore, PULL in the serving process) whose address
travels in `additional_config`. Facts name requests by vLLM's internal id and times by `time.monotonic()`, which is one
clock for all processes of a machine.

A fact may be lost: the sender never waits, `FactBatch.dropped` counts what it threw away, `FactBatch.sequence` has no
gaps otherwise. Whoever reads must make do with the facts that came.
"""

from __future__ import annotations

from typing import Any

import msgspec

from prism.core.reuse import SegmentReuse
from prism.core.segments import DIGEST_BYTES, PromptPlan, Segment, SegmentKind

EXTRA_ARGS_KEY = "prism"
"""Key of `SamplingParams.extra_args` that carries an encoded `PromptPlan`."""

CONFIG_KEY = "prism"
"""Key of `VllmConfig.additional_config` that carries `EngineCoreOptions`."""

WIRE_VERSION = 1


class EngineCoreOptions(msgspec.Struct, frozen=True):
    """What the launcher tells the scheduler, in `additional_config[CONFIG_KEY]` (a plain dict there).

    Attributes:
        facts_address: ZeroMQ address of the serving process's PULL socket; None sends nothing.
        config_path: the settings document to watch; None means the defaults for ever.
        pod_name: how this pod finds itself among a candidate's pods.
        poll_seconds: how often the document is looked at.
        namespaced_salts: whether requests come with a namespace (see `core.namespace`) as their cache salt.
    """

    facts_address: str | None = None
    config_path: str | None = None
    pod_name: str | None = None
    poll_seconds: float = 0.5
    namespaced_salts: bool = False


class Queued(msgspec.Struct, frozen=True, tag="queued", array_like=True):
    """A request reached the scheduler. `depth` requests were waiting before it."""

    request: str
    at: float
    depth: int


class Admitted(msgspec.Struct, frozen=True, tag="admitted", array_like=True):
    """A request was scheduled for the first time.

    Attributes:
        lane: `hot`, `cold` or `none`.
        bucket: short digest of its ordered high-priority segments; empty without any.
        why: what it waited for last: `none`, `slots`, `memory`, `budget`, `order`, `grammar`, `adapter`, `remote_kv`.
        depth: requests still waiting after this pass.
        cached_tokens, prompt_tokens: prefix-cache hit, whole prompt.
        segments_hit, segments: reusable segments wholly served from cache, reusable segments.
        cached_by_kind, tokens_by_kind: prompt tokens by segment kind (`plain` for tokens of no segment).
        order: the permutation of the movable runs that was used; empty if the caller's order stands.
        generation: settings generation of the pass.
        overtaken: admissions that passed this request while it was its priority's oldest.
        reuse: why each segment hit or missed, in the order in which they are computed.
    """

    request: str
    at: float
    lane: str
    bucket: str
    why: str
    depth: int
    cached_tokens: int
    prompt_tokens: int
    segments_hit: int
    segments: int
    cached_by_kind: dict[str, int]
    tokens_by_kind: dict[str, int]
    order: list[int]
    generation: int
    overtaken: int
    reuse: tuple[SegmentReuse, ...] = ()


class PrefillChunk(msgspec.Struct, frozen=True, tag="chunk", array_like=True):
    """A part of the prompt was scheduled: tokens `start` to `end`."""

    request: str
    at: float
    start: int
    end: int


class PrefillDone(msgspec.Struct, frozen=True, tag="prefilled", array_like=True):
    """The step that held the last prompt token was processed; its first token exists."""

    request: str
    at: float


class Preempted(msgspec.Struct, frozen=True, tag="preempted", array_like=True):
    """A running request lost its blocks and waits again."""

    request: str
    at: float


class Resumed(msgspec.Struct, frozen=True, tag="resumed", array_like=True):
    """A preempted request runs again."""

    request: str
    at: float
    cached_tokens: int


class Ended(msgspec.Struct, frozen=True, tag="ended", array_like=True):
    """EngineCore is done with a request. `reason` is vLLM's finish reason (`stop`, `length`, `abort`, `error`, …)."""

    request: str
    at: float
    reason: str


class SettingsAdopted(msgspec.Struct, frozen=True, tag="adopted", array_like=True):
    """The scheduler obeys these settings from now on. `spec` is the whole spec as plain data."""

    at: float
    generation: int
    digest: str
    source: str
    uid: str
    role: str  # stable | candidate | defaults
    spec: dict[str, Any]


class SettingsRefused(msgspec.Struct, frozen=True, tag="refused", array_like=True):
    """A document was not taken; what was in force stays in force."""

    at: float
    reason: str
    message: str
    digest: str


class Heartbeat(msgspec.Struct, frozen=True, tag="beat", array_like=True):
    """Sent every second by a thread of its own.

    `step_seconds` is how long the step under way has been running; 0 when idle.
    """

    at: float
    step_seconds: float


class Gauges(msgspec.Struct, frozen=True, tag="gauges", array_like=True):
    """The scheduler's state after a pass, at most twice a second, and what it counted since the last one.

    Attributes:
        waiting_by_lane: waiting requests by the lane they would be admitted through; `cold` is those overdue.
        oldest_wait_seconds: age of the oldest waiting request.
        cold_overtakes: how often the oldest waiting request has been overtaken in a row, now.
        evictions: blocks given up since the last message, by class (`unhashed`, `private`, `unprotected`,
            `protected`, `lru`).
        pass_seconds: time PRISM itself took in each pass since the last message.
        running: running requests.
        free_blocks, total_blocks: of the KV cache.
    """

    at: float
    waiting_by_lane: dict[str, int]
    oldest_wait_seconds: float
    cold_overtakes: int
    evictions: dict[str, int]
    pass_seconds: list[float]
    running: int
    free_blocks: int
    total_blocks: int


Fact = (
    Queued
    | Admitted
    | PrefillChunk
    | PrefillDone
    | Preempted
    | Resumed
    | Ended
    | SettingsAdopted
    | SettingsRefused
    | Heartbeat
    | Gauges
)


class FactBatch(msgspec.Struct, frozen=True, array_like=True):
    """One message of the channel.

    Attributes:
        engine: data-parallel rank of the sender.
        sequence: 0, 1, 2, … from one sender; a gap is a lost message.
        dropped: facts thrown away so far because the channel was full.
        facts: in the order they happened.
    """

    engine: int
    sequence: int
    dropped: int
    facts: list[Fact]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(FactBatch)


def encode_batch(batch: FactBatch) -> bytes:
    return _encoder.encode(batch)


def decode_batch(data: bytes) -> FactBatch:
    """Raises `msgspec.DecodeError` if the bytes are not a batch of this version."""
    return _decoder.decode(data)


class _PlanMessage(msgspec.Struct, frozen=True, array_like=True):
    version: int
    namespace: str
    segments: list[tuple[str, int, int, bytes, bytes]]
    movable: list[tuple[int, int]]
    movable_segments: list[int]
    render_generation: int


def encode_plan(plan: PromptPlan) -> bytes:
    """A plan as bytes, for `extra_args`; vLLM carries them to EngineCore untouched."""
    return _encoder.encode(
        _PlanMessage(
            WIRE_VERSION,
            plan.namespace,
            [(s.kind.value, s.start, s.end, s.identity, s.group) for s in plan.segments],
            list(plan.movable),
            list(plan.movable_segments),
            plan.render_generation,
        )
    )


_plan_decoder = msgspec.msgpack.Decoder(_PlanMessage)


def decode_plan(data: object, prompt_tokens: int) -> PromptPlan:
    """The plan that a request brought, checked against its prompt.

    Args:
        data: what stood in `extra_args`; anything at all, since under plain vLLM a client can write there.
        prompt_tokens: length of the prompt.

    Raises:
        ValueError: not a plan for such a prompt.
    """
    if not isinstance(data, bytes):
        raise ValueError("a plan is bytes")
    try:
        message = _plan_decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"not a plan: {error}") from error
    if message.version != WIRE_VERSION:
        raise ValueError(f"plan version {message.version}, expected {WIRE_VERSION}")
    segments = tuple(
        Segment(SegmentKind(kind), start, end, identity, group)
        for kind, start, end, identity, group in message.segments
    )
    if any(len(digest) != DIGEST_BYTES for s in segments for digest in (s.identity, s.group)):
        raise ValueError(f"identities and groups are {DIGEST_BYTES} bytes")
    _check_ascending([(s.start, s.end) for s in segments], prompt_tokens, "segments")
    _check_ascending(message.movable, prompt_tokens, "movable runs")
    _check_runs(message.movable, message.movable_segments, segments)
    return PromptPlan(
        message.namespace,
        segments,
        tuple(message.movable),
        tuple(message.movable_segments),
        message.render_generation,
    )


def _check_runs(runs: list[tuple[int, int]], indices: list[int], segments: tuple[Segment, ...]) -> None:
    if len(runs) != len(indices):
        raise ValueError("each movable run needs its segment")
    for index, (start, end) in zip(indices, runs, strict=True):
        if not 0 <= index < len(segments):
            raise ValueError("a movable run names no segment")
        if not (start <= segments[index].start and segments[index].end <= end):
            raise ValueError("a movable run does not hold its segment")
    # Runs are ascending and each holds its segment, so nothing else stands among them if the indices have no gap
    # and no run holds more.
    among = [i for i, s in enumerate(segments) if runs and s.end > runs[0][0] and s.start < runs[-1][1]]
    if among != indices:
        raise ValueError("a fixed segment lies among the movable runs")


def _check_ascending(bounds: list[tuple[int, int]], limit: int, what: str) -> None:
    cursor = 0
    for start, end in bounds:
        if not cursor <= start < end <= limit:
            raise ValueError(f"{what} must be ascending, disjoint and inside the prompt")
        cursor = end
