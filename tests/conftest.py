"""What every test may ask for: the shipped tokenizer, a tiny model, and the larger data where they are found."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings
from markdown_it import MarkdownIt

from prism.bench.models import tiny_model

REPOSITORY = Path(__file__).parent.parent

_PAGES = ("README.md", "CONTRIBUTING.md", "charts/prism/README.md")
"""What is read beside the site."""

pytest_plugins = ["realcluster.fixtures"]

# On a processor vLLM's sampler is compiled even with `--enforce-eager`: engines start slower, and want a C++ compiler.
os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")

# How long an example takes says more about what else the machine does than about the code.
settings.register_profile("prism", deadline=None)
settings.load_profile("prism")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--failed-files", action="store_true", help="only the files in which something failed, whole: see --last-failed"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of one file may share a server or a chart and go on where the one before left it: they go together."""
    if not config.getoption("--failed-files") or config.cache is None:
        return
    failed = {nodeid.partition("::")[0] for nodeid in config.cache.get("cache/lastfailed", {})}
    left_out = [item for item in items if item.nodeid.partition("::")[0] not in failed]
    items[:] = [item for item in items if item.nodeid.partition("::")[0] in failed]
    config.hook.pytest_deselected(items=left_out)


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


class CodeBlock(NamedTuple):
    """A fenced or indented block of a page; `language` is empty where none is named."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@pytest.fixture(scope="session")
def pages(repository: Path) -> dict[str, str]:
    """The documentation: each page's path in the checkout, and its text with the examples that it includes."""
    examples = repository / "docs" / "examples"
    found = [*(repository / "docs").rglob("*.md"), *(repository / name for name in _PAGES)]

    def included(text: str) -> str:
        return re.sub(r'^--8<-- "(.*)"$', lambda match: (examples / match[1]).read_text(), text, flags=re.MULTILINE)

    return {str(path.relative_to(repository)): included(path.read_text(encoding="utf-8")) for path in sorted(found)}


@pytest.fixture(scope="session")
def code_blocks(pages: dict[str, str]) -> list[CodeBlock]:
    """All of them, in the order of the pages."""
    return [
        CodeBlock(page, (token.map or [0])[0] + 1, token.info.strip(), token.content)
        for page, text in pages.items()
        for token in MarkdownIt("commonmark").parse(text)
        if token.type in ("fence", "code_block")
    ]
