"""Segments: what a prompt is made of, and who may move.

A `PromptPlan` is what rendering knows of one prompt: its segments with token bounds, and the runs of tokens that
may change places. It says nothing about demand or residency; those belong to `demand` and `tree`.

Bounds are token indices, half open, into the prompt as the client wrote it. Segments are ascending and do not
overlap; tokens between them belong to nobody (template glue) and count with the segment before them.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

DIGEST_BYTES = 16
"""Length of an identity and of a group."""


class SegmentKind(StrEnum):
    """What a span of prompt tokens is. Every kind but `PRIVATE` is reusable."""

    SYSTEM = "system"
    TOOL_SCHEMA = "tool_schema"
    DOCUMENT = "document"
    TOOL_OUTPUT = "tool_output"
    HISTORY = "history"
    PRIVATE = "private"

    @property
    def reusable(self) -> bool:
        return self is not SegmentKind.PRIVATE


@dataclass(frozen=True, slots=True)
class Segment:
    """A span of prompt tokens.

    Attributes:
        kind: what it is.
        start: first token, an index into the prompt.
        end: one past its last token.
        identity: digest of its tokens within its namespace (see `segment_identity`); 16 bytes.
        group: what its demand is counted under; its identity unless the caller gave it an `id`.
    """

    kind: SegmentKind
    start: int
    end: int
    identity: bytes
    group: bytes


@dataclass(frozen=True, slots=True)
class PromptPlan:
    """What rendering hands to the scheduler about one prompt.

    Attributes:
        namespace: tenant and adapter, as one string; equal strings may share, different ones never do.
        segments: ascending, disjoint. Empty for a plain prompt.
        movable: runs of tokens `(start, end)` that may change places with each other, ascending and disjoint;
            run `k` is `segments[movable_segments[k]]` with the separator that travels with it. Tokens outside the
            runs stay where they are. Empty unless the caller declared an unordered set and rendering showed that
            the tokens of each run are the same in every order.
        movable_segments: for each run, the index of its segment.
        render_generation: settings generation that rendering used.
        reorder_refused: why an order that was declared free is kept all the same.
        moved_segments: for a permuted plan, the indices of the segments whose order was free.
    """

    namespace: str
    segments: tuple[Segment, ...] = ()
    movable: tuple[tuple[int, int], ...] = ()
    movable_segments: tuple[int, ...] = ()
    render_generation: int = 0
    reorder_refused: str | None = None
    moved_segments: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.movable) != len(self.movable_segments):
            raise ValueError("each movable run needs its segment")

    @property
    def can_reorder(self) -> bool:
        return len(self.movable) > 1


def segment_identity(tokens: Sequence[int], namespace: str) -> bytes:
    """16-byte digest of a segment's tokens within one namespace.

    The namespace is length-prefixed, so no choice of salt or adapter name can imitate another's tokens.
    """
    name = namespace.encode()
    digest = hashlib.blake2b(len(name).to_bytes(4, "little") + name, digest_size=DIGEST_BYTES)
    digest.update(array("I", tokens).tobytes())
    return digest.digest()


def group_identity(group: str, namespace: str) -> bytes:
    """16-byte digest of a caller's `id` for a segment, within one namespace."""
    name = namespace.encode()
    digest = hashlib.blake2b(b"id:" + len(name).to_bytes(4, "little") + name, digest_size=DIGEST_BYTES)
    digest.update(group.encode())
    return digest.digest()


def permute_runs(tokens: Sequence[int], runs: Sequence[tuple[int, int]], order: Sequence[int]) -> list[int]:
    """The prompt with run `order[k]` in the place of run `k`; everything between the runs stays.

    Args:
        tokens: the prompt.
        runs: disjoint ascending `(start, end)`.
        order: a permutation of `range(len(runs))`.

    Returns:
        A new list of the same length.
    """
    if sorted(order) != list(range(len(runs))):
        raise ValueError("order must name each run once")
    out: list[int] = []
    cursor = 0
    for place, (start, end) in enumerate(runs):
        out.extend(tokens[cursor:start])
        source = runs[order[place]]
        out.extend(tokens[source[0] : source[1]])
        cursor = end
    out.extend(tokens[cursor:])
    return out


def fixed_plan(plan: PromptPlan) -> PromptPlan:
    """The same segments where they stand, none of them to move."""
    return replace(plan, movable=(), movable_segments=(), moved_segments=())


def permute_plan(plan: PromptPlan, order: Sequence[int]) -> PromptPlan:
    """The plan of the permuted prompt: segments follow their runs, bounds are moved accordingly.

    The result can't be reordered again: a prompt is permuted once.
    """
    moved_by: dict[int, int] = {}
    shift = 0
    for place, (start, _) in enumerate(plan.movable):
        run_start, run_end = plan.movable[order[place]]
        moved_by[plan.movable_segments[order[place]]] = start + shift - run_start
        shift += (run_end - run_start) - (plan.movable[place][1] - start)
    first, last = (plan.movable[0][0], plan.movable[-1][1]) if plan.movable else (0, 0)
    moved: list[tuple[Segment, bool]] = []
    for index, segment in enumerate(plan.segments):
        offset = moved_by.get(index)
        if offset is None:
            if plan.movable and first < segment.end and segment.start < last:
                raise ValueError("a fixed segment lies among the movable runs")
            offset = 0
        placed = Segment(segment.kind, segment.start + offset, segment.end + offset, segment.identity, segment.group)
        moved.append((placed, index in moved_by))
    moved.sort(key=lambda pair: pair[0].start)
    free = tuple(index for index, (_, was_free) in enumerate(moved) if was_free)
    segments = tuple(segment for segment, _ in moved)
    return PromptPlan(plan.namespace, segments, (), (), plan.render_generation, None, free)
