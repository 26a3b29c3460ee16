"""A real `prism serve` on a tiny model: one process for the whole session, and others for tests that end theirs."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

START_SECONDS = 600
MODEL = "tiny"


@dataclass(frozen=True)
class Served:
    """A running server: its two ports, its process, its log."""

    port: int
    admin_port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}/prism/v1"

    def ready(self) -> int:
        """Status of the readiness probe; 0 without an answer."""
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/v2/health/ready", timeout=2).status_code
        return 0

    def wait_until_ready(self) -> None:
        limit = time.monotonic() + START_SECONDS
        while self.ready() != 200:
            if self.process.poll() is not None or time.monotonic() > limit:
                raise RuntimeError(f"no server: {self.log.read_text()[-4000:]}")
            time.sleep(0.5)

    def stop(self) -> int:
        """Ask it to stop; its exit status. A process group that does not end is killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            return self.process.wait()


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in listeners]


def command(model: Path, port: int, admin_port: int, *more: str) -> list[str]:
    flags = {
        "--model": str(model),
        "--model_name": MODEL,
        "--http_port": str(port),
        "--admin-port": str(admin_port),
        "--host": "127.0.0.1",
        "--dtype": "float32",
        "--block-size": "32",
        "--max-model-len": "2048",
        "--max-num-seqs": "64",
        "--num-gpu-blocks-override": "1024",
        "--tool-call-parser": "hermes",
    }
    pairs = [part for pair in flags.items() for part in pair]
    return [sys.executable, "-m", "prism", "serve", *pairs, "--enforce-eager", "--enable-auto-tool-choice", *more]


def environment(repository: Path) -> dict[str, str]:
    paths = [str(repository / "service"), *filter(None, [os.environ.get("PYTHONPATH")])]
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    # Without it vLLM takes nearly all the memory that the machine has, and fails where less is free.
    return {**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(paths), "VLLM_CPU_KVCACHE_SPACE": "1"}


@contextlib.contextmanager
def serving(model: Path, repository: Path, folder: Path, *more: str) -> Iterator[Served]:
    """A server that is ready; stopped at the end, with all of its processes."""
    port, admin_port = free_ports(2)
    log = folder / "serve.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command(model, port, admin_port, *more),
            env=environment(repository),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    served = Served(port, admin_port, process, log)
    try:
        served.wait_until_ready()
        yield served
    finally:
        served.stop()


@pytest.fixture(scope="session")
def served(tiny_model_folder: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The session's server."""
    with serving(tiny_model_folder, repository, tmp_path_factory.mktemp("serve")) as running:
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
