"""Slow starts beside the event loop, in processes that a signal to their group does not reach."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from prism.engine.frontend.starting import in_thread

GROUP = """
import asyncio, multiprocessing, os, signal, time
from prism.engine.frontend.starting import in_thread

def worker(pipe):
    pipe.send(sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))))

def engine(pipe):
    # As vLLM's EngineCore does: a process of its own for the worker.
    child = multiprocessing.get_context("spawn").Process(target=worker, args=(pipe,))
    child.start(); child.join()

def start():
    ours, theirs = multiprocessing.Pipe()
    multiprocessing.get_context("spawn").Process(target=engine, args=(theirs,)).start()
    return ours.recv()

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: None)
    print(asyncio.run(in_thread(start)), signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""


def test_processes_of_the_engine_do_not_hear_what_their_group_is_told(tmp_path: Path, repository: Path) -> None:
    script = tmp_path / "group.py"
    script.write_text(GROUP)
    ran = subprocess.run(
        [sys.executable, str(script)],
        env={"PYTHONPATH": str(repository / "service")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split("\n")[0] == "[2, 15] set()"


async def test_the_event_loop_goes_on_meanwhile() -> None:
    released = threading.Event()
    work = asyncio.create_task(in_thread(lambda: released.wait(10)))
    await asyncio.sleep(0.05)
    released.set()
    assert await work is True


async def test_what_goes_wrong_comes_out() -> None:
    def work() -> None:
        raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        await in_thread(work)
