"""From located pieces to a plan: kinds, token bounds, and the runs that may move."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from prism.config.schema import Reorder
from prism.core.segments import SegmentKind
from prism.errors import InvalidRequest

from .locate import Located, Locator, Placed, Source, mark_request
from .movability import Seams, unfit, wanted
from .plan import DraftPlan, DraftSegment
from .prism_field import PrismField, SegmentHint, check_hints
from .tokens import Ruler, TokenLens

_MIN_HEAD_TOKENS = 16
"""A template's own head counts as a system segment from one block on; a shorter one is never a cache hit by itself."""

_ROLES = {
    "system": SegmentKind.SYSTEM,
    "developer": SegmentKind.SYSTEM,
    "tool": SegmentKind.TOOL_OUTPUT,
    "function": SegmentKind.TOOL_OUTPUT,
}


@dataclass(frozen=True, slots=True)
class Rendered:
    """One chat prompt as vLLM rendered it, and what it was made of.

    Attributes:
        text, token_ids: the prompt.
        messages, tools, documents: what the template was given.
        context: whatever else its output depends on.
        continued: whether the last message is left open for the model to continue.
        add_special_tokens: how the text was tokenised.
        offsets: character bounds of the tokens, if they were asked for.
    """

    text: str
    token_ids: Sequence[int]
    messages: Sequence[Any]
    tools: Sequence[Any]
    documents: object
    context: tuple[object, ...]
    continued: bool = False
    add_special_tokens: bool = False
    offsets: Sequence[tuple[int, int]] | None = None


@dataclass(frozen=True, slots=True)
class _Spot:
    """A piece with its kind."""

    placed: Placed
    kind: SegmentKind
    group: str | None = None


class Segmenter:
    """Makes plans of rendered prompts. Keeps what it learned of templates and of the tokenizer."""

    def __init__(self, lens: TokenLens) -> None:
        self._lens = lens
        self._locator = Locator()
        self._seams = Seams(lens)

    def prepare(self) -> None:
        """Learn how the tokenizer cuts words, which takes some tenths of a second."""
        _ = self._seams.method

    def plan(
        self,
        request: object,
        field: PrismField | None,
        rendered: Rendered,
        settings: tuple[Reorder, int],
        render: Callable[[list[Any], list[Any] | None], str | None],
    ) -> DraftPlan:
        """The plan of one chat prompt.

        Args:
            request: vLLM's request object; says what forbids reordering.
            settings: the setting `reorder` and the generation it is of.
            render: renders messages and documents with everything else as in `rendered`; None if it can't.

        Raises:
            InvalidRequest: a hint names what is not there, or the template drops a document.
        """
        mode, generation = settings
        if field is not None:
            check_hints(field.segments, rendered.messages)
        marked = mark_request(rendered.messages, rendered.documents)
        located = self._locator.locate(
            rendered.text,
            marked,
            rendered.tools,
            rendered.context,
            lambda: render(marked.messages, marked.documents),
        )
        _check_documents(located)
        ruler = self._lens.ruler(
            rendered.text,
            rendered.token_ids,
            add_special_tokens=rendered.add_special_tokens,
            offsets=rendered.offsets,
        )
        spots = _spots(rendered, located, field)
        segments, indices = _segments(spots, ruler, len(rendered.token_ids)) if ruler is not None else ((), {})
        runs, run_segments, refused = self._movable(request, field, rendered, mode, spots, ruler, indices)
        return DraftPlan(
            segments, runs, run_segments, refused, generation, field.deadline_seconds if field is not None else None
        )

    def _movable(
        self,
        request: object,
        field: PrismField | None,
        rendered: Rendered,
        mode: Reorder,
        spots: Sequence[_Spot],
        ruler: Ruler | None,
        indices: Mapping[int, int],
    ) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...], str | None]:
        entries = len(rendered.documents) if isinstance(rendered.documents, list) else 0
        ongoing = any(_role(message) in ("assistant", "tool", "function") for message in rendered.messages)
        want, refused = wanted(mode, field, entries=entries, ongoing=ongoing)
        if not want:
            return (), (), refused
        if (refused := unfit(request)) is not None:
            return (), (), refused
        if ruler is None or not ruler.exact:
            return (), (), "the prompt's tokens do not spell its text"
        found = _runs(rendered, spots, ruler, indices, self._seams)
        return ((), (), found) if isinstance(found, str) else (*found, None)


