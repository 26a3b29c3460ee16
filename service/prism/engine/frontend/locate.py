"""Where each thing the caller sent stands in the rendered prompt.

The conversation is rendered a second time with every content replaced by a unique marker. What stands between the
markers is the template's *glue*; the rendered text must be glue and contents, alternating. Where it is, the bounds are
exact, whatever the contents look like. Where a template changes a content (strips it, drops its thinking), the glue on
both sides of it, and unmistakable neighbours, bound what became of it. What can't be bounded gets no bounds.

The second rendering depends on the shape of the request only, so it is kept for the next request of that shape.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, TypeVar

_NONCE = "Zq" + secrets.token_hex(12)
_MARKER = re.compile(_NONCE + r"(\d{6})Q")
_TEXT_PARTS = ("text", "input_text", "output_text")
_SHAPES_KEPT = 512
_MIN_ANCHOR_CHARS = 8
_MIN_SEARCHED_CHARS = 24

_K = TypeVar("_K")
_V = TypeVar("_V")


class Lru(OrderedDict[_K, _V]):
    """A dictionary that forgets what was not asked for longest."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def find(self, key: _K) -> _V | None:
        value = self.get(key)
        if value is not None:
            self.move_to_end(key)
        return value

    def keep(self, key: _K, value: _V) -> None:
        self[key] = value
        if len(self) > self.limit:
            self.popitem(last=False)


class Source(Enum):
    """Which part of the API request a piece comes from."""

    MESSAGE = auto()
    TOOL_CALL = auto()
    DOCUMENT = auto()
    TOOL = auto()


@dataclass(frozen=True, slots=True)
class Piece:
    """Something the caller sent.

    Attributes:
        source: where in the request it stands.
        index: index of the message, document or tool.
        part: index of the content part (0 for a plain string), or of the document's field.
        text: as it was sent; empty for a tool, which is found by its JSON.
    """

    source: Source
    index: int
    part: int
    text: str


@dataclass(frozen=True, slots=True)
class Placed:
    """A piece and the characters `[start, end)` of the prompt text that it became.

    Attributes:
        verbatim: the content itself was seen there; otherwise it is what the template made of it.
        times: how often the template renders it.
    """

    piece: Piece
    start: int
    end: int
    verbatim: bool = True
    times: int = 1


@dataclass(frozen=True, slots=True)
class Shape:
    """The template's glue for requests of one shape.

    Attributes:
        glue: what stands before, between and after the markers; one more than `slots`.
        slots: which piece stands between two strings of glue.
        tools: `(tool, glue string, start, end)` of each tool schema found in the glue.
    """

    glue: tuple[str, ...]
    slots: tuple[int, ...]
    tools: tuple[tuple[int, int, int, int], ...] = ()


_UNKNOWN = Shape((), ())
"""Of requests whose marked form can't be rendered: some templates look into contents and refuse what they see."""


@dataclass(slots=True)
class Marked:
    """A request with markers in place of its contents, and the pieces they stand for."""

    messages: list[Any]
    documents: list[Any] | None
    pieces: list[Piece] = field(default_factory=list)

    def mark(self, source: Source, index: int, part: int, text: str) -> str:
        """A marker for a content. A blank one stays, since templates ask whether there is any."""
        if not text.strip():
            return text
        self.pieces.append(Piece(source, index, part, text))
        return f"{_NONCE}{len(self.pieces) - 1:06d}Q"


@dataclass(frozen=True, slots=True)
class Located:
    """What was found, ascending, and which documents the template does not render at all."""

    placed: tuple[Placed, ...]
    dropped_documents: tuple[int, ...] = ()


def mark_request(messages: Sequence[Any], documents: object) -> Marked:
    """The request with markers. Nothing of the argument is changed; what is not text is shared with it."""
    marked = Marked([], None)
    for index, message in enumerate(messages):
        marked.messages.append(_mark_message(marked, index, message))
    if isinstance(documents, list):
        marked.documents = [_mark_document(marked, index, document) for index, document in enumerate(documents)]
    return marked


