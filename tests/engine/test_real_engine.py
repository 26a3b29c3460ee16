"""Promise 1 on the real engine: only order and retention change, never a token of an answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

ENVIRONMENT = {
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture(scope="module")
def result(tiny_model_folder: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `real_engine_run.py` found; see there."""
    folder = tmp_path_factory.mktemp("run")
    script = Path(__file__).with_name("real_engine_run.py")
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(repository / "service")}
    command = [sys.executable, str(script), str(tiny_model_folder), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def test_answers_equal_stocks_for_the_prompts_in_the_order_that_was_used(result: dict[str, Any]) -> None:
    assert result["different"] == []


def test_the_comparison_saw_prompts_that_were_reordered_and_hit(result: dict[str, Any]) -> None:
    assert result["reordered"] >= 5
    assert result["cached"] >= 500


def test_the_comparison_saw_preemptions(result: dict[str, Any]) -> None:
    assert result["preempted"] >= 1


def test_answers_of_different_prompts_differ(result: dict[str, Any]) -> None:
    """Else equality would show nothing."""
    assert result["distinct"] >= 20