def _runs(
    rendered: Rendered, spots: Sequence[_Spot], ruler: Ruler, indices: Mapping[int, int], seams: Seams
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]] | str:
    """The movable runs and the segment that each carries, or why there are none."""
    groups = _entry_groups(spots) or _part_groups(rendered, spots)
    if len(groups) < 2:
        return "fewer than two documents that can move"
    if any(not spots[at].placed.verbatim or spots[at].placed.times > 1 for group in groups for at in group):
        return "the chat template changes or repeats a document"
    if any(second[0] != first[-1] + 1 for first, second in pairwise(groups)):
        return "something that must stay stands among the documents"
    documents = [(spots[group[0]].placed.start, spots[group[-1]].placed.end) for group in groups]
    units = seams.units(rendered.text, documents)
    if isinstance(units, str):
        return units
    if not all(ruler.splits(char) for bounds in units.bounds for char in bounds):
        return "a token straddles the seam between two documents"
    carried = [next((indices[at] for at in group if at in indices), None) for group in groups]
    if any(index is None for index in carried):
        return "a document has no token of its own"
    runs = tuple((ruler.token(start), ruler.token(end)) for start, end in units.bounds)
    return runs, tuple(index for index in carried if index is not None)


def _entry_groups(spots: Sequence[_Spot]) -> list[list[int]]:
    """Spots of each `documents` entry, in the order they are rendered."""
    groups: dict[int, list[int]] = {}
    for at, spot in enumerate(spots):
        if spot.placed.piece.source is Source.DOCUMENT:
            groups.setdefault(spot.placed.piece.index, []).append(at)
    whole = all(group == list(range(group[0], group[-1] + 1)) for group in groups.values())
    return list(groups.values()) if whole and len(groups) > 1 else []


def _part_groups(rendered: Rendered, spots: Sequence[_Spot]) -> list[list[int]]:
    """Spots of the document parts of the message that asks."""
    asking = _asking(rendered)
    return [
        [at]
        for at, spot in enumerate(spots)
        if spot.kind is SegmentKind.DOCUMENT
        and spot.placed.piece.source is Source.MESSAGE
        and spot.placed.piece.index == asking
    ]


def _check_documents(located: Located) -> None:
    if located.dropped_documents:
        index = located.dropped_documents[0]
        raise InvalidRequest(
            f"documents[{index}]: the model's chat template does not render it, so the model would never see it. "
            "Pass documents as text parts of a user message instead.",
            param=f"documents[{index}]",
        )


def _role(message: Any) -> str:
    role = message.get("role") if isinstance(message, Mapping) else getattr(message, "role", None)
    return role if isinstance(role, str) else ""


def _asking(rendered: Rendered) -> int | None:
    """Index of the user message that this request wants answered; None if the last word is somebody else's."""
    last = len(rendered.messages) - 1
    if rendered.continued and last > 0 and _role(rendered.messages[last]) == "assistant":
        last -= 1
    return last if last >= 0 and _role(rendered.messages[last]) == "user" else None


