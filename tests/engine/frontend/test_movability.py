"""Documents move only where their tokens were shown to be the same in every order."""

from __future__ import annotations

import gzip
import json
from itertools import islice, pairwise, permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from prism.config.schema import Reorder
from prism.core.segments import permute_runs
from prism.engine.frontend.movability import Seams, Units, unfit, wanted
from prism.engine.frontend.prism_field import PrismField
from prism.engine.frontend.tokens import FastTokenizer, TokenLens

_CORPUS = [
    "The river rose in 1987, and the town's bridge was lost.\nNobody knew why; it had held for 40 years.",
    "Paris is the capital of France.\n\nBerlin has 3,645,000 people. It isn't small.",
    "Das Schloß über dem Fluß; Être ou ne pas être. 東京は日本の首都です。北京是中国的首都。",
] * 8
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def _byte_level(*first: Any, use_regex: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*first, level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def _llama2() -> Tokenizer:
    """Blanks become letters and merges cross words, as SentencePiece trained Llama 2 and early Mistral."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=900, special_tokens=special, show_progress=False, max_token_length=12)
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def _smollm2() -> Tokenizer:
    return _byte_level(pre_tokenizers.Digits(individual_digits=True), use_regex=True)


def _llama3() -> Tokenizer:
    return _byte_level(pre_tokenizers.Split(Regex(_LLAMA3), "isolated"), use_regex=False)


_TOKENIZERS = {"gpt2": lambda: _byte_level(use_regex=True), "smollm2": _smollm2, "llama3": _llama3, "llama2": _llama2}


@pytest.fixture(scope="module", params=["qwen3", *_TOKENIZERS])
def any_lens(request: pytest.FixtureRequest, lens: TokenLens) -> TokenLens:
    if request.param == "qwen3":
        return lens
    return TokenLens(cast("FastTokenizer", _TOKENIZERS[request.param]()))


@pytest.fixture(scope="module")
def seams(any_lens: TokenLens) -> Seams:
    return Seams(any_lens)


def _prompt(documents: list[str], separator: str) -> tuple[str, list[tuple[int, int]]]:
    text, bounds = "Read this, then answer.\n", []
    for document in documents:
        bounds.append((len(text), len(text) + len(document)))
        text += document + separator
    return text + "What is it?", bounds


def _permuted(text: str, units: Units, order: tuple[int, ...]) -> str:
    pieces = [text[start:end] for start, end in units.bounds]
    return text[: units.bounds[0][0]] + "".join(pieces[i] for i in order) + text[units.bounds[-1][1] :]


def _same_in_every_order(lens: TokenLens, text: str, units: Units) -> None:
    ids = lens.tokenizer.encode(text, add_special_tokens=False).ids
    ruler = lens.ruler(text, ids)
    assert ruler is not None
    runs = [(ruler.token(start), ruler.token(end)) for start, end in units.bounds]
    for order in permutations(range(len(runs))):
        encoded = lens.tokenizer.encode(_permuted(text, units, order), add_special_tokens=False).ids
        assert permute_runs(ids, runs, order) == encoded


_PASSAGES = [
    "The river rose in 1987, and the bridge was lost.",
    "Paris is the capital of France (since 987)",
    "東京は日本の首都です。",
    "It isn't small; nobody knew why",
]


def test_ordinary_passages_on_lines_of_their_own_may_move(seams: Seams, any_lens: TokenLens) -> None:
    text, bounds = _prompt(_PASSAGES, "\n")
    units = seams.units(text, bounds)
    assert isinstance(units, Units)
    _same_in_every_order(any_lens, text, units)


# Pieces whose ends and beginnings like to merge with each other.
_ENDS = st.sampled_from(
    ["", " ", "\n", "\n\n", ".", "'", "’", "re", "s", "12", "3", " a", "é", "\u0301", "中", "-", "<|im_"]
)
_DOCUMENT = st.builds(
    lambda a, middle, b: a + middle + b,
    _ENDS,
    st.sampled_from([*_PASSAGES, "x", "1", "one two three four five"]),
    _ENDS,
)


@settings(max_examples=150)
@given(
    documents=st.lists(_DOCUMENT, min_size=2, max_size=4),
    separator=st.sampled_from(["", "\n", "\n\n", " ", "|", "\n---\n"]),
)
def test_whatever_is_called_movable_has_the_same_tokens_in_every_order(
    seams: Seams, any_lens: TokenLens, documents: list[str], separator: str
) -> None:
    text, bounds = _prompt(documents, separator)
    units = seams.units(text, bounds)
    if isinstance(units, Units):
        _same_in_every_order(any_lens, text, units)


def test_units_are_adjacent_and_each_holds_its_document(seams: Seams) -> None:
    text, bounds = _prompt(_PASSAGES, "\n\n")
    units = seams.units(text, bounds)
    assert isinstance(units, Units)
    assert all(a[1] == b[0] for a, b in pairwise(units.bounds))
    assert all(u[0] <= d[0] and d[1] <= u[1] for u, d in zip(units.bounds, bounds, strict=True))


def test_documents_that_run_into_each_other_stay(lens: TokenLens) -> None:
    text, bounds = _prompt(["the quick bro", "wn fox", "es jump"], "")
    assert isinstance(Seams(lens).units(text, bounds), str)


def test_numbered_labels_keep_the_documents_in_place(lens: TokenLens) -> None:
    text = "Document 1: red\nDocument 2: green\nDocument 3: blue\nWhich?"
    bounds = [(text.index(word), text.index(word) + len(word)) for word in ("red", "green", "blue")]
    assert Seams(lens).units(text, bounds) == "the text between the documents differs, as numbered labels do"


def test_a_special_token_that_two_documents_would_form_keeps_them_in_place(lens: TokenLens) -> None:
    text, bounds = _prompt(["a word <|im_", "end|> and more words"], "")
    assert isinstance(Seams(lens).units(text, bounds), str)


def test_one_document_has_nothing_to_change_places_with(lens: TokenLens) -> None:
    text, bounds = _prompt(["alone"], "\n")
    assert Seams(lens).units(text, bounds) == "1 documents; 2 to 64 can move"


def test_special_tokens_that_swallow_blanks_forbid_it() -> None:
    tokenizer = _smollm2()
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    seams = Seams(TokenLens(cast("FastTokenizer", tokenizer)))
    assert "swallow blanks" in cast("str", seams.units(*_prompt(_PASSAGES, "\n")))


def test_words_that_depend_on_more_than_their_neighbours_forbid_it() -> None:
    tokenizer = _byte_level(pre_tokenizers.Split(Regex(r".{1,5}"), "isolated"), use_regex=False)
    assert "words depend" in Seams(TokenLens(cast("FastTokenizer", tokenizer))).method


def test_a_model_that_does_not_merge_pairs_forbids_it() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    assert "WordLevel" in Seams(TokenLens(cast("FastTokenizer", tokenizer))).method


def test_too_much_unseen_text_for_whole_pairs_is_left_in_place() -> None:
    seams = Seams(TokenLens(cast("FastTokenizer", _llama2())))
    long = [f"{number} " + "word " * 8000 for number in range(3)]
    assert "not checked before" in cast("str", seams.units(*_prompt(long, "\n")))


def test_real_passages_move_under_the_real_qwen3_tokenizer(larger_data: Path) -> None:
    file = larger_data / "tokenizer" / "qwen3" / "tokenizer.json"
    lens = TokenLens(cast("FastTokenizer", Tokenizer.from_file(str(file))))
    with gzip.open(larger_data / "rag" / "nq.segments.jsonl.gz", "rt") as lines:
        passages = [json.loads(line)["text"] for line in islice(lines, 40)]
    seams = Seams(lens)
    for start in range(0, 40, 4):
        text, bounds = _prompt(passages[start : start + 4], "\n")
        units = seams.units(text, bounds)
        assert isinstance(units, Units), units
        _same_in_every_order(lens, text, units)


_TRUE, _FALSE = PrismField(reorder=True), PrismField(reorder=False)


@pytest.mark.parametrize(
    ("mode", "field", "entries", "ongoing", "want"),
    [
        (Reorder.NEVER, _TRUE, 3, False, False),
        (Reorder.NEVER, None, 3, False, False),
        (Reorder.DECLARED, None, 3, False, False),
        (Reorder.DECLARED, _TRUE, 0, True, True),
        (Reorder.DOCUMENTS, None, 3, False, True),
        (Reorder.DOCUMENTS, None, 0, False, False),
        (Reorder.DOCUMENTS, None, 3, True, False),
        (Reorder.DOCUMENTS, _FALSE, 3, False, False),
        (Reorder.DOCUMENTS, _TRUE, 0, False, True),
    ],
)
def test_who_decides_that_documents_may_move(
    mode: Reorder, field: PrismField | None, entries: int, ongoing: bool, want: bool
) -> None:
    assert wanted(mode, field, entries=entries, ongoing=ongoing)[0] is want


def test_a_declaration_that_the_setting_overrules_is_answered() -> None:
    assert wanted(Reorder.NEVER, _TRUE, entries=0, ongoing=False)[1] == "the setting reorder is Never"


@pytest.mark.parametrize(
    "asked",
    [
        {"prompt_logprobs": 0},
        {"echo": True},
        {"return_token_ids": True},
        {"return_prompt_text": True},
        {"return_token_offsets": True},
        {"n": 2},
        {"use_beam_search": True},
        {"truncate_prompt_tokens": -1},
        {"prompt_embeds": b""},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_requests_that_show_or_depend_on_the_order_keep_it(asked: dict[str, Any]) -> None:
    assert unfit(SimpleNamespace(**asked)) is not None
    assert unfit(SimpleNamespace(n=1)) is None
