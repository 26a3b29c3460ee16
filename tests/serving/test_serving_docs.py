"""The programs of the documentation, run against a real server."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import pytest


def test_python_of_the_documentation_runs(
    served: Any, code_blocks: Sequence[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    programs = [block for block in code_blocks if block.language == "python" and "OpenAI(" in block.text]
    assert programs
    for block in programs:
        said = io.StringIO()
        text = block.text.replace("http://localhost:8080", served.url).replace('"my-model"', '"tiny"')
        text = text.replace("stream=True,", "stream=True, max_tokens=4,")
        with contextlib.redirect_stdout(said):
            exec(compile(text, str(block), "exec"), {})
        assert "'first_token':" in said.getvalue(), str(block)
