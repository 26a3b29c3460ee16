"""Which documents may change places, shown and not assumed.

The units that move are adjacent: `head | unit 1 | … | unit k | tail`, each a document with the separator that belongs
to it. They may move if the tokens of every unit are the same in each neighbourhood that it can get, and no token
straddles a seam in any of them. Two ways to show it:

- *Edges*, for tokenizers that cut the text into words before they merge bytes. A letter followed by a blank or by
  punctuation is a cut whatever stands around it (tried on this very tokenizer before it is relied on). So the tokens
  between the last such cut before a seam and the first one after it depend on nothing else, and it is enough to encode
  those few characters for each ordered pair of neighbours.
- *Whole pairs*, for byte-pair tokenizers that merge across the whole text (Llama 2). Merges are applied in order of
  rank; as long as none crosses a seam, both sides evolve as if alone. If none crosses in `X Y` for any ordered pair,
  the first one to cross in a longer text would have crossed in its pair too. So it is enough to encode each pair.

Anything else stays where it is, and the reason is told.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from prism.config.schema import Reorder

from .locate import Lru
from .prism_field import PrismField
from .tokens import FastTokenizer, TokenLens

MAX_UNITS = 64
_MAX_SEPARATOR_CHARS = 256
_MAX_SPLITS_TRIED = 12
_EDGES_KEPT = 65_536
_MAX_NEW_EDGES = 4_500
_MAX_NEW_PAIR_CHARS = 200_000
_MIN_EDGE_CHARS = 16
_PROBE = "\n"
_SHOWING_ORDER = (
    "echo",
    "return_token_ids",
    "return_token_offsets",
    "return_prompt_text",
    "return_assistant_tokens_mask",
)

_CUT = re.compile(r"""(?<=[^\W\d_])(?=[\s.,;:!?()\[\]{}"<>/|。，、；：！？（）「」])""")

_Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Units:
    """Adjacent spans of the prompt text that may change places.

    Attributes:
        bounds: `(start, end)` in characters; each ends where the next begins.
    """

    bounds: tuple[tuple[int, int], ...]


def wanted(mode: Reorder, field: PrismField | None, *, entries: int, ongoing: bool) -> tuple[bool, str | None]:
    """Whether this request's documents should be made movable, and why not if that was asked for.

    Args:
        mode: the setting `reorder`.
        entries: how many `documents` entries the request has.
        ongoing: whether earlier turns stand in the conversation; a session's own prefix is not reordered unasked.
    """
    asked = field.reorder if field is not None else None
    if mode is Reorder.NEVER:
        return False, "the setting reorder is Never" if asked else None
    if asked is not None:
        return asked, None
    if mode is Reorder.DOCUMENTS and entries > 1:
        return (False, "the conversation has earlier turns") if ongoing else (True, None)
    return False, None


def unfit(request: object) -> str | None:
    """Why a request's prompt must keep the caller's order, whatever it says; None if it need not."""

    def value(name: str) -> object:
        return getattr(request, name, None)

    if value("prompt_logprobs") is not None:
        return "prompt_logprobs shows the prompt's order"
    if value("use_beam_search"):
        return "beam search"
    n = value("n")
    if isinstance(n, int) and n > 1:
        return "n > 1"
    if value("prompt_embeds") is not None:
        return "prompt embeddings"
    if value("truncate_prompt_tokens") is not None:
        return "truncate_prompt_tokens cuts the prompt"
    for name in _SHOWING_ORDER:
        if value(name):
            return f"{name} shows the prompt's order"
    return None


class Seams:
    """Judges whether units of text may change places under one tokenizer, and remembers its judgements."""

    def __init__(self, lens: TokenLens) -> None:
        self._lens = lens
        self._added = _added_tokens(lens.tokenizer)
        self._reach = max([_MIN_EDGE_CHARS, *map(len, self._added.tokens)])
        self._edges: dict[tuple[str, str], tuple[_Tokens, _Tokens] | None] = {}
        self._pairs: Lru[bytes, bool] = Lru(_EDGES_KEPT)
        self._method: str | None = None

    @property
    def method(self) -> str:
        """`edges`, `pairs`, or the reason why this tokenizer allows neither."""
        if self._method is None:
            self._method = _method(self._lens, self._added)
        return self._method

    def units(self, text: str, documents: Sequence[tuple[int, int]]) -> Units | str:
        """The documents with the separators that travel with them, shown to be movable; or why they are not.

        Args:
            text: the whole prompt.
            documents: bounds of each document in it, ascending, in characters.
        """
        if not 2 <= len(documents) <= MAX_UNITS:
            return f"{len(documents)} documents; 2 to {MAX_UNITS} can move"
        if self.method not in ("edges", "pairs"):
            return self.method
        reason = "no separator between the documents can travel with them"
        for bounds in _divisions(text, documents):
            refused = self._refused(text, bounds)
            if refused is None:
                return Units(bounds)
            reason = refused
        if len({text[a[1] : b[0]] for a, b in pairwise(documents)}) > 1:
            return "the text between the documents differs, as numbered labels do"
        return reason

    def _refused(self, text: str, bounds: Sequence[tuple[int, int]]) -> str | None:
        units = [text[start:end] for start, end in bounds]
        head, tail = text[: bounds[0][0]], text[bounds[-1][1] :]
        if any(not unit.strip() for unit in units):
            return "a document is blank"
        if any(unit in token for unit in units for token in self._added.tokens):
            return "a document is part of a special token"
        return self._by_edges(head, units, tail) if self.method == "edges" else self._by_pairs(head, units, tail)

    def _by_edges(self, head: str, units: Sequence[str], tail: str) -> str | None:
        lefts = [self._ending(head), *map(self._ending, units)]
        rights = [*map(self._beginning, units), self._beginning(tail)]
        places = [(x, y, (lefts[x], rights[y])) for x, y in _neighbours(len(units))]
        if len(self._edges) > _EDGES_KEPT:
            # Rare and cheap to rebuild; keeping an order of use would cost more on every request.
            self._edges.clear()
        if not self._learn({edge for _, _, edge in places if edge not in self._edges}):
            return "too many neighbourhoods that were not checked before"
        ends: dict[int, _Tokens] = {}
        begins: dict[int, _Tokens] = {}
        for x, y, edge in places:
            tokens = self._edges[edge]
            if tokens is None:
                return "a token straddles the seam between two documents"
            if ends.setdefault(x, tokens[0]) != tokens[0] or begins.setdefault(y, tokens[1]) != tokens[1]:
                return "the tokens of a document depend on its neighbours"
        return None

    def _learn(self, new: set[tuple[str, str]]) -> bool:
        """Encode edges not seen before; False if there are too many of them for one request."""
        if len(new) > _MAX_NEW_EDGES:
            return False
        if not new:
            return True
        edges = list(new)
        encodings = self._lens.tokenizer.encode_batch([a + b for a, b in edges], add_special_tokens=False)
        for (left, right), encoding in zip(edges, encodings, strict=True):
            self._edges[left, right] = self._lens.split(left, right, encoding)
        return True

    def _ending(self, text: str) -> str:
        """The last characters of a text, from a certain cut on."""
        for span in (self._reach + 40, 4096):
            base = max(0, len(text) - span)
            for cut in reversed([match.start() for match in _CUT.finditer(text, base)]):
                if len(text) - cut >= self._reach and not self._added.holds(text, cut):
                    return text[cut:]
        return text

    def _beginning(self, text: str) -> str:
        """The first characters of a text, up to a certain cut."""
        for match in _CUT.finditer(text, self._reach):
            if not self._added.holds(text, match.start()):
                return text[: match.start()]
        return text

    def _by_pairs(self, head: str, units: Sequence[str], tail: str) -> str | None:
        lefts = [self._added.last_piece(head), *units]
        rights = [*units, self._added.first_piece(tail)]
        new: dict[bytes, tuple[str, str, str]] = {}
        for x, y in _neighbours(len(units)):
            probe = _PROBE if x else ""
            key = _digest(probe, lefts[x], rights[y])
            known = self._pairs.find(key)
            if known is None:
                new[key] = (probe, lefts[x], rights[y])
        if sum(len(left) + len(right) for _, left, right in new.values()) > _MAX_NEW_PAIR_CHARS:
            return "too many neighbourhoods that were not checked before"
        self._learn_pairs(new)
        for x, y in _neighbours(len(units)):
            if not self._pairs.get(_digest(_PROBE if x else "", lefts[x], rights[y]), False):
                return "the tokens of a document depend on its neighbours"
        return None

    def _learn_pairs(self, new: dict[bytes, tuple[str, str, str]]) -> None:
        texts = ["".join(parts) for parts in new.values()]
        encodings = self._lens.tokenizer.encode_batch(texts, add_special_tokens=False) if texts else []
        for (key, (probe, left, right)), encoding in zip(new.items(), encodings, strict=True):
            whole = self._lens.split(probe + left, right, encoding) is not None
            apart = not probe or self._lens.split(probe, left + right, encoding) is not None
            self._pairs.keep(key, whole and apart)


def _neighbours(units: int) -> Iterator[tuple[int, int]]:
    """All that can meet: left 0 is the head and left `i + 1` unit i; right i is unit i and right `units` the tail."""
    for left in range(units + 1):
        for right in range(units + 1):
            if left != right + 1 and not (left == 0 and right == units):
                yield left, right


def _divisions(text: str, documents: Sequence[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], ...]]:
    """Ways to give each document the same separator: some of it before, the rest after.

    What stands between two documents must be the same everywhere; `before` of it must also precede the first document
    and `after` of it follow the last one.
    """
    between = {text[a[1] : b[0]] for a, b in pairwise(documents)}
    if len(between) != 1:
        return
    (separator,) = between
    if len(separator) > _MAX_SEPARATOR_CHARS:
        return
    tried = 0
    for cut in range(len(separator), -1, -1):
        after, before = separator[:cut], separator[cut:]
        fits = text.startswith(after, documents[-1][1]) and text[: documents[0][0]].endswith(before)
        if fits and tried < _MAX_SPLITS_TRIED:
            tried += 1
            yield tuple((start - len(before), end + len(after)) for start, end in documents)


