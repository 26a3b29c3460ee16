"""Stock vLLM's renderer and PRISM's beside it, on one tokenizer, with no engine and no weights."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from tokenizers import Tokenizer
from vllm.config import ModelConfig, VllmConfig
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers import BaseRenderer, renderer_from_config
from vllm.renderers.online_renderer import OnlineRenderer

from prism.config.schema import Reorder
from prism.engine.frontend.plan import PLAN_KEY, DraftPlan
from prism.engine.frontend.renderer import PrismRenderer
from prism.engine.frontend.tokens import FastTokenizer, TokenLens

TEMPLATES = Path(__file__).parent / "templates"

# Enough of a model's configuration for vLLM to build a renderer; nothing of it is ever computed.
_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 16384,
    "max_position_embeddings": 32768,
}


@pytest.fixture(scope="session")
def vllm_renderer(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> BaseRenderer:
    folder = tmp_path_factory.mktemp("model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer_folder / name, folder / name)
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    model = ModelConfig(model=str(folder), max_model_len=16384, dtype="float32")
    renderer: BaseRenderer = renderer_from_config(VllmConfig(model_config=model))
    return renderer


@pytest.fixture(scope="session")
def lens(tokenizer_folder: Path) -> TokenLens:
    return TokenLens(cast("FastTokenizer", Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))))


class Pair:
    """Stock vLLM's renderer and PRISM's, on one chat template.

    Args:
        template: name of a file in `templates/`; None for the tokenizer's own.
    """

    def __init__(self, renderer: BaseRenderer, template: str | None, mode: Reorder) -> None:
        text = None if template is None else (TEMPLATES / f"{template}.jinja").read_text()
        arguments: dict[str, Any] = {
            "request_logger": None,
            "chat_template": text,
            "chat_template_content_format": "auto",
        }
        self.tokenizer = renderer.get_tokenizer()
        self.stock = OnlineRenderer(renderer.model_config, renderer, **arguments)
        self.prism = PrismRenderer(renderer.model_config, renderer, settings=lambda: (mode, 7), **arguments)

    async def plan(self, **body: Any) -> tuple[DraftPlan, list[int]]:
        """The plan of a chat request and its tokens, after having seen that stock vLLM renders the same ones."""
        own = await self.input(self.prism, body)
        stock = await self.input(self.stock, body)
        assert own["prompt_token_ids"] == stock["prompt_token_ids"]
        assert own["prompt"] == stock["prompt"]
        return own[PLAN_KEY], own["prompt_token_ids"]

    async def texts(self, **body: Any) -> list[tuple[str, str]]:
        """Kind and text of each segment."""
        plan, ids = await self.plan(**body)
        return [(str(s.kind), self.tokenizer.decode(ids[s.start : s.end])) for s in plan.segments]

    async def input(self, renderer: OnlineRenderer, body: dict[str, Any]) -> dict[str, Any]:
        request = ChatCompletionRequest.model_validate({"model": "m", "tool_choice": "none", **body})
        result = await renderer.render_chat(request)
        assert isinstance(result, tuple), result
        return cast("dict[str, Any]", result[1][0])


PairOf = Callable[..., Pair]


@pytest.fixture(scope="session")
def pair(vllm_renderer: BaseRenderer) -> PairOf:
    """A `Pair` by template and setting; made once each."""
    made: dict[tuple[str | None, Reorder], Pair] = {}

    def of(template: str | None = None, mode: Reorder = Reorder.DECLARED) -> Pair:
        if (template, mode) not in made:
            made[template, mode] = Pair(vllm_renderer, template, mode)
        return made[template, mode]

    return of