def _mark_message(marked: Marked, index: int, message: Any) -> Any:
    if not isinstance(message, Mapping):
        return message
    out = dict(message)
    content = message.get("content")
    if isinstance(content, str):
        out["content"] = marked.mark(Source.MESSAGE, index, 0, content)
    elif isinstance(content, Sequence):
        out["content"] = [_mark_part(marked, index, number, part) for number, part in enumerate(content)]
    if isinstance(calls := message.get("tool_calls"), Sequence) and calls:
        out["tool_calls"] = [_mark_call(marked, index, number, call) for number, call in enumerate(calls)]
    return out


def _mark_part(marked: Marked, index: int, number: int, part: Any) -> Any:
    if isinstance(part, str):
        return marked.mark(Source.MESSAGE, index, number, part)
    if isinstance(part, Mapping) and part.get("type", "text") in _TEXT_PARTS and isinstance(part.get("text"), str):
        return {**part, "text": marked.mark(Source.MESSAGE, index, number, part["text"])}
    return part


def _mark_call(marked: Marked, index: int, number: int, call: Any) -> Any:
    """Only the name of the first call is marked, which tells where the calls of a message begin."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name := function.get("name"), str):
        return call
    # vLLM's parser writes into this dictionary, so each rendering gets its own.
    own = dict(function)
    if number == 0:
        own["name"] = marked.mark(Source.TOOL_CALL, index, 0, name)
    return {**call, "function": own}


def _mark_document(marked: Marked, index: int, document: Any) -> Any:
    if isinstance(document, str):
        return marked.mark(Source.DOCUMENT, index, 0, document)
    if not isinstance(document, Mapping):
        return document
    return {
        key: marked.mark(Source.DOCUMENT, index, number, value) if isinstance(value, str) else value
        for number, (key, value) in enumerate(document.items())
    }


class Locator:
    """Finds pieces in prompts, and remembers the shapes it has seen."""

    def __init__(self) -> None:
        self._shapes: Lru[object, Shape] = Lru(_SHAPES_KEPT)

    def locate(
        self,
        text: str,
        marked: Marked,
        tools: Sequence[Any],
        context: tuple[object, ...],
        render: Callable[[], str | None],
    ) -> Located:
        """Where the pieces stand in `text`.

        Args:
            tools: the tool schemas, as the template gets them.
            context: whatever else the rendering depends on; part of the shape's key.
            render: renders the marked request; asked at most once, and not for a shape already seen.
        """
        shape = self._shape(marked, tools, context, render)
        if shape is _UNKNOWN:
            return Located(())
        placed = _Fit(shape, marked.pieces, text).placed()
        return Located(tuple(placed), tuple(_dropped(shape, marked)))

    def _shape(
        self, marked: Marked, tools: Sequence[Any], context: tuple[object, ...], render: Callable[[], str | None]
    ) -> Shape:
        key = _shape_key(marked, tools, context)
        shape = self._shapes.find(key) if key is not None else None
        if shape is None:
            text = render()
            shape = _UNKNOWN if text is None else _shape_of(text, tools)
            if key is not None:
                self._shapes.keep(key, shape)
        return shape


def _shape_key(marked: Marked, tools: Sequence[Any], context: tuple[object, ...]) -> object:
    """None where something can't be written down, which then is rendered each time."""
    try:
        written = json.dumps([marked.messages, marked.documents, list(tools)], ensure_ascii=False)
        hash(context)
    except (TypeError, ValueError):
        return None
    return (written, context)


def _shape_of(text: str, tools: Sequence[Any]) -> Shape:
    parts = _MARKER.split(text)
    glue = tuple(parts[0::2])
    return Shape(glue, tuple(int(number) for number in parts[1::2]), tuple(_find_tools(glue, tools)))


