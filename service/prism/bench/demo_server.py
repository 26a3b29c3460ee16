"""One `prism serve` process for the demo: started, asked whether it is ready, given settings, stopped for certain."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from prism.config.document import Settings, to_document
from prism.config.schema import PrismSpec
from prism.errors import DeploymentError

START_SECONDS = 600
STOP_SECONDS = 15
ADOPT_SECONDS = 20
SOURCE = "demo"
_PR_SET_PDEATHSIG = 1
_ERROR = re.compile(r"\b[A-Z]\w+(?:Error|Exception): .+")


class ServerFailed(DeploymentError):
    """The server did not start, or is gone; the message holds its own last words."""


def free_port(wanted: int | None, usual: int) -> int:
    """`wanted` if it is given; else `usual`, or any free one where that is taken.

    Raises:
        DeploymentError: `wanted` is in use.
    """
    for port in [usual, 0] if wanted is None else [wanted]:
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            return int(listener.getsockname()[1])
    raise DeploymentError(f"port {wanted} is in use: stop what listens there or name another with --port")


@dataclass(slots=True)
class DemoServer:
    """A running server.

    Attributes:
        port, admin_port: on 127.0.0.1.
        settings_path: the document that the engine watches.
        log_path: what the server prints.
        client: for requests to both ports.
    """

    port: int
    admin_port: int
    settings_path: Path
    log_path: Path
    client: httpx.AsyncClient
    process: subprocess.Popen[bytes]
    generation: int = field(default=0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}/prism/v1"

    async def wait_until_ready(self, waiting: Callable[[float], None]) -> None:
        """Until the first token was produced.

        Args:
            waiting: told the seconds since the start, twice a second.

        Raises:
            ServerFailed: it ended, or was not ready within ten minutes.
        """
        began = time.monotonic()
        while not await self._ready():
            passed = time.monotonic() - began
            waiting(passed)
            if self.process.poll() is not None or passed > START_SECONDS:
                raise ServerFailed(f"the server did not start: {self.last_words()} (all of it: {self.log_path})")
            await asyncio.sleep(0.5)

    async def _ready(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return (await self.client.get(f"{self.url}/v2/health/ready")).status_code == 200
        return False

    async def adopt(self, spec: PrismSpec) -> None:
        """Write the settings as a new generation and wait until the engine obeys them.

        Raises:
            ServerFailed: it did not within twenty seconds.
        """
        self.generation += 1
        write_settings(self.settings_path, spec, self.generation)
        deadline = time.monotonic() + ADOPT_SECONDS
        while time.monotonic() < deadline:
            seen = (await self.client.get(f"{self.admin_url}/settings")).json()
            if seen["generation"] == self.generation and seen["source"] == SOURCE:
                return
            await asyncio.sleep(0.1)
        raise ServerFailed(f"the engine did not take settings generation {self.generation} up: {self.last_words()}")

    async def forget(self) -> None:
        """Empty the prefix cache; nothing may be running."""
        answer = await self.client.post(f"{self.admin_url}/reset_prefix_cache", timeout=30)
        if answer.status_code != 200:
            raise ServerFailed(f"the prefix cache could not be emptied: {answer.text}")

    async def last_requests(self, count: int) -> list[dict[str, Any]]:
        """The last finished requests as plain data, oldest first."""
        answer = await self.client.get(f"{self.admin_url}/requests", params={"last": count})
        answer.raise_for_status()
        found: list[dict[str, Any]] = answer.json()["requests"]
        return found

    async def waiting_and_running(self) -> tuple[int, int]:
        """Requests in the engine's queue and in its batch, by vLLM's own gauges."""
        text = (await self.client.get(f"{self.url}/metrics")).text
        return _gauge(text, "vllm:num_requests_waiting"), _gauge(text, "vllm:num_requests_running")

    def last_words(self) -> str:
        """What the log says went wrong: its first error, or else its last line.

        A failure in the engine's worker reaches the end of the log only as a general remark.
        """
        text = self.log_path.read_text(errors="replace")
        error = _ERROR.search(text)
        lines = [error[0]] if error else [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else "it printed nothing"

    def stop(self) -> None:
        """End the server and its engine, at once if they don't within fifteen seconds."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        # The engine's processes are in the group too and may outlive their parent.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def write_settings(path: Path, spec: PrismSpec, generation: int) -> None:
    """Replace the document in one step, so that no reader sees half of it."""
    beside = path.with_suffix(".new")
    beside.write_text(to_document(Settings(spec=spec, generation=generation, source=SOURCE)))
    beside.replace(path)


@contextlib.asynccontextmanager
async def running_server(
    model: Path,
    arguments: Sequence[str],
    folder: Path,
    port: int,
    admin_port: int,
    environ: Mapping[str, str] | None = None,
) -> AsyncIterator[DemoServer]:
    """A server that is stopped when the block is left, however it is left.

    Args:
        model: folder of the model.
        arguments: further arguments of `prism serve`.
        folder: where the settings document and the log go.
        port, admin_port: free ones.
        environ: variables beside those of this process.
    """
    settings_path, log_path = folder / "settings.yaml", folder / "server.log"
    write_settings(settings_path, PrismSpec(), 0)
    command = [sys.executable, "-m", "prism", "serve", "--model", str(model), "--host", "127.0.0.1"]
    command += [
        "--port",
        str(port),
        "--admin-port",
        str(admin_port),
        "--admin-host",
        "127.0.0.1",
        "--grace-period",
        "5",
        "--drain-delay",
        "0",
    ]
    command += ["--prism-config", str(settings_path), *arguments]
    process = _spawn(command, log_path, environ or {})
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    async with httpx.AsyncClient(timeout=300, limits=limits, trust_env=False) as client:
        server = DemoServer(port, admin_port, settings_path, log_path, client, process)
        try:
            yield server
        finally:
            await asyncio.to_thread(server.stop)


def _spawn(command: list[str], log_path: Path, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """The process in a group of its own: a Ctrl-C in the terminal is the demo's to handle."""
    with log_path.open("wb") as log:
        return subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**server_environment(), **environ},
            start_new_session=True,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - the demo has no other thread yet
        )


def server_environment() -> dict[str, str]:
    """The caller's environment, with vLLM's chatter turned down, a KV cache that fits into a laptop (in GiB), and no
    need of a C++ compiler: on a processor vLLM's sampler is compiled even with `--enforce-eager`.
    """
    chosen = {
        "TORCH_COMPILE_DISABLE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return chosen | dict(os.environ)


def _die_with_parent() -> None:
    """In the child: a demo that is killed outright leaves no server behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _gauge(text: str, name: str) -> int:
    values = [line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return round(sum(map(float, values)))
