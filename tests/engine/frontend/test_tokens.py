"""Characters to tokens: exact for what was shown, nothing for what was not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prism.engine.frontend.tokens import TokenLens

_TEXT = st.text(alphabet=st.sampled_from("ab Z.,\n\t'’1é中😀<|im_end|>-"), max_size=60)


def _ids(lens: TokenLens, text: str) -> list[int]:
    return lens.tokenizer.encode(text, add_special_tokens=False).ids


def test_a_token_that_straddles_a_position_belongs_before_it(lens: TokenLens) -> None:
    ids = _ids(lens, " the the")
    ruler = lens.ruler(" the the", ids)
    assert ruler is not None
    assert len(ids) == 2
    assert [ruler.token(char) for char in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]
    assert [ruler.splits(char) for char in (0, 1, 4, 5, 8)] == [True, False, True, False, True]


def test_ids_of_another_text_give_no_ruler(lens: TokenLens) -> None:
    assert lens.ruler("one text", _ids(lens, "another")) is None


def test_ids_outside_the_vocabulary_give_no_ruler(lens: TokenLens) -> None:
    assert lens.ruler("text", [10**9]) is None


def test_text_that_the_tokenizer_normalises_is_measured_by_encoding_it_again(lens: TokenLens) -> None:
    text = "cafe\u0301 noir"
    ruler = lens.ruler(text, _ids(lens, text))
    assert ruler is not None
    assert ruler.splits(5)


def test_bounds_told_by_the_renderer_are_taken_where_bytes_do_not_fit(lens: TokenLens) -> None:
    ruler = lens.ruler("cafe\u0301", [1, 2], offsets=[(0, 3), (3, 5)])
    assert ruler is not None
    assert ruler.token(3) == 1


@given(text=_TEXT)
def test_the_tokens_before_a_split_spell_the_text_before_it(lens: TokenLens, text: str) -> None:
    ids = _ids(lens, text)
    ruler = lens.ruler(text, ids)
    assert ruler is not None
    for char in range(len(text) + 1):
        if ruler.splits(char):
            assert lens.tokenizer.decode(ids[: ruler.token(char)], skip_special_tokens=False) == text[:char]  # type: ignore[attr-defined]