def _find_tools(glue: Sequence[str], tools: Sequence[Any]) -> Iterator[tuple[int, int, int, int]]:
    """Each tool's JSON, in order; in glue only, so that a message that quotes a tool is never taken for it."""
    at, cursor = 0, 0
    for index, tool in enumerate(tools):
        for form in _json_forms(tool):
            found = _find_in(glue, form, at, cursor)
            if found is not None:
                at, start = found
                cursor = start + len(form)
                yield index, at, start, cursor
                break


def _find_in(glue: Sequence[str], needle: str, at: int, cursor: int) -> tuple[int, int] | None:
    for index in range(at, len(glue)):
        start = glue[index].find(needle, cursor if index == at else 0)
        if start >= 0:
            return index, start
    return None


def _json_forms(tool: Any) -> Iterator[str]:
    """How chat templates write a tool: whole or its function, on one line, indented or compact."""
    bodies = [tool]
    if isinstance(tool, Mapping) and isinstance(tool.get("function"), Mapping):
        bodies.append(tool["function"])
    for body in bodies:
        if not isinstance(body, Mapping):
            continue
        for ensure_ascii in (False, True):
            yield json.dumps(body, ensure_ascii=ensure_ascii)
            yield json.dumps(body, ensure_ascii=ensure_ascii, indent=4)
            yield json.dumps(body, ensure_ascii=ensure_ascii, indent=2)
            yield json.dumps(body, ensure_ascii=ensure_ascii, separators=(",", ":"))


def _dropped(shape: Shape, marked: Marked) -> Iterator[int]:
    rendered = {marked.pieces[slot].index for slot in shape.slots if marked.pieces[slot].source is Source.DOCUMENT}
    sent = {piece.index for piece in marked.pieces if piece.source is Source.DOCUMENT}
    return iter(sorted(sent - rendered))


def _spellings(content: str) -> Iterable[str]:
    """What templates make of a content: itself, without blanks around it, or as the inside of a JSON string."""
    yield content
    yield content.strip()
    yield content.rstrip()
    yield content.lstrip()
    yield json.dumps(content, ensure_ascii=False)[1:-1]
    yield json.dumps(content)[1:-1]


