"""Where a rendered prompt's characters fall among its tokens, and what a tokenizer makes of short texts.

The serving process tokenises with vLLM's own tokenizer; here a private copy is asked, so that neither its truncation
state nor its locks are shared with vLLM's threads.

For byte-level tokenizers no second encoding is needed: if the bytes of the tokens, joined, are the bytes of the
text, the bounds follow from their lengths. For the others the text is encoded once more and its offsets are used only
if the ids come out equal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]


class Encoding(Protocol):
    """What is used of `tokenizers.Encoding`."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class FastTokenizer(Protocol):
    """What is used of `tokenizers.Tokenizer`."""

    pre_tokenizer: Any
    decoder: Any
    model: Any

    def encode(self, sequence: str, *, add_special_tokens: bool = True) -> Encoding: ...
    def encode_batch(self, input: list[str], *, add_special_tokens: bool = True) -> list[Encoding]: ...
    def get_added_tokens_decoder(self) -> dict[int, Any]: ...
    def get_vocab(self, with_added_tokens: bool = True) -> dict[str, int]: ...
    def no_truncation(self) -> None: ...
    def no_padding(self) -> None: ...
    def to_str(self) -> str: ...


class Ruler:
    """Bounds of one prompt: characters of its text to tokens of its ids.

    A token that straddles a position belongs to what stands before it.
    """

    def __init__(self, starts: Sequence[int], positions: Positions | None, *, exact: bool = True) -> None:
        """
        Args:
            starts: where each token begins, ascending, and as last entry where the text ends; in bytes or characters.
            positions: byte position of each character and of the end; None if bytes are characters.
            exact: whether the tokens spell the text. Where a tokenizer normalises it, or trims blanks off the bounds
                it tells, a bound may be off by a token: good enough for a segment, not for moving one.
        """
        self.exact = exact
        self._starts = starts
        self._positions = positions

    def token(self, char: int) -> int:
        """Index of the first token that begins at or after a character."""
        return bisect_left(self._starts, self._at(char))

    def splits(self, char: int) -> bool:
        """Whether no token straddles this position."""
        at = self._at(char)
        index = bisect_left(self._starts, at)
        return index < len(self._starts) and self._starts[index] == at

    def _at(self, char: int) -> int:
        return char if self._positions is None else int(self._positions[char])


class TokenBytes:
    """The bytes of each token of a byte-level vocabulary."""

    def __init__(self, tokenizer: FastTokenizer) -> None:
        alphabet = _byte_alphabet()
        added = {index: token.content.encode() for index, token in tokenizer.get_added_tokens_decoder().items()}
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        size = max(vocabulary.values(), default=-1) + 1
        table: list[bytes | None] = [None] * size
        for piece, index in vocabulary.items():
            table[index] = added[index] if index in added else _piece_bytes(piece, alphabet)
        self._table = table

    def spelling(self, ids: Sequence[int], data: bytes) -> list[bytes] | None:
        """Bytes of each token; None if they do not make up `data`."""
        try:
            pieces = cast("list[bytes]", list(map(self._table.__getitem__, ids)))
            return pieces if b"".join(pieces) == data else None
        except (IndexError, TypeError):
            return None


class TokenLens:
    """A private copy of a fast tokenizer, and what can be asked of it."""

    def __init__(self, tokenizer: FastTokenizer) -> None:
        """
        Args:
            tokenizer: a `tokenizers.Tokenizer` that nobody else uses.
        """
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        self.byte_level = _is_byte_level(tokenizer)
        self._bytes = TokenBytes(tokenizer) if self.byte_level else None

    def ruler(
        self,
        text: str,
        ids: Sequence[int],
        *,
        add_special_tokens: bool = False,
        offsets: Sequence[tuple[int, int]] | None = None,
    ) -> Ruler | None:
        """How `text` became `ids`; None where that can't be shown.

        Args:
            offsets: character bounds of the tokens if the tokenizer has already told them.
        """
        ruler = self._byte_ruler(text, ids)
        if ruler is not None:
            return ruler
        if offsets is None:
            encoding = self.tokenizer.encode(text, add_special_tokens=add_special_tokens)
            if encoding.ids != list(ids):
                return None
            offsets = encoding.offsets
        return Ruler(_starts_of(offsets, text), None, exact=not self.byte_level)

    def split(self, left: str, right: str, encoding: Encoding) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The tokens of `left + right` as those of either side; None if one straddles the seam."""
        ruler = self._byte_ruler(left + right, encoding.ids) if self.byte_level else None
        if ruler is None:
            if self.byte_level:
                return None
            ruler = Ruler(_starts_of(encoding.offsets, left + right), None)
        if not ruler.splits(len(left)):
            return None
        at = ruler.token(len(left))
        return tuple(encoding.ids[:at]), tuple(encoding.ids[at:])

    def _byte_ruler(self, text: str, ids: Sequence[int]) -> Ruler | None:
        data = text.encode()
        pieces = self._bytes.spelling(ids, data) if self._bytes is not None else None
        if pieces is None:
            return None
        starts = list(accumulate(map(len, pieces), initial=0))
        return Ruler(starts, None if text.isascii() else _byte_positions(data))


def _starts_of(offsets: Sequence[tuple[int, int]], text: str) -> list[int]:
    """Where each token begins. Blanks between the bounds of two tokens were trimmed off the second one."""
    starts = []
    cursor = 0
    for start, stop in offsets:
        gap = text[cursor:start]
        starts.append(start - len(gap) + len(gap.rstrip()) if stop > start else cursor)
        cursor = max(cursor, stop)
    starts.append(len(text))
    return list(accumulate(starts, max))


def _byte_positions(data: bytes) -> Positions:
    """Where each character begins in UTF-8 (whatever is not a continuation byte), and where the last one ends."""
    first = (np.frombuffer(data, dtype=np.uint8) & 0xC0) != 0x80
    return np.append(np.flatnonzero(first), len(data))


def _is_byte_level(tokenizer: FastTokenizer) -> bool:
    return tokenizer.decoder is not None and b'"ByteLevel"' in tokenizer.decoder.__getstate__()


def _piece_bytes(piece: str, alphabet: dict[str, int]) -> bytes | None:
    try:
        return bytes(alphabet[char] for char in piece)
    except KeyError:
        return None


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's table: a printable character for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(0x100) if byte not in set(printable))
    return table | {chr(0x100 + index): byte for index, byte in enumerate(others)}
