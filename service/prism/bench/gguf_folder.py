"""A llama.cpp model file turned into a folder in Hugging Face's form, for Llama models with a byte-level BPE.

Three things differ: tensors have other names and are quantised; the rows of the query and key projections stand in
another order (llama.cpp rotates neighbouring pairs, Hugging Face the two halves); the tokenizer is a list of tokens and
merges.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL_TOKEN = 3
"""llama.cpp's type of a token that marks structure and stands for no text."""

_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def convert(source: Path, folder: Path, progress: Callable[[float], None]) -> None:
    """Write `config.json`, `generation_config.json`, the tokenizer and float16 weights.

    Args:
        source: the `.gguf` file; architecture `llama`, tokenizer `gpt2` with SmolLM's splitting rule.
        folder: an existing folder.
        progress: told the fraction that is done, after each tensor.

    Raises:
        ValueError: the file holds another kind of model.
    """
    reader = GGUFReader(source)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    kind = (facts["general.architecture"], facts["tokenizer.ggml.model"], facts["tokenizer.ggml.pre"])
    if kind != ("llama", "gpt2", "smollm"):
        raise ValueError(f"{source.name} holds a model of kind {'/'.join(kind)}, not llama/gpt2/smollm")
    save_file(_weights(reader, facts, progress), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    _tokenizer(facts).save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(facts))
    _write_json(folder / "config.json", _config(facts, {tensor.name for tensor in reader.tensors}))
    _write_json(folder / "generation_config.json", _special_ids(facts))


def hugging_face_name(name: str) -> str:
    """`blk.3.attn_q.weight` → `model.layers.3.self_attn.q_proj.weight`."""
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{_NAMES[parts[2]]}.{parts[3]}"
    return f"{_TOP_NAMES[parts[0]]}.{parts[1]}"


def halves_from_pairs(matrix: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of a query or key projection, from llama.cpp's order (rotated pairs adjacent) to Hugging Face's."""
    rows, columns = matrix.shape
    return matrix.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _weights(
    reader: GGUFReader, facts: dict[str, Any], progress: Callable[[float], None]
) -> dict[str, NDArray[np.float16]]:
    heads = {"attn_q": facts["llama.attention.head_count"], "attn_k": facts["llama.attention.head_count_kv"]}
    weights = {}
    for done, tensor in enumerate(reader.tensors, start=1):
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        role = tensor.name.split(".")[-2]
        if role in heads:
            values = halves_from_pairs(values, heads[role])
        weights[hugging_face_name(tensor.name)] = np.ascontiguousarray(values, dtype=np.float16)
        progress(done / len(reader.tensors))
    return weights


def _tokenizer(facts: dict[str, Any]) -> Tokenizer:
    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    merges = [(left, right) for left, right in (line.split(" ") for line in facts["tokenizer.ggml.merges"])]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _control(facts)])
    return tokenizer


def _control(facts: dict[str, Any]) -> list[str]:
    kinds = zip(facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"], strict=True)
    return [token for token, kind in kinds if kind == CONTROL_TOKEN]


def _tokenizer_config(facts: dict[str, Any]) -> dict[str, Any]:
    tokens: list[str] = facts["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[facts["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[facts["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[facts["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[facts["tokenizer.ggml.unknown_token_id"]],
        "additional_special_tokens": _control(facts),
        "add_bos_token": facts["tokenizer.ggml.add_bos_token"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": facts["llama.context_length"],
        "chat_template": facts["tokenizer.chat_template"],
    }


def _special_ids(facts: dict[str, Any]) -> dict[str, int]:
    return {
        "bos_token_id": facts["tokenizer.ggml.bos_token_id"],
        "eos_token_id": facts["tokenizer.ggml.eos_token_id"],
        "pad_token_id": facts["tokenizer.ggml.padding_token_id"],
    }


def _config(facts: dict[str, Any], tensors: set[str]) -> dict[str, Any]:
    heads, width = facts["llama.attention.head_count"], facts["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": facts["llama.vocab_size"],
        "hidden_size": width,
        "intermediate_size": facts["llama.feed_forward_length"],
        "num_hidden_layers": facts["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": facts["llama.attention.head_count_kv"],
        "head_dim": width // heads,
        "hidden_act": "silu",
        "max_position_embeddings": facts["llama.context_length"],
        "rms_norm_eps": round(facts["llama.attention.layer_norm_rms_epsilon"], 9),
        "rope_theta": facts["llama.rope.freq_base"],
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
        **_special_ids(facts),
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