class _Fit:
    """One prompt text against the glue of its shape.

    Slot `k` stands between `glue[k]` and `glue[k + 1]`; bounds are filled in from both ends of the text, then between
    unmistakable anchors.
    """

    def __init__(self, shape: Shape, pieces: Sequence[Piece], text: str) -> None:
        self._glue = shape.glue
        self._slots = shape.slots
        self._shape = shape
        self._pieces = pieces
        self._text = text
        self._bounds: list[tuple[int, int, bool] | None] = [None] * len(shape.slots)
        self._glue_at: list[int | None] = [None] * len(shape.glue)
        self._fill()

    def placed(self) -> list[Placed]:
        """Pieces and tools that have bounds, ascending."""
        out: dict[int, Placed] = {}
        times = Counter(self._slots)
        for slot, bounds in zip(self._slots, self._bounds, strict=True):
            if bounds is not None and bounds[0] < bounds[1] and slot not in out:
                start, end, verbatim = bounds
                out[slot] = Placed(self._pieces[slot], start, end, verbatim, times[slot])
        return sorted([*out.values(), *self._tools()], key=lambda placed: placed.start)

    def _tools(self) -> Iterator[Placed]:
        for tool, at, start, end in self._shape.tools:
            base = self._glue_at[at]
            if base is not None:
                yield Placed(Piece(Source.TOOL, tool, 0, ""), base + start, base + end)

    def _fill(self) -> None:
        text, glue = self._text, self._glue
        head, tail = glue[0], glue[-1]
        if not self._slots:
            if text == head:
                self._glue_at[0] = 0
            return
        if not text.startswith(head) or not text.endswith(tail) or len(head) + len(tail) > len(text):
            self._search(0, len(self._slots) - 1, 0, len(text))
            return
        self._glue_at[0], self._glue_at[-1] = 0, len(text) - len(tail)
        self._between(0, len(self._slots) - 1, len(head), len(text) - len(tail))

    def _between(self, first: int, last: int, start: int, end: int) -> None:
        """Fill slots `first` to `last`, which make up `text[start:end]`."""
        while first < last and (stop := self._forward(first, start, end)) is not None:
            start = self._set(first, start, stop, True)
            first += 1
        while first < last and (begin := self._backward(last, start, end)) is not None:
            end = self._set_last(last, begin, end)
            last -= 1
        if first == last:
            self._set_rest(first, start, end)
        elif (anchor := self._anchor(first, last, start, end)) is not None:
            slot, begin, stop = anchor
            self._bounds[slot] = (begin, stop, True)
            if slot > first:
                self._glue_at[slot] = begin - len(self._glue[slot])
                self._between(first, slot - 1, start, begin - len(self._glue[slot]))
            if slot < last:
                self._glue_at[slot + 1] = stop
                self._between(slot + 1, last, stop + len(self._glue[slot + 1]), end)
        else:
            self._search(first, last, start, end)

    def _forward(self, slot: int, start: int, end: int) -> int | None:
        """Where the content of `slot` ends if it begins at `start` and its glue follows."""
        for spelling in _spellings(self._pieces[self._slots[slot]].text):
            stop = start + len(spelling)
            if not self._text.startswith(spelling, start) or stop + len(self._glue[slot + 1]) > end:
                continue
            if self._text.startswith(self._glue[slot + 1], stop):
                return stop
        return None

    def _backward(self, slot: int, start: int, end: int) -> int | None:
        """Where the content of `slot` begins if it ends at `end` and its glue comes before."""
        glue = self._glue[slot]
        for spelling in _spellings(self._pieces[self._slots[slot]].text):
            begin = end - len(spelling)
            if begin - len(glue) < start or not self._text.startswith(spelling, begin):
                continue
            if self._text.startswith(glue, begin - len(glue)):
                return begin
        return None

    def _anchor(self, first: int, last: int, start: int, end: int) -> tuple[int, int, int] | None:
        """A slot whose content, with the glue around it, occurs exactly once in `text[start:end]`."""
        for slot in range(first, last + 1):
            before = self._glue[slot] if slot > first else ""
            after = self._glue[slot + 1] if slot < last else ""
            content = self._pieces[self._slots[slot]].text
            needle = before + content + after
            if not content or len(needle) < _MIN_ANCHOR_CHARS:
                continue
            at = self._text.find(needle, start, end)
            if at >= 0 and self._text.find(needle, at + 1, end) < 0:
                begin = at + len(before)
                if (slot == first and at != start) or (slot == last and at + len(needle) != end):
                    continue
                return slot, begin, begin + len(content)
        return None

    def _search(self, first: int, last: int, start: int, end: int) -> None:
        """Where even the glue is not as expected: contents long enough to be unmistakable, in order."""
        for slot in range(first, last + 1):
            content = self._pieces[self._slots[slot]].text.strip()
            at = self._text.find(content, start, end) if len(content) >= _MIN_SEARCHED_CHARS else -1
            if at >= 0 and self._text.find(content, at + 1, end) < 0:
                start = at + len(content)
                self._bounds[slot] = (at, start, True)

    def _set(self, slot: int, start: int, stop: int, verbatim: bool) -> int:
        self._bounds[slot] = (start, stop, verbatim)
        self._glue_at[slot + 1] = stop
        return stop + len(self._glue[slot + 1])

    def _set_last(self, slot: int, begin: int, end: int) -> int:
        self._bounds[slot] = (begin, end, True)
        self._glue_at[slot] = begin - len(self._glue[slot])
        return begin - len(self._glue[slot])

    def _set_rest(self, slot: int, start: int, end: int) -> None:
        """The only slot that is left holds whatever is left."""
        if start <= end:
            content = self._text[start:end]
            verbatim = any(content == spelling for spelling in _spellings(self._pieces[self._slots[slot]].text))
            self._bounds[slot] = (start, end, verbatim)
