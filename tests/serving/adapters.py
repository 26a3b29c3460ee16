"""LoRA adapters of random weights for the tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

RANK = 4


def write_adapter(folder: Path, model: Path, seed: int) -> Path:
    """An adapter of the query projections; another seed gives other answers."""
    config = json.loads((model / "config.json").read_text())
    hidden, queries = config["hidden_size"], config["num_attention_heads"] * config["head_dim"]
    chance = np.random.default_rng(seed)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = chance.normal(size=(RANK, hidden)).astype(np.float32)
        weights[f"{name}.lora_B.weight"] = chance.normal(size=(queries, RANK)).astype(np.float32)
    folder.mkdir(parents=True)
    save_file(weights, folder / "adapter_model.safetensors")
    kind = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(kind))
    return folder