def _digest(*parts: str) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


@dataclass(frozen=True, slots=True)
class _Added:
    """Tokens that are looked for in the text before anything else."""

    tokens: tuple[str, ...]
    pattern: re.Pattern[str] | None
    strips: bool

    def holds(self, text: str, at: int) -> bool:
        """Whether a position lies inside one of them."""
        if self.pattern is None:
            return False
        reach = max(map(len, self.tokens))
        found = self.pattern.finditer(text, max(0, at - reach), min(len(text), at + reach))
        return any(match.start() < at < match.end() for match in found)

    def last_piece(self, text: str) -> str:
        """From the last of them on."""
        if self.pattern is None:
            return text
        starts = [match.start() for match in self.pattern.finditer(text)]
        return text[starts[-1] :] if starts else text

    def first_piece(self, text: str) -> str:
        """Through the first of them."""
        match = self.pattern.search(text) if self.pattern is not None else None
        return text[: match.end()] if match else text


def _added_tokens(tokenizer: FastTokenizer) -> _Added:
    added = list(tokenizer.get_added_tokens_decoder().values())
    tokens = sorted({token.content for token in added if token.content}, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, tokens))) if tokens else None
    strips = any(token.lstrip or token.rstrip or token.single_word for token in added)
    return _Added(tuple(tokens), pattern, strips)


