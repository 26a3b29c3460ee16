"""What rendering knows of one prompt before its tenant and adapter are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prism.core.segments import PromptPlan, Segment, SegmentKind, group_identity, segment_identity

PLAN_KEY = "prism_plan"
"""Key under which the renderer leaves a `DraftPlan` in the engine input that it returns."""


@dataclass(frozen=True, slots=True)
class DraftSegment:
    """A span of prompt tokens `[start, end)`, without an identity yet.

    Attributes:
        group: the caller's `id` for it, if it gave one.
    """

    kind: SegmentKind
    start: int
    end: int
    group: str | None = None


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """A `PromptPlan` that lacks identities: those need the namespace, which only the engine client knows.

    Attributes:
        segments: ascending, disjoint; empty for a plain prompt or where nothing could be located.
        movable: token runs that may change places, ascending, disjoint and adjacent.
        movable_segments: for each run, the index of the document it carries.
        reorder_refused: why a reordering that was asked for will not happen; None if it may, or was not asked for.
        render_generation: settings generation that rendering used.
        deadline_seconds: the caller's deadline, from arrival.
    """

    segments: tuple[DraftSegment, ...] = ()
    movable: tuple[tuple[int, int], ...] = ()
    movable_segments: tuple[int, ...] = ()
    reorder_refused: str | None = None
    render_generation: int = 0
    deadline_seconds: float | None = None

    def resolve(self, token_ids: Sequence[int], namespace: str, render_generation: int | None = None) -> PromptPlan:
        """The plan for the scheduler.

        Args:
            token_ids: the prompt's tokens, as rendered.
            namespace: tenant and adapter, as one string.
            render_generation: overrides the one of this draft.

        Returns:
            A plan with identities; without segments if the prompt is not the one that was rendered.
        """
        generation = self.render_generation if render_generation is None else render_generation
        if self.segments and self.segments[-1].end > len(token_ids):
            return PromptPlan(namespace, render_generation=generation, reorder_refused=self.reorder_refused)
        return PromptPlan(
            namespace,
            tuple(_identified(segment, token_ids, namespace) for segment in self.segments),
            self.movable,
            self.movable_segments,
            generation,
            self.reorder_refused,
        )


def _identified(segment: DraftSegment, token_ids: Sequence[int], namespace: str) -> Segment:
    identity = segment_identity(token_ids[segment.start : segment.end], namespace)
    group = identity if segment.group is None else group_identity(segment.group, namespace)
    return Segment(segment.kind, segment.start, segment.end, identity, group)