def _spots(rendered: Rendered, located: Located, field: PrismField | None) -> list[_Spot]:
    """Kinds and ids of the located pieces: the caller's word first, then what the API says."""
    hints: dict[tuple[int, int | None], SegmentHint] = {}
    for hint in field.segments if field is not None else ():
        hints[hint.message, hint.part] = hint
    last_text: dict[int, int] = {}
    parts: dict[int, int] = {}
    for placed in located.placed:
        if placed.piece.source is Source.MESSAGE:
            index = placed.piece.index
            last_text[index] = max(last_text.get(index, 0), placed.piece.part)
            parts[index] = parts.get(index, 0) + 1
    asking = _asking(rendered)
    out = []
    for placed in located.placed:
        kind = _kind(placed, rendered, asking, last_text)
        hint_of = None
        if placed.piece.source in (Source.MESSAGE, Source.TOOL_CALL):
            index = placed.piece.index
            hint_of = hints.get((index, placed.piece.part)) or hints.get((index, None))
        out.append(_Spot(placed, hint_of.kind, hint_of.id) if hint_of else _Spot(placed, kind))
    return out


def _kind(placed: Placed, rendered: Rendered, asking: int | None, last_text: Mapping[int, int]) -> SegmentKind:
    piece = placed.piece
    if piece.source is Source.TOOL:
        return SegmentKind.TOOL_SCHEMA
    if piece.source is Source.DOCUMENT:
        return SegmentKind.DOCUMENT
    role = _role(rendered.messages[piece.index])
    if role in _ROLES:
        return _ROLES[role]
    if role == "user" and piece.part < last_text.get(piece.index, 0):
        return SegmentKind.DOCUMENT
    private = asking is not None and piece.index >= asking
    return SegmentKind.PRIVATE if private else SegmentKind.HISTORY


def _segments(spots: Sequence[_Spot], ruler: Ruler, tokens: int) -> tuple[tuple[DraftSegment, ...], dict[int, int]]:
    """Segments in tokens, and for each spot the index of its segment."""
    out: list[DraftSegment] = []
    indices: dict[int, int] = {}
    previous: _Spot | None = None
    for at, spot in enumerate(spots):
        start, end = ruler.token(spot.placed.start), ruler.token(_extent(spots, at))
        if previous is not None and _joined(previous, spot):
            out[-1] = DraftSegment(out[-1].kind, out[-1].start, end, out[-1].group)
            indices[at] = len(out) - 1
        elif start < end:
            indices[at] = len(out)
            out.append(DraftSegment(spot.kind, start, end, spot.group))
        else:
            continue
        previous = spot
    return _with_ends(out, indices, tokens), indices


def _extent(spots: Sequence[_Spot], at: int) -> int:
    """Where a spot ends. Tool calls, whose text is the template's, reach to what comes next."""
    placed = spots[at].placed
    if placed.piece.source is Source.TOOL_CALL:
        return spots[at + 1].placed.start if at + 1 < len(spots) else placed.end
    return placed.end


def _joined(first: _Spot, second: _Spot) -> bool:
    """Whether two spots make one segment: the fields of a document, a message and its calls, the private suffix."""
    a, b = first.placed.piece, second.placed.piece
    if a.source is Source.DOCUMENT and b.source is Source.DOCUMENT:
        return a.index == b.index
    if first.kind is SegmentKind.PRIVATE and second.kind is SegmentKind.PRIVATE:
        return (first.group, a.index) == (second.group, b.index) or first.group == second.group is None
    return b.source is Source.TOOL_CALL and a.source is Source.MESSAGE and a.index == b.index


def _with_ends(segments: list[DraftSegment], indices: dict[int, int], tokens: int) -> tuple[DraftSegment, ...]:
    """The template's head joins the system prompt, its generation prompt the private suffix."""
    if not segments:
        return ()
    first, last = segments[0], segments[-1]
    if last.kind is SegmentKind.PRIVATE:
        segments[-1] = DraftSegment(last.kind, last.start, tokens, last.group)
    if first.kind is SegmentKind.SYSTEM:
        segments[0] = DraftSegment(first.kind, 0, segments[0].end, first.group)
    elif first.start >= _MIN_HEAD_TOKENS:
        segments.insert(0, DraftSegment(SegmentKind.SYSTEM, 0, first.start))
        for at in indices:
            indices[at] += 1
    return tuple(segments)
