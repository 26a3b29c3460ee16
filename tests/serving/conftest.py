"""A real `prism serve` on a tiny model: one process for the whole session, and others for tests that end theirs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from tests.realserver import Served, environment, serving


@pytest.fixture(scope="session")
def served(tiny_model_folder: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The session's server; it records its traffic and takes adapters."""
    folder = tmp_path_factory.mktemp("serve")
    flags = ["--record", str(folder / "traffic.jsonl"), "--enable-lora"]
    environ = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    with serving(tiny_model_folder, repository, folder, *flags, environ=environ) as running:
        yield running


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    """A client of the session's server."""
    with httpx.Client(base_url=served.url, timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def module_server(
    tiny_model_folder: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """A server that a test module may harm."""
    with serving(tiny_model_folder, repository, tmp_path_factory.mktemp("serve")) as running:
        yield running


@pytest.fixture
def failed_start(repository: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `prism serve` with the flags given until it has failed."""

    def run(*flags: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "prism", "serve", *flags]
        return subprocess.run(
            argv, env=environment(repository), capture_output=True, text=True, timeout=600, check=False
        )

    return run
