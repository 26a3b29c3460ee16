"""A real `prism serve` on a tiny model, for tests: started, asked, harmed, stopped with all of its processes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]

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
    def record(self) -> Path:
        """Where its traffic is recorded."""
        return self.log.with_name("traffic.jsonl")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}/prism/v1"

    def probe(self, which: str) -> int:
        """Status of a probe (`ready` or `live`); 0 without an answer."""
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/v2/health/{which}", timeout=10).status_code
        return 0

    def ready(self) -> int:
        """Status of the readiness probe; 0 without an answer."""
        return self.probe("ready")

    @property
    def server(self) -> psutil.Process:
        """The serving process itself; below `unshare` it is a child of what was started."""
        started = psutil.Process(self.process.pid)
        return started.children()[0] if "unshare" in started.name() else started

    @property
    def engine_core(self) -> psutil.Process:
        """The process that runs EngineCore: the child that has one itself, the worker."""
        return next(child for child in self.server.children() if child.children())

    @property
    def worker(self) -> psutil.Process:
        """The process that computes the steps."""
        return next(child for child in self.engine_core.children() if "Worker" in " ".join(child.cmdline()))

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        return sum(value for found, value in self.samples(name) if labels.items() <= found.items())

    def samples(self, name: str) -> list[tuple[dict[str, str], float]]:
        """A metric's samples: labels and value."""
        text = httpx.get(f"{self.url}/metrics", timeout=10).text
        lines = re.findall(rf"^{re.escape(name)}(?:\{{(.*)\}})? (\S+)$", text, re.MULTILINE)
        return [(dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value)) for labels, value in lines]

    def sizes(self) -> dict[str, int]:
        """What its tables hold now."""
        found: dict[str, int] = httpx.get(f"{self.admin}/sizes", timeout=10).json()
        return found

    def shown(self, request_id: str) -> dict[str, Any]:
        """The finished request of this id, as the admin port shows it; waits for it up to half a minute."""
        limit = time.monotonic() + 30
        while time.monotonic() < limit:
            for request in httpx.get(f"{self.admin}/requests?last=512", timeout=10).json()["requests"]:
                if request["request_id"] == request_id:
                    return dict(request)
            time.sleep(0.05)
        raise AssertionError(f"{request_id} is not among the last requests")

    def events(self) -> list[str]:
        """The events of its log so far, in order."""
        return re.findall(r" event=(\w+)", self.log.read_text(errors="replace"))

    def signal(self, number: signal.Signals) -> None:
        self.server.send_signal(number)

    def wait_until_ready(self) -> None:
        limit = time.monotonic() + START_SECONDS
        while self.ready() != 200:
            if self.process.poll() is not None or time.monotonic() > limit:
                raise RuntimeError(f"no server: {self.log.read_text()[-4000:]}")
            time.sleep(0.5)

    def stop(self) -> int:
        """Ask it to stop; its exit status. A process group that does not end is killed."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            return self.process.wait()


def give_engine_its_own_cores(server: psutil.Process) -> None:
    """Keeps the engine's processes to half of the cores.

    On a CPU, EngineCore and its worker wait for each other in loops around `sched_yield`. Where that takes every core,
    the server beside them and the test that asks it were seen to wait up to 14 s for their turn, at 6 % of a core's
    time; with this they answer within 0.3 s.
    """
    cores = sorted(os.sched_getaffinity(0))
    for process in server.children(recursive=True):
        for thread in process.threads():
            with contextlib.suppress(ProcessLookupError):  # gone since it was listed
                os.sched_setaffinity(thread.id, cores[len(cores) // 2 :])


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
        "--drain-delay": "0",
    }
    pairs = [part for pair in flags.items() for part in pair]
    return [sys.executable, "-m", "prism", "serve", *pairs, "--enforce-eager", "--enable-auto-tool-choice", *more]


def environment(repository: Path) -> dict[str, str]:
    paths = [str(repository / "service"), *filter(None, [os.environ.get("PYTHONPATH")])]
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    # Without it vLLM takes nearly all the memory that the machine has, and fails where less is free.
    return {**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(paths), "VLLM_CPU_KVCACHE_SPACE": "1"}


@contextlib.contextmanager
def serving(
    model: Path,
    repository: Path,
    folder: Path,
    *more: str,
    environ: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> Iterator[Served]:
    """A server that is ready; stopped at the end, with all of its processes.

    Args:
        more: further arguments, which win.
        environ: variables beside those of this process.
        prefix: a command that runs it, such as `unshare`.
    """
    port, admin_port = free_ports(2)
    log = folder / "serve.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*prefix, *command(model, port, admin_port, *more)],
            env={**environment(repository), **(environ or {})},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    served = Served(port, admin_port, process, log)
    try:
        served.wait_until_ready()
        give_engine_its_own_cores(served.server)
        yield served
    finally:
        served.stop()
