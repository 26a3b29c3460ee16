"""What every test may ask for: the shipped tokenizer, a tiny model, and the larger data where they are found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prism.bench.models import tiny_model

REPOSITORY = Path(__file__).parent.parent

pytest_plugins = ["realcluster.fixtures"]


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout's root."""
    return REPOSITORY


@pytest.fixture(scope="session")
def tokenizer_folder() -> Path:
    """The 16k byte-level BPE with Qwen3's chat template that ships with the tests."""
    return REPOSITORY / "tests" / "data" / "tokenizer" / "bpe16k"


@pytest.fixture(scope="session")
def tiny_model_folder(tokenizer_folder: Path) -> Path:
    """A random Qwen3 model in float32, made once and kept in the checkout's cache folder."""
    return tiny_model(tokenizer_folder, cache=REPOSITORY / ".cache" / "models")


@pytest.fixture(scope="session")
def larger_data() -> Path:
    """The folder with rag/, agent/, traces/ and tokenizer/; the test is skipped where there is none."""
    named = os.environ.get("PRISM_DATA")
    folder = Path(named) if named else REPOSITORY.parent / "shared" / "data"
    if not (folder / "rag").is_dir():
        pytest.skip("needs the larger data: set PRISM_DATA to their folder")
    return folder