def _method(lens: TokenLens, added: _Added) -> str:
    tokenizer = lens.tokenizer
    if added.strips:
        return "the tokenizer's special tokens swallow blanks around them"
    if type(tokenizer.model).__name__ != "BPE":
        return f"the tokenizer is a {type(tokenizer.model).__name__} model"
    if getattr(tokenizer.model, "dropout", None):
        return "the tokenizer drops merges at random"
    state = b"" if tokenizer.pre_tokenizer is None else tokenizer.pre_tokenizer.__getstate__()
    if not state or (b'"Metaspace"' in state and b'"ByteLevel"' not in state):
        return "pairs"
    if lens.byte_level and b'"add_prefix_space":true' not in state and _cuts_everywhere(tokenizer):
        return "edges"
    return "the tokenizer's words depend on more than their neighbours"


def _cuts_everywhere(tokenizer: FastTokenizer) -> bool:
    """Whether a letter before a blank or punctuation always ends a word, tried in all small surroundings."""
    around = ("", "a", "B", "é", "中", " ", "\n", "\t", ".", "'", "1", "-", "。")
    for before, letter, sign, after in product(around, ("a", "Z", "é", "中"), (" ", "\n", ".", "/", "<", "。"), around):
        for inner in ("", " ", "'", "s", "1"):
            left, right = before + inner + letter, sign + after
            words = tokenizer.pre_tokenizer.pre_tokenize_str(left + right + inner + before)
            if not any(start == len(left) for _, (start, _) in words):
                return False
    return True
